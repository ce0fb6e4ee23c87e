//! The in-tree sources of PersistentVolumes, as far as their translation reads them.

use serde::Deserialize;

use super::Plugin;
use crate::decode::null_as_default;

/// An in-tree source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InTreeSource {
    AwsEbs(Disk),
    AzureDisk(AzureDisk),
    AzureFile(AzureFile),
    Cinder(Disk),
    GcePd(GcePd),
    Portworx(Disk),
    Vsphere(Vsphere),
}

impl InTreeSource {
    /// The plugin that it belongs to.
    pub(super) fn plugin(&self) -> Plugin {
        match self {
            Self::AwsEbs(_) => Plugin::AwsEbs,
            Self::AzureDisk(_) => Plugin::AzureDisk,
            Self::AzureFile(_) => Plugin::AzureFile,
            Self::Cinder(_) => Plugin::Cinder,
            Self::GcePd(_) => Plugin::GcePd,
            Self::Portworx(_) => Plugin::Portworx,
            Self::Vsphere(_) => Plugin::Vsphere,
        }
    }
}

/// The sources of AWS EBS, Cinder and Portworx, which have the same fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Disk {
    #[serde(rename = "volumeID")]
    pub(super) volume_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) fs_type: String,
    /// AWS EBS only.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) partition: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) read_only: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GcePd {
    pub(super) pd_name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) fs_type: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) partition: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) read_only: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AzureDisk {
    #[serde(rename = "diskURI")]
    pub(super) disk_uri: String,
    pub(super) caching_mode: Option<String>,
    pub(super) fs_type: Option<String>,
    pub(super) read_only: Option<bool>,
    pub(super) kind: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AzureFile {
    pub(super) secret_name: String,
    pub(super) share_name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) read_only: bool,
    pub(super) secret_namespace: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Vsphere {
    pub(super) volume_path: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) fs_type: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) storage_policy_name: String,
}
