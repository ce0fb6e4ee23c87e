//! VolumeGroupSnapshot, VolumeGroupSnapshotContent and VolumeGroupSnapshotClass.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};
use crate::selector::LabelSelector;
use crate::snapshot::{DeletionPolicy, SnapshotRef, VolumeSnapshotError};
use crate::{Meta, Time};

const GROUP: &str = "groupsnapshot.storage.k8s.io";

/// A VolumeGroupSnapshot: snapshots of several claims at the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshot {
    /// Metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: GroupSpec,
    /// The status; `None` until the snapshot controller has processed it.
    pub status: Option<GroupStatus>,
}

impl Kind for VolumeGroupSnapshot {
    const API: ApiResource = ApiResource {
        group: GROUP,
        version: "v1",
        kind: "VolumeGroupSnapshot",
        plural: "volumegroupsnapshots",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The spec of a VolumeGroupSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSpec {
    /// The source.
    pub source: GroupSource,
    /// The class.
    pub volume_group_snapshot_class_name: Option<String>,
}

/// The source of a group snapshot: one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSource {
    /// Selects the claims to take snapshots of.
    pub selector: Option<LabelSelector>,
    /// An existing content (pre-provisioned group snapshot).
    pub volume_group_snapshot_content_name: Option<String>,
}

/// The status of a VolumeGroupSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The content it is bound to.
    pub bound_volume_group_snapshot_content_name: Option<String>,
    /// When it was taken.
    pub creation_time: Option<Time>,
    /// Whether volumes can be restored from its members.
    pub ready_to_use: Option<bool>,
    /// The last error.
    pub error: Option<VolumeSnapshotError>,
}

/// A VolumeGroupSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshotContent {
    /// Metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: GroupContentSpec,
    /// The status; `None` until the snapshotter has processed it.
    pub status: Option<GroupContentStatus>,
}

impl Kind for VolumeGroupSnapshotContent {
    const API: ApiResource = ApiResource {
        group: GROUP,
        version: "v1",
        kind: "VolumeGroupSnapshotContent",
        plural: "volumegroupsnapshotcontents",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The spec of a VolumeGroupSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSpec {
    /// The driver.
    pub driver: String,
    /// What happens to the driver's group snapshot when the VolumeGroupSnapshot is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The VolumeGroupSnapshot that it belongs to.
    pub volume_group_snapshot_ref: SnapshotRef,
    /// The class.
    pub volume_group_snapshot_class_name: Option<String>,
    /// The source.
    pub source: GroupContentSource,
}

/// The source of a group content: one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSource {
    /// The volumes to take snapshots of.
    pub volume_handles: Option<Vec<String>>,
    /// An existing group snapshot of the driver.
    pub group_snapshot_handles: Option<GroupHandles>,
}

/// The driver's handles of a group snapshot and its members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupHandles {
    /// The handle of the group snapshot.
    pub volume_group_snapshot_handle: String,
    /// The handles of its members.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_snapshot_handles: Vec<String>,
}

/// The status of a VolumeGroupSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentStatus {
    /// The driver's handle of the group snapshot.
    pub volume_group_snapshot_handle: Option<String>,
    /// When it was taken.
    pub creation_time: Option<Time>,
    /// Whether volumes can be restored from its members.
    pub ready_to_use: Option<bool>,
    /// The last error.
    pub error: Option<VolumeSnapshotError>,
    /// Its members.
    pub volume_snapshot_info_list: Option<Vec<VolumeSnapshotInfo>>,
}

/// A member of a driver's group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotInfo {
    /// The handle of the source volume.
    pub volume_handle: String,
    /// The handle of the snapshot.
    pub snapshot_handle: String,
    /// When it was taken, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// Whether a volume can be restored from it.
    pub ready_to_use: Option<bool>,
    /// The minimum size of a volume restored from it, in bytes.
    pub restore_size: Option<i64>,
}

/// A VolumeGroupSnapshotClass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub driver: String,
    /// The deletion policy of its contents.
    pub deletion_policy: DeletionPolicy,
    /// Parameters for the driver and, with a prefix, for the sidecars.
    #[serde(deserialize_with = "null_as_default")]
    pub parameters: BTreeMap<String, String>,
}

impl Kind for VolumeGroupSnapshotClass {
    const API: ApiResource = ApiResource {
        group: GROUP,
        version: "v1",
        kind: "VolumeGroupSnapshotClass",
        plural: "volumegroupsnapshotclasses",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
