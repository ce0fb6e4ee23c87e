//! The trait that connects a view to its resource in the Kubernetes API.

use serde::Deserializer;
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

/// How much of an object is decoded and cached. Most kinds have one view. Pods and Nodes have a slim one, for processes
/// that do not schedule or run pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// Without [`Detail`](crate::Detail)s, and without objects and metadata that only a full view needs.
    Slim,
    /// All fields that any component reads.
    #[default]
    Full,
}

/// A view of an object: it decodes only the fields we use, so it is never written back. Writes are patches, or
/// edits of the raw object.
pub trait Kind: DeserializeOwned + Send + Sync + 'static {
    /// The kind's API resource.
    const API: ApiResource;

    /// Whether the view has all labels, so that a label selector can be evaluated on it.
    const HAS_LABELS: bool = false;

    /// The object's metadata.
    fn meta(&self) -> &Meta;

    /// Decodes an object.
    fn decode<'de, D: Deserializer<'de>>(deserializer: D, _view: View) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }

    /// Whether stores cache the object. They drop others of its kind right after decoding.
    fn is_cached(&self, _view: View) -> bool {
        true
    }

    /// Reads a field by its path in field selectors; `None` if the view does not have it.
    fn field(path: &str) -> Option<fn(&Self) -> &str> {
        match path {
            "metadata.name" => Some(|object| &object.meta().name),
            _ => None,
        }
    }

    /// The object's name and namespace.
    fn key(&self) -> Key {
        self.meta().key()
    }
}
