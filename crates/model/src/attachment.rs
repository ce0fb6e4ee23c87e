//! VolumeAttachment, slim.

use serde::Deserialize;

use crate::kind::{Api, Kind, Scope};
use crate::volume::VolumeSpec;
use crate::words::nullable;
use crate::{Map, Meta, Time};

/// The wish that a volume be attached to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    /// Metadata.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// The wish.
    pub spec: AttachmentSpec,
    /// What came of it.
    pub status: AttachmentStatus,
}

impl Kind for VolumeAttachment {
    const API: Api = Api {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The wish.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// The driver that has to see to it.
    pub attacher: String,
    /// The node.
    pub node_name: String,
    /// The volume.
    pub source: AttachmentSource,
}

/// The volume: one or the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// A PersistentVolume.
    pub persistent_volume_name: Option<String>,
    /// A volume that a pod spelled out itself. Boxed, since hardly any attachment has one.
    pub inline_volume_spec: Option<Box<VolumeSpec>>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether it is attached, as far as the attacher knows.
    #[serde(deserialize_with = "nullable")]
    pub attached: bool,
    /// The driver's publish context.
    #[serde(deserialize_with = "nullable")]
    pub attachment_metadata: Map,
    /// Why the last attach failed.
    pub attach_error: Option<VolumeError>,
    /// Why the last detach failed.
    pub detach_error: Option<VolumeError>,
}

/// A failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeError {
    /// When.
    pub time: Option<Time>,
    /// A sentence for people.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
    /// The gRPC code.
    pub error_code: Option<i32>,
}
