//! Promised space exists: the account, thick volumes, and what works on a full pool.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wharf_driver::backend::{CapacityQuery, CreateError, ExpandError, NewVolume, SizeRange, SnapshotError};
use wharf_linux::{Filesystems as _, FsType, Linux, MakeFsRequest, MountRequest, Mounts as _};

use crate::fixture::*;

on_each!(
    full_pool_detaches_unpublishes_and_deletes,
    filled_volumes_do_not_exhaust_the_pool,
    thick_volume_stays_thick,
    thin_volume_is_trimmed,
);

fn thick(name: &str, size: u64) -> NewVolume {
    wanted(name, size)
        .capabilities(vec![block()])
        .parameters(BTreeMap::from([("type".into(), "thick".into())]))
}

fn allocated(f: &Fixture, id: &str) -> u64 {
    fs::metadata(f.image(id)).unwrap().blocks() * 512
}

/// U-1: records have reserved blocks. A volume that was attached before the pool was full is detached, staged, deleted,
/// also by a driver that starts on the full pool.
fn full_pool_detaches_unpublishes_and_deletes(fs: FsType) {
    let mut f = Fixture::with(fs, GIB, |config| config.attach = true);
    let ids: Vec<_> = (0..4).map(|number| f.raw_volume(&format!("v{number}"), 16 * MIB).id).collect();
    let snapshot = f.take_snapshot("s", &ids[0]);
    for id in &ids[..3] {
        f.publish(id, "n1", false).unwrap();
    }
    f.attach(&ids[0], &block()).unwrap();
    let ballast = f.fill();
    for round in 0..20 {
        f.unpublish(&ids[2], Some("n1")).unwrap_or_else(|error| panic!("{round}: {error}"));
        f.publish(&ids[2], "n1", false).unwrap();
    }
    f.detach(&ids[0]).unwrap();
    f.unpublish(&ids[0], Some("n1")).unwrap();
    f.reopen();
    f.unpublish(&ids[1], None).unwrap();
    // The first stage of a new volume changes its record, too.
    let format = wharf_driver::backend::FormatState::Raw;
    f.set_format(&ids[3], &format).unwrap();
    f.reopen();
    assert_eq!(f.format(&ids[3]).unwrap(), format);
    f.unpublish(&ids[2], None).unwrap();
    f.delete_snapshot(&snapshot.id).unwrap();
    for id in &ids {
        f.delete(id).unwrap();
    }
    fs::remove_file(ballast).unwrap();
    f.assert_empty();
}

/// Everything that was promised is written: no write fails, and the pool is not full to the last block.
fn filled_volumes_do_not_exhaust_the_pool(fs: FsType) {
    let f = Fixture::with(fs, GIB, |config| config.attach = true);
    let mut ids = Vec::new();
    loop {
        let left = f.capacity(&CapacityQuery::default()).unwrap().available;
        let size = left.min(200 * MIB) / 4096 * 4096;
        if size < MIB {
            break;
        }
        ids.push((f.raw_volume(&format!("v{}", ids.len()), size).id, size));
    }
    assert!(matches!(f.create(&wanted("more", 8 * MIB)), Err(CreateError::Exhausted(_))));
    for (id, size) in &ids {
        f.publish(id, "n1", false).unwrap();
        let device = f.attach(id, &block()).unwrap();
        let file = File::options().write(true).open(&device.path).unwrap();
        let chunk = vec![1; MIB as usize];
        let mut at = 0;
        while at < *size {
            let length = MIB.min(size - at);
            file.write_all_at(&chunk[..length as usize], at).unwrap();
            at += length;
        }
        file.sync_all().unwrap();
    }
    let usage = Linux::new().usage(f.disk.path()).unwrap();
    assert!(usage.available_bytes > 0, "{usage:?}");
    for (id, _) in &ids {
        f.detach(id).unwrap();
        f.unpublish(id, Some("n1")).unwrap();
        f.delete(id).unwrap();
    }
}

