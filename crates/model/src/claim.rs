//! The PersistentVolumeClaim kind.

use serde::Deserialize;

use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};
use crate::names::annotation;
use crate::selector::LabelSelector;
use crate::{Meta, Quantity, Time};

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Metadata without labels. The claim of a pod's ephemeral volume has the pod as its owner.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// The requested storage.
    pub spec: ClaimSpec,
    /// The observed state.
    pub status: ClaimStatus,
}

impl Kind for PersistentVolumeClaim {
    const API: ApiResource = ApiResource {
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
    /// The requested class. The beta annotation takes precedence over the field, as everywhere in Kubernetes. An empty
    /// name disables dynamic provisioning; `None` means that no class is set yet.
    pub fn class(&self) -> Option<&str> {
        let annotation = self.metadata.annotation(annotation::BETA_STORAGE_CLASS);
        annotation.or(self.spec.storage_class_name.as_deref())
    }

    /// The driver that has to provision the volume, from the annotation that the binder sets.
    pub fn provisioner(&self) -> Option<&str> {
        let stable = self.metadata.annotation(annotation::STORAGE_PROVISIONER);
        stable.or_else(|| self.metadata.annotation(annotation::BETA_STORAGE_PROVISIONER))
    }

    /// The node that the scheduler selected.
    pub fn selected_node(&self) -> Option<&str> {
        let stable = self.metadata.annotation(annotation::SELECTED_NODE);
        stable
            .or_else(|| self.metadata.annotation(annotation::ALPHA_SELECTED_NODE))
            .filter(|node| !node.is_empty())
    }

    /// The requested size.
    pub fn requested_storage(&self) -> Option<Quantity> {
        self.spec.resources.requests.storage
    }

    /// The volume mode; default Filesystem.
    pub fn volume_mode(&self) -> VolumeMode {
        self.spec.volume_mode.unwrap_or(VolumeMode::Filesystem)
    }

    /// `dataSource` if it is set, otherwise `dataSourceRef`, as in external-provisioner.
    pub fn data_source(&self) -> Option<&DataSource> {
        self.spec.data_source.as_deref().or(self.spec.data_source_ref.as_deref())
    }
}

/// The spec of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// The requested access modes.
    #[serde(deserialize_with = "null_as_default")]
    pub access_modes: Vec<AccessMode>,
    /// The requested size.
    pub resources: Resources,
    /// The class; see [`PersistentVolumeClaim::class`].
    pub storage_class_name: Option<String>,
    /// The volume that the claim is bound to or requests; empty if there is none.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_name: String,
    /// Block or Filesystem.
    pub volume_mode: Option<VolumeMode>,
    /// Selects volumes by labels; disables dynamic provisioning. Boxed, since few claims have one.
    pub selector: Option<Box<LabelSelector>>,
    /// A data source in the same namespace. Boxed, since few claims have one.
    pub data_source: Option<Box<DataSource>>,
    /// A data source, possibly in another namespace or of a custom kind. Boxed, since few claims have one.
    pub data_source_ref: Option<Box<DataSource>>,
    /// The requested VolumeAttributesClass.
    pub volume_attributes_class_name: Option<String>,
}

/// The resources of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// The requested size.
    pub requests: ResourceList,
}

/// A resource list; only `storage` is decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResourceList {
    /// The size.
    pub storage: Option<Quantity>,
}

/// An object of which no field is decoded: only its presence matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Presence {}

/// The data source of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataSource {
    /// Empty or absent for the core group.
    pub api_group: Option<String>,
    /// `PersistentVolumeClaim`, `VolumeSnapshot`, or the kind of a volume populator.
    pub kind: String,
    /// The name of the source object.
    pub name: String,
    /// The namespace of the source object, if it differs from that of the claim. Only set in `dataSourceRef`.
    pub namespace: Option<String>,
}

/// The status of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// Its phase.
    pub phase: ClaimPhase,
    /// The access modes of its volume.
    #[serde(deserialize_with = "null_as_default")]
    pub access_modes: Vec<AccessMode>,
    /// The usable size.
    pub capacity: ResourceList,
    /// Conditions set by all components.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// The target size of an expansion in progress.
    pub allocated_resources: ResourceList,
    /// The state of that expansion.
    pub allocated_resource_statuses: StorageResizeStatus,
    /// The VolumeAttributesClass that is applied to the volume.
    pub current_volume_attributes_class_name: Option<String>,
    /// The change of VolumeAttributesClass in progress.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
}

impl ClaimStatus {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// `allocatedResourceStatuses`; only `storage` is decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StorageResizeStatus {
    /// The state of the expansion; `None` if none is in progress.
    pub storage: Option<ResizeStatus>,
}

/// A condition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Its type; see the constants in [`crate::names`].
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A machine-readable reason in CamelCase.
    #[serde(deserialize_with = "null_as_default")]
    pub reason: String,
    /// A human-readable message.
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: Option<Time>,
}

/// A change of VolumeAttributesClass in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The class to apply.
    #[serde(deserialize_with = "null_as_default")]
    pub target_volume_attributes_class_name: String,
    /// The state of the change.
    pub status: ModifyStatus,
}

open_enum! {
    /// An access mode.
    AccessMode {
        /// Read-write by one node.
        ReadWriteOnce = "ReadWriteOnce",
        /// Read-only by many nodes.
        ReadOnlyMany = "ReadOnlyMany",
        /// Read-write by many nodes.
        ReadWriteMany = "ReadWriteMany",
        /// Read-write by one pod.
        ReadWriteOncePod = "ReadWriteOncePod",
    }
}

open_enum! {
    /// A volume mode.
    VolumeMode {
        /// Mounted as a file system.
        Filesystem = "Filesystem",
        /// Used as a raw block device.
        Block = "Block",
    }
}

open_enum! {
    /// The phase of a claim.
    ClaimPhase {
        /// Not bound yet.
        Pending = "Pending",
        /// Bound to a volume.
        Bound = "Bound",
        /// The volume that it was bound to does not exist any more.
        Lost = "Lost",
    }
}

open_enum! {
    /// The state of an expansion.
    ResizeStatus {
        /// The controller is expanding the volume.
        ControllerResizeInProgress = "ControllerResizeInProgress",
        /// The driver cannot expand the volume to this size.
        ControllerResizeInfeasible = "ControllerResizeInfeasible",
        /// The node has to expand the file system.
        NodeResizePending = "NodeResizePending",
        /// The node is expanding the file system.
        NodeResizeInProgress = "NodeResizeInProgress",
        /// The driver cannot expand the volume to this size on the node.
        NodeResizeInfeasible = "NodeResizeInfeasible",
    }
}

open_enum! {
    /// The state of a change of VolumeAttributesClass.
    ModifyStatus {
        /// The class does not exist (yet).
        Pending = "Pending",
        /// ControllerModifyVolume is in progress.
        InProgress = "InProgress",
        /// The driver cannot apply the class.
        Infeasible = "Infeasible",
    }
}
