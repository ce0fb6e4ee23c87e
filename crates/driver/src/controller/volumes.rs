//! Methods that change a volume (create, delete, publish, unpublish, expand, modify), and ValidateVolumeCapabilities.

use tonic::Status;
use wharf_csi::v1;
use wharf_csi::v1::controller_service_capability::rpc::Type;

use super::{ControllerService, declared};
use crate::backend::{
    Capability, DeleteVolume, ExpandVolume, GetVolume, ModifyVolume, NewVolume, PublishVolume,
    UnpublishVolume, Volume, VolumeContentSource, Volumes,
};
use crate::locks::{snapshot_key, volume_key, volume_name_key};
use crate::{validate, wire};

impl ControllerService {
    pub(super) async fn create_volume(
        &self,
        request: v1::CreateVolumeRequest,
    ) -> Result<v1::CreateVolumeResponse, Status> {
        let requested = self.new_volume(request)?;
        let mut keys = vec![volume_name_key(&requested.name)];
        keys.extend(requested.source.as_ref().map(|source| match source {
            VolumeContentSource::Snapshot(id) => snapshot_key(id),
            VolumeContentSource::Volume(id) => volume_key(id),
        }));
        let (volumes, rules) = (self.volumes.clone(), self.rules);
        self.locks
            .run(keys, async move {
                let volume = volumes.create(&requested).await?;
                rules.returned_id("volume", &volume.id)?;
                check_same_request(&volume, &requested)?;
                Ok(v1::CreateVolumeResponse { volume: Some(wire::volume(&volume)) })
            })
            .await
    }

    fn new_volume(&self, request: v1::CreateVolumeRequest) -> Result<NewVolume, Status> {
        validate::name("name", &request.name)?;
        let capabilities = self.rules.capabilities(&request.volume_capabilities)?;
        let size = validate::size("capacity_range", &request.capacity_range)?;
        validate::map("parameters", &request.parameters)?;
        validate::map("mutable_parameters", &request.mutable_parameters)?;
        let source = self.rules.source(&request.volume_content_source)?;
        let (requisite, preferred) = validate::topology_requirement(&request.accessibility_requirements)?;

        match &source {
            Some(VolumeContentSource::Snapshot(_)) if self.snapshots.is_none() => {
                return Err(validate::invalid(
                    "volume_content_source",
                    "cannot be a snapshot with this driver",
                ));
            }
            Some(VolumeContentSource::Volume(_)) if self.clones.is_none() => {
                return Err(validate::invalid(
                    "volume_content_source",
                    "cannot be a volume with this driver",
                ));
            }
            _ => {}
        }
        if self.mutable.is_none() && !request.mutable_parameters.is_empty() {
            return Err(validate::invalid(
                "mutable_parameters",
                "must be empty: this driver does not declare MODIFY_VOLUME",
            ));
        }
        let mut parameters = request.parameters;
        parameters.extend(request.mutable_parameters);
        if let Some(reason) = self.volumes.refuses_parameters(&validate::own_parameters(&parameters)) {
            return Err(Status::invalid_argument(reason));
        }
        check_capabilities(&*self.volumes, None, &capabilities)?;
        Ok(NewVolume::new(request.name, capabilities)
            .size(size)
            .parameters(parameters)
            .source(source)
            .requisite(requisite)
            .preferred(preferred)
            .secrets(request.secrets))
    }

    pub(super) async fn delete_volume(
        &self,
        request: v1::DeleteVolumeRequest,
    ) -> Result<v1::DeleteVolumeResponse, Status> {
        self.rules.id("volume_id", &request.volume_id)?;
        let volumes = self.volumes.clone();
        let delete = DeleteVolume::new(request.volume_id).secrets(request.secrets);
        self.locks
            .run([volume_key(&delete.id)], async move {
                volumes.delete(&delete).await?;
                Ok(v1::DeleteVolumeResponse {})
            })
            .await
    }

    pub(super) async fn controller_publish_volume(
        &self,
        request: v1::ControllerPublishVolumeRequest,
    ) -> Result<v1::ControllerPublishVolumeResponse, Status> {
        let publishing = declared(&self.publishing, Type::PublishUnpublishVolume)?;
        self.rules.id("volume_id", &request.volume_id)?;
        validate::node_id("node_id", &request.node_id)?;
        let capability = self.rules.capability(&request.volume_capability)?;
        validate::map("volume_context", &request.volume_context)?;
        let volumes = self.volumes.clone();
        let publish = PublishVolume::new(request.volume_id, request.node_id, capability)
            .read_only(request.readonly)
            .volume_context(request.volume_context)
            .secrets(request.secrets);
        self.locks
            .run([volume_key(&publish.id)], async move {
                let get = GetVolume::new(publish.id.clone())
                    .volume_context(publish.volume_context.clone())
                    .secrets(publish.secrets.clone());
                let volume = get_existing(&*volumes, &get).await?;
                check_capabilities(&*volumes, Some(&volume), std::slice::from_ref(&publish.capability))?;
                let publish_context = publishing.publish(&publish).await?;
                Ok(v1::ControllerPublishVolumeResponse { publish_context })
            })
            .await
    }

