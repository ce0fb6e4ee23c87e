//! The VolumeAttachment kind.

use serde::Deserialize;

use crate::decode::null_as_default;
use crate::kind::{ApiResource, Kind, Scope};
use crate::volume::PersistentVolumeSpec;
use crate::{Meta, StringMap, Time};

/// A VolumeAttachment: a request to attach a volume to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    /// Metadata.
    #[serde(deserialize_with = "Meta::without_labels")]
    pub metadata: Meta,
    /// The request.
    pub spec: AttachmentSpec,
    /// Its status.
    pub status: AttachmentStatus,
}

impl Kind for VolumeAttachment {
    const API: ApiResource = ApiResource {
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

/// The spec of a VolumeAttachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// The driver that attaches the volume.
    pub attacher: String,
    /// The node.
    pub node_name: String,
    /// The volume.
    pub source: AttachmentSource,
}

/// The volume to attach: one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// A PersistentVolume.
    pub persistent_volume_name: Option<String>,
    /// An inline volume of a pod (CSI migration). Boxed, since hardly any attachment has one.
    pub inline_volume_spec: Option<Box<PersistentVolumeSpec>>,
}

/// The status of a VolumeAttachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether the volume is attached, as reported by the attacher.
    #[serde(deserialize_with = "null_as_default")]
    pub attached: bool,
    /// The driver's publish context.
    #[serde(deserialize_with = "null_as_default")]
    pub attachment_metadata: StringMap,
    /// The error of the last attach.
    pub attach_error: Option<VolumeError>,
    /// The error of the last detach.
    pub detach_error: Option<VolumeError>,
}

/// An error of an attach or detach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeError {
    /// When it occurred.
    pub time: Option<Time>,
    /// The error message.
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    /// The gRPC code.
    pub error_code: Option<i32>,
}
