//! Opening a pool, and maintenance by an operator.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use wharf_driver_local::disk::{self, PoolStorage};
use wharf_driver_local::{Config, OpenError, Pool, Severity};
use wharf_linux::{FsType, Linux};
use wharf_testkit::TestPool;

use crate::fixture::*;

on_reflink!(new_pool_of_a_machine_is_an_image_also_with_reflinks);

/// N-H2: in a directory, other programs on the host would take the space that volumes were promised.
fn new_pool_of_a_machine_is_an_image_also_with_reflinks(fs_type: FsType) {
    let disk = TestPool::new(fs_type, 2 * GIB);
    let kernel = Linux::new();
    let prepared = disk::prepare(&kernel, disk.path(), Some(400 * MIB), true);
    let attributes = Command::new("lsattr").arg(disk.path().join("pool.img")).output();
    disk::close(&kernel, disk.path()).unwrap();
    let (pool, storage) = prepared.unwrap();
    assert_eq!((pool, storage), (disk.path().canonicalize().unwrap().join("pool"), PoolStorage::Disk));
    let attributes = String::from_utf8(attributes.unwrap().stdout).unwrap();
    let attributes = attributes.split_whitespace().next().unwrap();
    // Else btrfs writes to new blocks, and a full disk is an I/O error in the volumes.
    assert_eq!(attributes.contains('C'), fs_type == FsType::Btrfs, "{attributes}");
    // An existing pool in a directory stays there.
    let other = disk.path().join("other");
    fs::create_dir_all(other.join("pool")).unwrap();
    Pool::init(Arc::new(Linux::new()), &other.join("pool")).unwrap();
    assert_eq!(disk::prepare(&kernel, &other, None, false).unwrap().1, PoolStorage::Directory);
}

fn open(path: &std::path::Path) -> Result<Pool, OpenError> {
    Pool::open(Arc::new(Linux::new()), Config::new("n1", path))
}

#[test]
fn open_accepts_only_a_pool_or_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert!(matches!(open(&missing), Err(OpenError::Missing(_))));
    assert!(!missing.exists());
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(matches!(open(&dir.path().join("file")), Err(OpenError::NotADirectory(_))));
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    assert!(matches!(open(&dir.path().join("link")), Err(OpenError::NotADirectory(_))));
    assert!(matches!(open(dir.path()), Err(OpenError::NoPool(_))));
    assert!(!dir.path().join("lock").exists());
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(matches!(Pool::open_read_only(Arc::new(Linux::new()), &empty), Err(OpenError::NoPool(_))));
    assert!(matches!(Pool::open_maintenance(Arc::new(Linux::new()), &empty), Err(OpenError::NoPool(_))));
    let refused = open(&empty).err().unwrap().to_string();
    assert!(refused.contains("wharf local init --pool"), "{refused}");
    assert!(fs::read_dir(&empty).unwrap().next().is_none(), "nothing was created");
    let uuid = Pool::init(Arc::new(Linux::new()), &empty).unwrap();
    assert_eq!(Pool::init(Arc::new(Linux::new()), &empty).unwrap(), uuid);
    assert!(matches!(Pool::init(Arc::new(Linux::new()), dir.path()), Err(OpenError::NotEmpty { .. })));
    assert_eq!(open(&empty).unwrap().uuid(), uuid);
    let bad = Config { overcommit: 0.0, ..Config::new("n1", &empty) };
    assert!(matches!(Pool::open(Arc::new(Linux::new()), bad), Err(OpenError::Config(_))));
}

#[test]
fn second_driver_is_locked_out_but_read_only_access_works() {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    let message = open(f.disk.path()).err().unwrap().to_string();
    assert!(message.contains("in use by another process"), "{message}");
    let kernel = || Arc::new(Linux::new());
    assert!(matches!(Pool::open_maintenance(kernel(), f.disk.path()), Err(OpenError::Locked(_))));
    let inspection = Pool::open_read_only(kernel(), f.disk.path()).unwrap();
    assert_eq!(inspection.check(), []);
    let contents = inspection.list().unwrap();
    assert_eq!(contents.volumes.len(), 1);
    assert_eq!((contents.volumes[0].id.as_str(), contents.volumes[0].state), (id.as_str(), "ready"));
    assert_eq!(contents.pool.promised_bytes, u128::from(16 * MIB));
}

