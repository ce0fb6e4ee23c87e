//! The Controller service of the simulated driver. It records a violation when a call breaks an invariant, such as the
//! deletion of a volume in use.

use async_trait::async_trait;
use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::controller_server::Controller;
use wharf_csi::v1::controller_service_capability::{Rpc, Type, rpc};

use super::{ATTACHED_TWICE, DELETED_IN_USE, DETACHED_MOUNTED, Driver, Volume};
use crate::planted::Bug;

/// Implements CSI methods that return Unimplemented.
macro_rules! absent {
    ($($method:ident($request:ident) -> $response:ident;)*) => {$(
        fn $method<'a, 'f>(
            &'a self,
            _: Request<v1::$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<v1::$response>, Status>> + Send + 'f>>
        where
            'a: 'f,
            Self: 'f,
        {
            Box::pin(async { Err(Status::unimplemented("not implemented by the simulated driver")) })
        }
    )*};
}
pub(super) use absent;

fn required(range: Option<&v1::CapacityRange>) -> i64 {
    range.map_or(0, |range| range.required_bytes)
}

#[async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = required(request.capacity_range.as_ref()).max(1);
        let mut id = format!("vol-{}", request.name);
        if self.sim.has(Bug::UnstableVolumeName) {
            id = format!("{id}-{}", self.sim.elapsed().as_millis());
        }
        self.call("CreateVolume", &id.clone(), move |_, driver_state| {
            driver_state.minors += 1;
            let new = Volume { bytes, minor: driver_state.minors, ..Volume::default() };
            let volume = driver_state.volumes.entry(id.clone()).or_insert(new);
            let (volume_id, capacity_bytes) = (id, volume.bytes);
            let volume = v1::Volume { volume_id, capacity_bytes, ..Default::default() };
            Ok(v1::CreateVolumeResponse { volume: Some(volume) })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.call("DeleteVolume", &id.clone(), move |driver, driver_state| {
            let Some(volume) = driver_state.volumes.get(&id) else { return Ok(v1::DeleteVolumeResponse {}) };
            let used =
                !volume.attached.is_empty() || !volume.staged.is_empty() || !volume.published.is_empty();
            if used {
                driver.sim.record_violation(format!("{id} {DELETED_IN_USE}: {volume:?}"));
                return Err(Status::failed_precondition("the volume is in use"));
            }
            driver_state.volumes.remove(&id);
            Ok(v1::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.call("ControllerPublishVolume", &id, move |driver, driver_state| {
            let Some(volume) = driver_state.volumes.get_mut(&request.volume_id) else {
                return Err(Status::not_found("volume not found"));
            };
            let (id, node) = (&request.volume_id, &request.node_id);
            let other = volume.attached.iter().find(|(other, read_only)| *other != node && !**read_only);
            if let Some((other, _)) = other {
                driver.sim.record_violation(format!("{id} is attached to {node} {ATTACHED_TWICE} {other}"));
            }
            driver.sim.note(format_args!("attached {id} to {node}"));
            volume.attached.insert(node.clone(), request.readonly);
            Ok(v1::ControllerPublishVolumeResponse::default())
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let v1::ControllerUnpublishVolumeRequest { volume_id: id, node_id: node, .. } = request.into_inner();
        self.call("ControllerUnpublishVolume", &id.clone(), move |driver, driver_state| {
            if let Some(volume) = driver_state.volumes.get_mut(&id) {
                let mounted = volume.staged.contains_key(&node)
                    || volume.published.iter().any(|(published, _)| *published == node);
                if mounted {
                    driver.sim.record_violation(format!("{id} is detached from {node} {DETACHED_MOUNTED}"));
                    return Err(Status::failed_precondition("the volume is mounted"));
                }
                driver.sim.note(format_args!("detached {id} from {node}"));
                volume.attached.remove(&node);
            }
            Ok(v1::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = required(request.capacity_range.as_ref());
        let id = request.volume_id;
        self.call("ControllerExpandVolume", &id.clone(), move |_, driver_state| {
            let Some(volume) = driver_state.volumes.get_mut(&id) else {
                return Err(Status::not_found("volume not found"));
            };
            volume.bytes = volume.bytes.max(bytes);
            Ok(v1::ControllerExpandVolumeResponse {
                capacity_bytes: volume.bytes,
                node_expansion_required: true,
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        let can = [rpc::Type::CreateDeleteVolume, rpc::Type::PublishUnpublishVolume, rpc::Type::ExpandVolume];
        let capabilities = can.map(|kind| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        });
        self.call("ControllerGetCapabilities", "", move |_, _| {
            Ok(v1::ControllerGetCapabilitiesResponse { capabilities: capabilities.into() })
        })
        .await
    }

    absent! {
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
        list_volumes(ListVolumesRequest) -> ListVolumesResponse;
        controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
        controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
        get_capacity(GetCapacityRequest) -> GetCapacityResponse;
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
        controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }
}
