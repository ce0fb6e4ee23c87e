//! Snapshots, restores, clones and changed blocks.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use wharf_driver::backend::{
    BackendError, BlockRange, CreateError, FormatState, NewVolume, SizeRange, SnapshotError,
};
use wharf_linux::FsType;

use crate::fixture::*;

on_each!(
    snapshot_preserves_data_and_outlives_its_volume,
    restore_and_clone_check_size_and_format,
    copy_with_the_request_of_its_source_is_created,
    snapshot_is_idempotent_by_name_and_source
);
on_reflink!(
    mounted_volume_is_frozen_during_the_cut,
    copy_is_crash_consistent_if_the_freeze_expires,
    changed_blocks_are_the_written_blocks
);

fn snapshot_preserves_data_and_outlives_its_volume(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.raw_volume("v", 64 * MIB).id;
    f.write(&id, 4096, b"before");
    let snap = f.take_snapshot("s", &id);
    assert!(snap.ready_to_use);
    assert_eq!((snap.source.as_str(), snap.size), (id.as_str(), 64 * MIB));
    f.write(&id, 4096, b"after!");
    assert_eq!(f.read(&snap.id, 4096, 6), b"before");
    // The snapshot of a sparse image is sparse.
    use std::os::unix::fs::MetadataExt as _;
    assert!(f.image(&snap.id).metadata().unwrap().blocks() * 512 < 2 * MIB);
    // The snapshot outlives its volume.
    f.delete(&id).unwrap();
    assert_eq!(f.get_snapshot(&snap.id).unwrap().unwrap(), snap);
    let restored = f.create(&copy_of("r", 0, &snap.id)).unwrap();
    assert_eq!(f.read(&restored.id, 4096, 6), b"before");
    f.delete(&restored.id).unwrap();
    f.delete_snapshot(&snap.id).unwrap();
    f.delete_snapshot(&snap.id).unwrap();
    f.assert_empty();
}

fn restore_and_clone_check_size_and_format(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.volume("v", 64 * MIB).id;
    let uuid = "11111111-1111-4111-8111-111111111111".to_owned();
    f.set_format(&id, &FormatState::Formatting { fs: FsType::Ext4, uuid: uuid.clone() }).unwrap();
    let early = f.create_snapshot(&snapshot("early", &id)).unwrap_err();
    assert!(matches!(early, SnapshotError::Precondition(_)), "{early}");
    f.set_format(&id, &FormatState::Formatted { fs: FsType::Ext4, uuid: uuid.clone() }).unwrap();
    let snap = f.take_snapshot("s", &id);

    let larger = copy_of("larger", 128 * MIB, &snap.id).capabilities(vec![mount("")]);
    let restored = f.create(&larger).unwrap();
    assert_eq!(restored.capacity, 128 * MIB);
    assert_eq!(restored.source, larger.source);
    assert_eq!(f.image(&restored.id).metadata().unwrap().len(), 128 * MIB);
    assert_eq!(f.create(&larger).unwrap(), restored);
    match f.format(&restored.id).unwrap() {
        FormatState::Copied { fs: FsType::Ext4, uuid: new } => assert_ne!(new, uuid),
        other => panic!("{other:?}"),
    }
    let clone = f.create(&copy_of("c", 0, &id).capabilities(vec![mount("ext4")])).unwrap();
    assert_eq!(clone.capacity, 64 * MIB);
    assert!(matches!(f.format(&clone.id).unwrap(), FormatState::Copied { .. }));
    let raw = f.create(&copy_of("raw", 0, &id)).unwrap();
    assert_eq!(f.format(&raw.id), Ok(FormatState::Raw));

    let smaller = f.create(&copy_of("smaller", 32 * MIB, &snap.id)).unwrap();
    assert_eq!(smaller.capacity, 64 * MIB, "a copy is at least as large as its source");
    let limit = SizeRange { required: 32 * MIB, limit: Some(63 * MIB) };
    let limited = f.create(&copy_of("limited", 0, &snap.id).size(limit)).unwrap_err();
    assert!(matches!(limited, CreateError::OutOfRange(_)), "{limited}");
    let other_fs = copy_of("xfs", 0, &snap.id).capabilities(vec![mount("xfs")]);
    assert!(matches!(f.create(&other_fs), Err(CreateError::Invalid(_))));
    for missing in ["snap-00000000000000000000000000000000", "vol-00000000000000000000000000000000", "../x"] {
        assert!(matches!(f.create(&copy_of("m", 0, missing)), Err(CreateError::NotFound(_))));
    }
    assert!(matches!(f.create(&copy_of("larger", 0, &id)), Err(CreateError::Exists(_))));
}

