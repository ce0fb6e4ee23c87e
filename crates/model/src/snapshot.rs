//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass.

mod binding;
pub mod names;
pub mod secrets;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::claim::VolumeMode;
use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};
use crate::{Meta, Quantity, Time};

/// A VolumeSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    /// Metadata.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// The spec.
    pub spec: SnapshotSpec,
    /// The status; `None` until the snapshot controller has processed it.
    pub status: Option<SnapshotStatus>,
}

impl Kind for VolumeSnapshot {
    const API: ApiResource = ApiResource {
        group: "snapshot.storage.k8s.io",
        version: "v1",
        kind: "VolumeSnapshot",
        plural: "volumesnapshots",
        scope: Scope::Namespaced,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The spec of a VolumeSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSpec {
    /// The source.
    pub source: SnapshotSource,
    /// The class.
    pub volume_snapshot_class_name: Option<String>,
}

/// The source of a snapshot: one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSource {
    /// The claim to take a snapshot of.
    pub persistent_volume_claim_name: Option<String>,
    /// An existing content (pre-provisioned snapshot).
    pub volume_snapshot_content_name: Option<String>,
}

/// The status of a VolumeSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// The content it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether a volume can be restored from it.
    pub ready_to_use: Option<bool>,
    /// The minimum size of a volume restored from it.
    pub restore_size: Option<Quantity>,
    /// When it was taken.
    pub creation_time: Option<Time>,
    /// The last error.
    pub error: Option<VolumeSnapshotError>,
    /// The group it belongs to.
    pub volume_group_snapshot_name: Option<String>,
}

/// The last error of a snapshot or its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotError {
    /// When it occurred.
    pub time: Option<Time>,
    /// The error message.
    pub message: Option<String>,
}

/// A VolumeSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotContent {
    /// Metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: ContentSpec,
    /// The status; `None` until the snapshotter has processed it.
    pub status: Option<ContentStatus>,
}

impl Kind for VolumeSnapshotContent {
    const API: ApiResource = ApiResource {
        group: "snapshot.storage.k8s.io",
        version: "v1",
        kind: "VolumeSnapshotContent",
        plural: "volumesnapshotcontents",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The spec of a VolumeSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSpec {
    /// The driver.
    pub driver: String,
    /// What happens to the driver's snapshot when the VolumeSnapshot is deleted.
    pub deletion_policy: DeletionPolicy,
    /// The VolumeSnapshot that it belongs to.
    pub volume_snapshot_ref: SnapshotRef,
    /// The source.
    pub source: ContentSource,
    /// The class.
    pub volume_snapshot_class_name: Option<String>,
    /// The volume mode of the source volume.
    pub source_volume_mode: Option<VolumeMode>,
}

/// The source of a content: one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    /// The volume to take a snapshot of.
    pub volume_handle: Option<String>,
    /// An existing snapshot of the driver.
    pub snapshot_handle: Option<String>,
}

/// A reference to a VolumeSnapshot or VolumeGroupSnapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: String,
}

/// The status of a VolumeSnapshotContent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    /// The driver's handle of the snapshot.
    pub snapshot_handle: Option<String>,
    /// Whether a volume can be restored from it.
    pub ready_to_use: Option<bool>,
    /// The minimum size of a volume restored from it, in bytes.
    pub restore_size: Option<i64>,
    /// When it was taken, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// The last error.
    pub error: Option<VolumeSnapshotError>,
    /// The driver's handle of the group snapshot it belongs to.
    pub volume_group_snapshot_handle: Option<String>,
}

/// A VolumeSnapshotClass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
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

impl Kind for VolumeSnapshotClass {
    const API: ApiResource = ApiResource {
        group: "snapshot.storage.k8s.io",
        version: "v1",
        kind: "VolumeSnapshotClass",
        plural: "volumesnapshotclasses",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

open_enum! {
    /// What happens to a content when its snapshot is deleted.
    DeletionPolicy {
        /// The content and the driver's snapshot are deleted, too.
        Delete = "Delete",
        /// Both are kept.
        Retain = "Retain",
    }
}
