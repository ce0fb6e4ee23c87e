//! Other objects, for the rules that must know of them: as they are in the store at this moment.

use serde_json::Value;

use super::{encode, meta};
use crate::access;
use crate::kinds::{self, Kind, Lookup};
use crate::store::Store;

/// All objects.
#[derive(Debug, Clone)]
pub struct Objects(pub(crate) Store);

impl Lookup for Objects {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        let entry = self.0.get(&encode::key(kind, namespace, name))?;
        encode::decode(kind, &entry.value).ok()
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value> {
        let page = self.0.list(&encode::prefix(kind, namespace), None, None, 0);
        let entries = page.map(|page| page.entries).unwrap_or_default();
        entries.iter().filter_map(|entry| encode::decode(kind, &entry.value).ok()).collect()
    }
}

impl access::Objects for Objects {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = kinds::KINDS.iter().find(|kind| kind.group == group && kind.plural == plural)?;
        Lookup::get(self, kind, namespace, name)
    }

    fn pods_on(&self, node: &str) -> Vec<Value> {
        let Some(kind) = kinds::find("", "v1", "pods") else { return Vec::new() };
        let Ok(page) = self.0.list(&encode::prefix(kind, ""), None, None, 0) else { return Vec::new() };
        // Each request of a node comes here: only pods that have its name in them are read.
        let named = Value::from(node).to_string();
        let is_named = |stored: &[u8]| std::str::from_utf8(stored).is_ok_and(|text| text.contains(&named));
        let on_node = page.entries.iter().filter(|entry| is_named(&entry.value));
        let mut pods: Vec<Value> =
            on_node.filter_map(|entry| encode::decode(kind, &entry.value).ok()).collect();
        pods.retain(|pod| meta::text(pod, "/spec/nodeName") == node);
        pods
    }
}
