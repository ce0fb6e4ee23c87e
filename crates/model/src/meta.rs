//! Object metadata: the fields that controllers use of any object.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::{StringMap, Time};

/// Name and, for namespaced kinds, namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// The key of a namespaced object.
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

/// Object metadata. Fields that we do not use, such as `managedFields`, are not decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// The name.
    pub name: String,
    /// The namespace, for namespaced kinds.
    pub namespace: Option<String>,
    /// The UID: a recreated object of the same name has another one.
    pub uid: String,
    /// Opaque by contract, a number in practice; see `is_newer_version` in the cluster crate.
    pub resource_version: String,
    /// When it was created.
    pub creation_timestamp: Option<Time>,
    /// When its deletion was requested.
    pub deletion_timestamp: Option<Time>,
    /// The grace period of the deletion; for a pod in deletion, 0 means that it has terminated.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Finalizers that must be removed before the object is deleted.
    #[serde(deserialize_with = "shrunk")]
    pub finalizers: Vec<String>,
    /// Labels.
    pub labels: StringMap,
    /// Annotations.
    pub annotations: StringMap,
    /// Owner references.
    #[serde(deserialize_with = "shrunk")]
    pub owner_references: Vec<OwnerRef>,
}

/// Drops unused capacity: there are many thousands of these lists.
fn shrunk<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerRef {
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is the managing controller.
    pub controller: Option<bool>,
    /// Whether the owner's foreground deletion waits for this object.
    pub block_owner_deletion: Option<bool>,
}

impl Meta {
    /// Name and namespace.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether the object has this finalizer.
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
        Ok(Self { annotations: StringMap::default(), ..meta })
    }

    /// For views that use annotations and no labels.
    pub(crate) fn without_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let meta = Self::deserialize(deserializer)?;
        Ok(Self { labels: StringMap::default(), ..meta })
    }

    /// For views that use only the name, UID, resource version and deletion timestamp.
    pub(crate) fn identity_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Self { name, namespace, uid, resource_version, deletion_timestamp, .. } =
            Self::deserialize(deserializer)?;
        Ok(Self { name, namespace, uid, resource_version, deletion_timestamp, ..Self::default() })
    }
}
