//! Builds the PersistentVolume: the template before CreateVolume and the fields that the response adds. Also validates
//! a created volume, and checks whether an existing PersistentVolume belongs to an intent.

use serde_json::{Map, Value, json};
use wharf_model::migration::{self, Plugin, TranslationError};
use wharf_model::names::{annotation, finalizer, key};
use wharf_model::parameters::SecretPurpose;
use wharf_model::secrets::{SecretTemplates, TemplateError};
use wharf_model::topology::{is_accessible_from, node_affinity};
use wharf_model::volume::ReclaimPolicy;
use wharf_model::{
    AccessMode, Kind, PersistentVolume, PersistentVolumeClaim, Quantity, SecretRef, StorageClass, VolumeMode,
};

use super::intent::Intent;
use super::view::{CreatedVolume, ProvisionerConfig};

/// The secret references of the CSI source and their field names.
const SECRET_FIELDS: [(SecretPurpose, &str); 5] = [
    (SecretPurpose::ControllerPublish, "controllerPublishSecretRef"),
    (SecretPurpose::NodeStage, "nodeStageSecretRef"),
    (SecretPurpose::NodePublish, "nodePublishSecretRef"),
    (SecretPurpose::ControllerExpand, "controllerExpandSecretRef"),
    (SecretPurpose::NodeExpand, "nodeExpandSecretRef"),
];

/// The inputs of a template.
pub(crate) struct TemplateInputs<'a> {
    pub(crate) volume: &'a str,
    pub(crate) config: &'a ProvisionerConfig,
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) class: &'a StorageClass,
    /// The provisioner that the class names. The volume has an in-tree source if that is an in-tree plugin.
    pub(crate) provisioned_by: &'a str,
    pub(crate) secrets: &'a SecretTemplates,
    pub(crate) fs_type: &'a str,
    /// The VolumeAttributesClass.
    pub(crate) attributes_class: Option<&'a str>,
}

/// Why a volume that the driver created cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidVolume {
    #[error("created volume capacity {created} less than requested capacity {requested}")]
    TooSmall { created: i64, requested: i64 },
    #[error("volume content source missing")]
    NoSource,
    /// Its class is of an in-tree plugin, and the driver's response cannot be translated for that.
    #[error("failed to translate CSI PV to in-tree due to: {0}")]
    NotTranslatable(#[from] TranslationError),
    /// The API server rejects its PersistentVolume.
    #[error("the API server rejects its PersistentVolume: {0}")]
    Rejected(String),
    /// A foreign PersistentVolume has the name.
    #[error(
        "PersistentVolume {name} already exists and belongs to another claim: delete it, or delete and recreate the claim"
    )]
    NameTaken { name: String },
    /// The intent's claim has a PersistentVolume, which refers to another volume.
    #[error("PersistentVolume {name} of this claim refers to another volume, so this one is not needed")]
    NotNeeded { name: String },
}

/// The PersistentVolume without handle, capacity, attributes and node affinity, which come from the driver.
pub(crate) fn template(wanted: &TemplateInputs<'_>) -> Result<Value, TemplateError> {
    let TemplateInputs { volume, config, claim, class, provisioned_by, secrets, fs_type, attributes_class } =
        *wanted;
    let secret = |purpose| secrets.resolve(purpose, volume, Some(&claim.metadata));

    let mut csi = Map::new();
    csi.insert("driver".to_owned(), json!(config.driver));
    for (purpose, field) in SECRET_FIELDS {
        if let Some(SecretRef { name, namespace }) = secret(purpose)? {
            csi.insert(field.to_owned(), json!({"name": name, "namespace": namespace}));
        }
    }
    if config.settings.controller_publish_readonly && claim.spec.access_modes == [AccessMode::ReadOnlyMany] {
        csi.insert("readOnly".to_owned(), json!(true));
    }
    if claim.volume_mode() != VolumeMode::Block && !fs_type.is_empty() {
        csi.insert("fsType".to_owned(), json!(fs_type));
    }

    let deletion = secret(SecretPurpose::Provisioner)?.unwrap_or_default();
    let mut annotations = json!({
        annotation::PROVISIONED_BY: provisioned_by,
        annotation::DELETION_SECRET_NAME: deletion.name,
        annotation::DELETION_SECRET_NAMESPACE: deletion.namespace,
    });
    if let Some(SecretRef { name, namespace }) = secret(SecretPurpose::ControllerModify)? {
        annotations[annotation::MODIFY_SECRET_NAME] = json!(name);
        annotations[annotation::MODIFY_SECRET_NAMESPACE] = json!(namespace);
    }

    let access_modes: Vec<_> = claim.spec.access_modes.iter().map(|mode| mode.as_str()).collect();
    let mut spec = json!({
        "accessModes": access_modes,
        "claimRef": {
            "apiVersion": PersistentVolumeClaim::API.api_version(),
            "kind": PersistentVolumeClaim::API.kind,
            "namespace": claim.metadata.namespace,
            "name": claim.metadata.name,
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        },
        "csi": csi,
        "persistentVolumeReclaimPolicy": class.reclaim_policy().as_str(),
        "storageClassName": claim.class().unwrap_or_default(),
    });
    if !class.mount_options.is_empty() {
        spec["mountOptions"] = json!(class.mount_options);
    }
    if let Some(mode) = claim.spec.volume_mode {
        spec["volumeMode"] = json!(mode.as_str());
    }
    if let Some(name) = attributes_class {
        spec["volumeAttributesClassName"] = json!(name);
    }
    Ok(json!({
        "apiVersion": PersistentVolume::API.api_version(),
        "kind": PersistentVolume::API.kind,
        "metadata": {
            "name": volume,
            "annotations": annotations,
            "finalizers": [finalizer::PROVISIONER],
        },
        "spec": spec,
    }))
}

