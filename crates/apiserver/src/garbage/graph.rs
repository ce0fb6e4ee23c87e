//! Who names whom as owner, and what is to be looked at after a write. Synchronous: told of each write in order.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::kinds::{self, Kind};
use crate::rest::{FOREGROUND, ORPHAN};
use crate::store::Key;

/// Where an object is, by its key.
pub(super) struct Place<'a> {
    pub(super) kind: &'static Kind,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Reads a key: `group/plural/namespace/name`.
pub(super) fn place(key: &str) -> Option<Place<'_>> {
    let mut parts = key.splitn(4, '/');
    let (group, plural, namespace, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let kind = kinds::KINDS.iter().copied().find(|kind| kind.group == group && kind.plural == plural)?;
    Some(Place { kind, namespace, name })
}

/// As much of an object as counts here.
#[derive(Deserialize, Default)]
struct Head {
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

/// What is known of an object that owns or is owned.
#[derive(Default)]
struct Node {
    owners: Vec<String>,
    /// It is being deleted, and waits for its dependents.
    waits: bool,
}

/// All objects that name owners, by these.
#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Key, Node>,
    /// Dependents by the owner's uid, and whether they block it.
    dependents: HashMap<String, BTreeMap<Key, bool>>,
    /// Where owners are that are being deleted and held on account of their dependents.
    waiting: HashMap<String, Key>,
}

impl Graph {
    /// Who names this object as owner.
    pub(super) fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a Key, bool)> {
        self.dependents.get(uid).into_iter().flatten().map(|(key, blocks)| (key, *blocks))
    }

    /// Whether the object is being deleted and waits for its dependents.
    pub(super) fn waits(&self, key: &Key) -> bool {
        self.nodes.get(key).is_some_and(|node| node.waits)
    }

    /// An object is as it is; what is to be looked at therefore.
    pub(super) fn written(&mut self, key: &Key, stored: &[u8]) -> Vec<Key> {
        let head: Head = serde_json::from_slice(stored).unwrap_or_default();
        let Metadata { uid, deletion_timestamp, finalizers, owner_references } = head.metadata;
        let mut due = self.forget(key);
        let deleting = deletion_timestamp.is_some();
        let has = |finalizer: &str| finalizers.iter().any(|of| of == finalizer);
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

    /// An object is gone; what is to be looked at therefore.
    pub(super) fn deleted(&mut self, key: &Key, stored: &[u8]) -> Vec<Key> {
        let head: Head = serde_json::from_slice(stored).unwrap_or_default();
        let mut due = self.forget(key);
        self.waiting.remove(&head.metadata.uid);
        due.extend(self.dependents(&head.metadata.uid).map(|(key, _)| key.clone()));
        due
    }

    /// Takes out what was known of the object; those who waited for it are to be looked at.
    fn forget(&mut self, key: &Key) -> Vec<Key> {
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
        let due = graph.written(&key.into(), json!({"metadata": metadata}).to_string().as_bytes());
        due.iter().map(|key| key.to_string()).collect()
    }

    #[test]
    fn what_is_looked_at() {
        let mut graph = Graph::default();
        assert!(write(&mut graph, "/pods/a/owner", json!({"uid": "o"})).is_empty());
        let owned = json!({"uid": "d", "ownerReferences": [{"uid": "o", "blockOwnerDeletion": true}]});
        assert_eq!(write(&mut graph, "/configmaps/a/d", owned), ["/configmaps/a/d"]);
        assert_eq!(graph.dependents("o").count(), 1);
        // The owner begins to wait: it and its dependents.
        let waits = json!({"uid": "o", "deletionTimestamp": "t", "finalizers": [FOREGROUND]});
        assert_eq!(write(&mut graph, "/pods/a/owner", waits), ["/configmaps/a/d", "/pods/a/owner"]);
        assert!(graph.waits(&"/pods/a/owner".into()));
        // The dependent goes: the owner has something less to wait for.
        let due = graph.deleted(&"/configmaps/a/d".into(), br#"{"metadata":{"uid":"d"}}"#);
        assert_eq!(due, ["/pods/a/owner".into()]);
        assert_eq!(graph.dependents("o").count(), 0);
    }

    #[test]
    fn an_owner_that_sets_its_dependents_free_is_looked_at_when_they_are() {
        let mut graph = Graph::default();
        write(&mut graph, "/configmaps/a/d", json!({"uid": "d", "ownerReferences": [{"uid": "o"}]}));
        let orphans = json!({"uid": "o", "deletionTimestamp": "t", "finalizers": [ORPHAN]});
        assert_eq!(write(&mut graph, "/pods/a/owner", orphans), ["/pods/a/owner"]);
        assert_eq!(write(&mut graph, "/configmaps/a/d", json!({"uid": "d"})), ["/pods/a/owner"]);
    }

    #[test]
    fn dependents_of_what_is_gone() {
        let mut graph = Graph::default();
        // The dependent may be seen before its owner, and after it.
        let owned = json!({"uid": "d", "ownerReferences": [{"uid": "o"}, {"uid": "p"}]});
        write(&mut graph, "/configmaps/a/d", owned);
        let due = graph.deleted(&"/pods/a/owner".into(), br#"{"metadata":{"uid":"o"}}"#);
        assert_eq!(due, ["/configmaps/a/d".into()]);
        // It forgets the owner: nobody is left to look at.
        write(&mut graph, "/configmaps/a/d", json!({"uid": "d"}));
        assert_eq!(graph.dependents("o").count() + graph.dependents("p").count(), 0);
        assert!(graph.deleted(&"/pods/a/owner".into(), br#"{"metadata":{"uid":"o"}}"#).is_empty());
    }

    #[test]
    fn places() {
        let of = place("/pods/a/x").unwrap();
        assert_eq!((of.kind.plural, of.namespace, of.name), ("pods", "a", "x"));
        let of = place("storage.k8s.io/csinodes//n").unwrap();
        assert_eq!((of.kind.plural, of.namespace, of.name), ("csinodes", "", "n"));
        assert!(place("unknown/things//n").is_none());
        assert!(place("x").is_none());
    }
}
