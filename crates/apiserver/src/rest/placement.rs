//! Which pods are on which node: an index beside the store, brought up to date by the store's log when it is asked.
//!
//! Each request of a node's agent asks. It tells of pods that are there and of some that have just gone, so who asks
//! reads them; it never misses one that was bound before the question.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

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
    /// The keys of the pods on a node. `prefix` is what the keys of all pods begin with.
    pub(crate) fn on(&self, store: &Store, prefix: &str, node: &str) -> Vec<Key> {
        // It is whole after each change of it, also if that was the last thing that somebody did.
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.catch_up(store, prefix);
        index.pods.get(node).into_iter().flatten().cloned().collect()
    }
}

#[derive(Default)]
struct Index {
    /// All up to here is in it; none before the first question.
    revision: Option<Revision>,
    pods: BTreeMap<Box<str>, BTreeSet<Key>>,
    nodes: HashMap<Key, Box<str>>,
}

impl Index {
    fn catch_up(&mut self, store: &Store, prefix: &str) {
        if let Some(from) = self.revision
            && let Ok((events, revision)) = store.since(prefix, from)
        {
            for event in events {
                let node = if event.deleted { None } else { node_of(&event.value) };
                self.place(&event.key, node.as_deref());
            }
            self.revision = Some(revision);
            return;
        }
        // Nobody has asked for longer than the log is long.
        if let Ok(page) = store.list(prefix, None, None, 0) {
            *self = Self { revision: Some(page.revision), ..Self::default() };
            for entry in page.entries {
                self.place(&entry.key, node_of(&entry.value).as_deref());
            }
        }
    }

    fn place(&mut self, key: &Key, node: Option<&str>) {
        if self.nodes.get(key).map(|there| &**there) == node {
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
        if let Some(node) = node {
            self.nodes.insert(key.clone(), node.into());
            self.pods.entry(node.into()).or_default().insert(key.clone());
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
        let json = format!("{FRONT}\"}},\"spec\":{{\"nodeName\":{node:?}}}}}");
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
                    prop_assert_eq!(placement.on(&store, prefix(), node), expected);
                }
            }
        }
    }
}
