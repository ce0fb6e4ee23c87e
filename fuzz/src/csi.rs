//! A CSI driver with every capability, whose volumes, mounts and directories are in memory.

#[allow(dead_code, reason = "the tests of the SDK use all of it")]
#[path = "../../crates/driver/tests/services/memory.rs"]
mod backend;

use std::sync::Arc;

use async_trait::async_trait;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tonic::Code;
use tower::{Service, ServiceExt as _};
use wharf_driver::NodeInfo;
use wharf_driver::backend::{DeviceError, MountSource, NodeVolume, Shares};

use self::backend::Memory;
use crate::kernel;

/// The RPCs that take a message with fields.
pub const METHODS: &[&str] = &[
    "Controller/CreateVolume",
    "Controller/DeleteVolume",
    "Controller/ControllerPublishVolume",
    "Controller/ControllerUnpublishVolume",
    "Controller/ValidateVolumeCapabilities",
    "Controller/ListVolumes",
    "Controller/GetCapacity",
    "Controller/CreateSnapshot",
    "Controller/DeleteSnapshot",
    "Controller/ListSnapshots",
    "Controller/GetSnapshot",
    "Controller/ControllerExpandVolume",
    "Controller/ControllerGetVolume",
    "Controller/ControllerModifyVolume",
    "Controller/ControllerListVolumeHealth",
    "Controller/ControllerGetVolumeHealth",
    "GroupController/CreateVolumeGroupSnapshot",
    "GroupController/DeleteVolumeGroupSnapshot",
    "GroupController/GetVolumeGroupSnapshot",
    "SnapshotMetadata/GetMetadataAllocated",
    "SnapshotMetadata/GetMetadataDelta",
    "Node/NodeStageVolume",
    "Node/NodeUnstageVolume",
    "Node/NodePublishVolume",
    "Node/NodeUnpublishVolume",
    "Node/NodeGetVolumeStats",
    "Node/NodeGetVolumeHealth",
    "Node/NodeExpandVolume",
];

struct Directories;

#[async_trait]
impl Shares for Directories {
    async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError> {
        Ok(MountSource { source: volume.id.clone(), fs_type: "tmpfs".into(), options: vec![] })
    }
}

/// Sends requests, each a method and a message, to a new driver. Returns the code and the message of each response.
pub async fn call<'a>(requests: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<(Code, String)> {
    let info = NodeInfo { node_id: "n1".into(), max_volumes: 0 };
    let driver =
        Memory::new().driver().share_node(Arc::<kernel::Memory>::default(), Arc::new(Directories), info);
    let mut service = wharf_driver::fuzzing::service(driver.build());
    let mut responses = Vec::new();
    for (method, message) in requests {
        // A gRPC frame: not compressed, the length, the message.
        let mut frame = vec![0];
        frame.extend((message.len() as u32).to_be_bytes());
        frame.extend(message);
        let request = Request::post(format!("http://csi/csi.v1.{method}"))
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(Full::new(bytes::Bytes::from(frame))))
            .expect("a request");
        let Ok(response) = service.ready().await.expect("ready").call(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await;
        let trailers = body.as_ref().ok().and_then(|body| body.trailers()).unwrap_or(&parts.headers);
        let header = |name| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        responses
            .push((Code::from_bytes(header("grpc-status").as_bytes()), header("grpc-message").to_owned()));
    }
    responses
}
