//! Sees a pod to the node that was chosen for it, beside the loop that chooses: its volumes first, then the pod itself.
//!
//! One step at a time, each from a fresh look. If we die anywhere, what is written holds: a claim whose node is written
//! down keeps its pod on that node, a volume that is a claim's is found by it, and a pod without a node is tried again.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use wharf_cluster::{ApiError, EventType, Patch};
use wharf_model::names::annotation;
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, Meta, PersistentVolume, PersistentVolumeClaim};

use self::decide::{Binding, Item, Provision, Step, View, decide};
use super::bells::{Bell, Subject};
use super::ledger::Kept;
use super::line::Line;
use super::volumes::Plan;
use super::{Scheduler, report, wake};

mod decide;

/// How a binding ended, if not well.
enum Ended {
    /// The pod is gone, or somebody else has placed it.
    Gone,
    /// We may not go on.
    Shut,
    /// It failed, and why.
    Failed(String),
    /// The server may or may not have taken the pod's binding.
    Unknown(String),
}

impl Scheduler {
    /// The whole of it, and what follows from how it ends.
    pub(super) async fn bind(self: Arc<Self>, pod: Arc<Pod>, node: String, plan: Plan) {
        let by_hand = !pod.spec.node_name.is_empty();
        let ended = match self.bind_volumes(&pod, &node, &plan).await {
            Ok(()) if by_hand => Ok(()),
            Ok(()) => self.bind_pod(&pod, &node).await,
            Err(ended) => Err(ended),
        };
        let now = Instant::now();
        match &ended {
            Ok(()) if !by_hand => self.ledger().keep(&pod, Kept::Bound),
            Err(Ended::Unknown(_)) => self.ledger().keep(&pod, Kept::Perhaps),
            _ => self.ledger().release(&pod),
        }
        match ended {
            Ok(()) => {
                if !by_hand {
                    let place = format!("Successfully assigned {} to {node}", pod.metadata.key());
                    self.context.events.tell(&*pod, EventType::Normal, report::SCHEDULED, place);
                }
                self.finish(&pod, Line::done);
            }
            Err(Ended::Gone) => {
                self.finish(&pod, Line::done);
                // It never was on the node it was promised, so nobody sees it leave.
                self.wake(wake::LEFT);
            }
            Err(Ended::Shut) => self.finish(&pod, |line, key| line.retry(key, now)),
            Err(Ended::Failed(message) | Ended::Unknown(message)) => {
                self.finish(&pod, |line, key| line.retry(key, now));
                // What it was promised is to be had again.
                self.wake(wake::LEFT);
                self.report(&pod, report::ERROR, &message).await;
            }
        }
    }

    async fn bind_volumes(&self, pod: &Arc<Pod>, node: &str, plan: &Plan) -> Result<(), Ended> {
        if plan.is_empty() {
            return Ok(());
        }
        let failed = |why: String| Ended::Failed(format!("running PreBind plugin \"VolumeBinding\": {why}"));
        let deadline = Instant::now() + self.settings.bind_timeout;
        let bell = self.hang(pod, node, plan);
        let mut written = Written::default();
        loop {
            if !self.context.gate.is_open() {
                return Err(Ended::Shut);
            }
            let view = self.look_at_binding(pod, node, plan, &written);
            match decide(&view) {
                Step::PreBind(index) => {
                    let Binding { volume: Some(volume), claim: Some(claim), .. } = &view.bindings[index]
                    else {
                        continue;
                    };
                    if self
                        .write::<PersistentVolume>(&volume.metadata, pre_bound(volume, claim))
                        .await
                        .map_err(failed)?
                    {
                        written.bindings.insert(index);
                    }
                }
                Step::Select(index) => {
                    let Some(claim) = &view.provisions[index].claim else { continue };
                    if self
                        .write::<PersistentVolumeClaim>(&claim.metadata, selecting(claim, node))
                        .await
                        .map_err(failed)?
                    {
                        written.provisions.insert(index);
                    }
                }
                Step::Adopt(Item::Binding(index)) => {
                    written.bindings.insert(index);
                }
                Step::Adopt(Item::Provision(index)) => {
                    written.provisions.insert(index);
                }
                Step::Wait => {
                    let rung = async {
                        tokio::select! {
                            biased;
                            () = self.context.gate.stopped() => {}
                            () = self.context.gate.lost() => {}
                            () = bell.rung() => {}
                        }
                    };
                    if timeout_at(deadline, rung).await.is_err() {
                        return Err(failed("binding volumes: context deadline exceeded".to_owned()));
                    }
                }
                Step::Done => return Ok(()),
                Step::Gone => return Err(Ended::Gone),
                Step::Fail(why) => return Err(failed(why)),
            }
        }
    }

    fn hang(&self, pod: &Pod, node: &str, plan: &Plan) -> Bell {
        let bound = plan.bindings.iter().map(|binding| binding.claim.metadata.key());
        let provisioned = plan.provisions.iter().map(|claim| claim.metadata.key());
        let mut subjects: Vec<Subject> = bound.chain(provisioned).map(Subject::Claim).collect();
        subjects.extend([Subject::Pod(pod.metadata.key()), Subject::Node(node.to_owned())]);
        self.bells.hang(subjects)
    }

