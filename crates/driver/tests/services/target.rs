//! A backend that mounts at targets itself: no staging, no query of the controller's volumes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::node_service_capability::{Type as Kind, rpc};
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use wharf_driver::backend::{
    BackendError, FsUsage, GetStorageHealth, GetUsage, GetVolumeHealth, HealthIssue, HealthStatus,
    NodeVolume, StorageIssue, StorageStatus, TargetError, TargetMounts, UnpublishTarget,
};
use wharf_driver::{NodeInfo, ServeOptions};

use crate::memory::{Memory, Served};

/// Volume IDs by target.
#[derive(Default)]
struct Targets(Mutex<BTreeMap<PathBuf, String>>);

#[async_trait]
impl TargetMounts for Targets {
    async fn publish(&self, volume: &NodeVolume) -> Result<(), TargetError> {
        let target = volume.target.as_ref().expect("NodePublishVolume has a target");
        let mounted = self.0.lock().unwrap().entry(target.path.clone()).or_insert(volume.id.clone()).clone();
        match mounted == volume.id {
            true => Ok(()),
            false => Err(TargetError::Incompatible(format!("{mounted} is mounted there"))),
        }
    }

    async fn unpublish(&self, request: &UnpublishTarget) -> Result<(), TargetError> {
        self.0.lock().unwrap().remove(&request.path);
        Ok(())
    }

    async fn usage(&self, request: &GetUsage) -> Result<FsUsage, TargetError> {
        match self.0.lock().unwrap().get(&request.path) {
            Some(_) => Ok(FsUsage { total_bytes: 7, ..FsUsage::default() }),
            None => Err(TargetError::NotFound("not mounted".into())),
        }
    }

    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        let issue =
            HealthIssue { status: HealthStatus::Inaccessible, reason: "Gone".into(), message: "x".into() };
        Ok((request.id != "none").then(|| vec![issue]))
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        let issue =
            StorageIssue { status: StorageStatus::Unreachable, reason: "Down".into(), message: "x".into() };
        Ok(vec![issue])
    }
}

async fn served() -> Served {
    let info = NodeInfo { node_id: "n1".into(), max_volumes: 0 };
    let driver = Memory::new().driver().target_node(Arc::new(Targets::default()), info);
    Served::start(driver, ServeOptions::default()).await
}

fn publish(id: &str, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: target.into(),
        volume_capability: Some(v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn volume_unknown_to_the_controller_is_published_without_staging() {
    let served = served().await;
    let mut node = served.client.node();
    for _ in 0..2 {
        node.node_publish_volume(publish("static", "/pods/a")).await.unwrap();
    }
    let taken = node.node_publish_volume(publish("other", "/pods/a")).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists);
    let stats = |path: &str| v1::NodeGetVolumeStatsRequest {
        volume_id: "static".into(),
        volume_path: path.into(),
        ..Default::default()
    };
    let usage = node.node_get_volume_stats(stats("/pods/a")).await.unwrap().into_inner().usage;
    assert_eq!(usage[0].total, 7);
    assert_eq!(node.node_get_volume_stats(stats("/pods/b")).await.unwrap_err().code(), Code::NotFound);
    let unpublish =
        v1::NodeUnpublishVolumeRequest { volume_id: "static".into(), target_path: "/pods/a".into() };
    node.node_unpublish_volume(unpublish).await.unwrap();
    assert_eq!(node.node_get_volume_stats(stats("/pods/a")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn staging_is_neither_declared_nor_served_and_health_is() {
    let served = served().await;
    let mut node = served.client.node();
    let response = node.node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    let kinds: Vec<rpc::Type> = response
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(Kind::Rpc(rpc)) => rpc.r#type(),
            None => panic!("a capability without a type"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            rpc::Type::GetVolumeStats,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth
        ]
    );
    let stage = node.node_stage_volume(v1::NodeStageVolumeRequest::default()).await.unwrap_err();
    let unstage = node.node_unstage_volume(v1::NodeUnstageVolumeRequest::default()).await.unwrap_err();
    assert_eq!((stage.code(), unstage.code()), (Code::Unimplemented, Code::Unimplemented));

    let health = |id: &str| v1::NodeGetVolumeHealthRequest { volume_id: id.into(), ..Default::default() };
    let found = node.node_get_volume_health(health("static")).await.unwrap().into_inner();
    assert_eq!(found.volume_health.unwrap().health_statuses[0].reason, "Gone");
    assert_eq!(node.node_get_volume_health(health("none")).await.unwrap_err().code(), Code::NotFound);
    let storage = node.node_get_storage_health(v1::NodeGetStorageHealthRequest::default()).await.unwrap();
    assert_eq!(storage.into_inner().backend_health[0].reason, "Down");
}

#[tokio::test]
async fn publish_request_is_validated() {
    let served = served().await;
    let mut node = served.client.node();
    for request in [
        publish("", "/pods/a"),
        publish("v", ""),
        publish("v", "/a/../b"),
        v1::NodePublishVolumeRequest { volume_capability: None, ..publish("v", "/pods/a") },
    ] {
        let status = node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
}
