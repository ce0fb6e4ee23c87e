//! PersistentVolumeClaim, slim.

use serde::Deserialize;

use crate::kind::{Api, Kind, Scope};
use crate::names::annotation;
use crate::selector::LabelSelector;
use crate::words::{nullable, words};
use crate::{Meta, Quantity, Time};

/// What a user asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Metadata. Its owner is what tells the claim of an ephemeral volume from another of that name.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// What is asked for.
    pub spec: ClaimSpec,
    /// What there is.
    pub status: ClaimStatus,
}

impl Kind for PersistentVolumeClaim {
    const API: Api = Api {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl PersistentVolumeClaim {
    /// The class asked for. The annotation that came before the field wins, as everywhere in Kubernetes; an
    /// empty name is a class too (the one nobody provisions for), and `None` is "not yet said".
    pub fn class(&self) -> Option<&str> {
        let annotation = self.metadata.annotation(annotation::BETA_STORAGE_CLASS);
        annotation.or(self.spec.storage_class_name.as_deref())
    }

    /// The driver that is to provision it.
    pub fn provisioner(&self) -> Option<&str> {
        let newer = self.metadata.annotation(annotation::STORAGE_PROVISIONER);
        newer.or_else(|| self.metadata.annotation(annotation::BETA_STORAGE_PROVISIONER))
    }

    /// The node that the scheduler chose.
    pub fn selected_node(&self) -> Option<&str> {
        let newer = self.metadata.annotation(annotation::SELECTED_NODE);
        newer
            .or_else(|| self.metadata.annotation(annotation::ALPHA_SELECTED_NODE))
            .filter(|node| !node.is_empty())
    }

    /// The size asked for.
    pub fn requested(&self) -> Option<Quantity> {
        self.spec.resources.requests.storage
    }

    /// Block or, unless said otherwise, Filesystem.
    pub fn volume_mode(&self) -> VolumeMode {
        self.spec.volume_mode.unwrap_or(VolumeMode::Filesystem)
    }

    /// Where the content comes from: the older field, else the newer one, as the provisioner has it.
    pub fn source(&self) -> Option<&DataSource> {
        self.spec.data_source.as_deref().or(self.spec.data_source_ref.as_deref())
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// How it is to be used.
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// Sizes.
    pub resources: Resources,
    /// The class; see [`PersistentVolumeClaim::class`].
    pub storage_class_name: Option<String>,
    /// The volume it is bound to; empty while there is none.
    #[serde(deserialize_with = "nullable")]
    pub volume_name: String,
    /// Block or Filesystem.
    pub volume_mode: Option<VolumeMode>,
    /// Present when only volumes with certain labels will do: none can be provisioned then. Boxed, since few claims
    /// have one.
    pub selector: Option<Box<LabelSelector>>,
    /// Source of the content, of this namespace. Boxed, as the other one, since few claims have any.
    pub data_source: Option<Box<DataSource>>,
    /// Source of the content, also of other namespaces and of kinds others know.
    pub data_source_ref: Option<Box<DataSource>>,
    /// The mutable class wanted.
    pub volume_attributes_class_name: Option<String>,
}

/// Sizes of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// What is asked for.
    pub requests: Storage,
}

/// A resource list, of which we only read `storage`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// The size.
    pub storage: Option<Quantity>,
}

/// Stands for an object of which only its being there matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Present {}

/// Where content comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataSource {
    /// Empty or absent for the core group.
    pub api_group: Option<String>,
    /// `PersistentVolumeClaim`, `VolumeSnapshot`, or a kind that a populator knows.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Another namespace; only `dataSourceRef` has it.
    pub namespace: Option<String>,
}

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// How far it has come.
    pub phase: ClaimPhase,
    /// How its volume may be used.
    #[serde(deserialize_with = "nullable")]
    pub access_modes: Vec<AccessMode>,
    /// The size that a pod will see.
    pub capacity: Storage,
    /// Conditions of all who write some.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
    /// The size that an expansion under way asks for.
    pub allocated_resources: Storage,
    /// How far that expansion has come.
    pub allocated_resource_statuses: StorageResizeStatus,
    /// The mutable class that is in force.
    pub current_volume_attributes_class_name: Option<String>,
    /// The change of mutable class under way.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
}

impl ClaimStatus {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// `allocatedResourceStatuses`, of which we only read `storage`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StorageResizeStatus {
    /// How far the expansion has come; `None` when none is under way.
    pub storage: Option<ResizeStatus>,
}

/// One condition of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Which condition: see the constants in [`crate::names`].
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for machines.
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    /// A sentence for people.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

/// A change of mutable class under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The class on the way.
    #[serde(deserialize_with = "nullable")]
    pub target_volume_attributes_class_name: String,
    /// How far it has come.
    pub status: ModifyStatus,
}

words! {
    /// How a volume may be used.
    AccessMode {
        /// By one node.
        ReadWriteOnce = "ReadWriteOnce",
        /// By many nodes, for reading.
        ReadOnlyMany = "ReadOnlyMany",
        /// By many nodes.
        ReadWriteMany = "ReadWriteMany",
        /// By one pod.
        ReadWriteOncePod = "ReadWriteOncePod",
    }
}

words! {
    /// What a pod sees of the volume.
    VolumeMode {
        /// A mounted file system.
        Filesystem = "Filesystem",
        /// The device itself.
        Block = "Block",
    }
}

words! {
    /// How far a claim has come.
    ClaimPhase {
        /// Not bound yet.
        Pending = "Pending",
        /// Bound to a volume.
        Bound = "Bound",
        /// Its volume is gone.
        Lost = "Lost",
    }
}

words! {
    /// How far an expansion has come.
    ResizeStatus {
        /// The controller expands the volume.
        ControllerResizeInProgress = "ControllerResizeInProgress",
        /// The driver said that it never will.
        ControllerResizeInfeasible = "ControllerResizeInfeasible",
        /// The node has to do its part.
        NodeResizePending = "NodeResizePending",
        /// The node does its part.
        NodeResizeInProgress = "NodeResizeInProgress",
        /// The driver said on the node that it never will.
        NodeResizeInfeasible = "NodeResizeInfeasible",
    }
}

words! {
    /// How far a change of mutable class has come.
    ModifyStatus {
        /// The class does not exist (yet).
        Pending = "Pending",
        /// The driver was asked.
        InProgress = "InProgress",
        /// The driver said that it never will.
        Infeasible = "Infeasible",
    }
}
