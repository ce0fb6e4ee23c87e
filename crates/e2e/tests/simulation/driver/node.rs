//! The driver's Node service.

use async_trait::async_trait;
use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::node_server::Node;
use wharf_csi::v1::node_service_capability::{Rpc, Type, rpc};

use super::controller::absent;
use super::{Driver, DriverState, PUBLISHED_UNSTAGED, Volume};
use crate::planted::Bug;

fn existing_volume<'a>(driver_state: &'a mut DriverState, id: &str) -> Result<&'a mut Volume, Status> {
    driver_state.volumes.get_mut(id).ok_or_else(|| Status::not_found("volume not found"))
}

#[async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (id, at) = (request.volume_id, request.staging_target_path);
        if self.sim.has(Bug::PublishWithoutStage) {
            return Ok(Response::new(v1::NodeStageVolumeResponse {}));
        }
        self.call("NodeStageVolume", &id.clone(), move |driver, driver_state| {
            let (sim, node) = (&driver.sim, &driver.node);
            let volume = existing_volume(driver_state, &id)?;
            if !volume.attached.contains_key(node) {
                sim.record_violation(format!("{id} is staged on {node}, where it is not attached"));
            }
            if let Some(before) = volume.staged.insert(node.clone(), at.clone())
                && before != at
            {
                sim.record_violation(format!("{id} is staged on {node} twice: at {before} and {at}"));
            }
            Ok(v1::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.call("NodeUnstageVolume", &id.clone(), move |driver, driver_state| {
            let (sim, node) = (&driver.sim, &driver.node);
            if let Some(volume) = driver_state.volumes.get_mut(&id) {
                if let Some((_, at)) = volume.published.iter().find(|(published, _)| published == node) {
                    sim.record_violation(format!("{id} is unstaged on {node} while it is published at {at}"));
                }
                volume.staged.remove(node);
            }
            Ok(v1::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.call("NodePublishVolume", &id, move |driver, driver_state| {
            let (sim, node, id) = (&driver.sim, &driver.node, &request.volume_id);
            let volume = existing_volume(driver_state, id)?;
            if volume.staged.get(node) != Some(&request.staging_target_path) {
                sim.record_violation(format!("{id} {PUBLISHED_UNSTAGED} {node}"));
            }
            volume.published.insert((node.clone(), request.target_path));
            Ok(v1::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let v1::NodeUnpublishVolumeRequest { volume_id: id, target_path } = request.into_inner();
        self.call("NodeUnpublishVolume", &id.clone(), move |driver, driver_state| {
            if let Some(volume) = driver_state.volumes.get_mut(&id) {
                volume.published.remove(&(driver.node.clone(), target_path));
            }
            Ok(v1::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.call("NodeExpandVolume", &id.clone(), move |driver, driver_state| {
            let node = &driver.node;
            let volume = existing_volume(driver_state, &id)?;
            if !volume.staged.contains_key(node) {
                driver.sim.record_violation(format!("{id} is expanded on {node}, where it is not staged"));
            }
            Ok(v1::NodeExpandVolumeResponse { capacity_bytes: volume.bytes })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        let can = [rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume];
        let capabilities = can
            .map(|kind| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        Ok(Response::new(v1::NodeGetInfoResponse { node_id: self.node.clone(), ..Default::default() }))
    }

    absent! {
        node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
        node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
        node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    }
}