/// U-13: xfs rounds a small volume up. A claim with the request of the source's claim can be restored and cloned.
fn copy_with_the_request_of_its_source_is_created(fs: FsType) {
    let f = Fixture::new(fs);
    let xfs = |new: NewVolume| new.capabilities(vec![mount("xfs")]);
    let source = f.create(&xfs(wanted("source", 16 * MIB))).unwrap();
    assert_eq!(source.capacity, 300 * MIB);
    let snap = f.take_snapshot("s", &source.id);
    // The provisioner refuses claims below this size.
    assert_eq!(snap.size, 16 * MIB);
    for (name, origin) in [("restored", &snap.id), ("cloned", &source.id)] {
        let copy = f.create(&xfs(copy_of(name, 16 * MIB, origin))).unwrap();
        assert_eq!(copy.capacity, source.capacity, "{name}");
    }
    f.expand(&source.id, SizeRange { required: 400 * MIB, limit: None }).unwrap();
    assert_eq!(f.take_snapshot("larger", &source.id).size, 400 * MIB);
}

fn snapshot_is_idempotent_by_name_and_source(fs: FsType) {
    let mut f = Fixture::new(fs);
    let (a, b) = (f.raw_volume("a", 16 * MIB).id, f.raw_volume("b", 16 * MIB).id);
    let snap = f.take_snapshot("s", &a);
    assert_eq!(f.take_snapshot("s", &a), snap);
    assert!(matches!(f.create_snapshot(&snapshot("s", &b)), Err(SnapshotError::Exists(_))));
    assert!(matches!(f.create_snapshot(&snapshot("t", "vol-x")), Err(SnapshotError::NotFound(_))));
    let other = f.take_snapshot("t", &b);
    f.reopen();
    assert_eq!(f.take_snapshot("s", &a), snap);
    assert_eq!(f.list_snapshots(Some(&b), None, 10).entries, [other]);
    assert_eq!(f.list_snapshots(None, None, 10).entries.len(), 2);
    assert!(f.list_snapshots(None, None, 1).more);
}

fn mounted_volume_is_frozen_during_the_cut(fs: FsType) {
    let mut f = Fixture::new(fs);
    let effects = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&effects);
    f.reopen_with(observing(move |effect| recorder.lock().unwrap().push(effect)));
    let work = tempfile::tempdir().unwrap();
    for inner in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let name = inner.as_str();
        let id = f.create(&wanted(name, 400 * MIB).capabilities(vec![mount(name)]));
        let id = id.unwrap().id;
        let device = f.attach(&id, &mount("")).unwrap().path;
        run(&format!("mkfs.{inner}"), &["-q".as_ref(), &device]);
        let mounted = Mounted::new(&device, &work.path().join(inner.as_str()));
        fs::write(mounted.0.join("file"), "not synced").unwrap();
        effects.lock().unwrap().clear();
        let snap = f.take_snapshot(inner.as_str(), &id);
        let order: Vec<&str> = effects.lock().unwrap().clone();
        let at = |name: &str| {
            order.iter().position(|effect| *effect == name).unwrap_or_else(|| panic!("{order:?}"))
        };
        assert!(at("freeze") < at("reflink") && at("reflink") < at("frozen_thaw"), "{order:?}");
        assert!(!f.path("freeze.json").exists());
        fs::write(mounted.0.join("later"), "thawed").unwrap();
        drop(mounted);
        f.detach(&id).unwrap();
        // The snapshot includes data that was only in the page cache.
        let copy = f.create(&copy_of(&format!("{inner}-copy"), 0, &snap.id)).unwrap().id;
        let device = f.attach(&copy, &block()).unwrap().path;
        let seen = Mounted::new(&device, &work.path().join("seen"));
        assert_eq!(fs::read_to_string(seen.0.join("file")).unwrap(), "not synced");
        assert!(!seen.0.join("later").exists());
        drop(seen);
        f.detach(&copy).unwrap();
    }
}

