//! PersistentVolume. CSI sources are decoded, and in-tree sources that a CSI driver replaces are translated; volumes with
//! other sources have none.

use serde::Deserialize;

use crate::claim::{AccessMode, ResourceList, VolumeMode};
use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};
use crate::migration::{Migrated, TranslationError};
use crate::names::annotation;
use crate::selector::NodeSelector;
use crate::{Key, Meta, StringMap};

mod decode;

/// A PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "decode::Volume")]
pub struct PersistentVolume {
    /// Metadata. Claims select by labels, and some labels name zones; dynamically provisioned volumes have none.
    pub metadata: Meta,
    /// The spec.
    pub spec: PersistentVolumeSpec,
    /// The status.
    pub status: VolumeStatus,
}

impl Kind for PersistentVolume {
    const API: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl PersistentVolume {
    /// Whether it is a CSI volume of this driver.
    pub fn is_for_driver(&self, driver: &str) -> bool {
        self.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
    }

    /// Whether its in-tree plugin was replaced by this driver.
    pub fn is_migrated_to(&self, driver: &str) -> bool {
        self.spec.migrated.as_ref().is_some_and(|migrated| migrated.plugin.driver() == driver)
    }

    /// The spec as passed to the driver: with the CSI source that replaces an in-tree source. The volume's own spec if
    /// it has no in-tree source, or one that cannot be translated.
    pub fn csi_spec(&self) -> &PersistentVolumeSpec {
        match self.spec.migrated.as_deref() {
            Some(Migrated { spec: Ok(spec), .. }) => spec,
            _ => &self.spec,
        }
    }

    /// The CSI source: its own, or the one that replaces its in-tree source.
    pub fn csi_source(&self) -> Option<&CsiVolumeSource> {
        self.csi_spec().csi.as_ref()
    }

    /// Why its in-tree source cannot be translated.
    pub fn translation_error(&self) -> Option<&TranslationError> {
        self.spec.migrated.as_ref()?.spec.as_ref().err()
    }

    /// Its class; empty if it has none. The beta annotation takes precedence over the field.
    pub fn class(&self) -> &str {
        self.metadata.annotation(annotation::BETA_STORAGE_CLASS).unwrap_or(&self.spec.storage_class_name)
    }

    /// Whether its claimRef has this claim's UID. The binder compares only UIDs: a claim of the same name may have been
    /// created since.
    pub fn references_uid_of(&self, claim: &Meta) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.uid)
    }

    /// Whether its claimRef is this claim, by name and UID.
    pub fn is_bound_to(&self, claim: &Meta) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| {
            reference.uid == claim.uid
                && reference.name == claim.name
                && Some(&reference.namespace) == claim.namespace.as_ref()
        })
    }
}

/// The spec of a PersistentVolume; also used for the inline volume of a VolumeAttachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "decode::Spec")]
pub struct PersistentVolumeSpec {
    /// Its size.
    pub capacity: ResourceList,
    /// Its access modes.
    pub access_modes: Vec<AccessMode>,
    /// The CSI source, if it is a CSI volume.
    pub csi: Option<CsiVolumeSource>,
    /// The translation of an in-tree source that a CSI driver replaces. Boxed, since hardly any volume has one. `None`
    /// for an inline volume: the attach/detach controller has translated it.
    pub migrated: Option<Box<Migrated>>,
    /// The claim it is bound to or reserved for.
    pub claim_ref: Option<ClaimRef>,
    /// Its reclaim policy.
    pub persistent_volume_reclaim_policy: ReclaimPolicy,
    /// Its class.
    pub storage_class_name: String,
    /// Mount options.
    pub mount_options: Vec<String>,
    /// Block or Filesystem.
    pub volume_mode: Option<VolumeMode>,
    /// The nodes from which it is accessible.
    pub node_affinity: Option<NodeAffinity>,
    /// The VolumeAttributesClass that is applied to the volume.
    pub volume_attributes_class_name: Option<String>,
}

impl PersistentVolumeSpec {
    /// The volume mode; default Filesystem.
    pub fn volume_mode(&self) -> VolumeMode {
        self.volume_mode.unwrap_or(VolumeMode::Filesystem)
    }
}

/// The CSI source of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiVolumeSource {
    /// The driver.
    pub driver: String,
    /// The driver's handle of the volume.
    pub volume_handle: String,
    /// Whether it is attached read-only.
    #[serde(deserialize_with = "null_as_default")]
    pub read_only: bool,
    /// The file system type.
    #[serde(deserialize_with = "null_as_default")]
    pub fs_type: String,
    /// The driver's volume context.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_attributes: StringMap,
    /// Secret for ControllerPublishVolume and ControllerUnpublishVolume.
    pub controller_publish_secret_ref: Option<SecretRef>,
    /// Secret for ControllerExpandVolume, and for ControllerModifyVolume if it has no other.
    pub controller_expand_secret_ref: Option<SecretRef>,
    /// Secret for NodeStageVolume. Boxed, like the other two for the node, since few volumes have any.
    pub node_stage_secret_ref: Option<Box<SecretRef>>,
    /// Secret for NodePublishVolume.
    pub node_publish_secret_ref: Option<Box<SecretRef>>,
    /// Secret for NodeExpandVolume.
    pub node_expand_secret_ref: Option<Box<SecretRef>>,
}

/// A reference to a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; empty if a user reserved the volume for a claim.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: String,
}

impl ClaimRef {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// A reference to a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(default)]
pub struct SecretRef {
    /// Its name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Its namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: String,
}

impl SecretRef {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// The nodes from which a volume is accessible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// `None` is all nodes.
    pub required: Option<NodeSelector>,
}

/// The status of a PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// Its phase.
    pub phase: VolumePhase,
}

open_enum! {
    /// What happens to a volume after its claim is deleted.
    ReclaimPolicy {
        /// The volume is kept.
        Retain = "Retain",
        /// The volume is deleted.
        Delete = "Delete",
        /// The volume is scrubbed and made available again; not supported by CSI.
        Recycle = "Recycle",
    }
}

open_enum! {
    /// The phase of a volume.
    VolumePhase {
        /// Not processed yet.
        Pending = "Pending",
        /// Not bound to a claim yet.
        Available = "Available",
        /// Bound to a claim.
        Bound = "Bound",
        /// Its claim was deleted.
        Released = "Released",
        /// It could not be reclaimed.
        Failed = "Failed",
    }
}
