//! Group snapshots: all or none.

use std::sync::{Arc, Mutex};

use wharf_driver::backend::{DeleteError, SnapshotError};
use wharf_linux::FsType;

use crate::fixture::*;

on_each!(group_snapshot_is_idempotent_and_restorable, group_with_unknown_volume_creates_nothing);
on_reflink!(members_are_frozen_together);

fn group_snapshot_is_idempotent_and_restorable(fs: FsType) {
    let mut f = Fixture::new(fs);
    let ids = ["a", "b", "c"].map(|name| f.raw_volume(name, 16 * MIB).id);
    f.write(&ids[0], 0, b"zero");
    let wanted = group("g", &[&ids[0], &ids[1]]);
    let created = f.create_group(&wanted).unwrap();
    assert_eq!(created.snapshots.len(), 2);
    assert!(
        created
            .snapshots
            .iter()
            .all(|member| member.ready_to_use && member.group.as_ref() == Some(&created.id))
    );
    assert_eq!(f.create_group(&wanted).unwrap(), created);
    assert!(matches!(f.create_group(&group("g", &[&ids[0]])), Err(SnapshotError::Exists(_))));
    assert_eq!(f.get_group(&created.id).unwrap().unwrap(), created);
    let member = created.snapshots.iter().find(|member| member.source == ids[0]).unwrap();
    assert_eq!(f.read(&member.id, 0, 4), b"zero");
    assert!(matches!(f.delete_snapshot(&member.id), Err(DeleteError::GroupMember(_))));
    f.reopen();
    assert_eq!(f.get_group(&created.id).unwrap().unwrap(), created);
    let restored = f.create(&copy_of("r", 0, &member.id)).unwrap();
    assert_eq!(f.read(&restored.id, 0, 4), b"zero");
    f.delete_group(&created.id).unwrap();
    f.delete_group(&created.id).unwrap();
    assert_eq!(f.get_group(&created.id).unwrap(), None);
    assert_eq!(f.get_snapshot(&member.id).unwrap(), None);
    for id in ids.iter().chain([&restored.id]) {
        f.delete(id).unwrap();
    }
    f.assert_empty();
}

fn group_with_unknown_volume_creates_nothing(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.raw_volume("a", 16 * MIB).id;
    let refused = f.create_group(&group("g", &[&id, "vol-ffffffffffffffffffffffffffffffff"]));
    assert!(matches!(refused, Err(SnapshotError::NotFound(_))), "{refused:?}");
    f.delete(&id).unwrap();
    f.assert_empty();
}

fn members_are_frozen_together(fs: FsType) {
    let mut f = Fixture::new(fs);
    let effects = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&effects);
    f.reopen_with(observing(move |effect| recorder.lock().unwrap().push(effect)));
    let work = tempfile::tempdir().unwrap();
    let mut mounts = Vec::new();
    let ids = ["a", "b"].map(|name| {
        let id = f.create(&wanted(name, 64 * MIB).capabilities(vec![mount("ext4")])).unwrap().id;
        let device = f.attach(&id, &mount("")).unwrap().path;
        run("mkfs.ext4", &["-q".as_ref(), &device]);
        mounts.push(Mounted::new(&device, &work.path().join(name)));
        id
    });
    effects.lock().unwrap().clear();
    f.create_group(&group("g", &[&ids[0], &ids[1]])).unwrap();
    let order: Vec<&str> = effects.lock().unwrap().clone();
    let calls: Vec<&str> =
        order.iter().copied().filter(|e| ["freeze", "reflink", "frozen_thaw"].contains(e)).collect();
    assert_eq!(calls, ["freeze", "reflink", "reflink", "frozen_thaw"]);
    for mounted in &mounts {
        std::fs::write(mounted.0.join("file"), "thawed").unwrap();
    }
}
