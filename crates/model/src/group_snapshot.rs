//! VolumeGroupSnapshot, VolumeGroupSnapshotContent and VolumeGroupSnapshotClass, slim.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::kind::{Api, Kind, Scope};
use crate::selector::LabelSelector;
use crate::snapshot::{DeletionPolicy, SnapshotFault, SnapshotRef};
use crate::words::nullable;
use crate::{Meta, Time};

const GROUP: &str = "groupsnapshot.storage.k8s.io";

/// Snapshots of several claims at one moment, as their user asked for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshot {
    /// Metadata.
    pub metadata: Meta,
    /// What is asked for.
    pub spec: GroupSpec,
    /// What there is; `None` until the controller has seen it.
    pub status: Option<GroupStatus>,
}

impl Kind for VolumeGroupSnapshot {
    const API: Api = Api {
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

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSpec {
    /// Of what.
    pub source: GroupSource,
    /// The class.
    pub volume_group_snapshot_class_name: Option<String>,
}

/// Of what: one or the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupSource {
    /// Of the claims with these labels, to be taken.
    pub selector: Option<LabelSelector>,
    /// The content is there already.
    pub volume_group_snapshot_content_name: Option<String>,
}

/// What there is of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The content it is bound to.
    pub bound_volume_group_snapshot_content_name: Option<String>,
    /// When it was cut.
    pub creation_time: Option<Time>,
    /// Whether one can restore from its members.
    pub ready_to_use: Option<bool>,
    /// What went wrong last.
    pub error: Option<SnapshotFault>,
}

/// A group snapshot, as the driver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeGroupSnapshotContent {
    /// Metadata.
    pub metadata: Meta,
    /// What it is.
    pub spec: GroupContentSpec,
    /// How far it has come; `None` until the sidecar has seen it.
    pub status: Option<GroupContentStatus>,
}

impl Kind for VolumeGroupSnapshotContent {
    const API: Api = Api {
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

/// What a content is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSpec {
    /// The driver.
    pub driver: String,
    /// What becomes of it when its group snapshot goes.
    pub deletion_policy: DeletionPolicy,
    /// The group snapshot it is for.
    pub volume_group_snapshot_ref: SnapshotRef,
    /// The class.
    pub volume_group_snapshot_class_name: Option<String>,
    /// Of what.
    pub source: GroupContentSource,
}

/// Of what: one or the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentSource {
    /// Of these volumes, to be taken.
    pub volume_handles: Option<Vec<String>>,
    /// The driver has it already.
    pub group_snapshot_handles: Option<GroupHandles>,
}

/// The driver's names for a group snapshot and its members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupHandles {
    /// The group.
    pub volume_group_snapshot_handle: String,
    /// Its members.
    #[serde(deserialize_with = "nullable")]
    pub volume_snapshot_handles: Vec<String>,
}

/// How far a content has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupContentStatus {
    /// The driver's name for the group snapshot.
    pub volume_group_snapshot_handle: Option<String>,
    /// When it was cut.
    pub creation_time: Option<Time>,
    /// Whether one can restore from its members.
    pub ready_to_use: Option<bool>,
    /// What went wrong last.
    pub error: Option<SnapshotFault>,
    /// Its members.
    pub volume_snapshot_info_list: Option<Vec<MemberInfo>>,
}

/// A member of a group snapshot, as the driver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberInfo {
    /// The volume it is of.
    pub volume_handle: String,
    /// The driver's name for the snapshot.
    pub snapshot_handle: String,
    /// When it was cut, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// Whether one can restore from it.
    pub ready_to_use: Option<bool>,
    /// How big a volume restored from it has to be, in bytes.
    pub restore_size: Option<i64>,
}

/// How group snapshots of a class are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub driver: String,
    /// What becomes of a content when its group snapshot goes.
    pub deletion_policy: DeletionPolicy,
    /// Words for the driver and, with a prefix, for us.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

impl Kind for VolumeGroupSnapshotClass {
    const API: Api = Api {
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
