//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass, slim.

pub mod names;
pub mod secrets;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::claim::VolumeMode;
use crate::kind::{Api, Kind, Scope};
use crate::words::{nullable, words};
use crate::{Meta, Quantity, Time};

/// A snapshot, as its user asked for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    /// Metadata.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// What is asked for.
    pub spec: SnapshotSpec,
    /// What there is; `None` until the controller has seen it.
    pub status: Option<SnapshotStatus>,
}

impl Kind for VolumeSnapshot {
    const API: Api = Api {
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

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSpec {
    /// Of what.
    pub source: SnapshotSource,
    /// The class.
    pub volume_snapshot_class_name: Option<String>,
}

/// Of what: one or the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSource {
    /// Of this claim, to be taken.
    pub persistent_volume_claim_name: Option<String>,
    /// The content is there already.
    pub volume_snapshot_content_name: Option<String>,
}

/// What there is of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// The content it is bound to.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether one can restore from it.
    pub ready_to_use: Option<bool>,
    /// How big a volume restored from it has to be.
    pub restore_size: Option<Quantity>,
    /// When it was cut.
    pub creation_time: Option<Time>,
    /// What went wrong last.
    pub error: Option<SnapshotFault>,
    /// The group it belongs to.
    pub volume_group_snapshot_name: Option<String>,
}

/// What went wrong last with a snapshot or its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotFault {
    /// When.
    pub time: Option<Time>,
    /// For people.
    pub message: Option<String>,
}

/// A snapshot, as the driver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotContent {
    /// Metadata.
    pub metadata: Meta,
    /// What it is.
    pub spec: ContentSpec,
    /// How far it has come; `None` until the sidecar has seen it.
    pub status: Option<ContentStatus>,
}

impl Kind for VolumeSnapshotContent {
    const API: Api = Api {
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

/// What a content is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSpec {
    /// The driver.
    pub driver: String,
    /// What becomes of it when its snapshot goes.
    pub deletion_policy: DeletionPolicy,
    /// The snapshot it is for.
    pub volume_snapshot_ref: SnapshotRef,
    /// Of what.
    pub source: ContentSource,
    /// The class.
    pub volume_snapshot_class_name: Option<String>,
    /// The mode of the volume that it was taken of.
    pub source_volume_mode: Option<VolumeMode>,
}

/// Of what: one or the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    /// Of this volume, to be taken.
    pub volume_handle: Option<String>,
    /// The driver has it already, under this name.
    pub snapshot_handle: Option<String>,
}

/// A snapshot, or a group of them, by name and identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
}

/// How far a content has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    /// The driver's name for the snapshot.
    pub snapshot_handle: Option<String>,
    /// Whether one can restore from it.
    pub ready_to_use: Option<bool>,
    /// How big a volume restored from it has to be, in bytes.
    pub restore_size: Option<i64>,
    /// When it was cut, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// What went wrong last.
    pub error: Option<SnapshotFault>,
    /// The driver's name for the group it belongs to.
    pub volume_group_snapshot_handle: Option<String>,
}

/// How snapshots of a class are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    /// Metadata.
    pub metadata: Meta,
    /// The driver.
    pub driver: String,
    /// What becomes of a content when its snapshot goes.
    pub deletion_policy: DeletionPolicy,
    /// Words for the driver and, with a prefix, for us.
    #[serde(deserialize_with = "nullable")]
    pub parameters: BTreeMap<String, String>,
}

impl Kind for VolumeSnapshotClass {
    const API: Api = Api {
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

words! {
    /// What becomes of a content when its snapshot goes.
    DeletionPolicy {
        /// It goes too.
        Delete = "Delete",
        /// It stays.
        Retain = "Retain",
    }
}
