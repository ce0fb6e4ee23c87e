//! Lookup of other objects for rules that depend on them. It always returns the current state of the store.

use serde_json::Value;

use std::sync::Arc;

use super::encode;
use super::pods_by_node::PodsByNode;
use crate::access::{self, PodReferences};
use crate::kinds::{self, Kind, Lookup};
use crate::store::Store;

/// The current objects of the store.
#[derive(Debug, Clone)]
pub struct Objects {
    pub(super) store: Store,
    pub(super) pods_by_node: Arc<PodsByNode>,
}

impl Lookup for Objects {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        let entry = self.store.get(&encode::key(kind, namespace, name))?;
        encode::decode(kind, &entry.value).ok()
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value> {
        let page = self.store.list(&encode::prefix(kind, namespace), None, None, 0);
        let entries = page.map(|page| page.entries).unwrap_or_default();
        entries.iter().filter_map(|entry| encode::decode(kind, &entry.value).ok()).collect()
    }
}

impl access::Objects for Objects {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = kinds::KINDS.iter().find(|kind| kind.group == group && kind.plural == plural)?;
        Lookup::get(self, kind, namespace, name)
    }

    fn pod_references_on(&self, node: &str) -> Vec<Arc<PodReferences>> {
        let Some(kind) = kinds::find("", "v1", "pods") else { return Vec::new() };
        self.pods_by_node.references_on(&self.store, &encode::prefix(kind, ""), node)
    }
}
