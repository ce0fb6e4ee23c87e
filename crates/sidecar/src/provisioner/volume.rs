//! The PersistentVolume that is written: what is known before the driver is asked, what its answer adds, and
//! whether a volume that is there already is the one.

use serde_json::{Map, Value, json};
use wharf_model::names::{annotation, finalizer, key};
use wharf_model::parameters::Purpose;
use wharf_model::secrets::{Secrets, TemplateError};
use wharf_model::topology::node_affinity;
use wharf_model::volume::ReclaimPolicy;
use wharf_model::{
    AccessMode, Kind, PersistentVolume, PersistentVolumeClaim, Quantity, SecretRef, StorageClass, VolumeMode,
};

use super::intent::Intent;
use super::view::{Made, Own};

/// The secrets of the CSI source, by the field that names each.
const SECRET_FIELDS: [(Purpose, &str); 5] = [
    (Purpose::ControllerPublish, "controllerPublishSecretRef"),
    (Purpose::NodeStage, "nodeStageSecretRef"),
    (Purpose::NodePublish, "nodePublishSecretRef"),
    (Purpose::ControllerExpand, "controllerExpandSecretRef"),
    (Purpose::NodeExpand, "nodeExpandSecretRef"),
];

/// What a template is made of.
pub(crate) struct Wanted<'a> {
    pub(crate) volume: &'a str,
    pub(crate) own: &'a Own,
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) class: &'a StorageClass,
    pub(crate) secrets: &'a Secrets,
    pub(crate) fs_type: &'a str,
    /// The mutable class.
    pub(crate) attributes_class: Option<&'a str>,
}

/// What is wrong with a volume that the driver made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("created volume capacity {made} less than requested capacity {requested}")]
    TooSmall { made: i64, requested: i64 },
    #[error("volume content source missing")]
    NoSource,
    /// Nothing can stand for it in the cluster.
    #[error("the API server does not take its PersistentVolume: {0}")]
    Unsaved(String),
    /// Somebody else's volume has our name.
    #[error(
        "PersistentVolume {name} exists already and is not this claim's: delete it, or the claim, to get a volume"
    )]
    NameTaken { name: String },
}

/// The volume to be, without handle, capacity, attributes and node affinity: those are the driver's to tell.
pub(crate) fn template(wanted: &Wanted<'_>) -> Result<Value, TemplateError> {
    let Wanted { volume, own, claim, class, secrets, fs_type, attributes_class } = *wanted;
    let secret = |purpose| secrets.reference(purpose, volume, Some(&claim.metadata));

    let mut csi = Map::new();
    csi.insert("driver".to_owned(), json!(own.driver));
    for (purpose, field) in SECRET_FIELDS {
        if let Some(SecretRef { name, namespace }) = secret(purpose)? {
            csi.insert(field.to_owned(), json!({"name": name, "namespace": namespace}));
        }
    }
    if own.settings.controller_publish_readonly && claim.spec.access_modes == [AccessMode::ReadOnlyMany] {
        csi.insert("readOnly".to_owned(), json!(true));
    }
    if claim.volume_mode() != VolumeMode::Block && !fs_type.is_empty() {
        csi.insert("fsType".to_owned(), json!(fs_type));
    }

    let deletion = secret(Purpose::Provisioner)?.unwrap_or_default();
    let mut annotations = json!({
        annotation::PROVISIONED_BY: own.driver,
        annotation::DELETION_SECRET_NAME: deletion.name,
        annotation::DELETION_SECRET_NAMESPACE: deletion.namespace,
    });
    if let Some(SecretRef { name, namespace }) = secret(Purpose::ControllerModify)? {
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

/// The volume as it is written. With `keep` it stays when its claim goes, whatever the class said.
pub(crate) fn complete(intent: &Intent, made: &Made, own: &Own, keep: bool) -> Value {
    let mut object = intent.template.clone();
    let spec = &mut object["spec"];
    let bytes = match made.capacity_bytes {
        0 => intent.request.required_bytes,
        bytes => bytes,
    };
    spec["capacity"] = json!({"storage": Quantity::from_bytes(bytes).to_string()});
    let mut attributes = made.context.clone();
    attributes.entry(key::PROVISIONER_IDENTITY.to_owned()).or_insert_with(|| own.identity.clone());
    spec["csi"]["volumeHandle"] = json!(made.handle);
    spec["csi"]["volumeAttributes"] = json!(attributes);
    if own.can.topology
        && let Some(affinity) = node_affinity(&made.places)
    {
        spec["nodeAffinity"] = affinity;
    }
    if keep {
        spec["persistentVolumeReclaimPolicy"] = json!(ReclaimPolicy::Retain.as_str());
    }
    object
}

/// What is wrong with what the driver made.
pub(crate) fn flaw(intent: &Intent, made: &Made) -> Option<Flaw> {
    let requested = intent.request.required_bytes;
    if made.capacity_bytes != 0 && made.capacity_bytes < requested {
        return Some(Flaw::TooSmall { made: made.capacity_bytes, requested });
    }
    (intent.request.source.is_some() && !made.has_source).then_some(Flaw::NoSource)
}

/// Whether a volume that is there is the one that the intent is for. The name alone proves nothing; the handle is
/// compared where it is known.
pub(crate) fn is_the_one(
    present: &PersistentVolume,
    intent: &Intent,
    driver: &str,
    made: Option<&Made>,
) -> bool {
    let claim = &intent.claim;
    let for_claim = present.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.uid == claim.uid && reference.name == claim.name && reference.namespace == claim.namespace
    });
    let handle = |handle: &str| present.spec.csi.as_ref().is_some_and(|csi| csi.volume_handle == handle);
    for_claim && present.is_of(driver) && made.is_none_or(|made| handle(&made.handle))
}

#[cfg(test)]
mod tests;
