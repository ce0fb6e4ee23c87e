//! Copies in the background, on a pool that cannot share extents.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
    let filled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&filled);
    f.reopen_with(telling(move |effect| {
        while effect == "copy_range" && !seen.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
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
    filled.store(true, Ordering::Relaxed);
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

/// Waits until something is so.
fn until(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_copy_that_fails_otherwise_is_kept_and_goes_on_when_asked_for_again() {
    let (mut f, id) = with_volume();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    f.reopen_with(refusing(move |effect| {
        (effect == "copy_range" && is_broken.load(Ordering::SeqCst)).then_some(EIO)
    }));
    let failed = f.create_snapshot(&snapshot("s", &id)).unwrap_err();
    assert!(
        matches!(&failed, SnapshotError::Backend(BackendError::Internal(why)) if why.contains("call again")),
        "{failed}"
    );
    let failed = f.create(&copy_of("c", 0, &id)).unwrap_err();
    assert!(
        matches!(&failed, CreateError::Backend(BackendError::Internal(why)) if why.contains("call again")),
        "{failed}"
    );
    assert!(matches!(f.attach(&id, &block()), Err(DeviceError::InUse(_))), "the source is still held");
    broken.store(false, Ordering::SeqCst);
    let (snap, clone) = (f.cut("s", &id), f.create(&copy_of("c", 0, &id)).unwrap());
    assert!(snap.ready);
    for copy in [&snap.id, &clone.id] {
        assert_eq!((f.read(copy, 0, 4), f.read(copy, SIZE - 4096, 4)), (b"head".to_vec(), b"tail".to_vec()));
    }
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
}

#[test]
fn a_failure_is_not_told_of_the_next_copy_of_that_name() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    assert!(!f.cut("s", &id).ready);
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    // Resumed by the start, so nobody asks and nobody is told. Only the first piece fails.
    f.reopen_with(refusing(move |effect| {
        (effect == "copy_range" && counted.fetch_add(1, Ordering::SeqCst) == 0).then_some(EIO)
    }));
    until("the copy was not resumed", || refused.load(Ordering::SeqCst) > 0);
    let snap = f.list_snapshots(&Default::default(), None, 1).entries.remove(0);
    f.delete_snapshot(&snap.id).unwrap();
    assert!(f.cut("s", &id).ready);
}

#[test]
fn a_group_for_which_there_is_no_room_is_given_up_whole() {
    let mut f = Fixture::new(FsType::Ext4);
    let ids = ["a", "b", "c"].map(|name| f.raw_volume(name, 16 * MIB).id);
    let wanted = group("g", &[&ids[0], &ids[1], &ids[2]]);
    // The n-th member finds no room; the first one may do so before the group's record is complete.
    for n in 0..3 {
        let copies = AtomicUsize::new(0);
        f.reopen_with(refusing(move |effect| {
            if effect == "write_file" {
                std::thread::sleep(Duration::from_millis(200));
            }
            (effect == "copy_range" && copies.fetch_add(1, Ordering::SeqCst) == n).then_some(ENOSPC)
        }));
        let refused = f.create_group(&wanted).unwrap_err();
        assert!(
            matches!(&refused, SnapshotError::Exhausted(why) if why.contains("given up") && why.contains("delete")),
            "{refused}"
        );
        assert_eq!(f.list_snapshots(&Default::default(), None, 10).entries, [], "member {n}");
        for id in &ids {
            f.attach(id, &block()).unwrap();
            f.detach(id).unwrap();
        }
        // There is room now: the same call succeeds.
        let made = f.create_group(&wanted).unwrap();
        assert!(made.snapshots.iter().all(|member| member.ready));
        f.delete_group(&made.id).unwrap();
    }
    ids.iter().for_each(|id| f.delete(id).unwrap());
    f.assert_empty();
}

#[test]
fn a_group_is_not_given_up_while_a_member_is_restored_from() {
    let mut f = Fixture::new(FsType::Ext4);
    let ids = ["a", "b"].map(|name| f.raw_volume(name, 16 * MIB).id);
    ids.iter().for_each(|id| f.write(id, 0, b"data"));
    let (copies, restoring) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let is_restoring = Arc::clone(&restoring);
    f.reopen_with(refusing(move |effect| {
        if effect != "copy_range" || copies.fetch_add(1, Ordering::SeqCst) != 1 {
            return None;
        }
        // The second member: runs out of room, but not before the first one is being restored from.
        until("nothing was restored", || is_restoring.load(Ordering::SeqCst));
        Some(ENOSPC)
    }));
    let made = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    let member = made.snapshots.iter().find(|member| member.ready).expect("the first member");
    let volume = std::thread::scope(|scope| {
        let restored = scope.spawn(|| f.create(&copy_of("r", 0, &member.id)));
        let record = f.path("volumes");
        let copying = |dir: std::fs::DirEntry| {
            std::fs::read_to_string(dir.path().join("record.json")).is_ok_and(|text| text.contains("copying"))
        };
        until("there is no copy", || std::fs::read_dir(&record).unwrap().any(|dir| copying(dir.unwrap())));
        restoring.store(true, Ordering::SeqCst);
        restored.join().unwrap().unwrap()
    });
    assert_eq!(f.read(&volume.id, 0, 4), b"data");
    // What is left of the group goes on when it is asked for.
    let told = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap_err();
    assert!(matches!(told, SnapshotError::Exhausted(_)), "{told}");
    let made = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    assert!(made.snapshots.iter().all(|member| member.ready));
}

#[test]
fn a_group_is_waited_for_no_longer_than_a_single_copy() {
    let mut f = Fixture::new(FsType::Ext4);
    let ids = ["a", "b", "c"].map(|name| f.raw_volume(name, 16 * MIB).id);
    f.reopen_with(refusing(|effect| {
        if effect == "copy_range" {
            std::thread::sleep(Duration::from_secs(4));
        }
        None
    }));
    let before = Instant::now();
    let made = f.create_group(&group("g", &[&ids[0], &ids[1], &ids[2]])).unwrap();
    assert!(before.elapsed() < Duration::from_secs(8), "{:?}", before.elapsed());
    assert!(made.snapshots.iter().any(|member| !member.ready));
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
