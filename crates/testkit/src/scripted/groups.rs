//! The GroupController service: snapshots of several volumes at one point in time.

use async_trait::async_trait;
use serde_json::json;
use tonic::{Request, Response, Status};
use wharf_csi::v1::group_controller_server::GroupController;
use wharf_csi::v1::{self as csi};

use super::controller::keys;
use super::snapshots::{delete_group, find_group};
use super::{Call, ScriptedService};

#[async_trait]
impl GroupController for ScriptedService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::GroupControllerGetCapabilitiesResponse>, Status> {
        use csi::group_controller_service_capability::{Rpc, Type, rpc};
        let kinds = self.options.group_capabilities.iter().filter_map(|name| rpc::Type::from_str_name(name));
        let capabilities = kinds.map(|kind| csi::GroupControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        });
        let capabilities = capabilities.collect();
        Ok(Response::new(csi::GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("CreateVolumeGroupSnapshot")
            .with("name", request.name.clone())
            .with("volumes", request.source_volume_ids.clone())
            .with("parameters", json!(request.parameters))
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let group_snapshot = Some(self.group(held, &request)?);
            Ok(csi::CreateVolumeGroupSnapshotResponse { group_snapshot })
        })
        .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("DeleteVolumeGroupSnapshot")
            .with("group", request.group_snapshot_id.clone())
            .with("snapshots", request.snapshot_ids.clone())
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            delete_group(held, &request)?;
            Ok(csi::DeleteVolumeGroupSnapshotResponse {})
        })
        .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<csi::GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("GetVolumeGroupSnapshot")
            .with("group", request.group_snapshot_id.clone())
            .with("snapshots", request.snapshot_ids.clone())
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let group_snapshot = Some(find_group(held, &request)?);
            Ok(csi::GetVolumeGroupSnapshotResponse { group_snapshot })
        })
        .await
    }
}
