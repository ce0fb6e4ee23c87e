//! Snapshots, restores and clones through the controller.

use wharf_driver::backend::{
    DeleteSnapshot, GetSnapshot, ListSnapshots, NewSnapshot, SnapshotError, Snapshots as _,
    VolumeContentSource,
};

use super::*;

fn from(name: &str, source: VolumeContentSource) -> NewVolume {
    requested(name, &[]).source(Some(source))
}

#[tokio::test]
async fn snapshot_is_taken_restored_listed_and_deleted() {
    for format in ["tree", "tar.zst", "tar.gz"] {
        let (directories, controller) = controller(OnDelete::Delete);
        let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
        std::fs::write(directories.at("pvc-1/data"), "1").unwrap();
        let new = NewSnapshot::new("snap-1", volume.id.clone()).parameters(map(&[("format", format)]));
        let snapshot = controller.create_snapshot(&new).await.unwrap();
        assert_eq!(snapshot.id, "srv#share#snap-1#snap-1#pvc-1", "{format}");
        assert!(snapshot.ready_to_use && snapshot.source == volume.id, "{format}");
        assert_eq!(controller.create_snapshot(&new).await.unwrap(), snapshot, "{format}");
        assert_eq!(
            controller.get_snapshot(&GetSnapshot::new(snapshot.id.clone())).await.unwrap(),
            Some(snapshot.clone()),
            "{format}"
        );
        for list in [ListSnapshots::new(10), ListSnapshots::new(10).source(Some(volume.id.clone()))] {
            let listed = controller.list_snapshots(&list).await.unwrap();
            assert_eq!((listed.entries, listed.more), (vec![snapshot.clone()], false), "{format}");
        }
        std::fs::write(directories.at("pvc-1/data"), "2").unwrap();
        let restored = from("pvc-2", VolumeContentSource::Snapshot(snapshot.id.clone()));
        assert_eq!(controller.create(&restored).await.unwrap().source, restored.source, "{format}");
        assert_eq!(std::fs::read_to_string(directories.at("pvc-2/data")).unwrap(), "1", "{format}");
        let cloned = from("pvc-3", VolumeContentSource::Volume(volume.id.clone()));
        controller.create(&cloned).await.unwrap();
        assert_eq!(std::fs::read_to_string(directories.at("pvc-3/data")).unwrap(), "2", "{format}");

        controller.delete_snapshot(&DeleteSnapshot::new(snapshot.id.clone())).await.unwrap();
        controller.delete_snapshot(&DeleteSnapshot::new(snapshot.id.clone())).await.unwrap();
        assert_eq!(controller.get_snapshot(&GetSnapshot::new(snapshot.id)).await.unwrap(), None, "{format}");
        for name in ["pvc-1", "pvc-2", "pvc-3"] {
            controller.delete(&DeleteVolume::new(format!("srv#share#{name}##"))).await.unwrap();
            assert!(!directories.at(name).exists(), "{format} {name}");
        }
    }
}

// B19
#[tokio::test]
async fn missing_source_is_not_found_and_leaves_nothing() {
    let (directories, controller) = controller(OnDelete::Delete);
    for source in [
        VolumeContentSource::Volume("srv#share#none##".into()),
        VolumeContentSource::Volume("any text".into()),
        VolumeContentSource::Volume("srv#share#../x##".into()),
        VolumeContentSource::Snapshot("srv#share#none#none#pvc-1".into()),
        VolumeContentSource::Snapshot("any text".into()),
    ] {
        let created = controller.create(&from("pvc-1", source.clone())).await;
        assert!(matches!(created, Err(CreateError::NotFound(_))), "{source:?}: {created:?}");
        assert!(!directories.at("pvc-1").exists());
    }
    let missing = controller.create_snapshot(&NewSnapshot::new("snap-1", "srv#share#none##")).await;
    assert!(matches!(missing, Err(SnapshotError::NotFound(_))), "{missing:?}");
}

// B20: the handle of a source names its server and share; a directory of the same name elsewhere is not the source.
#[tokio::test]
async fn source_on_another_share_is_refused() {
    let (directories, controller) = controller(OnDelete::Delete);
    std::fs::create_dir_all(directories.at("old")).unwrap();
    for source in [
        VolumeContentSource::Volume("other#share#old##".into()),
        VolumeContentSource::Volume("srv#elsewhere#old##".into()),
        VolumeContentSource::Snapshot("srv#elsewhere#s#s#old".into()),
    ] {
        let created = controller.create(&from("pvc-1", source)).await;
        assert!(matches!(created, Err(CreateError::Invalid(_))), "{created:?}");
    }
    let volume = controller.create(&requested("pvc-2", &[])).await.unwrap();
    let new = NewSnapshot::new("snap-1", volume.id).parameters(map(&[("share", "/elsewhere")]));
    assert!(matches!(controller.create_snapshot(&new).await, Err(SnapshotError::Invalid(_))));
}

// CVE-2026-3864
#[tokio::test]
async fn hostile_snapshot_handles_are_deleted_without_effect() {
    let (directories, controller) = controller(OnDelete::Delete);
    std::fs::create_dir_all(directories.at("x")).unwrap();
    let volume = controller.create(&requested("neighbour", &[])).await.unwrap();
    std::fs::write(directories.at("neighbour/data"), "1").unwrap();
    for hostile in crate::handle::tests::HOSTILE.into_iter().chain(["neighbour"]) {
        for handle in [
            format!("srv#share#{hostile}#{hostile}#src"),
            format!("srv#share#snap#snap#{hostile}"),
            format!("srv#{hostile}#neighbour#neighbour#data"),
        ] {
            // A share that does not exist cannot be mounted.
            let _ = controller.delete_snapshot(&DeleteSnapshot::new(handle)).await;
        }
        let source = format!("srv#share#{hostile}##");
        if source != volume.id {
            let taken = controller.create_snapshot(&NewSnapshot::new("snap-1", source.clone())).await;
            let named = VolumeHandle::parse(&source).unwrap().location();
            assert!(taken.is_err() || named.is_ok_and(|named| named.path.as_str() == "x"), "{source}");
        }
    }
    for path in ["x", "neighbour/data", "../canary"] {
        assert!(directories.at(path).exists(), "{path}");
    }
}
