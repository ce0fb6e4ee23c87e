//! Object metadata, slim: what controllers ask of any object.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::{Map, Time};

/// Name and, for namespaced kinds, namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `None` for kinds of the whole cluster.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Key {
    /// An object of the whole cluster.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// An object in a namespace.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Metadata. `managedFields` and what else we do not use is not even decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// The name.
    pub name: String,
    /// The namespace, for namespaced kinds.
    pub namespace: Option<String>,
    /// Identity: another object of the same name has another one.
    pub uid: String,
    /// Opaque by contract, a number in practice; see `newer_than` in the cluster crate.
    pub resource_version: String,
    /// When it was made.
    pub creation_timestamp: Option<Time>,
    /// When its deletion was asked for.
    pub deletion_timestamp: Option<Time>,
    /// How long its end may take; for pods that are being deleted, 0 says that they have ended.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Who must let go before it is gone.
    #[serde(deserialize_with = "tight")]
    pub finalizers: Vec<String>,
    /// Labels.
    pub labels: Map,
    /// Annotations.
    pub annotations: Map,
    /// Owners.
    #[serde(deserialize_with = "tight")]
    pub owner_references: Vec<OwnerRef>,
}

/// No room is kept for more: there are many thousands of these lists.
fn tight<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

/// An owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerRef {
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Whether it is the one that manages the object.
    pub controller: Option<bool>,
}

impl Meta {
    /// Name and namespace.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether its deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether this finalizer is on it.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|present| present == finalizer)
    }

    /// An annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }
}

impl Meta {
    /// For views that use labels and no annotations.
    pub(crate) fn without_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let meta = Self::deserialize(deserializer)?;
        Ok(Self { annotations: Map::default(), ..meta })
    }

    /// For views that use annotations and no labels.
    pub(crate) fn without_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let meta = Self::deserialize(deserializer)?;
        Ok(Self { labels: Map::default(), ..meta })
    }

    /// For views of which only names, identity, version and the deletion mark are used.
    pub(crate) fn bare<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Self { name, namespace, uid, resource_version, deletion_timestamp, .. } =
            Self::deserialize(deserializer)?;
        Ok(Self { name, namespace, uid, resource_version, deletion_timestamp, ..Self::default() })
    }
}