/// N-M3: the freeze expires during the reflink, as with large fragmented images. The kernel copies the image at one point in
/// time, but several images at several.
fn copy_is_crash_consistent_if_the_freeze_expires(fs: FsType) {
    let mut f = Fixture::new(fs);
    let runs_out = Arc::new(AtomicBool::new(true));
    let too_short = Arc::clone(&runs_out);
    f.reopen_with(refusing(move |effect| {
        (effect == "frozen_thaw" && too_short.load(Ordering::SeqCst)).then_some(EIO)
    }));
    let (id, other) = (f.volume("v", 64 * MIB).id, f.volume("other", 64 * MIB).id);
    let device = f.attach(&id, &mount("")).unwrap().path;
    run("mkfs.ext4", &["-q".as_ref(), &device]);
    let work = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&device, &work.path().join("m"));
    fs::write(mounted.0.join("file"), "data").unwrap();

    let refused = f.create_group(&group("g", &[&id, &other])).unwrap_err();
    assert!(matches!(refused, SnapshotError::Backend(BackendError::Unavailable(_))), "{refused}");
    let message = refused.to_string();
    assert!(message.contains("the freeze expired") && message.contains("--freeze-limit"), "{message}");
    assert_eq!(f.list_snapshots(None, None, 10).entries, []);
    let expired = f.take_snapshot("expired", &id);
    assert!(expired.ready_to_use);
    let clone = f.create(&copy_of("c", 0, &id)).unwrap().id;
    fs::write(mounted.0.join("file"), "writers continue").unwrap();

    runs_out.store(false, Ordering::SeqCst);
    let created = f.create_group(&group("g", &[&id, &other])).unwrap();
    assert!(f.take_snapshot("s", &id).ready_to_use);
    let listed = f.contents().unwrap().snapshots;
    let crash_consistent: Vec<_> =
        listed.iter().filter(|entry| entry.crash_consistent).map(|entry| &entry.name).collect();
    assert_eq!(crash_consistent, ["expired"]);
    drop(mounted);
    let check = f.attach(&clone, &block()).unwrap().path;
    run("e2fsck", &["-p".as_ref(), &check]);
    f.detach(&clone).unwrap();
    f.delete_snapshot(&expired.id).unwrap();
    f.delete(&other).unwrap();
    f.detach(&id).unwrap();
    f.delete_group(&created.id).unwrap();
    f.delete_snapshot(&f.take_snapshot("s", &id).id).unwrap();
    [id, clone].iter().for_each(|id| f.delete(id).unwrap());
    f.assert_empty();
}

#[test]
fn volume_in_use_is_not_copied_without_reflinks() {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    f.attach(&id, &block()).unwrap();
    let refused = f.create_snapshot(&snapshot("s", &id)).unwrap_err();
    assert!(
        matches!(&refused, SnapshotError::Precondition(reason) if reason.contains("xfs or btrfs")),
        "{refused}"
    );
    let refused = f.create(&copy_of("c", 0, &id)).unwrap_err();
    assert!(matches!(refused, CreateError::Precondition(_)), "{refused}");
    f.detach(&id).unwrap();
    assert!(f.take_snapshot("s", &id).ready_to_use);
}

fn changed_blocks_are_the_written_blocks(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.raw_volume("v", 64 * MIB).id;
    let block_of = |byte: u8| vec![byte; 64 << 10];
    for at in [0, 8, 40] {
        f.write(&id, at * MIB, &block_of(1));
    }
    let base = f.take_snapshot("base", &id);
    let allocated = f.allocated_blocks(&base.id, 0).unwrap();
    assert_eq!(allocated.volume_size, 64 * MIB);
    let range = |at: u64, length| BlockRange { offset: at, length };
    assert_eq!(allocated.ranges, [0, 8, 40].map(|at| range(at * MIB, 64 << 10)));
    // One block overwritten in the middle, one new, one unchanged.
    f.write(&id, 8 * MIB + 16384, &[2; 8192]);
    f.write(&id, 20 * MIB, &block_of(3));
    let target = f.take_snapshot("target", &id);
    let changed = f.changed_blocks(&base.id, &target.id, 0).unwrap();
    assert_eq!(changed.ranges, [range(8 * MIB + 16384, 8192), range(20 * MIB, 64 << 10)]);
    assert_eq!(
        f.changed_blocks(&base.id, &target.id, 20 * MIB + 4096).unwrap().ranges,
        [range(20 * MIB + 4096, (64 << 10) - 4096)]
    );
    assert_eq!(f.changed_blocks(&target.id, &target.id, 0).unwrap().ranges, []);
    assert_eq!(f.allocated_blocks(&base.id, 64 * MIB).unwrap().ranges, []);
    assert!(matches!(f.allocated_blocks(&base.id, 64 * MIB + 1), Err(SnapshotError::OutOfRange(_))));
    assert!(matches!(f.allocated_blocks("snap-x", 0), Err(SnapshotError::NotFound(_))));
    let foreign = f.take_snapshot("foreign", &f.raw_volume("w", 64 * MIB).id);
    assert!(matches!(f.changed_blocks(&base.id, &foreign.id, 0), Err(SnapshotError::Invalid(_))));
}
