//! The Controller service: volumes and snapshots as records, and checks of what callers must not request.

use async_trait::async_trait;
use serde_json::json;
use tonic::{Code, Request, Response, Status};
use wharf_csi::v1::controller_server::Controller;
use wharf_csi::v1::{self as csi};

use super::health::Conditions;
use super::volumes::{existing_volume, publish, required, to_csi};
use super::{Call, ScriptedService, snapshots, violation};

/// CSI methods that this driver does not implement.
macro_rules! unimplemented_methods {
    ($($method:ident($request:ident) -> $response:ident;)*) => {$(
        fn $method<'a, 'f>(
            &'a self,
            _: Request<csi::$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<csi::$response>, Status>> + Send + 'f>>
        where
            'a: 'f,
            Self: 'f,
        {
            Box::pin(async { Err(Status::unimplemented("the scripted driver does not implement this method")) })
        }
    )*};
}
pub(super) use unimplemented_methods;

#[async_trait]
impl Controller for ScriptedService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let mut request = request.into_inner();
        let secrets = std::mem::take(&mut request.secrets);
        let call = Call::new("CreateVolume")
            .with("name", request.name.clone())
            .with("bytes", required(request.capacity_range.as_ref()))
            .with("parameters", json!(request.parameters))
            .with("mutable", json!(request.mutable_parameters))
            .with("topology", topology_text(request.accessibility_requirements.as_ref()))
            .with("secrets", keys(&secrets));
        self.call(call, |held| {
            self.check_secrets(&secrets)?;
            let volume = self.create(held, request)?;
            Ok(csi::CreateVolumeResponse { volume: Some(to_csi(&volume)) })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let csi::DeleteVolumeRequest { volume_id, secrets } = request.into_inner();
        let call =
            Call::new("DeleteVolume").with("volume", volume_id.clone()).with("secrets", keys(&secrets));
        self.call(call, |held| {
            self.check_secrets(&secrets)?;
            if let Some(volume) = held.volume(&volume_id)? {
                if let Some(node) = volume.published.keys().next() {
                    return Err(violation(
                        Code::FailedPrecondition,
                        format!("{volume_id} is deleted while it is published to node {node}"),
                    ));
                }
                // Kubelet may still be unmounting it, and the caller cannot know: not a violation.
                if let Some(node) = volume.mounted.keys().next() {
                    let text = format!("{volume_id} is mounted on {node}");
                    return Err(Status::failed_precondition(text).into());
                }
                held.remove_volume(&volume_id)?;
            }
            Ok(csi::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ControllerPublishVolume")
            .with("volume", request.volume_id.clone())
            .with("node", request.node_id.clone())
            .with("readonly", request.readonly)
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            publish(held, &request)?;
            let context = [("published-to".to_owned(), request.node_id.clone())].into();
            Ok(csi::ControllerPublishVolumeResponse { publish_context: context })
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let csi::ControllerUnpublishVolumeRequest { volume_id, node_id, secrets } = request.into_inner();
        let call = Call::new("ControllerUnpublishVolume")
            .with("volume", volume_id.clone())
            .with("node", node_id.clone())
            .with("secrets", keys(&secrets));
        self.call(call, |held| {
            self.check_secrets(&secrets)?;
            if let Some(mut volume) = held.volume(&volume_id)? {
                if volume.mounted.contains_key(&node_id) {
                    return Err(violation(
                        Code::FailedPrecondition,
                        format!("{volume_id} is unpublished from node {node_id} while it is mounted there"),
                    ));
                }
                if volume.published.remove(&node_id).is_some() {
                    held.put_volume(&volume)?;
                }
            }
            Ok(csi::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ValidateVolumeCapabilities").with("volume", request.volume_id.clone());
        self.call(call, |held| {
            existing_volume(held, &request.volume_id)?;
            let confirmed = csi::validate_volume_capabilities_response::Confirmed {
                volume_capabilities: request.volume_capabilities,
                ..Default::default()
            };
            Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let csi::ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let most = usize::try_from(max_entries).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        self.call(Call::new("ListVolumes").with("after", starting_token.clone()), |held| {
            let volumes = held.volumes(&starting_token, most)?;
            let full = volumes.len() == most;
            let next_token = volumes.last().filter(|_| full).map(|last| last.id.clone()).unwrap_or_default();
            let conditions = self.conditions(held)?;
            let entries = volumes.iter().map(|volume| csi::list_volumes_response::Entry {
                volume: Some(to_csi(volume)),
                status: Some(csi::list_volumes_response::VolumeStatus {
                    published_node_ids: volume.published.keys().cloned().collect(),
                    volume_condition: conditions.as_ref().map(|all| all.condition(&volume.id)),
                }),
            });
            Ok(csi::ListVolumesResponse { entries: entries.collect(), next_token })
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let segment = request.accessible_topology.and_then(|topology| topology.segments.into_iter().next());
        let call = Call::new("GetCapacity")
            .with("segment", segment.as_ref().map(|(key, value)| format!("{key}={value}")))
            .with("parameters", json!(request.parameters));
        self.call(call, |held| {
            let available = self.available_bytes(held, segment.as_ref())?;
            Ok(csi::GetCapacityResponse { available_capacity: available, ..Default::default() })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        use csi::controller_service_capability::{Rpc, Type, rpc};
        let kinds = self.options.capabilities.iter().filter_map(|name| rpc::Type::from_str_name(name));
        let capabilities = kinds.map(|kind| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("CreateSnapshot")
            .with("name", request.name.clone())
            .with("volume", request.source_volume_id.clone())
            .with("parameters", json!(request.parameters))
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            Ok(csi::CreateSnapshotResponse { snapshot: Some(self.snapshot(held, &request)?) })
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        let csi::DeleteSnapshotRequest { snapshot_id, secrets } = request.into_inner();
        let call =
            Call::new("DeleteSnapshot").with("snapshot", snapshot_id.clone()).with("secrets", keys(&secrets));
        self.call(call, |held| {
            self.check_secrets(&secrets)?;
            snapshots::delete(held, &snapshot_id)?;
            Ok(csi::DeleteSnapshotResponse {})
        })
        .await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ListSnapshots")
            .with("snapshot", request.snapshot_id.clone())
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| snapshots::list(held, &request)).await
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        let csi::GetSnapshotRequest { snapshot_id, secrets } = request.into_inner();
        let call =
            Call::new("GetSnapshot").with("snapshot", snapshot_id.clone()).with("secrets", keys(&secrets));
        self.call(call, |held| {
            Ok(csi::GetSnapshotResponse { snapshot: Some(snapshots::find(held, &snapshot_id)?) })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = required(request.capacity_range.as_ref());
        let call = Call::new("ControllerExpandVolume")
            .with("volume", request.volume_id.clone())
            .with("bytes", bytes)
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let mut volume = existing_volume(held, &request.volume_id)?;
            if bytes > volume.bytes {
                if bytes - volume.bytes > self.available_bytes(held, volume.segment.as_ref())? {
                    return Err(Status::out_of_range(format!("not enough capacity for {bytes} bytes")).into());
                }
                volume.bytes = bytes;
                held.put_volume(&volume)?;
            }
            Ok(csi::ControllerExpandVolumeResponse {
                capacity_bytes: volume.bytes,
                node_expansion_required: self
                    .options
                    .node_capabilities
                    .iter()
                    .any(|name| name == "EXPAND_VOLUME"),
            })
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.call(Call::new("ControllerGetVolume").with("volume", id.clone()), |held| {
            let volume = existing_volume(held, &id)?;
            let status = csi::controller_get_volume_response::VolumeStatus {
                published_node_ids: volume.published.keys().cloned().collect(),
                volume_condition: self.conditions(held)?.map(|all| all.condition(&id)),
            };
            Ok(csi::ControllerGetVolumeResponse { volume: Some(to_csi(&volume)), status: Some(status) })
        })
        .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ControllerModifyVolume")
            .with("volume", request.volume_id.clone())
            .with("mutable", json!(request.mutable_parameters))
            .with("secrets", keys(&request.secrets));
        self.call(call, |held| {
            self.check_secrets(&request.secrets)?;
            let mut volume = existing_volume(held, &request.volume_id)?;
            volume.mutable = request.mutable_parameters;
            held.put_volume(&volume)?;
            Ok(csi::ControllerModifyVolumeResponse {})
        })
        .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        let after = request.into_inner().starting_token;
        self.call(Call::new("ControllerListVolumeHealth").with("after", after.clone()), |held| {
            let conditions = Conditions::read(held)?;
            let all = held.volumes(&after, usize::MAX)?;
            let entries = all.iter().map(|volume| conditions.health(&volume.id));
            let entries = entries.filter(|health| !health.health_statuses.is_empty()).collect();
            Ok(csi::ControllerListVolumeHealthResponse { entries, next_token: String::new() })
        })
        .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeHealthResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.call(Call::new("ControllerGetVolumeHealth").with("volume", id.clone()), |held| {
            existing_volume(held, &id)?;
            let volume_health = Some(Conditions::read(held)?.health(&id));
            Ok(csi::ControllerGetVolumeHealthResponse { volume_health })
        })
        .await
    }
}

impl ScriptedService {
    /// The abnormal volumes, if the driver has the VOLUME_CONDITION capability.
    fn conditions(&self, held: &super::state::LockedState<'_>) -> std::io::Result<Option<Conditions>> {
        self.options.has("VOLUME_CONDITION").then(|| Conditions::read(held)).transpose()
    }
}

pub(super) fn keys(secrets: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    secrets.keys().cloned().collect()
}

fn topology_text(requirement: Option<&csi::TopologyRequirement>) -> Option<String> {
    let terms = |terms: &[csi::Topology]| {
        let terms = terms.iter().map(|term| {
            let parts: Vec<_> = term.segments.iter().map(|(key, value)| format!("{key}={value}")).collect();
            parts.join("&")
        });
        terms.collect::<Vec<_>>().join("|")
    };
    requirement.map(|it| format!("requisite {} preferred {}", terms(&it.requisite), terms(&it.preferred)))
}