    pub(super) async fn controller_unpublish_volume(
        &self,
        request: v1::ControllerUnpublishVolumeRequest,
    ) -> Result<v1::ControllerUnpublishVolumeResponse, Status> {
        let publishing = declared(&self.publishing, Type::PublishUnpublishVolume)?;
        self.rules.id("volume_id", &request.volume_id)?;
        if !request.node_id.is_empty() {
            validate::node_id("node_id", &request.node_id)?;
        }
        let node = Some(request.node_id).filter(|node| !node.is_empty());
        let unpublish = UnpublishVolume::new(request.volume_id).node(node).secrets(request.secrets);
        self.locks
            .run([volume_key(&unpublish.id)], async move {
                publishing.unpublish(&unpublish).await?;
                Ok(v1::ControllerUnpublishVolumeResponse {})
            })
            .await
    }

    pub(super) async fn controller_expand_volume(
        &self,
        request: v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Status> {
        let expansion = declared(&self.expansion, Type::ExpandVolume)?;
        self.rules.id("volume_id", &request.volume_id)?;
        let size = validate::required_size("capacity_range", &request.capacity_range)?;
        let capability = self.rules.optional_capability(&request.volume_capability)?;
        let volumes = self.volumes.clone();
        let expand =
            ExpandVolume::new(request.volume_id, size).capability(capability).secrets(request.secrets);
        self.locks
            .run([volume_key(&expand.id)], async move {
                let get = GetVolume::new(expand.id.clone()).secrets(expand.secrets.clone());
                let volume = get_existing(&*volumes, &get).await?;
                check_capabilities(&*volumes, Some(&volume), expand.capability.as_slice())?;
                if size.limit.is_some_and(|limit| limit < volume.capacity) {
                    return Err(Status::out_of_range(format!(
                        "volume {} already has {} bytes, and volumes cannot shrink",
                        volume.id, volume.capacity
                    )));
                }
                let expanded = expansion.expand(&expand).await?;
                Ok(v1::ControllerExpandVolumeResponse {
                    capacity_bytes: wire::bytes(expanded.capacity),
                    node_expansion_required: expanded.node_expansion_required,
                })
            })
            .await
    }

    pub(super) async fn controller_modify_volume(
        &self,
        request: v1::ControllerModifyVolumeRequest,
    ) -> Result<v1::ControllerModifyVolumeResponse, Status> {
        let mutable = declared(&self.mutable, Type::ModifyVolume)?;
        self.rules.id("volume_id", &request.volume_id)?;
        validate::map("mutable_parameters", &request.mutable_parameters)?;
        let volumes = self.volumes.clone();
        let modify =
            ModifyVolume::new(request.volume_id, request.mutable_parameters).secrets(request.secrets);
        self.locks
            .run([volume_key(&modify.id)], async move {
                let get = GetVolume::new(modify.id.clone()).secrets(modify.secrets.clone());
                get_existing(&*volumes, &get).await?;
                mutable.modify(&modify).await?;
                Ok(v1::ControllerModifyVolumeResponse {})
            })
            .await
    }

    pub(super) async fn validate_volume_capabilities(
        &self,
        request: v1::ValidateVolumeCapabilitiesRequest,
    ) -> Result<v1::ValidateVolumeCapabilitiesResponse, Status> {
        use v1::validate_volume_capabilities_response::Confirmed;

        self.rules.id("volume_id", &request.volume_id)?;
        let capabilities = self.rules.capabilities(&request.volume_capabilities)?;
        let get = GetVolume::new(request.volume_id)
            .volume_context(request.volume_context.clone())
            .secrets(request.secrets);
        let volume = get_existing(&*self.volumes, &get).await?;
        let refused = check_capabilities(&*self.volumes, Some(&volume), &capabilities)
            .err()
            .map(|status| status.message().to_owned());
        let refused_parameters = || {
            let mut parameters = request.parameters.clone();
            parameters.extend(request.mutable_parameters.clone());
            self.volumes.refuses_parameters(&validate::own_parameters(&parameters))
        };
        let wrong_context = || {
            // Other keys belong to the orchestrator, or were added by hand for the node.
            let other = |(key, value)| request.volume_context.get(key) != Some(value);
            let differs = !request.volume_context.is_empty() && volume.context.iter().any(other);
            differs.then(|| format!("volume {} has a different volume_context", volume.id))
        };
        Ok(match refused.or_else(refused_parameters).or_else(wrong_context) {
            Some(message) => v1::ValidateVolumeCapabilitiesResponse { confirmed: None, message },
            None => v1::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
        })
    }
}

/// Returns a volume, or NOT_FOUND.
pub(super) async fn get_existing(volumes: &dyn Volumes, request: &GetVolume) -> Result<Volume, Status> {
    let volume = volumes.get(request).await?;
    volume.ok_or_else(|| Status::not_found(format!("there is no volume {}", request.id)))
}

/// Checks that the backend accepts all capabilities.
fn check_capabilities(
    volumes: &dyn Volumes,
    volume: Option<&Volume>,
    capabilities: &[Capability],
) -> Result<(), Status> {
    match capabilities.iter().find_map(|capability| volumes.refuses(volume, capability)) {
        Some(reason) => Err(Status::invalid_argument(reason)),
        None => Ok(()),
    }
}

/// A backend creates what was requested, so a volume that differs existed before under the same name.
fn check_same_request(volume: &Volume, requested: &NewVolume) -> Result<(), Status> {
    let differs = |what: &str| {
        Err(Status::already_exists(format!(
            "volume {:?} already exists, with another {what}",
            requested.name
        )))
    };
    if volume.capacity != 0 && !requested.size.fits(volume.capacity) {
        return differs("size");
    }
    if volume.source != requested.source {
        return differs("source");
    }
    Ok(())
}
