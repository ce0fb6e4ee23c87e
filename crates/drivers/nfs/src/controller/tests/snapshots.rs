//! Snapshots, restores and clones through the controller, and sources and snapshot handles that must not be used.

use wharf_driver::backend::{
    DeleteSnapshot, GetSnapshot, ListSnapshots, NewSnapshot, SnapshotError, Snapshots as _,
    VolumeContentSource,
};

use super::*;

async fn with_volume(controller: &Controller, directories: &Directories) -> String {
    let volume = controller.create(&requested("pvc-1", &[])).await.unwrap();
    std::fs::write(directories.at("pvc-1/file"), "content").unwrap();
    volume.id
}

#[tokio::test]
async fn snapshots_are_created_listed_restored_and_deleted() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = with_volume(&controller, &directories).await;
    for (n, format) in ["tree", "tar.zst", "tar.gz"].into_iter().enumerate() {
        let new =
            NewSnapshot::new(format!("snap-{n}"), volume.clone()).parameters(map(&[("format", format)]));
        let snapshot = controller.create_snapshot(&new).await.unwrap();
        assert_eq!(snapshot.id, format!("srv#share#snap-{n}#snap-{n}#pvc-1"));
        assert_eq!(
            (snapshot.source.as_str(), snapshot.size, snapshot.ready_to_use),
            (volume.as_str(), 7, true)
        );
        assert_eq!(controller.create_snapshot(&new).await.unwrap(), snapshot);
        let get = GetSnapshot::new(snapshot.id.clone());
        assert_eq!(controller.get_snapshot(&get).await.unwrap(), Some(snapshot.clone()));
        let name = format!("restored-{n}");
        let restore = requested(&name, &[]).source(Some(VolumeContentSource::Snapshot(snapshot.id.clone())));
        let restored = controller.create(&restore).await.unwrap();
        assert_eq!(restored.source, Some(VolumeContentSource::Snapshot(snapshot.id)));
        assert_eq!(std::fs::read(directories.at(&name).join("file")).unwrap(), b"content");
    }
    let page = controller.list_snapshots(&ListSnapshots::new(2)).await.unwrap();
    assert_eq!((page.entries.len(), page.more), (2, true));
    let after = ListSnapshots::new(2).after(Some(page.entries[1].id.clone())).source(Some(volume.clone()));
    let page = controller.list_snapshots(&after).await.unwrap();
    assert_eq!((page.entries.len(), page.more), (1, false));
    for n in 0..3 {
        for _ in 0..2 {
            let id = format!("srv#share#snap-{n}#snap-{n}#pvc-1");
            controller.delete_snapshot(&DeleteSnapshot::new(id)).await.unwrap();
        }
    }
    assert!(controller.list_snapshots(&ListSnapshots::new(9)).await.unwrap().entries.is_empty());
    assert!(!directories.at("snap-2").exists());
}

#[tokio::test]
async fn clone_is_created_and_sources_must_exist_on_the_same_share() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = with_volume(&controller, &directories).await;
    let from =
        |source: &str| requested("pvc-2", &[]).source(Some(VolumeContentSource::Volume(source.to_owned())));
    for missing in ["srv#share#pvc-9##", "some-volume"] {
        let error = controller.create(&from(missing)).await.unwrap_err();
        assert!(matches!(error, CreateError::NotFound(_)), "{error}");
    }
    let error = controller.create(&from("srv#elsewhere#pvc-1##")).await.unwrap_err();
    assert!(matches!(&error, CreateError::Invalid(message) if message.contains("one share")), "{error}");
    controller.create(&from(&volume)).await.unwrap();
    assert_eq!(std::fs::read(directories.at("pvc-2/file")).unwrap(), b"content");
    // The source is not needed any more.
    controller.delete(&DeleteVolume::new(volume)).await.unwrap();
    assert!(directories.at("pvc-2/file").exists());
}

#[tokio::test]
async fn invalid_snapshot_requests_get_matching_errors() {
    let (directories, controller) = controller(OnDelete::Delete);
    let volume = with_volume(&controller, &directories).await;
    let missing = controller.create_snapshot(&NewSnapshot::new("s", "srv#share#pvc-9##")).await.unwrap_err();
    assert!(matches!(missing, SnapshotError::NotFound(_)), "{missing}");
    for parameters in [[("share", "/elsewhere")], [("server", "other")], [("format", "zip")]] {
        let new = NewSnapshot::new("s", volume.clone()).parameters(map(&parameters));
        let error = controller.create_snapshot(&new).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Invalid(_)), "{error}");
    }
    for name in ["a/b", "a#b", "..", ".wharf"] {
        let error = controller.create_snapshot(&NewSnapshot::new(name, volume.clone())).await.unwrap_err();
        assert!(matches!(error, SnapshotError::Invalid(_)), "{name}: {error}");
    }
    controller.create_snapshot(&NewSnapshot::new("s", volume)).await.unwrap();
    let other = controller.create(&requested("pvc-2", &[])).await.unwrap();
    let error = controller.create_snapshot(&NewSnapshot::new("s", other.id)).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Exists(_)), "{error}");
}

/// A copy that takes long is "in progress" for the caller: ABORTED.
#[tokio::test]
async fn long_copy_is_in_progress() {
    let directories = Arc::new(Directories::new());
    directories.ignore_jobs();
    let options =
        ControllerOptions { job_wait: std::time::Duration::from_millis(100), ..ControllerOptions::default() };
    let controller = Controller::new(directories.clone(), None, options);
    let volume = with_volume(&controller, &directories).await;
    let error = controller.create_snapshot(&NewSnapshot::new("s", volume)).await.unwrap_err();
    assert!(matches!(&error, SnapshotError::Backend(BackendError::Busy(_))), "{error}");
}

fn from(name: &str, source: VolumeContentSource) -> NewVolume {
    requested(name, &[]).source(Some(source))
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
            let created = controller.create_snapshot(&NewSnapshot::new("snap-1", source.clone())).await;
            let location = VolumeHandle::parse(&source).unwrap().location();
            assert!(
                created.is_err() || location.is_ok_and(|location| location.path.as_str() == "x"),
                "{source}"
            );
        }
    }
    for path in ["x", "neighbour/data", "../canary"] {
        assert!(directories.at(path).exists(), "{path}");
    }
}
