//! The Node object of this machine: that it is there, what it has, and that it is alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use wharf_cluster::{Cluster, Store, WatchOptions};
use wharf_model::whole::Node;

/// What keeps this machine from being ready; clones are the same. Without any trouble it is ready.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<watch::Sender<BTreeMap<&'static str, String>>>);

impl Health {
    /// All is well.
    pub fn new() -> Self {
        Self::default()
    }

    /// A part of the agent says what is wrong with it.
    pub fn trouble(&self, part: &'static str, message: impl Into<String>) {
        let message = message.into();
        self.0.send_if_modified(|parts| parts.insert(part, message.clone()).as_ref() != Some(&message));
    }

    /// Nothing is wrong with a part any more.
    pub fn well(&self, part: &'static str) {
        self.0.send_if_modified(|parts| parts.remove(part).is_some());
    }
}

/// The Node object of this name, and no other.
pub fn store(cluster: &Cluster, node: &str) -> Store<Node> {
    let field_selector = Some(format!("metadata.name={node}"));
    cluster.store(WatchOptions { field_selector, ..WatchOptions::default() })
}
