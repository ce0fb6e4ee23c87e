//! What is assumed for pods that are being bound: upstream's assume cache.
//!
//! An assumption starts when a node is chosen and lasts until the binding has ended: then the stores show what was
//! written, or nothing was written. A pod's place on its node is assumed until the store shows the pod there.
//! Guarantee: meanwhile no other pod is given the same node resources or volumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_model::names::annotation;
use wharf_model::volume::ClaimRef;
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod};

use super::volumes::Plan;

/// All assumed pods.
#[derive(Debug, Default)]
pub(super) struct AssumeCache {
    pods: BTreeMap<Key, AssumedPod>,
}

/// What is assumed for one pod.
#[derive(Debug, Clone)]
pub(super) struct AssumedPod {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    pub(super) plan: Plan,
    /// Set once the binding has ended.
    retained: Option<Retained>,
}

/// Why a pod's place is retained after its binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retained {
    /// The API server has bound the pod.
    Bound,
    /// It is unknown whether it has.
    MaybeBound,
}

impl AssumeCache {
    /// Assumes the node and the volumes of a pod.
    pub(super) fn assume(&mut self, pod: &Arc<Pod>, node: &str, plan: &Plan) {
        let assumed =
            AssumedPod { pod: Arc::clone(pod), node: node.to_owned(), plan: plan.clone(), retained: None };
        self.pods.insert(pod.metadata.key(), assumed);
    }

    /// The binding has ended: its writes are done, and the pod's place is retained until the store shows the pod there.
    pub(super) fn retain_place(&mut self, pod: &Pod, retained: Retained) {
        if let Some(assumed) = self.of(pod) {
            assumed.retained = Some(retained);
            assumed.plan = Plan::default();
        }
    }

    /// Whether the API server has bound the pod although the store does not show it yet.
    pub(super) fn is_bound(&mut self, pod: &Pod) -> bool {
        self.of(pod).is_some_and(|assumed| assumed.retained == Some(Retained::Bound))
    }

    /// The binding failed: drops all assumptions for the pod.
    pub(super) fn forget(&mut self, pod: &Pod) {
        if self.of(pod).is_some() {
            self.pods.remove(&pod.metadata.key());
        }
    }

    /// Drops pods that have a node in the store, or were deleted. `current` reads a pod from the store.
    pub(super) fn prune(&mut self, current: impl Fn(&Key) -> Option<Arc<Pod>>) {
        self.pods.retain(|key, assumed| match current(key) {
            Some(now) if now.metadata.uid == assumed.pod.metadata.uid => {
                assumed.retained.is_none() || now.node_name.is_empty()
            }
            // A binding in progress will end by itself.
            _ => assumed.retained.is_none(),
        });
    }

    fn of(&mut self, pod: &Pod) -> Option<&mut AssumedPod> {
        // Another pod of that name has its own assumptions.
        self.pods.get_mut(&pod.metadata.key()).filter(|assumed| assumed.pod.metadata.uid == pod.metadata.uid)
    }

    /// Pods that are assumed on a node.
    pub(super) fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods.values().filter(move |assumed| assumed.node == node).map(|assumed| &assumed.pod)
    }

    /// Whether an assumed pod other than `except` uses the claim.
    pub(super) fn claim_in_use(&self, namespace: Option<&str>, claim: &str, except: &Key) -> bool {
        self.pods.iter().any(|(key, assumed)| {
            key != except
                && key.namespace.as_deref() == namespace
                && assumed.pod.claims.iter().any(|name| name == claim)
        })
    }

    /// The assumed volumes, and their claims.
    pub(super) fn volumes(&self) -> BTreeMap<&str, &Arc<PersistentVolumeClaim>> {
        let bindings = self.pods.values().flat_map(|assumed| &assumed.plan.bindings);
        bindings.map(|binding| (binding.volume.metadata.name.as_str(), &binding.claim)).collect()
    }

    /// The claims that are assumed to be provisioned, and their nodes.
    pub(super) fn claims(&self) -> BTreeMap<Key, (&Arc<PersistentVolumeClaim>, &str)> {
        let mut claims = BTreeMap::new();
        for assumed in self.pods.values() {
            for claim in &assumed.plan.provisions {
                claims.insert(claim.metadata.key(), (claim, assumed.node.as_str()));
            }
        }
        claims
    }
}

/// The volume as it will be once its claimRef is written.
pub(super) fn assume_volume(
    volume: &Arc<PersistentVolume>,
    by: &PersistentVolumeClaim,
) -> Arc<PersistentVolume> {
    let mut volume = PersistentVolume::clone(volume);
    volume.spec.claim_ref = Some(ClaimRef {
        namespace: by.metadata.namespace.clone().unwrap_or_default(),
        name: by.metadata.name.clone(),
        uid: by.metadata.uid.clone(),
    });
    Arc::new(volume)
}

/// The claim as it will be once its selected node is written.
pub(super) fn assume_claim(claim: &Arc<PersistentVolumeClaim>, node: &str) -> Arc<PersistentVolumeClaim> {
    let mut claim = PersistentVolumeClaim::clone(claim);
    claim.metadata.annotations.insert(annotation::SELECTED_NODE, node);
    Arc::new(claim)
}

#[cfg(test)]
mod tests;