#[test]
fn newer_record_is_refused_and_unchanged() {
    let mut f = Fixture::new(FsType::Ext4);
    let (id, other) = (f.raw_volume("v", 16 * MIB).id, f.raw_volume("w", 16 * MIB).id);
    f.close();
    let newer = r#"{"version": 2, "what": "only a newer release knows"}"#;
    fs::write(f.record(&id), newer).unwrap();
    f.reopen();
    // Other volumes are not affected.
    assert!(f.get(&other).unwrap().is_some());
    let message = f.get(&id).unwrap_err().to_string();
    assert!(message.contains("version 2"), "{message}");
    assert!(f.delete(&id).is_err());
    assert!(f.create(&wanted("v", 16 * MIB)).is_err());
    assert!(f.attach(&id, &block()).is_err());
    assert_eq!(f.volume_health(&id).unwrap().unwrap()[0].reason, "RecordUnreadable");
    assert!(f.check().iter().any(|finding| finding.severity == Severity::Error && finding.object == id));
    assert_eq!(fs::read_to_string(f.record(&id)).unwrap(), newer);
    f.close();
    let pool = f.path("pool.json");
    let was = fs::read_to_string(&pool).unwrap();
    fs::write(&pool, was.replace("\"version\": 1", "\"version\": 7")).unwrap();
    let message = open(f.disk.path()).err().unwrap().to_string();
    assert!(message.contains("version 7") && message.contains("pool.json"), "{message}");
}

#[test]
fn inconsistencies_are_reported_and_not_touched() {
    let mut f = Fixture::new(FsType::Xfs);
    let (lost, missing) = (f.raw_volume("lost", 16 * MIB).id, f.raw_volume("missing", 16 * MIB).id);
    f.close();
    fs::remove_file(f.record(&lost)).unwrap();
    fs::remove_file(f.image(&missing)).unwrap();
    fs::write(f.path("notes.txt"), "x").unwrap();
    fs::create_dir(f.path("volumes/not-an-id")).unwrap();
    fs::create_dir(f.path("trash/not-ours")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    let trick = "vol-00000000000000000000000000000000";
    std::os::unix::fs::symlink(outside.path(), f.path(&format!("volumes/{trick}"))).unwrap();
    let trash = format!("trash/{trick}.5");
    std::os::unix::fs::symlink(outside.path(), f.path(&trash)).unwrap();
    let inspection = Pool::open_read_only(Arc::new(Linux::new()), f.disk.path()).unwrap();
    let found: Vec<String> = inspection.check().into_iter().map(|finding| finding.object).collect();
    for object in [&*lost, &*missing, "notes.txt", "volumes/not-an-id", "trash/not-ours", trick] {
        assert!(found.iter().any(|found| found == object), "{object}: {found:?}");
    }
    f.reopen();
    assert!(f.delete(&lost).is_err() && f.delete(trick).is_err());
    assert!(f.image(&lost).exists());
    assert_eq!(f.volume_health(&missing).unwrap().unwrap()[0].reason, "ImageMissing");
    f.delete(&missing).unwrap();
    f.close();
    for path in ["notes.txt", "volumes/not-an-id", "trash/not-ours"] {
        assert!(f.path(path).exists(), "{path}");
    }
    assert_eq!(fs::read_to_string(outside.path().join("precious")).unwrap(), "x");
}

#[test]
fn maintenance_purges_trash_and_leftovers() {
    let mut f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    f.close();
    let trash = format!("trash/{id}.3");
    fs::rename(f.path(&format!("volumes/{id}")), f.path(&trash)).unwrap();
    fs::write(f.path("pool.json.tmp"), "").unwrap();
    let kernel = || Arc::new(Linux::new());
    let would: Vec<_> = Pool::open_read_only(kernel(), f.disk.path()).unwrap().purgeable().to_vec();
    let mut would: Vec<_> = would.into_iter().map(|purged| purged.path.display().to_string()).collect();
    would.sort();
    assert_eq!(would, ["pool.json.tmp", trash.as_str()]);
    assert!(f.path(&trash).exists() && f.path("pool.json.tmp").exists());
    let purged = Pool::open_maintenance(kernel(), f.disk.path()).unwrap().purge().unwrap();
    assert_eq!(purged.len(), 1);
    assert!(!f.path(&trash).exists() && !f.path("pool.json.tmp").exists());
    f.reopen();
    f.assert_empty();
}

/// N-H3: the disk of the pool is not mounted at the start, and a new or another pool is at its path.
#[test]
fn only_the_remembered_pool_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second, empty) =
        (dir.path().join("first"), dir.path().join("second"), dir.path().join("empty"));
    for pool in [&first, &second, &empty] {
        fs::create_dir(pool).unwrap();
    }
    let file = dir.path().join("pool-id");
    let start = |pool: &std::path::Path, create_pool| {
        let pool_id_file = Some(file.clone());
        Pool::open(Arc::new(Linux::new()), Config { create_pool, pool_id_file, ..Config::new("n1", pool) })
    };
    assert!(matches!(start(&first, false), Err(OpenError::NoPool(_))));
    assert!(!file.exists());
    let uuid = start(&first, true).unwrap().uuid().to_owned();
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), uuid);
    start(&first, false).unwrap();
    Pool::init(Arc::new(Linux::new()), &second).unwrap();
    for (pool, found) in [(&second, "but pool "), (&empty, "no pool at all")] {
        for create_pool in [false, true] {
            let message = start(pool, create_pool).err().unwrap().to_string();
            assert!(message.contains(&uuid) && message.contains(found), "{message}");
        }
    }
    assert!(fs::read_dir(&empty).unwrap().next().is_none(), "no pool was created");
    fs::write(&file, "").unwrap();
    assert!(matches!(start(&first, true), Err(OpenError::PoolIdFile { .. })));
    let pool_id_file = Some(file.with_file_name("missing").join("pool-id"));
    let refused = Pool::open(Arc::new(Linux::new()), Config { pool_id_file, ..Config::new("n1", &first) });
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("create the directory"), "{refused}");
    // A driver that gets the option later records the identity of its pool.
    fs::remove_file(&file).unwrap();
    start(&first, false).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), uuid);
}