/// N-M1: discards, mkfs, fstrim and the kernel's initialization of inode tables free no blocks of a thick volume.
fn thick_volume_stays_thick(fs: FsType) {
    let f = Fixture::with(fs, 2 * GIB, |_| ());
    let size = 320 * MIB;
    let id = f.create(&thick("v", size)).unwrap().id;
    let device = f.attach(&id, &block()).unwrap().path;
    let kernel = Linux::new();
    // blkdiscard may fail; `-z` zeroes, which the kernel could do by deallocating.
    let _ = Command::new("blkdiscard").arg("-f").arg(&device).output().unwrap();
    run("blkdiscard", &["-f".as_ref(), "-z".as_ref(), device.as_ref()]);
    assert!(allocated(&f, &id) >= size, "discard: {}", allocated(&f, &id));
    for inner in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let uuid = wharf_linux::random_uuid().unwrap();
        kernel.make_fs(&device, &MakeFsRequest { fs: inner, uuid: &uuid, options: &[] }).unwrap();
        let at = tempfile::tempdir().unwrap();
        let options = if inner == FsType::Ext4 { vec!["init_itable=0".to_owned()] } else { vec![] };
        kernel
            .mount(&MountRequest {
                source: &device.display().to_string(),
                target: at.path(),
                fs_type: inner.as_str(),
                options: &options,
                read_only: false,
            })
            .unwrap();
        fs::write(at.path().join("file"), vec![1; 64 << 20]).unwrap();
        File::open(at.path()).unwrap().sync_all().unwrap();
        fs::remove_file(at.path().join("file")).unwrap();
        let _ = Command::new("fstrim").arg(at.path()).output().unwrap();
        if inner == FsType::Ext4 {
            std::thread::sleep(Duration::from_secs(3));
        }
        kernel.unmount(at.path()).unwrap();
        assert!(allocated(&f, &id) >= size, "{inner}: {}", allocated(&f, &id));
    }
    f.detach(&id).unwrap();
    // Blocks that it lost all the same are reserved in the account, and allocated again by the next attach.
    let before = f.capacity(&CapacityQuery::default()).unwrap().available;
    run("fallocate", &["-p".as_ref(), "-o0".as_ref(), "-l64MiB".as_ref(), f.image(&id).as_ref()]);
    assert!(allocated(&f, &id) < size);
    let after = f.capacity(&CapacityQuery::default()).unwrap().available;
    assert!(after <= before + 2 * MIB, "{before} {after}");
    f.attach(&id, &block()).unwrap();
    assert!(allocated(&f, &id) >= size);
    f.detach(&id).unwrap();
}

/// The device may have been that of a thick volume before.
fn thin_volume_is_trimmed(fs: FsType) {
    let f = Fixture::with(fs, GIB, |_| ());
    for round in 0..2 {
        let id = f.create(&thick(&format!("thick-{round}"), 16 * MIB)).unwrap().id;
        f.attach(&id, &block()).unwrap();
        f.detach(&id).unwrap();
        let id = f.raw_volume(&format!("thin-{round}"), 16 * MIB).id;
        f.write(&id, 0, &vec![1; 8 << 20]);
        assert!(allocated(&f, &id) >= 8 * MIB);
        let device = f.attach(&id, &block()).unwrap().path;
        run("blkdiscard", &["-f".as_ref(), device.as_ref()]);
        f.detach(&id).unwrap();
        assert!(allocated(&f, &id) < MIB, "{}", allocated(&f, &id));
    }
}

/// U-2.
#[test]
fn claim_larger_than_the_pool_needs_overcommit() {
    let mut f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let maximum = f.capacity(&CapacityQuery::default()).unwrap().maximum_volume.unwrap();
    assert!(maximum < GIB, "{maximum}");
    let refused = f.create(&wanted("large", 1500 * MIB)).unwrap_err().to_string();
    assert!(refused.contains("wharf local grow"), "{refused}");
    f.config.overcommit = 3.0;
    f.reopen();
    f.raw_volume("large", 1500 * MIB);
}

