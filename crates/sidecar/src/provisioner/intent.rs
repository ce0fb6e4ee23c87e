//! An intent: everything that is needed to make a volume, or to find the one that was made, written down before
//! the driver is asked. Whoever finds it after a crash repeats the same call, also when the claim, its class and
//! its node are gone. Holds the names of secrets, never their values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use places::Places;

mod places;

/// What was about to be done for one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Intent {
    /// The volume's name, for Kubernetes and for the driver.
    pub(crate) volume: String,
    /// The claim.
    pub(crate) claim: IntentClaim,
    /// The class, as it was when this was written.
    pub(crate) class_uid: String,
    /// When this was written, in milliseconds since 1970.
    pub(crate) written: i64,
    /// What the driver is asked.
    pub(crate) request: Request,
    /// The PersistentVolume to be, without what only the driver's answer can tell: handle, capacity, attributes
    /// and node affinity.
    pub(crate) template: Value,
}

impl Intent {
    /// Whether what the driver's answer adds has its place in the template. Another version's may have another form.
    pub(crate) fn is_whole(&self) -> bool {
        self.template.pointer("/spec/csi").is_some_and(Value::is_object)
    }
}

/// A claim, by name and identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IntentClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// CreateVolume, without the values of its secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Request {
    pub(crate) required_bytes: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) capabilities: Vec<Capability>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parameters: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mutable_parameters: BTreeMap<String, String>,
    /// Requisite and preferred places; `None`: no word about places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) places: Option<Places>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<ContentSource>,
    /// The secret, as namespace and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<(String, String)>,
}

/// How the volume is to be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Capability {
    /// The number of the CSI access mode.
    pub(crate) mode: i32,
    /// File system and mount flags; `None` for a block volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mount: Option<(String, Vec<String>)>,
}

/// Where the content comes from: the driver's name for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ContentSource {
    /// A snapshot's handle.
    Snapshot(String),
    /// A volume's handle.
    Volume(String),
}
