//! The trait that connects a slim view to its resource in the Kubernetes API.

use serde::de::DeserializeOwned;

use crate::{Key, Meta};

/// The scope of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Cluster-scoped.
    Cluster,
    /// Namespaced.
    Namespaced,
}

/// The API resource of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ApiResource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// The kind, as in `kind: PersistentVolume`.
    pub kind: &'static str,
    /// The plural resource name, as used in paths.
    pub plural: &'static str,
    /// Whether objects are namespaced.
    pub scope: Scope,
}

impl ApiResource {
    /// `v1` or `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The path of the collection in one namespace, or in all.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
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
        format!("{}/{}", self.collection_path(key.namespace.as_deref()), key.name)
    }
}

/// A slim view of an object: it decodes only the fields we use, so it is never written back. Writes are patches, or
/// edits of the raw object.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// The kind's API resource.
    const API: ApiResource;

    /// The object's metadata.
    fn meta(&self) -> &Meta;

    /// Whether stores cache the object. They drop others of its kind right after decoding.
    fn is_cached(&self) -> bool {
        true
    }

    /// The object's name and namespace.
    fn key(&self) -> Key {
        self.meta().key()
    }
}
