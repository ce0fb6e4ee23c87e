//! Calls the driver over its socket, as an orchestrator does. Needs no root: it mounts nothing.

use std::sync::Arc;

use driver_template::{Directories, NAME, driver};
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
