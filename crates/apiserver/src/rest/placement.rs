//! Which pods are on which node, and what they name: an index beside the store, brought up to date by the store's log
//! when it is asked.
//!
//! Each request of a node's agent asks, so a pod is read once, when it is bound. Of one that was bound before the
//! question it always tells, and of none that went before it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use crate::access::Named;
use crate::store::{Key, Revision, Store};

/// The index.
#[derive(Default)]
pub(crate) struct Placement(Mutex<Index>);

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pods by node")
    }
}

impl Placement {
    /// What the pods on a node name. `prefix` is what the keys of all pods begin with.
    pub(crate) fn on(&self, store: &Store, prefix: &str, node: &str) -> Vec<Arc<Named>> {
        // It is whole after each change of it, also if that was the last thing that somebody did.
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.catch_up(store, prefix);
        index.pods.get(node).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}

#[derive(Default)]
struct Index {
    /// All up to here is in it; none before the first question.
    revision: Option<Revision>,
    pods: BTreeMap<Box<str>, BTreeMap<Key, Arc<Named>>>,
    nodes: HashMap<Key, Box<str>>,
}

impl Index {
    fn catch_up(&mut self, store: &Store, prefix: &str) {
        if let Some(from) = self.revision
            && let Ok((events, revision)) = store.since(prefix, from)
        {
            for event in events {
                self.place(&event.key, if event.deleted { None } else { Some(&event.value) });
            }
            self.revision = Some(revision);
            return;
        }
        // Nobody has asked for longer than the log is long.
        if let Ok(page) = store.list(prefix, None, None, 0) {
            *self = Self { revision: Some(page.revision), ..Self::default() };
            for entry in page.entries {
                self.place(&entry.key, Some(&entry.value));
            }
        }
    }

    fn place(&mut self, key: &Key, stored: Option<&[u8]>) {
        let node = stored.and_then(node_of);
        // A pod does not move, and what it names stays.
        if self.nodes.get(key).map(|there| &**there) == node.as_deref() {
            return;
        }
        if let Some(before) = self.nodes.remove(key)
            && let Some(pods) = self.pods.get_mut(&before)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(&before);
            }
        }
        if let (Some(node), Some(stored)) = (node, stored) {
            let pod: Value = serde_json::from_slice(stored).unwrap_or_default();
            self.nodes.insert(key.clone(), node.as_ref().into());
            let pods = self.pods.entry(node.as_ref().into()).or_default();
            pods.insert(key.clone(), Arc::new(Named::of(&pod)));
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
        Body { json: json.into(), at: FRONT.len(), expires: None }
    }

    fn prefix() -> &'static str {
        "/pods/"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Whenever it is asked, also after longer than the log is long, it tells of the pods that a look at all of
        /// them finds.
        #[test]
        fn is_what_a_look_at_all_pods_finds(steps in prop::collection::vec((0..6_u8, 0..4_u8, any::<bool>()), 1..60)) {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { sync: false, history: 8, ..Options::default() };
            let store = Store::open(dir.path(), options).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let placement = Placement::default();
            for (pod, node, ask) in steps {
                let key = Key::from(format!("/pods/ns/{pod}"));
                let node = if node == 0 { String::new() } else { format!("n{node}") };
                let change = match store.get(&key) {
                    None => Change::Create(body(&node)),
                    Some(entry) if node.is_empty() => Change::Delete(entry.revision, body(&node)),
                    Some(entry) => Change::Update(entry.revision, body(&node)),
                };
                runtime.block_on(store.write(key, change)).unwrap();
                if !ask {
                    continue;
                }
                for node in ["", "n1", "n2", "n3"] {
                    let all = store.list(prefix(), None, None, 0).unwrap().entries;
                    let on = |entry: &&crate::store::Entry| node_of(&entry.value).as_deref() == Some(node);
                    let expected: Vec<Key> = all.iter().filter(on).map(|entry| entry.key.clone()).collect();
                    let named = placement.on(&store, prefix(), node);
                    prop_assert!(named.iter().all(|named| &*named.account == node));
                    let index = placement.0.lock().unwrap();
                    let placed: Vec<Key> =
                        index.pods.get(node).into_iter().flat_map(BTreeMap::keys).cloned().collect();
                    prop_assert_eq!(named.len(), placed.len());
                    prop_assert_eq!(placed, expected);
                }
            }
        }
    }
}
