//! A pool that fills up or becomes read-only: never silent, never worse than it was.

use std::fs;

use wharf_driver::backend::{
    CapacityQuery, CreateError, ExpandError, HealthStatus, SizeRange, SnapshotError, StorageStatus,
};
use wharf_linux::FsType;

use crate::fixture::*;

#[test]
fn a_full_pool_makes_nothing_new_and_says_so() {
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
    f.raw_volume("still", 16 * MIB);
    f.config.full_threshold = 12;
    f.reopen();
    let issues = f.storage_health().unwrap();
    assert_eq!((issues[0].reason.as_str(), issues[0].status), ("PoolFull", StorageStatus::Degraded));
    assert_eq!(f.volume_health(&id).unwrap().unwrap()[0].reason, "PoolFull");
    let refused = f.create(&wanted("new", 16 * MIB)).unwrap_err();
    assert!(matches!(&refused, CreateError::Exhausted(why) if why.contains("is full")), "{refused}");
    assert!(matches!(f.create_snapshot(&snapshot("s", &id)), Err(SnapshotError::Exhausted(_))));
    assert!(matches!(f.create_group(&group("g", &[&id])), Err(SnapshotError::Exhausted(_))));
    let larger = SizeRange { required: 128 * MIB, limit: None };
    assert!(matches!(f.expand(&id, larger), Err(ExpandError::Exhausted(_))));
    assert_eq!(f.capacity(&CapacityQuery::default()).unwrap().available, 0);
    // What exists goes on.
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
}

#[test]
fn a_read_only_pool_is_told_apart() {
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
fn a_damaged_image_is_noticed() {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    let file = fs::File::options().write(true).open(f.image(&id)).unwrap();
    file.set_len(MIB).unwrap();
    let issues = f.volume_health(&id).unwrap().unwrap();
    assert_eq!((issues[0].reason.as_str(), issues[0].status), ("ImageDamaged", HealthStatus::DataLoss));
    assert_eq!(f.volume_health("vol-x").unwrap(), None);
}

#[test]
fn an_image_that_is_a_symlink_leads_nowhere() {
    let f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    let outside = tempfile::tempdir().unwrap();
    let precious = outside.path().join("precious");
    fs::write(&precious, vec![1; 16 << 20]).unwrap();
    fs::remove_file(f.image(&id)).unwrap();
    std::os::unix::fs::symlink(&precious, f.image(&id)).unwrap();
    assert!(f.attach(&id, &block()).is_err());
    assert!(f.create_snapshot(&snapshot("s", &id)).is_err());
    assert!(f.expand(&id, SizeRange { required: 32 * MIB, limit: None }).is_err());
    let _ = f.delete(&id);
    f.wait_for_purge();
    assert_eq!(fs::read(&precious).unwrap(), vec![1; 16 << 20]);
}
