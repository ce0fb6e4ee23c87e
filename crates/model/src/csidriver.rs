//! CSIDriver, slim: what Kubernetes was told about a driver.

use serde::Deserialize;

use crate::Meta;
use crate::kind::{Api, Kind, Scope};
use crate::words::{nullable, words};

/// A driver, as its deployer described it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CSIDriver {
    /// Metadata.
    pub metadata: Meta,
    /// The description.
    pub spec: CSIDriverSpec,
}

impl Kind for CSIDriver {
    const API: Api = Api {
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

/// The description of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CSIDriverSpec {
    /// Whether volumes are attached before they are mounted; `None` is yes.
    pub attach_required: Option<bool>,
    /// Whether the scheduler reads CSIStorageCapacity objects; `None` is no.
    pub storage_capacity: Option<bool>,
    /// Whether the driver is told of the pod when it publishes; `None` is no.
    pub pod_info_on_mount: Option<bool>,
    /// Whether files get the pod's group.
    pub fs_group_policy: Option<FsGroupPolicy>,
    /// Of which kinds volumes may be; empty is only persistent ones.
    #[serde(deserialize_with = "nullable")]
    pub volume_lifecycle_modes: Vec<LifecycleMode>,
    /// Tokens of the pod's service account that the driver is given.
    #[serde(deserialize_with = "nullable")]
    pub token_requests: Vec<TokenRequest>,
    /// Whether volumes are published again and again; `None` is no.
    pub requires_republish: Option<bool>,
    /// Whether volumes can be mounted with an SELinux label; `None` is no.
    #[serde(rename = "seLinuxMount")]
    pub se_linux_mount: Option<bool>,
    /// How often the node's limit is asked for again; `None` is never.
    pub node_allocatable_update_period_seconds: Option<i64>,
}

/// A token that a driver wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenRequest {
    /// For whom it is; empty is the API server.
    pub audience: String,
    /// How long it holds.
    pub expiration_seconds: Option<i64>,
}

words! {
    /// Whether files of a volume get the pod's group.
    FsGroupPolicy {
        /// Where the volume has a file system of its own and one node: the default.
        ReadWriteOnceWithFSType = "ReadWriteOnceWithFSType",
        /// Always.
        File = "File",
        /// Never.
        None = "None",
    }
}

words! {
    /// How long a volume lives.
    LifecycleMode {
        /// As its claim.
        Persistent = "Persistent",
        /// As its pod.
        Ephemeral = "Ephemeral",
    }
}