    fn look_at_binding(&self, pod: &Pod, node: &str, plan: &Plan, written: &Written) -> View {
        let now = self.pods.get(&pod.metadata.key()).filter(|now| now.metadata.uid == pod.metadata.uid);
        let claim = |planned: &PersistentVolumeClaim| {
            let now = self.claims.get(&planned.metadata.key());
            now.filter(|now| now.metadata.uid == planned.metadata.uid)
        };
        let binding = |(index, planned): (usize, &super::volumes::Binding)| {
            let volume = self.volumes.get(&planned.volume.metadata.key());
            Binding {
                volume_name: planned.volume.metadata.name.clone(),
                claim_key: planned.claim.metadata.key(),
                volume: volume.filter(|now| now.metadata.uid == planned.volume.metadata.uid),
                claim: claim(&planned.claim),
                written: written.bindings.contains(&index),
            }
        };
        let provision = |(index, planned): (usize, &Arc<PersistentVolumeClaim>)| {
            let claim = claim(planned);
            let names = claim.as_ref().map(|claim| &claim.spec.volume_name).filter(|name| !name.is_empty());
            Provision {
                claim_key: planned.metadata.key(),
                volume: names.and_then(|name| self.volumes.get(&Key::cluster(name))),
                claim,
                written: written.provisions.contains(&index),
            }
        };
        let labels = self.nodes.get(&Key::cluster(node)).map(|node| BTreeMap::from(&node.metadata.labels));
        View {
            waits: now
                .is_some_and(|now| !now.metadata.is_deleting() && now.spec.node_name == pod.spec.node_name),
            node: node.to_owned(),
            labels,
            bindings: plan.bindings.iter().enumerate().map(binding).collect(),
            provisions: plan.provisions.iter().enumerate().map(provision).collect(),
        }
    }

    /// Whether it was written; not if the object is not as it was seen, which the next look will show.
    async fn write<K: Kind>(&self, meta: &Meta, patch: Patch) -> Result<bool, String> {
        match self.context.cluster.patch(&K::API, &meta.key(), None, patch).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {
                // The watch may be behind: what the server has now is what to decide on.
                match self.context.cluster.get::<K>(&meta.key()).await {
                    Ok(Some(_)) => Ok(false),
                    Ok(None) => Err(format!("{} {:?} not found", K::API.plural, meta.name)),
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn bind_pod(&self, pod: &Pod, node: &str) -> Result<(), Ended> {
        if !self.context.gate.is_open() {
            return Err(Ended::Shut);
        }
        let key = pod.metadata.key();
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": pod.metadata.namespace, "name": pod.metadata.name, "uid": pod.metadata.uid},
            "target": {"kind": "Node", "name": node},
        });
        let error = match self.context.cluster.hand(&Pod::API, &key, "binding", &body).await {
            Ok(_) => return Ok(()),
            Err(ApiError::NotFound(_)) => return Err(Ended::Gone),
            Err(error) => error,
        };
        let message = format!("running Bind plugin \"DefaultBinder\": {error}");
        match error {
            ApiError::Unavailable(_) => Err(Ended::Unknown(message)),
            // Somebody was quicker, or it is going; how it is now decides.
            ApiError::Conflict(_) => match self.context.cluster.get::<Pod>(&key).await {
                Ok(Some(now)) if now.metadata.uid == pod.metadata.uid && now.spec.node_name == node => Ok(()),
                Ok(Some(now)) if now.metadata.uid == pod.metadata.uid && now.spec.node_name.is_empty() => {
                    Err(Ended::Failed(message))
                }
                Ok(_) => Err(Ended::Gone),
                Err(_) => Err(Ended::Unknown(message)),
            },
            _ => Err(Ended::Failed(message)),
        }
    }
}

/// What of the plan is done.
#[derive(Default)]
struct Written {
    bindings: BTreeSet<usize>,
    provisions: BTreeSet<usize>,
}

/// Gives a volume to a claim. Who had it reserved for the claim by hand keeps that on record: then no controller chose it.
fn pre_bound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Patch {
    let mut body = as_seen(&volume.metadata);
    body["spec"] = json!({"claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    }});
    if volume.spec.claim_ref.is_none() {
        body["metadata"]["annotations"] = json!({annotation::BOUND_BY_CONTROLLER: "yes"});
    }
    Patch::Merge(body)
}

/// Writes down the node of a claim.
fn selecting(claim: &PersistentVolumeClaim, node: &str) -> Patch {
    let mut body = as_seen(&claim.metadata);
    body["metadata"]["annotations"] = json!({annotation::SELECTED_NODE: node});
    Patch::Merge(body)
}

/// Only this object, and only as it was seen: a decision was taken on what it says.
fn as_seen(meta: &Meta) -> Value {
    json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}})
}
