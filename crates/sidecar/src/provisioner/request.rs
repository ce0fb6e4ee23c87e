//! Builds an intent from a claim and its class, and the CreateVolume request from an intent. The same intent always
//! yields the same request.

use std::collections::BTreeMap;

use wharf_csi::v1;
use wharf_csi::v1::volume_content_source::{self, SnapshotSource, VolumeSource};
use wharf_csi::volume_capability;
use wharf_model::access::{self, AccessError};
use wharf_model::names::key;
use wharf_model::parameters::{ParameterError, Parameters, SecretPurpose};
use wharf_model::secrets::TemplateError;
use wharf_model::topology::{Segments, TopologyRequirement};
use wharf_model::{PersistentVolumeClaim, StorageClass, Time, VolumeAttributesClass, VolumeMode};

use super::intent::{Capability, ContentSource, Intent, IntentClaim, IntentTopology, Request};
use super::view::{CreatedVolume, ProvisionerConfig};
use super::volume::{self, TemplateInputs};
use crate::capability::mount_volume;

/// Everything that a CreateVolume request depends on, looked up and validated.
pub(crate) struct CreateRequest<'a> {
    pub(crate) volume: &'a str,
    pub(crate) config: &'a ProvisionerConfig,
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// The class as the driver is to see it.
    pub(crate) class: &'a StorageClass,
    /// The provisioner that the class names: the driver, or the in-tree plugin that it replaces.
    pub(crate) provisioned_by: &'a str,
    pub(crate) source: Option<ContentSource>,
    pub(crate) topology: Option<TopologyRequirement>,
    pub(crate) attributes: Option<&'a VolumeAttributesClass>,
}

/// Why no request can be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    #[error(transparent)]
    Secret(#[from] TemplateError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Builds the intent that is written to the journal before the call.
pub(crate) fn build_intent(request: CreateRequest<'_>, now: Time) -> Result<Intent, RequestError> {
    let CreateRequest { volume, config, claim, class, provisioned_by, source, topology, attributes } =
        request;
    let Parameters { driver: mut parameters, fs_type, secrets } = Parameters::parse(&class.parameters)?;
    let fs_type = fs_type.unwrap_or_else(|| config.settings.default_fstype.clone());
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    if config.settings.extra_create_metadata {
        parameters.insert(key::CLAIM_NAME.to_owned(), claim.metadata.name.clone());
        parameters.insert(key::CLAIM_NAMESPACE.to_owned(), namespace.clone());
        parameters.insert(key::VOLUME_NAME.to_owned(), volume.to_owned());
    }
    let secret = secrets.resolve(SecretPurpose::Provisioner, volume, Some(&claim.metadata))?;
    let request = Request {
        required_bytes: claim.requested_storage().map_or(0, wharf_model::Quantity::bytes),
        capabilities: capabilities(config, claim, class, &fs_type)?,
        parameters,
        mutable_parameters: attributes.map(|class| class.parameters.clone()).unwrap_or_default(),
        topology: topology.map(IntentTopology::from),
        source,
        secret: secret.map(|secret| (secret.namespace, secret.name)),
    };
    let template = volume::template(&TemplateInputs {
        volume,
        config,
        claim,
        class,
        provisioned_by,
        secrets: &secrets,
        fs_type: &fs_type,
        attributes_class: attributes.map(|class| class.metadata.name.as_str()),
    })?;
    Ok(Intent {
        volume: volume.to_owned(),
        claim: IntentClaim { namespace, name: claim.metadata.name.clone(), uid: claim.metadata.uid.clone() },
        class_uid: class.metadata.uid.clone(),
        written: now.0,
        request,
        template,
    })
}

/// The capabilities that the claim's volume must have.
fn capabilities(
    config: &ProvisionerConfig,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    fs_type: &str,
) -> Result<Vec<Capability>, AccessError> {
    let modes =
        access::individual_modes(&claim.spec.access_modes, config.capabilities.single_node_multi_writer)?;
    let mount = match claim.volume_mode() {
        VolumeMode::Block => None,
        VolumeMode::Filesystem | VolumeMode::Unknown => {
            Some((fs_type.to_owned(), class.mount_options.clone()))
        }
    };
    let capability = |mode: access::CsiAccessMode| Capability { mode: mode.into(), mount: mount.clone() };
    Ok(modes.into_iter().map(capability).collect())
}

/// Builds the GetCapacity request for the claim's volume on one node. sidecars.md 1.1 "Node deployment".
pub(crate) fn capacity_request(
    config: &ProvisionerConfig,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    topology: &Segments,
) -> Result<v1::GetCapacityRequest, RequestError> {
    let Parameters { driver: parameters, fs_type, .. } = Parameters::parse(&class.parameters)?;
    let fs_type = fs_type.as_deref().unwrap_or(&config.settings.default_fstype);
    let capabilities = capabilities(config, claim, class, fs_type)?;
    Ok(v1::GetCapacityRequest {
        volume_capabilities: capabilities.iter().map(capability).collect(),
        parameters: parameters.into_iter().collect(),
        accessible_topology: (!topology.is_empty())
            .then(|| v1::Topology { segments: topology.clone().into_iter().collect() }),
    })
}

/// Builds the CreateVolume request.
pub(crate) fn create_volume_request(
    intent: &Intent,
    secrets: BTreeMap<String, String>,
) -> v1::CreateVolumeRequest {
    let Request { required_bytes, capabilities, parameters, mutable_parameters, topology, source, secret: _ } =
        &intent.request;
    v1::CreateVolumeRequest {
        name: intent.volume.clone(),
        capacity_range: Some(v1::CapacityRange { required_bytes: *required_bytes, limit_bytes: 0 }),
        volume_capabilities: capabilities.iter().map(capability).collect(),
        parameters: parameters.clone(),
        secrets,
        volume_content_source: source.as_ref().map(content_source),
        accessibility_requirements: topology.as_ref().map(|IntentTopology { requisite, preferred }| {
            v1::TopologyRequirement { requisite: topologies(requisite), preferred: topologies(preferred) }
        }),
        mutable_parameters: mutable_parameters.clone(),
    }
}

fn capability(capability: &Capability) -> v1::VolumeCapability {
    let mount = capability.mount.as_ref();
    volume_capability(capability.mode, mount.map(|(fs_type, flags)| mount_volume(fs_type, flags)))
}

fn content_source(source: &ContentSource) -> v1::VolumeContentSource {
    let kind = match source {
        ContentSource::Snapshot(handle) => {
            volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id: handle.clone() })
        }
        ContentSource::Volume(handle) => {
            volume_content_source::Type::Volume(VolumeSource { volume_id: handle.clone() })
        }
    };
    v1::VolumeContentSource { r#type: Some(kind) }
}

fn topologies(topology: &[Segments]) -> Vec<v1::Topology> {
    topology.iter().map(|place| v1::Topology { segments: place.clone() }).collect()
}

/// The volume in the driver's response. `None`: the response has no volume ID.
pub(crate) fn created_volume(response: v1::CreateVolumeResponse) -> Option<CreatedVolume> {
    let volume = response.volume.filter(|volume| !volume.volume_id.is_empty())?;
    Some(CreatedVolume {
        handle: volume.volume_id,
        capacity_bytes: volume.capacity_bytes,
        context: volume.volume_context,
        accessible_topology: volume
            .accessible_topology
            .into_iter()
            .map(|topology| topology.segments)
            .collect(),
        has_source: volume.content_source.is_some(),
    })
}

#[cfg(test)]
mod tests;
