//! An intent holds everything that is needed to create a volume, or to find the one that was created. It is written
//! before CreateVolume is sent. After a crash, the same call is repeated from it, even if the claim, its class and its
//! node no longer exist. Contains names of secrets, never their values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wharf_model::Key;

pub(crate) use topology::IntentTopology;

mod topology;

/// The intent to provision one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Intent {
    /// The volume's name, in Kubernetes and for the driver.
    pub(crate) volume: String,
    pub(crate) claim: IntentClaim,
    /// The UID of the claim's class when this was written.
    pub(crate) class_uid: String,
    /// When this was written, in milliseconds since 1970.
    pub(crate) written: i64,
    /// The CreateVolume request.
    pub(crate) request: Request,
    /// The PersistentVolume without the fields that come from the driver's response: handle, capacity, attributes and
    /// node affinity.
    pub(crate) template: Value,
}

impl Intent {
    /// Whether the template can be completed with the driver's response. Another version may write another format.
    pub(crate) fn is_complete(&self) -> bool {
        self.template.pointer("/spec/csi").is_some_and(Value::is_object)
    }
}

/// A claim, by name and UID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IntentClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl IntentClaim {
    pub(crate) fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// The CreateVolume request, without the secret's values.
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
    /// The topology requirement. `None`: none is sent.
    #[serde(rename = "places", skip_serializing_if = "Option::is_none")]
    pub(crate) topology: Option<IntentTopology>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<ContentSource>,
    /// The secret, as namespace and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<(String, String)>,
}

/// A CSI volume capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Capability {
    /// The number of the CSI access mode.
    pub(crate) mode: i32,
    /// File system and mount flags. `None`: a block volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mount: Option<(String, Vec<String>)>,
}

/// The content source, by its handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ContentSource {
    /// A snapshot's handle.
    Snapshot(String),
    /// A volume's handle.
    Volume(String),
}
