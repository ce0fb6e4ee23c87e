//! Other objects, for the rules that must know of them: as they are in the store at this moment.

use serde_json::Value;

use std::sync::Arc;

use super::encode;
use super::placement::Placement;
use crate::access::{self, Named};
use crate::kinds::{self, Kind, Lookup};
use crate::store::Store;

/// All objects.
#[derive(Debug, Clone)]
pub struct Objects {
    pub(super) store: Store,
    pub(super) placement: Arc<Placement>,
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

    fn named_on(&self, node: &str) -> Vec<Arc<Named>> {
        let Some(kind) = kinds::find("", "v1", "pods") else { return Vec::new() };
        self.placement.on(&self.store, &encode::prefix(kind, ""), node)
    }
}
