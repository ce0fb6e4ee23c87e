//! Recovery at startup after a crash.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wharf_driver_local::{OpenError, Pool};
use wharf_linux::{FsType, Linux};

use crate::fixture::*;

on_each!(unfinished_objects_are_undone);

fn unfinished_objects_are_undone(fs: FsType) {
    let mut f = Fixture::new(fs);
    let keep = f.raw_volume("keep", 16 * MIB).id;
    let (volume, snap) = (f.raw_volume("v", 16 * MIB).id, f.take_snapshot("s", &keep).id);
    let created = f.create_group(&group("g", &[&keep])).unwrap();
    f.close();
    for id in [&volume, &snap] {
        let record = fs::read_to_string(f.record(id)).unwrap();
        fs::write(f.record(id), record.replace("\"ready\"", "\"creating\"")).unwrap();
    }
    let group_record = f.path(&format!("groups/{}.json", created.id));
    let record = fs::read_to_string(&group_record).unwrap();
    fs::write(&group_record, record.replace("\"ready\"", "\"creating\"")).unwrap();
    // Interrupted before the record was written, and while records were being written.
    let early = "volumes/vol-00000000000000000000000000000000";
    fs::create_dir(f.path(early)).unwrap();
    fs::write(f.path(&format!("{early}/record.json.tmp")), "{").unwrap();
    fs::create_dir(f.path("snapshots/snap-00000000000000000000000000000000")).unwrap();
    fs::write(f.record(&keep).with_file_name("record.json.tmp"), "{").unwrap();
    fs::write(f.path("pool.json.tmp"), "{").unwrap();
    fs::write(f.path(".reflink-1-0-from.tmp"), "{").unwrap();
    fs::write(f.path("groups/group-00000000000000000000000000000000.json.tmp"), "{").unwrap();
    f.reopen();
    assert_eq!(f.get(&volume).unwrap(), None);
    assert_eq!(f.get_snapshot(&snap).unwrap(), None);
    assert_eq!(f.get_group(&created.id).unwrap(), None);
    assert!(f.get(&keep).unwrap().is_some());
    assert!(!f.record(&keep).with_file_name("record.json.tmp").exists());
    // The same calls again succeed.
    f.raw_volume("v", 16 * MIB);
    f.take_snapshot("s", &keep);
    let again = f.create_group(&group("g", &[&keep])).unwrap();
    f.delete_group(&again.id).unwrap();
    f.delete_snapshot(&snap).unwrap();
    f.delete(&volume).unwrap();
    f.delete(&keep).unwrap();
    f.assert_empty();
}

#[test]
fn interrupted_group_deletion_is_finished() {
    let mut f = Fixture::new(FsType::Xfs);
    let ids = ["a", "b"].map(|name| f.raw_volume(name, 16 * MIB).id);
    let created = f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    f.close();
    let path = f.path(&format!("groups/{}.json", created.id));
    fs::rename(&path, path.with_extension("deleting")).unwrap();
    let first = &created.snapshots[0].id;
    fs::rename(f.path(&format!("snapshots/{first}")), f.path(&format!("trash/{first}.0"))).unwrap();
    f.reopen();
    assert_eq!(f.get_snapshot(&created.snapshots[1].id).unwrap(), None);
    ids.iter().for_each(|id| f.delete(id).unwrap());
    f.assert_empty();
}

#[test]
fn leftover_freeze_is_thawed() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.volume("v", 64 * MIB).id;
    let device = f.attach(&id, &mount("")).unwrap().path;
    run("mkfs.ext4", &["-q".as_ref(), &device]);
    let work = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&device, &work.path().join("m"));
    f.close();
    let note = serde_json::json!({"version": 1, "mountPoints": [mounted.0, "/nowhere"]});
    fs::write(f.path("freeze.json"), note.to_string()).unwrap();
    run("fsfreeze", &["--freeze".as_ref(), &mounted.0]);
    f.reopen();
    fs::write(mounted.0.join("file"), "thawed").unwrap();
    assert!(!f.path("freeze.json").exists());
    drop(mounted);
    f.detach(&id).unwrap();
}