/// N-H3: DeleteVolume on the wrong pool does not report a volume as deleted.
#[test]
fn nothing_is_created_or_deleted_in_another_pool() {
    let f = Fixture::new(FsType::Ext4);
    let id = f.raw_volume("v", 16 * MIB).id;
    let other = TestPool::new(FsType::Ext4, GIB);
    Pool::init(Arc::new(Linux::new()), other.path()).unwrap();
    run("mount", &["--bind".as_ref(), other.path(), f.disk.path()]);
    let over = Mounted(f.disk.path().to_owned());
    let (snapshot, group) = (id.replace("vol-", "snap-"), id.replace("vol-", "group-"));
    assert!(f.delete(&id).unwrap_err().to_string().contains("another pool"));
    assert!(
        f.delete(&id.replace(|c: char| c.is_ascii_digit(), "0")).is_err(),
        "a volume that it does not know"
    );
    assert!(f.delete_snapshot(&snapshot).is_err() && f.delete_group(&group).is_err());
    assert!(f.create(&wanted("w", 16 * MIB)).is_err());
    let query = wharf_driver::backend::CapacityQuery::default();
    assert!(f.capacity(&query).is_err(), "the free space of the other pool");
    drop(over);
    assert_eq!((f.delete_snapshot(&snapshot), f.delete_group(&group)), (Ok(()), Ok(())));
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn replaced_pool_is_not_ready() {
    let f = Fixture::new(FsType::Ext4);
    assert_eq!(f.ready(), Ok(()));
    let pool = f.path("pool.json");
    let was = fs::read_to_string(&pool).unwrap();
    fs::write(&pool, was.replace(f.uuid(), "00000000-0000-4000-8000-000000000000")).unwrap();
    assert!(f.ready().unwrap_err().contains("another pool"));
    fs::remove_file(&pool).unwrap();
    assert!(f.ready().unwrap_err().contains("no longer a pool"));
}
