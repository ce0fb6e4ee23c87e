//! What was promised to pods that are still being bound: upstream's assume cache.
//!
//! A promise is made when a node is chosen and lasts until the binding has ended: then either the stores show what was
//! written, or nothing was. A pod's place on its node lasts until the store shows the pod there. Promise: while it
//! lasts, nobody else is promised the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::names::annotation;
use wharf_model::volume::ClaimRef;
use wharf_model::whole::Pod;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim};

use super::volumes::Plan;

/// All promises, by pod.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    promises: BTreeMap<Key, Promise>,
}

/// What one pod was promised.
#[derive(Debug, Clone)]
pub(super) struct Promise {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    pub(super) plan: Plan,
    /// The binding has ended.
    kept: Option<Kept>,
}

/// Why a pod's place is kept after its binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// The server has taken the pod's binding.
    Bound,
    /// Nobody knows whether it has.
    Perhaps,
}

impl Ledger {
    /// Promises a pod its node and its volumes.
    pub(super) fn promise(&mut self, pod: &Arc<Pod>, node: &str, plan: &Plan) {
        let promise = Promise { pod: Arc::clone(pod), node: node.to_owned(), plan: plan.clone(), kept: None };
        self.promises.insert(pod.metadata.key(), promise);
    }

    /// The binding has ended: what it wrote is written, and the pod's place is kept until it is seen there.
    pub(super) fn keep(&mut self, pod: &Pod, kept: Kept) {
        if let Some(promise) = self.of(pod) {
            promise.kept = Some(kept);
            promise.plan = Plan::default();
        }
    }

    /// Whether the server has taken the pod's binding, though the store does not show it.
    pub(super) fn is_bound(&mut self, pod: &Pod) -> bool {
        self.of(pod).is_some_and(|promise| promise.kept == Some(Kept::Bound))
    }

    /// Nothing came of it.
    pub(super) fn release(&mut self, pod: &Pod) {
        if self.of(pod).is_some() {
            self.promises.remove(&pod.metadata.key());
        }
    }

    /// Forgets who is seen on a node, or is gone. `seen` tells how a pod is now.
    pub(super) fn settle(&mut self, seen: impl Fn(&Key) -> Option<Arc<Pod>>) {
        self.promises.retain(|key, promise| match seen(key) {
            Some(now) if now.metadata.uid == promise.pod.metadata.uid => {
                promise.kept.is_none() || now.spec.node_name.is_empty()
            }
            // The binding that still runs will end by itself.
            _ => promise.kept.is_none(),
        });
    }

    fn of(&mut self, pod: &Pod) -> Option<&mut Promise> {
        // Another pod of that name has promises of its own.
        self.promises
            .get_mut(&pod.metadata.key())
            .filter(|promise| promise.pod.metadata.uid == pod.metadata.uid)
    }

    /// Pods on their way to a node.
    pub(super) fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.promises.values().filter(move |promise| promise.node == node).map(|promise| &promise.pod)
    }

    /// Pods that use a claim, but this one.
    pub(super) fn uses(&self, namespace: Option<&str>, claim: &str, but: &Key) -> bool {
        self.promises.iter().any(|(key, promise)| {
            key != but
                && key.namespace.as_deref() == namespace
                && promise.pod.claims().any(|name| name == claim)
        })
    }

    /// The volumes that are promised, and to which claims.
    pub(super) fn volumes(&self) -> BTreeMap<&str, &Arc<PersistentVolumeClaim>> {
        let bindings = self.promises.values().flat_map(|promise| &promise.plan.bindings);
        bindings.map(|binding| (binding.volume.metadata.name.as_str(), &binding.claim)).collect()
    }

    /// The claims that are promised new volumes, and on which nodes.
    pub(super) fn claims(&self) -> BTreeMap<Key, (&Arc<PersistentVolumeClaim>, &str)> {
        let mut claims = BTreeMap::new();
        for promise in self.promises.values() {
            for claim in &promise.plan.provisions {
                claims.insert(claim.metadata.key(), (claim, promise.node.as_str()));
            }
        }
        claims
    }
}

/// A volume as it will be once it is a claim's.
pub(super) fn taken(volume: &Arc<PersistentVolume>, by: &PersistentVolumeClaim) -> Arc<PersistentVolume> {
    let mut volume = PersistentVolume::clone(volume);
    volume.spec.claim_ref = Some(ClaimRef {
        namespace: by.metadata.namespace.clone().unwrap_or_default(),
        name: by.metadata.name.clone(),
        uid: by.metadata.uid.clone(),
    });
    Arc::new(volume)
}

/// A claim as it will be once its node is written down.
pub(super) fn selected(claim: &Arc<PersistentVolumeClaim>, node: &str) -> Arc<PersistentVolumeClaim> {
    let mut claim = PersistentVolumeClaim::clone(claim);
    claim.metadata.annotations.insert(annotation::SELECTED_NODE, node);
    Arc::new(claim)
}

#[cfg(test)]
mod tests;
