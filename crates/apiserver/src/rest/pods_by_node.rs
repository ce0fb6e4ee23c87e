//! An index of the pods on each node and what they reference, updated from the store's log when it is queried.
//!
//! Every request of a node agent queries it, so each pod is parsed only once, when it is bound. A query always includes
//! pods that were bound before it, and never pods that were deleted before it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use crate::access::PodReferences;
use crate::store::{Key, Revision, Store};

/// The index of pods by node.
#[derive(Default)]
pub(crate) struct PodsByNode(Mutex<Index>);

impl fmt::Debug for PodsByNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pods by node")
    }
}

impl PodsByNode {
    /// The references of the pods on a node. `prefix` is the key prefix of all pods.
    pub(crate) fn references_on(&self, store: &Store, prefix: &str, node: &str) -> Vec<Arc<PodReferences>> {
        // The index is consistent after each update, so a poisoned lock is safe to use.
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.catch_up(store, prefix);
        index.pods.get(node).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}

#[derive(Default)]
struct Index {
    /// The revision that the index reflects; none before the first query.
    revision: Option<Revision>,
    pods: BTreeMap<Box<str>, BTreeMap<Key, Arc<PodReferences>>>,
    nodes: HashMap<Key, Box<str>>,
}

impl Index {
    fn catch_up(&mut self, store: &Store, prefix: &str) {
        if let Some(from) = self.revision
            && let Ok((events, revision)) = store.events_since(prefix, from)
        {
            for event in events {
                self.update(&event.key, if event.deleted { None } else { Some(&event.value) });
            }
            self.revision = Some(revision);
            return;
        }
        // The last query is older than the log: rebuild the index.
        if let Ok(page) = store.list(prefix, None, None, 0) {
            *self = Self { revision: Some(page.revision), ..Self::default() };
            for entry in page.entries {
                self.update(&entry.key, Some(&entry.value));
            }
        }
    }

    fn update(&mut self, key: &Key, stored: Option<&[u8]>) {
        let node = stored.and_then(node_of);
        // A pod does not move to another node, and its references do not change.
        if self.nodes.get(key).map(|current| &**current) == node.as_deref() {
            return;
        }
        if let Some(previous_node) = self.nodes.remove(key)
            && let Some(pods) = self.pods.get_mut(&previous_node)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(&previous_node);
            }
        }
        if let (Some(node), Some(stored)) = (node, stored) {
            let pod: Value = serde_json::from_slice(stored).unwrap_or_default();
            self.nodes.insert(key.clone(), node.as_ref().into());
            let pods = self.pods.entry(node.as_ref().into()).or_default();
            pods.insert(key.clone(), Arc::new(PodReferences::from_pod(&pod)));
        }
    }
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Deserialize, Default)]
struct Spec<'a> {
    #[serde(borrow, default, rename = "nodeName")]
    node_name: Option<Cow<'a, str>>,
}

/// The node that a stored pod is bound to.
fn node_of(stored: &[u8]) -> Option<Cow<'_, str>> {
    let pod: Pod<'_> = serde_json::from_slice(stored).ok()?;
    pod.spec.node_name.filter(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Body, Change, Options};
    use proptest::prelude::*;

    fn body(node: &str) -> Body {
        const FRONT: &str = r#"{"metadata":{"resourceVersion":""#;
        let json =
            format!("{FRONT}\"}},\"spec\":{{\"nodeName\":{node:?},\"serviceAccountName\":{node:?}}}}}");
        Body { json: json.into(), revision_offset: FRONT.len(), expires: None }
    }

    fn prefix() -> &'static str {
        "/pods/"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// A query, even after more writes than the log holds, returns the pods that a scan of all pods finds.
        #[test]
        fn index_matches_a_full_scan(steps in prop::collection::vec((0..6_u8, 0..4_u8, any::<bool>()), 1..60)) {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { sync: false, history: 8, ..Options::default() };
            let store = Store::open(dir.path(), options).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let pods_by_node = PodsByNode::default();
            for (pod, node, query) in steps {
                let key = Key::from(format!("/pods/ns/{pod}"));
                let node = if node == 0 { String::new() } else { format!("n{node}") };
                let change = match store.get(&key) {
                    None => Change::Create(body(&node)),
                    Some(entry) if node.is_empty() => Change::Delete(entry.revision, body(&node)),
                    Some(entry) => Change::Update(entry.revision, body(&node)),
                };
                runtime.block_on(store.write(key, change)).unwrap();
                if !query {
                    continue;
                }
                for node in ["", "n1", "n2", "n3"] {
                    let all = store.list(prefix(), None, None, 0).unwrap().entries;
                    let on = |entry: &&crate::store::Entry| node_of(&entry.value).as_deref() == Some(node);
                    let expected: Vec<Key> = all.iter().filter(on).map(|entry| entry.key.clone()).collect();
                    let named = pods_by_node.references_on(&store, prefix(), node);
                    prop_assert!(named.iter().all(|named| &*named.account == node));
                    let index = pods_by_node.0.lock().unwrap();
                    let indexed: Vec<Key> =
                        index.pods.get(node).into_iter().flat_map(BTreeMap::keys).cloned().collect();
                    prop_assert_eq!(named.len(), indexed.len());
                    prop_assert_eq!(indexed, expected);
                }
            }
        }
    }
}