/// The complete PersistentVolume. `retain` overrides the reclaim policy of the class with Retain. For a class of an
/// in-tree plugin, the source and the topology are those of the plugin.
pub(crate) fn build_pv(
    intent: &Intent,
    created: &CreatedVolume,
    config: &ProvisionerConfig,
    retain: bool,
) -> Result<Value, InvalidVolume> {
    let mut object = intent.template.clone();
    let spec = &mut object["spec"];
    let bytes = match created.capacity_bytes {
        0 => intent.request.required_bytes,
        bytes => bytes,
    };
    spec["capacity"] = json!({"storage": Quantity::from_bytes(bytes).to_string()});
    let mut attributes = created.context.clone();
    attributes.entry(key::PROVISIONER_IDENTITY.to_owned()).or_insert_with(|| config.identity.clone());
    spec["csi"]["volumeHandle"] = json!(created.handle);
    spec["csi"]["volumeAttributes"] = json!(attributes);
    if config.capabilities.topology
        && let Some(affinity) = node_affinity(&created.accessible_topology)
    {
        spec["nodeAffinity"] = affinity;
    }
    if retain {
        spec["persistentVolumeReclaimPolicy"] = json!(ReclaimPolicy::Retain.as_str());
    }
    if is_of_in_tree_class(intent) {
        migration::to_in_tree(&mut object)?;
    }
    Ok(object)
}

/// Whether the volume is for a class of an in-tree plugin. The template has the provisioner that the class named.
fn is_of_in_tree_class(intent: &Intent) -> bool {
    let annotations = &intent.template["metadata"]["annotations"];
    annotations[annotation::PROVISIONED_BY].as_str().is_some_and(|name| Plugin::named(name).is_some())
}

/// The handle that the intent's PersistentVolume has in our view. That of an in-tree volume is translated from its
/// source, and may differ from the handle that the driver returned.
pub(crate) fn handle_in_pv(intent: &Intent, created: &CreatedVolume, config: &ProvisionerConfig) -> String {
    let handle = || {
        let object = build_pv(intent, created, config, false).ok()?;
        let pv: PersistentVolume = serde_json::from_value(object).ok()?;
        pv.csi_source().map(|csi| csi.volume_handle.clone())
    };
    is_of_in_tree_class(intent).then(handle).flatten().unwrap_or_else(|| created.handle.clone())
}

/// Validates a created volume. `None`: it is valid.
pub(crate) fn validate(intent: &Intent, created: &CreatedVolume) -> Option<InvalidVolume> {
    let requested = intent.request.required_bytes;
    if created.capacity_bytes != 0 && created.capacity_bytes < requested {
        return Some(InvalidVolume::TooSmall { created: created.capacity_bytes, requested });
    }
    (intent.request.source.is_some() && !created.has_source).then_some(InvalidVolume::NoSource)
}

/// Whether an existing PersistentVolume is the intent's. The name alone proves nothing; the handle is compared if it
/// is known. Until then, with node deployment, a PersistentVolume that is not accessible from this node is another
/// node's, and this node's driver may have created a volume, too.
pub(crate) fn matches_intent(
    pv: &PersistentVolume,
    intent: &Intent,
    config: &ProvisionerConfig,
    created: Option<&CreatedVolume>,
) -> bool {
    let handle = |handle: &str| pv.csi_source().is_some_and(|csi| csi.volume_handle == handle);
    let is_same = match (created, &config.node) {
        (Some(created), _) => handle(&handle_in_pv(intent, created, config)),
        (None, Some(node)) => {
            let affinity = pv.csi_spec().node_affinity.as_ref();
            is_accessible_from(affinity, &node.name, &node.topology)
        }
        (None, None) => true,
    };
    is_for_intent(pv, intent, config) && is_same
}

/// Whether an existing PersistentVolume may be the intent's although its handle differs: that of an in-tree volume is
/// translated from its source, labels and annotations, and admission webhooks or users may have changed these.
pub(crate) fn may_be_of_intent(pv: &PersistentVolume, intent: &Intent, config: &ProvisionerConfig) -> bool {
    is_of_in_tree_class(intent) && is_for_intent(pv, intent, config)
}

/// Whether an existing PersistentVolume is for the intent's claim and this driver.
fn is_for_intent(pv: &PersistentVolume, intent: &Intent, config: &ProvisionerConfig) -> bool {
    let for_driver = match is_of_in_tree_class(intent) {
        true => pv.is_migrated_to(&config.driver),
        false => pv.is_for_driver(&config.driver),
    };
    is_for_claim(pv, intent) && for_driver
}

/// Whether a PersistentVolume refers to the intent's claim.
pub(crate) fn is_for_claim(pv: &PersistentVolume, intent: &Intent) -> bool {
    let claim = &intent.claim;
    pv.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.uid == claim.uid && reference.name == claim.name && reference.namespace == claim.namespace
    })
}

#[cfg(test)]
mod tests;
