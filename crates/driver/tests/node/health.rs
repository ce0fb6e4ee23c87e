//! Node info, capabilities and health of volumes.

use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::VolumeHealthErrorType as Type;
use wharf_csi::v1::node_service_capability::{Type as Kind, rpc};
use wharf_driver::backend::FormatState;

use crate::support::{Bench, MIB, mount, run, text};

async fn reasons(bench: &Bench, id: &str) -> Vec<(Type, String)> {
    let request = v1::NodeGetVolumeHealthRequest {
        volume_id: id.into(),
        staging_target_path: text(&bench.staging(id)),
        ..Default::default()
    };
    let health = bench.call(request).await.unwrap().volume_health.unwrap();
    assert_eq!(health.volume_id, id);
    health.health_statuses.iter().map(|entry| (entry.status(), entry.reason.clone())).collect()
}

#[tokio::test]
async fn file_system_errors_are_reported() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    assert_eq!(reasons(&bench, "v").await, [], "a volume that is not staged has no issues");
    bench.stage("v", &mount("ext4")).await.unwrap();
    assert_eq!(reasons(&bench, "v").await, []);

    // The kernel's interface to simulate an ext4 error.
    let name = bench.images.device("v").unwrap().path.file_name().unwrap().to_str().unwrap().to_owned();
    run("mount", &["-o", "remount,errors=remount-ro", &text(&bench.staging("v"))]);
    std::fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test").unwrap();
    let degraded = |reason: &str| (Type::Degraded, reason.to_owned());
    assert_eq!(reasons(&bench, "v").await, [degraded("FilesystemReadOnly"), degraded("FilesystemErrors")]);
}

#[tokio::test]
async fn mount_without_its_device_is_reported() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    let staging = bench.staging("v");
    std::fs::create_dir(&staging).unwrap();
    run("mount", &["-t", "tmpfs", "orphan", &text(&staging)]);
    assert_eq!(reasons(&bench, "v").await, [(Type::Inaccessible, "DeviceMissing".to_owned())]);
    let unknown = v1::NodeGetVolumeHealthRequest { volume_id: "none".into(), ..Default::default() };
    assert_eq!(bench.call(unknown).await.unwrap_err().code(), Code::NotFound);
    let no_volume = v1::NodeGetVolumeHealthRequest::default();
    assert_eq!(bench.call(no_volume).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn node_reports_info_and_capabilities() {
    let bench = Bench::new().await;
    let info = bench.call(v1::NodeGetInfoRequest {}).await.unwrap();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n1", 7));
    assert_eq!(info.accessible_topology, None);
    let capabilities = bench.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap().capabilities;
    let mut kinds: Vec<rpc::Type> = capabilities
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(Kind::Rpc(rpc)) => rpc.r#type(),
            None => panic!("a capability without a type"),
        })
        .collect();
    kinds.sort();
    use rpc::Type::{
        ExpandVolume, GetStorageHealth, GetVolumeHealth, GetVolumeStats, SingleNodeMultiWriter,
        StageUnstageVolume,
    };
    let all = [
        StageUnstageVolume,
        GetVolumeStats,
        ExpandVolume,
        SingleNodeMultiWriter,
        GetVolumeHealth,
        GetStorageHealth,
    ];
    assert_eq!(kinds, all);
    let storage = bench.call(v1::NodeGetStorageHealthRequest::default()).await.unwrap();
    assert_eq!(storage.backend_health, []);
}
