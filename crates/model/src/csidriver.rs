//! CSIDriver: how Kubernetes uses a driver.

use serde::Deserialize;

use crate::Meta;
use crate::decode::{null_as_default, open_enum};
use crate::kind::{ApiResource, Kind, Scope};

/// A CSIDriver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSIDriver {
    /// Metadata.
    pub metadata: Meta,
    /// The driver's properties.
    pub spec: CSIDriverSpec,
}

impl Kind for CSIDriver {
    const API: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIDriver",
        plural: "csidrivers",
        scope: Scope::Cluster,
    };

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl CSIDriver {
    /// Whether volumes of a driver must be attached before they are mounted. They must if the driver has no CSIDriver
    /// object.
    pub fn requires_attach(driver: Option<&Self>) -> bool {
        driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }
}

/// The properties of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIDriverSpec {
    /// Whether volumes must be attached before they are mounted; default true.
    pub attach_required: Option<bool>,
    /// Whether the scheduler considers CSIStorageCapacity objects; default false.
    pub storage_capacity: Option<bool>,
    /// Whether pod metadata is passed to NodePublishVolume; default false.
    pub pod_info_on_mount: Option<bool>,
    /// When kubelet applies the pod's fsGroup to volumes.
    pub fs_group_policy: Option<FsGroupPolicy>,
    /// The supported volume lifecycle modes; if empty, only Persistent.
    #[serde(deserialize_with = "null_as_default")]
    pub volume_lifecycle_modes: Vec<VolumeLifecycleMode>,
    /// Service account tokens of the pod that are passed to the driver.
    #[serde(deserialize_with = "null_as_default")]
    pub token_requests: Vec<TokenRequest>,
    /// Whether NodePublishVolume is called periodically; default false.
    pub requires_republish: Option<bool>,
    /// Whether volumes can be mounted with an SELinux label; default false.
    #[serde(rename = "seLinuxMount")]
    pub se_linux_mount: Option<bool>,
    /// How often the node's allocatable count is updated; `None` is never.
    pub node_allocatable_update_period_seconds: Option<i64>,
}

/// A service account token for a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenRequest {
    /// The audience; if empty, the API server.
    pub audience: String,
    /// The token's validity.
    pub expiration_seconds: Option<i64>,
}

open_enum! {
    /// When kubelet applies the pod's fsGroup to volumes.
    FsGroupPolicy {
        /// Only to ReadWriteOnce volumes with an fsType; the default.
        ReadWriteOnceWithFSType = "ReadWriteOnceWithFSType",
        /// Always.
        File = "File",
        /// Never.
        None = "None",
    }
}

open_enum! {
    /// The lifecycle mode of a volume.
    VolumeLifecycleMode {
        /// A PersistentVolume, independent of pods.
        Persistent = "Persistent",
        /// An inline volume with the lifecycle of its pod.
        Ephemeral = "Ephemeral",
    }
}
