//! The graph of owner references. It determines which objects to reconcile after a write. It does no I/O; the caller
//! passes all writes to it, in order.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::kinds::{self, Kind};
use crate::rest::{FOREGROUND, ORPHAN};
use crate::store::Key;

/// The location of an object, parsed from its key.
pub(super) struct ObjectPath<'a> {
    pub(super) kind: &'static Kind,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Parses a key: `group/plural/namespace/name`.
pub(super) fn parse_key(key: &str) -> Option<ObjectPath<'_>> {
    let mut parts = key.splitn(4, '/');
    let (group, plural, namespace, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let kind = kinds::KINDS.iter().copied().find(|kind| kind.group == group && kind.plural == plural)?;
    Some(ObjectPath { kind, namespace, name })
}

/// The part of an object that the graph needs.
#[derive(Deserialize, Default)]
struct ObjectHead {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    deletion_timestamp: Option<String>,
    finalizers: Vec<String>,
    owner_references: Vec<Reference>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    uid: String,
    block_owner_deletion: Option<bool>,
}

/// An object that has owners or waits for dependents.
#[derive(Default)]
struct Node {
    owners: Vec<String>,
    /// The object is being deleted and waits for its dependents.
    waits: bool,
}

/// All owner references, indexed by owner.
#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Key, Node>,
    /// Dependents by the owner's UID, and whether each blocks the owner's deletion.
    dependents: HashMap<String, BTreeMap<Key, bool>>,
    /// Keys of owners, by UID, whose deletion is held up by a garbage collection finalizer.
    waiting: HashMap<String, Key>,
}

impl Graph {
    /// The objects that name this UID as owner.
    pub(super) fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a Key, bool)> {
        self.dependents.get(uid).into_iter().flatten().map(|(key, blocks)| (key, *blocks))
    }

    /// Whether the object is being deleted and waits for its dependents.
    pub(super) fn waits(&self, key: &Key) -> bool {
        self.nodes.get(key).is_some_and(|node| node.waits)
    }

    /// Records a written object. Returns the keys to reconcile.
    pub(super) fn upsert(&mut self, key: &Key, stored: &[u8]) -> Vec<Key> {
        let object: ObjectHead = serde_json::from_slice(stored).unwrap_or_default();
        let Metadata { uid, deletion_timestamp, finalizers, owner_references } = object.metadata;
        let mut due = self.detach(key);
        let deleting = deletion_timestamp.is_some();
        let has = |finalizer: &str| finalizers.iter().any(|entry| entry == finalizer);
        let waits = deleting && has(FOREGROUND);
        let held = waits || (deleting && has(ORPHAN));
        if held {
            self.waiting.insert(uid.clone(), key.clone());
        }
        if waits {
            due.extend(self.dependents(&uid).map(|(key, _)| key.clone()));
        }
        if held || !owner_references.is_empty() {
            due.push(key.clone());
            for owner in &owner_references {
                let blocks = owner.block_owner_deletion.unwrap_or(false);
                self.dependents.entry(owner.uid.clone()).or_default().insert(key.clone(), blocks);
            }
            let owners = owner_references.into_iter().map(|owner| owner.uid).collect();
            self.nodes.insert(key.clone(), Node { owners, waits });
        }
        due
    }

    /// Records a deletion. Returns the keys to reconcile.
    pub(super) fn remove(&mut self, key: &Key, stored: &[u8]) -> Vec<Key> {
        let object: ObjectHead = serde_json::from_slice(stored).unwrap_or_default();
        let mut due = self.detach(key);
        self.waiting.remove(&object.metadata.uid);
        due.extend(self.dependents(&object.metadata.uid).map(|(key, _)| key.clone()));
        due
    }

    /// Removes the object from the graph. Returns the owners that waited for it.
    fn detach(&mut self, key: &Key) -> Vec<Key> {
        let Some(node) = self.nodes.remove(key) else { return Vec::new() };
        let mut due = Vec::new();
        for owner in node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner) {
                dependents.remove(key);
                if dependents.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
            due.extend(self.waiting.get(&owner).cloned());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn write(graph: &mut Graph, key: &str, metadata: Value) -> Vec<String> {
        let due = graph.upsert(&key.into(), json!({"metadata": metadata}).to_string().as_bytes());
        due.iter().map(|key| key.to_string()).collect()
    }

    #[test]
    fn writes_return_the_affected_keys() {
        let mut graph = Graph::default();
        assert!(write(&mut graph, "/pods/a/owner", json!({"uid": "o"})).is_empty());
        let owned = json!({"uid": "d", "ownerReferences": [{"uid": "o", "blockOwnerDeletion": true}]});
        assert_eq!(write(&mut graph, "/configmaps/a/d", owned), ["/configmaps/a/d"]);
        assert_eq!(graph.dependents("o").count(), 1);
        // The owner starts to wait: reconcile it and its dependents.
        let waits = json!({"uid": "o", "deletionTimestamp": "t", "finalizers": [FOREGROUND]});
        assert_eq!(write(&mut graph, "/pods/a/owner", waits), ["/configmaps/a/d", "/pods/a/owner"]);
        assert!(graph.waits(&"/pods/a/owner".into()));
        // The dependent is deleted: reconcile the owner, which may have no dependents left.
        let due = graph.remove(&"/configmaps/a/d".into(), br#"{"metadata":{"uid":"d"}}"#);
        assert_eq!(due, ["/pods/a/owner".into()]);
        assert_eq!(graph.dependents("o").count(), 0);
    }

    #[test]
    fn orphaning_owner_is_reconciled_when_its_dependents_are_released() {
        let mut graph = Graph::default();
        write(&mut graph, "/configmaps/a/d", json!({"uid": "d", "ownerReferences": [{"uid": "o"}]}));
        let orphans = json!({"uid": "o", "deletionTimestamp": "t", "finalizers": [ORPHAN]});
        assert_eq!(write(&mut graph, "/pods/a/owner", orphans), ["/pods/a/owner"]);
        assert_eq!(write(&mut graph, "/configmaps/a/d", json!({"uid": "d"})), ["/pods/a/owner"]);
    }

    #[test]
    fn deletion_of_owner_returns_its_dependents() {
        let mut graph = Graph::default();
        // The dependent may be written before or after its owner.
        let owned = json!({"uid": "d", "ownerReferences": [{"uid": "o"}, {"uid": "p"}]});
        write(&mut graph, "/configmaps/a/d", owned);
        let due = graph.remove(&"/pods/a/owner".into(), br#"{"metadata":{"uid":"o"}}"#);
        assert_eq!(due, ["/configmaps/a/d".into()]);
        // The owner reference is removed: nothing is left to reconcile.
        write(&mut graph, "/configmaps/a/d", json!({"uid": "d"}));
        assert_eq!(graph.dependents("o").count() + graph.dependents("p").count(), 0);
        assert!(graph.remove(&"/pods/a/owner".into(), br#"{"metadata":{"uid":"o"}}"#).is_empty());
    }

    #[test]
    fn keys_are_parsed() {
        let path = parse_key("/pods/a/x").unwrap();
        assert_eq!((path.kind.plural, path.namespace, path.name), ("pods", "a", "x"));
        let path = parse_key("storage.k8s.io/csinodes//n").unwrap();
        assert_eq!((path.kind.plural, path.namespace, path.name), ("csinodes", "", "n"));
        assert!(parse_key("unknown/things//n").is_none());
        assert!(parse_key("x").is_none());
    }
}