/// Free space that something else has taken cannot be promised.
#[test]
fn files_of_others_reduce_the_capacity() {
    let f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let available = || f.capacity(&CapacityQuery::default()).unwrap().available;
    let before = available();
    let file = File::create(f.path("volumes/ballast")).unwrap();
    fill_file(&file, 300 * MIB);
    assert!(available() <= before - 300 * MIB, "{before} {}", available());
}

fn fill_file(file: &File, bytes: u64) {
    let chunk = vec![1; MIB as usize];
    for at in (0..bytes).step_by(MIB as usize) {
        file.write_all_at(&chunk, at).unwrap();
    }
    file.sync_all().unwrap();
}

/// N-M4: two creations at the same time, each of which fits alone.
#[test]
fn creations_in_flight_count() {
    let mut f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let waiting = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&waiting);
    f.reopen_with(refusing(move |effect| {
        while effect == "allocate" && held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }));
    let pool = &*f;
    std::thread::scope(|scope| {
        let tries: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || pool.create(&thick(&format!("v{number}"), 400 * MIB))))
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        // None has allocated its blocks yet.
        waiting.store(false, Ordering::Relaxed);
        let results: Vec<_> = tries.into_iter().map(|tried| tried.join().unwrap()).collect();
        let made = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(made, 2, "{results:?}");
        let refused =
            results.iter().filter(|result| matches!(result, Err(CreateError::Exhausted(_)))).count();
        assert_eq!(refused, 2, "{results:?}");
    });
}

/// N-M4: an expansion and a creation at the same time.
#[test]
fn expansion_in_flight_counts() {
    let mut f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let id = f.create(&thick("v", 100 * MIB)).unwrap().id;
    let waiting = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&waiting);
    f.reopen_with(refusing(move |effect| {
        while effect == "allocate" && held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }));
    let pool = &*f;
    std::thread::scope(|scope| {
        let expanded = scope.spawn(|| pool.expand(&id, SizeRange { required: 600 * MIB, limit: None }));
        std::thread::sleep(Duration::from_millis(300));
        let created = pool.create(&wanted("other", 400 * MIB).capabilities(vec![block()]));
        waiting.store(false, Ordering::Relaxed);
        assert!(matches!(created, Err(CreateError::Exhausted(_))), "{created:?}");
        assert_eq!(expanded.join().unwrap().unwrap().capacity, 600 * MIB);
    });
    assert!(matches!(
        f.expand(&id, SizeRange { required: GIB, limit: None }),
        Err(ExpandError::Exhausted(_))
    ));
}

on_reflink!(
    snapshot_reserves_what_its_source_may_rewrite,
    every_owner_of_shared_blocks_can_be_rewritten,
    snapshot_of_an_old_record_reserves_for_a_deleted_copy,
);

/// A record of an earlier release does not say whether the volume was a copy.
fn snapshot_of_an_old_record_reserves_for_a_deleted_copy(fs: FsType) {
    let mut f = Fixture::with(fs, GIB, |_| ());
    let first = f.raw_volume("first", 128 * MIB).id;
    f.write(&first, 0, &vec![1; 128 << 20]);
    let between = f.take_snapshot("s1", &first).id;
    let restored = f.create(&copy_of("restored", 128 * MIB, &between)).unwrap().id;
    let left = f.take_snapshot("s2", &restored).id;
    f.delete_snapshot(&between).unwrap();
    f.delete(&restored).unwrap();
    f.wait_for_purge();
    let available = f.capacity(&CapacityQuery::default()).unwrap().available;
    f.close();
    let record = fs::read_to_string(f.record(&left)).unwrap();
    let old: String = record.lines().filter(|line| !line.contains("ofCopy")).collect();
    let old = old.replace(",}", "}");
    assert_ne!(old.len(), record.len());
    fs::write(f.record(&left), old).unwrap();
    f.reopen();
    let reopened = f.capacity(&CapacityQuery::default()).unwrap().available;
    assert!(reopened.abs_diff(available) < 8 * MIB, "{available} {reopened}");
    // A new volume with the name of the deleted one.
    let again = f.raw_volume("restored", 16 * MIB).id;
    assert_eq!(again, restored);
    let after = f.capacity(&CapacityQuery::default()).unwrap().available;
    assert!(after + 8 * MIB < reopened, "{reopened} {after}");
    assert!(f.get_snapshot(&left).unwrap().is_some());
}

