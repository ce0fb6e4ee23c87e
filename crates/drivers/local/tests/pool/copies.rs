//! Copies in the background, on a pool that cannot share extents.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wharf_driver::backend::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, SizeRange, SnapshotError,
};
use wharf_linux::FsType;

use crate::fixture::*;

/// Sixteen pieces, with something in the first and the last.
const SIZE: u64 = GIB;

fn with_volume() -> (Fixture, String) {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", SIZE).id;
    f.write(&id, 0, b"head");
    f.write(&id, SIZE - 4096, b"tail");
    (f, id)
}

#[test]
fn a_copy_is_resumed_where_it_stopped() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let snap = f.cut("s", &id);
    assert!(!snap.ready);
    assert_eq!(f.get_snapshot(&snap.id).unwrap().unwrap(), snap);
    f.close();
    let record = std::fs::read_to_string(f.record(&snap.id)).unwrap();
    assert!(record.contains("copying") && !record.contains("\"done\": 0,"), "{record}");
    let pieces = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pieces);
    f.reopen_with(telling(move |effect| {
        counted.fetch_add(usize::from(effect == "copy_range"), Ordering::SeqCst);
    }));
    let done = f.cut("s", &id);
    assert!(done.ready);
    assert_eq!(done.created, snap.created);
    let pieces = pieces.load(Ordering::SeqCst);
    assert!((1..15).contains(&pieces), "{pieces} pieces");
    assert_eq!(f.read(&snap.id, 0, 4), b"head");
    assert_eq!(f.read(&snap.id, SIZE - 4096, 4), b"tail");
}

#[test]
fn the_source_stays_as_it_is_meanwhile() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let snap = f.cut("s", &id);
    assert!(!snap.ready);
    let attached = f.attach(&id, &block());
    assert!(matches!(&attached, Err(DeviceError::InUse(why)) if why.contains(&snap.id)), "{attached:?}");
    assert!(matches!(f.delete(&id), Err(DeleteError::InUse(_))));
    let larger = SizeRange { required: 2 * SIZE, limit: None };
    assert!(matches!(f.expand(&id, larger), Err(ExpandError::InUse(_))));
    let restored = f.create(&copy_of("r", 0, &snap.id));
    assert!(matches!(restored, Err(CreateError::Backend(BackendError::Unavailable(_)))), "{restored:?}");
    assert!(matches!(
        f.allocated_blocks(&snap.id, 0),
        Err(SnapshotError::Backend(BackendError::Unavailable(_)))
    ));
    // Deleting the copy cancels it and sets the source free.
    f.delete_snapshot(&snap.id).unwrap();
    assert_eq!(f.get_snapshot(&snap.id).unwrap(), None);
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn a_restore_that_takes_long_is_asked_for_again() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let wanted = copy_of("c", 0, &id);
    let first = f.create(&wanted);
    assert!(
        matches!(&first, Err(CreateError::Backend(BackendError::Busy(why))) if why.contains("call again")),
        "{first:?}"
    );
    assert_eq!(f.list(None, 10).entries.len(), 1, "half a volume is none");
    f.reopen();
    let volume = f.create(&wanted).unwrap();
    assert_eq!(f.read(&volume.id, SIZE - 4096, 4), b"tail");
    f.delete(&volume.id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn a_copy_that_fails_is_undone_and_says_why() {
    let mut f = Fixture::with(FsType::Ext4, 512 * MIB, |_| ());
    let id = f.raw_volume("v", 256 * MIB).id;
    f.write(&id, 192 * MIB, &vec![7; 16 << 20]);
    f.reopen_with(telling(|effect| {
        if effect == "copy_range" {
            std::thread::sleep(Duration::from_millis(2000));
        }
    }));
    let copied = f.cut("s", &id);
    assert!(!copied.ready);
    // Somebody else fills the disk while the copy runs.
    let file = File::create(f.path("lost+found/fill")).unwrap();
    let mut free = 400 * MIB;
    while free >= 4096 {
        use std::os::unix::fs::FileExt as _;
        let length = file.metadata().unwrap().len();
        if file.write_all_at(&vec![1; free.min(MIB) as usize], length).is_err() {
            free /= 2;
        }
    }
    let failed = loop {
        match f.create_snapshot(&snapshot("s", &id)) {
            Ok(snap) => assert!(!snap.ready, "there is no room for it"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, SnapshotError::Exhausted(_)), "{failed}");
    assert_eq!(f.get_snapshot(&copied.id).unwrap(), None);
    // The source is free again.
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    drop(file);
    std::fs::remove_file(f.path("lost+found/fill")).unwrap();
    f.reopen();
    assert!(f.cut("s", &id).ready);
}

#[test]
fn a_group_of_copies_is_undone_as_a_whole_when_deleted_on_the_way() {
    let (mut f, id) = with_volume();
    let other = f.raw_volume("w", SIZE).id;
    f.reopen_with(slow_copies());
    let made = f.create_group(&group("g", &[&id, &other])).unwrap();
    assert!(made.snapshots.iter().any(|member| !member.ready));
    f.delete_group(&made.id).unwrap();
    for id in [id, other] {
        f.delete(&id).unwrap();
    }
    f.assert_empty();
}
