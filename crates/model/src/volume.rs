//! PersistentVolume, slim. Only CSI volumes have a source here; of others we see that they are not ours.

use serde::Deserialize;

use crate::claim::{AccessMode, Storage, VolumeMode};
use crate::kind::{Api, Kind, Scope};
use crate::names::annotation;
use crate::selector::NodeSelector;
use crate::words::{nullable, words};
use crate::{Key, Map, Meta};

/// A volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Metadata. Labels are what claims select by, and tell zones; volumes that were made for a claim have none.
    pub metadata: Meta,
    /// What it is.
    pub spec: VolumeSpec,
    /// How far it has come.
    pub status: VolumeStatus,
}

impl Kind for PersistentVolume {
    const API: Api = Api {
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
    /// Whether it is a volume of this driver.
    pub fn is_of(&self, driver: &str) -> bool {
        self.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
    }

    /// Its class; empty is the class nobody provisions for. The annotation that came before the field wins.
    pub fn class(&self) -> &str {
        self.metadata.annotation(annotation::BETA_STORAGE_CLASS).unwrap_or(&self.spec.storage_class_name)
    }

    /// Whether it is this claim's, of this name and identity.
    pub fn is_bound_to(&self, claim: &Meta) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| {
            reference.uid == claim.uid
                && reference.name == claim.name
                && Some(&reference.namespace) == claim.namespace.as_ref()
        })
    }
}

/// What a volume is. An inline volume of an attachment has the same shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Its size.
    pub capacity: Storage,
    /// How it may be used.
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// The CSI volume, if it is one.
    pub csi: Option<CsiSource>,
    /// The claim it is for.
    pub claim_ref: Option<ClaimRef>,
    /// What becomes of it when its claim goes.
    pub persistent_volume_reclaim_policy: ReclaimPolicy,
    /// Its class.
    #[serde(deserialize_with = "nullable")]
    pub storage_class_name: String,
    /// Options for mounting.
    #[serde(deserialize_with = "nullable")]
    pub mount_options: Vec<String>,
    /// Block or Filesystem.
    pub volume_mode: Option<VolumeMode>,
    /// From which nodes it can be reached.
    pub node_affinity: Option<NodeAffinity>,
    /// The mutable class in force.
    pub volume_attributes_class_name: Option<String>,
}

impl VolumeSpec {
    /// Block or, unless said otherwise, Filesystem.
    pub fn volume_mode(&self) -> VolumeMode {
        self.volume_mode.unwrap_or(VolumeMode::Filesystem)
    }
}

/// The CSI part of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// The driver.
    pub driver: String,
    /// The driver's name for the volume.
    pub volume_handle: String,
    /// Whether it is to be attached for reading only.
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
    /// The file system.
    #[serde(deserialize_with = "nullable")]
    pub fs_type: String,
    /// The driver's volume context.
    #[serde(deserialize_with = "nullable")]
    pub volume_attributes: Map,
    /// Secret for attaching and detaching.
    pub controller_publish_secret_ref: Option<SecretRef>,
    /// Secret for expanding, and for modifying where no other is named.
    pub controller_expand_secret_ref: Option<SecretRef>,
    /// Secret for staging. Boxed, as the other two of the node, since few volumes have any.
    pub node_stage_secret_ref: Option<Box<SecretRef>>,
    /// Secret for publishing.
    pub node_publish_secret_ref: Option<Box<SecretRef>>,
    /// Secret for expanding on the node.
    pub node_expand_secret_ref: Option<Box<SecretRef>>,
}

/// A claim, by name and identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity; empty while a person reserved the volume for a claim to come.
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
}

impl ClaimRef {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// A secret, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(default)]
pub struct SecretRef {
    /// Its name.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Its namespace.
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
}

impl SecretRef {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// From which nodes a volume can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// `None`: from everywhere.
    pub required: Option<NodeSelector>,
}

/// How far a volume has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// How far.
    pub phase: VolumePhase,
}

words! {
    /// What becomes of a volume when its claim goes.
    ReclaimPolicy {
        /// It stays.
        Retain = "Retain",
        /// It goes.
        Delete = "Delete",
        /// It is emptied and offered again; CSI has no such thing.
        Recycle = "Recycle",
    }
}

words! {
    /// How far a volume has come.
    VolumePhase {
        /// Just made.
        Pending = "Pending",
        /// Waiting for a claim.
        Available = "Available",
        /// A claim's.
        Bound = "Bound",
        /// Its claim is gone.
        Released = "Released",
        /// It could not be reclaimed.
        Failed = "Failed",
    }
}
