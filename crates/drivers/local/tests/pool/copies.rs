//! Background copies, on a pool without reflinks.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wharf_driver::backend::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, SizeRange, SnapshotError,
};
use wharf_linux::FsType;

use crate::fixture::*;

/// Sixteen chunks, with data in the first and the last.
const SIZE: u64 = GIB;

fn with_volume() -> (Fixture, String) {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", SIZE).id;
    f.write(&id, 0, b"head");
    f.write(&id, SIZE - 4096, b"tail");
    (f, id)
}

#[test]
fn copy_resumes_where_it_stopped() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let snap = f.take_snapshot("s", &id);
    assert!(!snap.ready_to_use);
    assert_eq!(f.get_snapshot(&snap.id).unwrap().unwrap(), snap);
    f.close();
    let record = std::fs::read_to_string(f.record(&snap.id)).unwrap();
    assert!(record.contains("copying") && !record.contains("\"done\": 0,"), "{record}");
    let chunks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&chunks);
    f.reopen_with(observing(move |effect| {
        counted.fetch_add(usize::from(effect == "copy_range"), Ordering::SeqCst);
    }));
    let done = f.take_snapshot("s", &id);
    assert!(done.ready_to_use);
    assert_eq!(done.created, snap.created);
    let chunks = chunks.load(Ordering::SeqCst);
    assert!((1..15).contains(&chunks), "{chunks} chunks");
    assert_eq!(f.read(&snap.id, 0, 4), b"head");
    assert_eq!(f.read(&snap.id, SIZE - 4096, 4), b"tail");
}

#[test]
fn source_cannot_change_during_a_copy() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let snap = f.take_snapshot("s", &id);
    assert!(!snap.ready_to_use);
    let attached = f.attach(&id, &block());
    assert!(
        matches!(&attached, Err(DeviceError::InUse(reason)) if reason.contains(&snap.id)),
        "{attached:?}"
    );
    assert!(matches!(f.delete(&id), Err(DeleteError::InUse(_))));
    let larger = SizeRange { required: 2 * SIZE, limit: None };
    assert!(matches!(f.expand(&id, larger), Err(ExpandError::InUse(_))));
    let restored = f.create(&copy_of("r", 0, &snap.id));
    assert!(matches!(restored, Err(CreateError::Backend(BackendError::Unavailable(_)))), "{restored:?}");
    assert!(matches!(
        f.allocated_blocks(&snap.id, 0),
        Err(SnapshotError::Backend(BackendError::Unavailable(_)))
    ));
    // Deleting the copy cancels it and releases the source.
    f.delete_snapshot(&snap.id).unwrap();
    assert_eq!(f.get_snapshot(&snap.id).unwrap(), None);
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn slow_restore_completes_on_retry() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    let wanted = copy_of("c", 0, &id);
    let first = f.create(&wanted);
    assert!(
        matches!(&first, Err(CreateError::Backend(BackendError::Busy(reason))) if reason.contains("retry")),
        "{first:?}"
    );
    assert_eq!(f.list(None, 10).entries.len(), 1, "an unfinished volume must not be listed");
    f.reopen();
    let volume = f.create(&wanted).unwrap();
    assert_eq!(f.read(&volume.id, SIZE - 4096, 4), b"tail");
    f.delete(&volume.id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn copy_out_of_space_is_undone_and_reported() {
    let mut f = Fixture::with(FsType::Ext4, 512 * MIB, |_| ());
    let id = f.raw_volume("v", 256 * MIB).id;
    f.write(&id, 192 * MIB, &vec![7; 16 << 20]);
    let filled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&filled);
    f.reopen_with(observing(move |effect| {
        while effect == "copy_range" && !seen.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }));
    let copied = f.take_snapshot("s", &id);
    assert!(!copied.ready_to_use);
    // Another process fills the disk while the copy runs.
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
            Ok(snap) => assert!(!snap.ready_to_use, "the pool has no space for it"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, SnapshotError::Exhausted(_)), "{failed}");
    assert_eq!(f.get_snapshot(&copied.id).unwrap(), None);
    // The source is released.
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    drop(file);
    std::fs::remove_file(f.path("lost+found/fill")).unwrap();
    f.reopen();
    assert!(f.take_snapshot("s", &id).ready_to_use);
}

/// Waits until `condition` is true.
fn wait_until(timeout_message: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "{timeout_message}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn copy_with_io_error_is_kept_and_resumes_on_retry() {
    let (mut f, id) = with_volume();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    f.reopen_with(refusing(move |effect| {
        (effect == "copy_range" && is_broken.load(Ordering::SeqCst)).then_some(EIO)
    }));
    let failed = f.create_snapshot(&snapshot("s", &id)).unwrap_err();
    assert!(
        matches!(&failed, SnapshotError::Backend(BackendError::Internal(reason)) if reason.contains("retry")),
        "{failed}"
    );
    let failed = f.create(&copy_of("c", 0, &id)).unwrap_err();
    assert!(
        matches!(&failed, CreateError::Backend(BackendError::Internal(reason)) if reason.contains("retry")),
        "{failed}"
    );
    assert!(matches!(f.attach(&id, &block()), Err(DeviceError::InUse(_))), "the source is still held");
    broken.store(false, Ordering::SeqCst);
    let (snap, clone) = (f.take_snapshot("s", &id), f.create(&copy_of("c", 0, &id)).unwrap());
    assert!(snap.ready_to_use);
    for copy in [&snap.id, &clone.id] {
        assert_eq!((f.read(copy, 0, 4), f.read(copy, SIZE - 4096, 4)), (b"head".to_vec(), b"tail".to_vec()));
    }
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
}

