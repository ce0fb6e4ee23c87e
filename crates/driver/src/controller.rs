//! The Controller service: validates each request, runs one operation per volume at a time, and calls the backend. Methods
//! for which the backend has no trait are neither declared nor served.

mod listing;
mod snapshots;
mod volumes;

use std::sync::Arc;

use tonic::{Request, Response, Status};
use wharf_csi::v1;
use wharf_csi::v1::controller_service_capability::rpc::Type;

use crate::backend::{Capacity, Clones, Expansion, Health, Listing, Mutable, Publishing, Snapshots, Volumes};
use crate::locks::Locks;
use crate::validate::Rules;

/// The traits of the backend.
#[derive(Clone)]
pub(crate) struct ControllerService {
    pub(crate) volumes: Arc<dyn Volumes>,
    pub(crate) listing: Option<Arc<dyn Listing>>,
    pub(crate) capacity: Option<Arc<dyn Capacity>>,
    pub(crate) publishing: Option<Arc<dyn Publishing>>,
    pub(crate) expansion: Option<Arc<dyn Expansion>>,
    pub(crate) snapshots: Option<Arc<dyn Snapshots>>,
    pub(crate) clones: Option<Arc<dyn Clones>>,
    pub(crate) health: Option<Arc<dyn Health>>,
    pub(crate) mutable: Option<Arc<dyn Mutable>>,
    pub(crate) locks: Locks,
    pub(crate) rules: Rules,
}

impl ControllerService {
    /// Derived from the traits, so that the driver declares exactly what it serves.
    fn capabilities(&self) -> Vec<Type> {
        let Self {
            volumes: _,
            listing,
            capacity,
            publishing,
            expansion,
            snapshots,
            clones,
            health,
            mutable,
            locks: _,
            rules: _,
        } = self;
        let read_only = publishing.as_ref().is_some_and(|publishing| publishing.read_only());
        let (listing, publishing, health) = (listing.is_some(), publishing.is_some(), health.is_some());
        [
            (Type::CreateDeleteVolume, true),
            (Type::SingleNodeMultiWriter, true),
            (Type::PublishUnpublishVolume, publishing),
            (Type::PublishReadonly, read_only),
            (Type::ListVolumes, listing),
            (Type::GetVolume, listing),
            (Type::ListVolumesPublishedNodes, listing && publishing),
            (Type::GetCapacity, capacity.is_some()),
            (Type::ExpandVolume, expansion.is_some()),
            (Type::CreateDeleteSnapshot, snapshots.is_some()),
            (Type::ListSnapshots, snapshots.is_some()),
            (Type::GetSnapshot, snapshots.is_some()),
            (Type::CloneVolume, clones.is_some()),
            (Type::GetVolumeHealth, health),
            (Type::ListVolumeHealth, health && listing),
            (Type::ModifyVolume, mutable.is_some()),
        ]
        .into_iter()
        .filter_map(|(kind, given)| given.then_some(kind))
        .collect()
    }
}

/// Returns a trait of the backend, or UNIMPLEMENTED.
fn declared<T: Clone>(part: &Option<T>, capability: Type) -> Result<T, Status> {
    part.clone().ok_or_else(|| {
        Status::unimplemented(format!("this driver does not declare {}", capability.as_str_name()))
    })
}

/// Implements each method of the service with the function of the same name.
macro_rules! controller {
    ($($method:ident($request:ident) -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl v1::controller_server::Controller for ControllerService {
            $(async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                self.$method(request.into_inner()).await.map(Response::new)
            })*

            async fn controller_get_capabilities(
                &self,
                _: Request<v1::ControllerGetCapabilitiesRequest>,
            ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
                use v1::controller_service_capability::{Rpc, Type as Kind};

                let capability = |kind: Type| v1::ControllerServiceCapability {
                    r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })),
                };
                let capabilities = self.capabilities().into_iter().map(capability).collect();
                Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
            }
        }
    };
}

controller! {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse;
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
    controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
}
