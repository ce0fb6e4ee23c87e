//! Calls the driver over its socket, as an orchestrator does. Needs no root: it mounts nothing.

use std::sync::Arc;

use driver_template::{Directories, NAME, driver};
use wharf_driver::backend::{self, Capability, DeleteVolume, GetVolume, Listing, NewVolume, Volumes};
use wharf_driver::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use wharf_driver::csi::{Client, v1};
use wharf_driver::{Endpoint, ServeOptions};

fn create(name: &str, size: i64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: size, limit_bytes: 0 }),
        volume_capabilities: vec![v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        ..Default::default()
    }
}

#[tokio::test]
async fn volumes_survive_a_restart_of_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let endpoint: Endpoint = format!("unix://{}/csi.sock", dir.path().display()).parse().unwrap();

    for round in 0..2 {
        let driver = driver(Arc::new(Directories::open(&root).unwrap()), "n1").unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let at = endpoint.clone();
        let server = tokio::spawn(async move {
            let stopped = async {
                stopped.await.ok();
            };
            driver.serve(&at, ServeOptions::default(), stopped).await.unwrap();
        });
        while !endpoint.path().exists() {
            tokio::task::yield_now().await;
        }
        let client = Client::new(&endpoint);
        let info = client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.name, NAME);

        let mut controller = client.controller();
        let volume = controller.create_volume(create("data", 1 << 20)).await.unwrap().into_inner();
        assert_eq!(volume.volume.unwrap().capacity_bytes, 1 << 20);
        let other = controller.create_volume(create("data", 1 << 30)).await.unwrap_err();
        assert!(other.message().contains("another size"), "{other}");
        assert!(controller.create_volume(create("../data", 0)).await.is_err());
        let listed = controller.list_volumes(v1::ListVolumesRequest::default()).await.unwrap().into_inner();
        assert_eq!(listed.entries.len(), 1);
        if round == 1 {
            let delete = v1::DeleteVolumeRequest { volume_id: "data".into(), ..Default::default() };
            for _ in 0..2 {
                controller.delete_volume(delete.clone()).await.unwrap();
            }
            assert!(std::fs::read_dir(&root).unwrap().next().is_none(), "nothing is left");
        }
        drop(stop);
        server.await.unwrap();
    }
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume::new(name, vec![Capability::mount("", backend::AccessMode::SingleNodeWriter)])
}

#[tokio::test]
async fn only_volumes_of_the_driver_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    for directory in [root.join("photos"), root.join("unreadable"), outside.join("data")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let kept = [root.join("photos/1.jpg"), root.join("unreadable/size"), outside.join("size")];
    for file in &kept {
        std::fs::write(file, if file.starts_with(&outside) { "1024" } else { "x" }).unwrap();
    }
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    std::fs::write(root.join("file"), "1024").unwrap();
    let storage = Directories::open(&root).unwrap();

    for (id, found) in [
        ("photos", "without the file"),
        ("unreadable", "has no size"),
        ("link", "symbolic link"),
        ("file", "not a directory"),
    ] {
        let created = storage.create(&new_volume(id)).await.unwrap_err().to_string();
        let deleted = storage.delete(&DeleteVolume::new(id)).await.unwrap_err().to_string();
        let got = storage.get(&GetVolume::new(id)).await.unwrap_err().to_string();
        for error in [created, deleted, got] {
            assert!(error.contains(found), "{id}: {error}");
        }
    }
    for file in kept.iter().chain([&root.join("link"), &root.join("file")]) {
        assert!(file.symlink_metadata().is_ok(), "{}", file.display());
    }
    assert_eq!(storage.list(&backend::ListVolumes::new(10)).await.unwrap().entries, []);
}

#[tokio::test]
async fn interrupted_calls_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let storage = Directories::open(root).unwrap();
    std::fs::create_dir_all(root.join(".new-a/data/old")).unwrap();
    storage.create(&new_volume("a")).await.unwrap();
    assert!(!root.join("a/data/old").exists());

    std::fs::create_dir_all(root.join(".deleted-a/data/old")).unwrap();
    for _ in 0..2 {
        storage.delete(&DeleteVolume::new("a")).await.unwrap();
        assert!(std::fs::read_dir(root).unwrap().next().is_none(), "nothing is left");
        std::fs::create_dir_all(root.join(".deleted-a/data/old")).unwrap();
    }
}
