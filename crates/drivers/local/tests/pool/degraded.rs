//! A full, read-only, damaged or hidden pool: the condition is reported, and no data is lost.

use std::fs;

use wharf_driver::backend::{
    CapacityQuery, CreateError, ExpandError, HealthStatus, SizeRange, SnapshotError, StorageStatus,
};
use wharf_linux::FsType;

use crate::fixture::*;

on_each!(full_pool_starts_detaches_and_deletes);

/// Everything that frees space or stops pods must work on a full pool.
fn full_pool_starts_detaches_and_deletes(fs: FsType) {
    let mut f = Fixture::with(fs, GIB, |_| ());
    let reflink = f.can_reflink();
    let [a, b] = ["a", "b"].map(|name| f.raw_volume(name, 16 * MIB).id);
    f.write(&a, 0, b"data");
    let (single, group) = (f.take_snapshot("s", &a), f.create_group(&group("g", &[&a, &b])).unwrap());
    f.attach(&b, &block()).unwrap();
    let ballast = f.fill();
    f.reopen();
    assert_eq!(f.can_reflink(), reflink);
    assert_eq!(f.storage_health().unwrap()[0].reason, "PoolFull");
    f.detach(&b).unwrap();
    f.delete_group(&group.id).unwrap();
    f.delete_snapshot(&single.id).unwrap();
    f.delete(&b).unwrap();
    assert_eq!(f.read(&a, 0, 4), b"data");
    f.delete(&a).unwrap();
    fs::remove_file(ballast).unwrap();
    f.assert_empty();
}

#[test]
fn full_pool_refuses_new_objects_and_reports_it() {
    let mut f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let id = f.raw_volume("v", 64 * MIB).id;
    assert_eq!(f.storage_health().unwrap(), []);
    assert_eq!(f.volume_health(&id).unwrap().unwrap(), []);
    f.config.warn_threshold = 10;
    f.reopen();
    f.write(&id, 0, &vec![1; 32 << 20]);
    fs::write(f.path("volumes/ballast"), vec![1; 160 << 20]).unwrap();
    let issues = f.storage_health().unwrap();
    assert_eq!(issues[0].reason, "PoolNearlyFull", "{issues:?}");
    f.raw_volume("below-full-threshold", 16 * MIB);
    f.config.full_threshold = 12;
    f.reopen();
    let issues = f.storage_health().unwrap();
    assert_eq!((issues[0].reason.as_str(), issues[0].status), ("PoolFull", StorageStatus::Degraded));
    assert_eq!(f.volume_health(&id).unwrap().unwrap()[0].reason, "PoolFull");
    let refused = f.create(&wanted("new", 16 * MIB)).unwrap_err();
    assert!(matches!(&refused, CreateError::Exhausted(reason) if reason.contains("is full")), "{refused}");
    assert!(matches!(f.create_snapshot(&snapshot("s", &id)), Err(SnapshotError::Exhausted(_))));
    assert!(matches!(f.create_group(&group("g", &[&id])), Err(SnapshotError::Exhausted(_))));
    let larger = SizeRange { required: 128 * MIB, limit: None };
    assert!(matches!(f.expand(&id, larger), Err(ExpandError::Exhausted(_))));
    assert_eq!(f.capacity(&CapacityQuery::default()).unwrap().available, 0);
    // Existing volumes keep working.
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
}

#[test]
fn read_only_pool_is_reported() {
    let f = Fixture::with(FsType::Ext4, GIB, |_| ());
    let id = f.raw_volume("v", 16 * MIB).id;
    f.wait_for_purge();
    f.disk.break_ext4();
    let issues = f.volume_health(&id).unwrap().unwrap();
    assert_eq!((issues[0].reason.as_str(), issues[0].status), ("PoolReadOnly", HealthStatus::Degraded));
    let refused = f.create(&wanted("new", 16 * MIB)).unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(f.check().iter().any(|finding| finding.problem.contains("read-only")));
}

#[test]
fn truncated_image_is_reported() {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    let file = fs::File::options().write(true).open(f.image(&id)).unwrap();
    file.set_len(MIB).unwrap();
    let issues = f.volume_health(&id).unwrap().unwrap();
    assert_eq!((issues[0].reason.as_str(), issues[0].status), ("ImageDamaged", HealthStatus::DataLoss));
    assert_eq!(f.volume_health("vol-x").unwrap(), None);
}

#[test]
fn symlinked_image_is_never_followed() {
    let f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    let outside = tempfile::tempdir().unwrap();
    let other_file = outside.path().join("other-file");
    fs::write(&other_file, vec![1; 16 << 20]).unwrap();
    fs::remove_file(f.image(&id)).unwrap();
    std::os::unix::fs::symlink(&other_file, f.image(&id)).unwrap();
    assert!(f.attach(&id, &block()).is_err());
    assert!(f.create_snapshot(&snapshot("s", &id)).is_err());
    assert!(f.expand(&id, SizeRange { required: 32 * MIB, limit: None }).is_err());
    let _ = f.delete(&id);
    f.wait_for_purge();
    assert_eq!(fs::read(&other_file).unwrap(), vec![1; 16 << 20]);
}

/// Another file system is mounted over the pool. The pool's objects are hidden, which must not look like a completed
/// delete.
#[test]
fn delete_fails_while_the_pool_is_hidden_by_a_mount() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    let snap = f.take_snapshot("s", &id).id;
    let covering = Mounted(f.disk.path().to_owned());
    run("mount", &["-t".as_ref(), "tmpfs".as_ref(), "over".as_ref(), f.disk.path()]);
    let refused = f.delete(&id).unwrap_err().to_string();
    assert!(refused.contains("is no longer a pool"), "{refused}");
    f.delete_snapshot(&snap).unwrap_err();
    drop(covering);
    assert!(f.get(&id).unwrap().is_some());
    f.reopen();
    f.delete_snapshot(&snap).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}
