//! What makes a slim view a kind of the Kubernetes API.

use serde::de::DeserializeOwned;

use crate::{Key, Meta};

/// Whether objects live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One for the whole cluster.
    Cluster,
    /// One for each namespace.
    Namespaced,
}

/// Where a kind is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Api {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// The kind, as in `kind: PersistentVolume`.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
    /// Whether objects live in namespaces.
    pub scope: Scope,
}

impl Api {
    /// `v1` or `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The path of the collection: of one namespace, or of all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub fn object_path(&self, key: &Key) -> String {
        format!("{}/{}", self.path(key.namespace.as_deref()), key.name)
    }
}

/// A slim view: only the fields we use are decoded, so a view is never written back. Writes are patches, or
/// edits of the raw object.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// Where it is served.
    const API: Api;

    /// The object's metadata.
    fn meta(&self) -> &Meta;

    /// Whether it is worth keeping: a store forgets others of its kind as soon as it has read them.
    fn is_kept(&self) -> bool {
        true
    }

    /// The object's name and namespace.
    fn key(&self) -> Key {
        self.meta().key()
    }
}