#[test]
fn failed_thaw_does_not_leave_others_frozen() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.volume("v", 64 * MIB).id;
    let device = f.attach(&id, &mount("")).unwrap().path;
    run("mkfs.ext4", &["-q".as_ref(), &device]);
    let work = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&device, &work.path().join("m"));
    // A mount that cannot be thawed.
    let (file, target) = (work.path().join("file"), work.path().join("target"));
    fs::write(&file, "").unwrap();
    fs::write(&target, "").unwrap();
    run("mount", &["--bind".as_ref(), &file, &target]);
    let bound = Mounted(target);
    f.close();
    let note = serde_json::json!({"version": 1, "mountPoints": [bound.0, mounted.0]});
    fs::write(f.path("freeze.json"), note.to_string()).unwrap();
    run("fsfreeze", &["--freeze".as_ref(), &mounted.0]);
    f.reopen();
    // A write to a frozen file system would block forever, so check before writing.
    let frozen = std::process::Command::new("fsfreeze").arg("--unfreeze").arg(&mounted.0).status().unwrap();
    assert!(!frozen.success(), "it was still frozen");
    assert!(f.path("freeze.json").exists(), "the record must stay while something is frozen");
    drop((mounted, bound));
    f.detach(&id).unwrap();
}

/// N-M2: the driver was killed together with its thawing process, and another container thaws.
#[test]
fn abandoned_freeze_is_thawed_by_another_process_but_not_that_of_a_running_driver() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.volume("v", 64 * MIB).id;
    let device = f.attach(&id, &mount("")).unwrap().path;
    run("mkfs.ext4", &["-q".as_ref(), &device]);
    let work = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&device, &work.path().join("m"));
    let thaw = || Pool::thaw_abandoned(Arc::new(Linux::new()), f.disk.path()).unwrap();
    assert!(!thaw());
    // The second one is in the mount namespace of the driver only.
    let record = format!("{{\"version\": 1, \"mountPoints\": [\"{}\", \"/unseen\"]}}", mounted.0.display());
    fs::write(f.path("freeze.json"), record).unwrap();
    run("fsfreeze", &["--freeze".as_ref(), &mounted.0]);
    let frozen = !thaw();
    f.close();
    let abandoned = Pool::thaw_abandoned(Arc::new(Linux::new()), f.disk.path()).unwrap();
    let again = std::process::Command::new("fsfreeze").arg("--unfreeze").arg(&mounted.0).output().unwrap();
    assert!(frozen && abandoned && !again.status.success(), "{frozen} {abandoned} {again:?}");
    let left = fs::read_to_string(f.path("freeze.json")).unwrap();
    assert!(left.contains("/unseen") && !left.contains(mounted.0.to_str().unwrap()), "{left}");
    assert!(!Pool::thaw_abandoned(Arc::new(Linux::new()), f.disk.path()).unwrap(), "nothing is left to thaw");
    fs::write(mounted.0.join("file"), "writers continue").unwrap();
    drop(mounted);
    f.reopen();
    assert!(!f.path("freeze.json").exists(), "the driver sees all of its mounts");
    f.detach(&id).unwrap();
}

/// An exchange of the driver before may not be on the disk yet. The next change overwrites what is the record there.
#[test]
fn directories_of_records_are_synced_at_start() {
    let mut f = Fixture::new(FsType::Xfs);
    let syncs = |f: &mut Fixture| {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        f.reopen_with(observing(move |effect| {
            counted.fetch_add(usize::from(effect == "sync"), Ordering::SeqCst);
        }));
        count.load(Ordering::SeqCst)
    };
    let without = syncs(&mut f);
    for name in ["a", "b", "c"] {
        f.raw_volume(name, 16 * MIB);
    }
    assert_eq!(syncs(&mut f), without + 3);
}

#[test]
fn freeze_is_not_looked_for_in_a_directory_that_is_not_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("missing")] {
        let refused = Pool::thaw_abandoned(Arc::new(Linux::new()), &path);
        assert!(matches!(refused, Err(OpenError::NoPool(_) | OpenError::Missing(_))), "{refused:?}");
    }
}