#[test]
fn volume_with_an_unreadable_record_keeps_its_space() {
    let mut f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let id = f.raw_volume("v", 400 * MIB).id;
    let available = f.capacity(&CapacityQuery::default()).unwrap().available;
    f.close();
    fs::write(f.record(&id), "damaged").unwrap();
    f.reopen();
    let after = f.capacity(&CapacityQuery::default()).unwrap().available;
    assert!(after.abs_diff(available) < 8 * MIB, "{available} {after}");
}

/// The first volume shares its blocks with a snapshot of a restored volume, after the snapshot between them was deleted.
fn every_owner_of_shared_blocks_can_be_rewritten(fs: FsType) {
    let f = Fixture::with(fs, GIB, |_| ());
    let size = 128 * MIB;
    let first = f.raw_volume("first", size).id;
    f.write(&first, 0, &vec![1; size as usize]);
    let snapshot = f.take_snapshot("s1", &first);
    let restored = copy_of("restored", size, &snapshot.id).capabilities(vec![block()]);
    let restored = f.create(&restored).unwrap().id;
    f.delete_snapshot(&snapshot.id).unwrap();
    f.wait_for_purge();
    f.take_snapshot("s2", &restored);
    let rest = f.capacity(&CapacityQuery::default()).unwrap().available / MIB * MIB;
    let other = f.create(&thick("other", rest)).unwrap().id;
    for id in [&first, &restored] {
        f.write(id, 0, &vec![2; size as usize]);
    }
    f.write(&other, 0, &vec![3; rest as usize]);
    let usage = Linux::new().usage(f.disk.path()).unwrap();
    assert!(usage.available_bytes > 0, "{usage:?}");
}

/// A file system that cannot exchange files, such as ZFS before 2.2, also one whose records an earlier start has reserved.
#[test]
fn records_are_saved_without_exchange() {
    let mut f = Fixture::with(FsType::Ext4, GIB, |config| config.attach = true);
    let reserved = f.raw_volume("reserved", 16 * MIB).id;
    f.reopen_with(refusing(|effect| (effect == "exchange").then_some(EINVAL)));
    let plain = f.raw_volume("plain", 16 * MIB).id;
    for id in [&reserved, &plain] {
        f.publish(id, "n1", false).unwrap();
        f.unpublish(id, Some("n1")).unwrap();
        f.expand(id, SizeRange { required: 32 * MIB, limit: None }).unwrap();
        assert!(!f.record(id).with_file_name("record.spare").exists());
    }
    f.reopen();
    for id in [&reserved, &plain] {
        assert_eq!(f.get(id).unwrap().unwrap().capacity, 32 * MIB);
        f.delete(id).unwrap();
    }
    f.assert_empty();
}

/// After a snapshot, each write to a block of the volume takes a new one.
fn snapshot_reserves_what_its_source_may_rewrite(fs: FsType) {
    let f = Fixture::with(fs, GIB, |_| ());
    let available = || f.capacity(&CapacityQuery::default()).unwrap().available;
    let id = f.raw_volume("v", 300 * MIB).id;
    f.write(&id, 0, &vec![1; 200 << 20]);
    let before = available();
    let snapshot = f.take_snapshot("s", &id);
    let after = available();
    assert!(after <= before - 190 * MIB, "{before} {after}");
    // A second snapshot of the same blocks needs nothing more.
    let second = f.take_snapshot("s2", &id);
    assert!(available() >= after - 8 * MIB, "{after} {}", available());
    f.delete_snapshot(&snapshot.id).unwrap();
    f.delete_snapshot(&second.id).unwrap();
    f.wait_for_purge();
    assert!(available() >= before - 8 * MIB, "{before} {}", available());
    f.raw_volume("most", available());
    let refused = f.create_snapshot(&crate::fixture::snapshot("s3", &id));
    assert!(matches!(&refused, Err(SnapshotError::Exhausted(why)) if why.contains("grow")), "{refused:?}");
}