#[test]
fn failure_is_not_reported_for_the_next_copy_with_that_name() {
    let (mut f, id) = with_volume();
    f.reopen_with(slow_copies());
    assert!(!f.take_snapshot("s", &id).ready_to_use);
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    // Startup resumes the copy, so no caller collects the failure. Only the first chunk fails.
    f.reopen_with(refusing(move |effect| {
        (effect == "copy_range" && counted.fetch_add(1, Ordering::SeqCst) == 0).then_some(EIO)
    }));
    wait_until("the copy was not resumed", || refused.load(Ordering::SeqCst) > 0);
    let snap = f.list_snapshots(None, None, 1).entries.remove(0);
    f.delete_snapshot(&snap.id).unwrap();
    assert!(f.take_snapshot("s", &id).ready_to_use);
}

#[test]
fn group_out_of_space_is_undone_completely() {
    let mut f = Fixture::new(FsType::Ext4);
    let ids = ["a", "b", "c"].map(|name| f.raw_volume(name, 16 * MIB).id);
    let wanted = group("g", &[&ids[0], &ids[1], &ids[2]]);
    // The n-th member runs out of space; the first one may do so before the group's record is complete.
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
            matches!(&refused, SnapshotError::Exhausted(reason) if reason.contains("abandoned") && reason.contains("delete")),
            "{refused}"
        );
        assert_eq!(f.list_snapshots(None, None, 10).entries, [], "member {n}");
        for id in &ids {
            f.attach(id, &block()).unwrap();
            f.detach(id).unwrap();
        }
        // Space is available now: the same call succeeds.
        let made = f.create_group(&wanted).unwrap();
        assert!(made.snapshots.iter().all(|member| member.ready_to_use));
        f.delete_group(&made.id).unwrap();
    }
    ids.iter().for_each(|id| f.delete(id).unwrap());
    f.assert_empty();
}

#[test]
fn group_is_kept_while_a_member_is_a_restore_source() {
    let mut f = Fixture::new(FsType::Ext4);
    let ids = ["a", "b"].map(|name| f.raw_volume(name, 16 * MIB).id);
    ids.iter().for_each(|id| f.write(id, 0, b"data"));
    let (copies, restoring) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let is_restoring = Arc::clone(&restoring);
    f.reopen_with(refusing(move |effect| {
        if effect != "copy_range" || copies.fetch_add(1, Ordering::SeqCst) != 1 {
            return None;
        }
        // The second member runs out of space, but only after a restore from the first one has started.
        wait_until("no restore was started", || is_restoring.load(Ordering::SeqCst));
        Some(ENOSPC)
    }));
    let made = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    let member = made.snapshots.iter().find(|member| member.ready_to_use).expect("the first member");
    let volume = std::thread::scope(|scope| {
        let restored = scope.spawn(|| f.create(&copy_of("r", 0, &member.id)));
        let record = f.path("volumes");
        let copying = |dir: std::fs::DirEntry| {
            std::fs::read_to_string(dir.path().join("record.json")).is_ok_and(|text| text.contains("copying"))
        };
        wait_until("there is no copy", || {
            std::fs::read_dir(&record).unwrap().any(|dir| copying(dir.unwrap()))
        });
        restoring.store(true, Ordering::SeqCst);
        restored.join().unwrap().unwrap()
    });
    assert_eq!(f.read(&volume.id, 0, 4), b"data");
    // The next request reports the failure, the one after it resumes the group.
    let failed = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap_err();
    assert!(matches!(failed, SnapshotError::Exhausted(_)), "{failed}");
    let made = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    assert!(made.snapshots.iter().all(|member| member.ready_to_use));
}

#[test]
fn group_wait_is_bounded_like_a_single_copy() {
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
    assert!(made.snapshots.iter().any(|member| !member.ready_to_use));
}

#[test]
fn deleting_a_group_during_its_copies_removes_all_members() {
    let (mut f, id) = with_volume();
    let other = f.raw_volume("w", SIZE).id;
    f.reopen_with(slow_copies());
    let made = f.create_group(&group("g", &[&id, &other])).unwrap();
    assert!(made.snapshots.iter().any(|member| !member.ready_to_use));
    f.delete_group(&made.id).unwrap();
    for id in [id, other] {
        f.delete(&id).unwrap();
    }
    f.assert_empty();
}
