//! Binds a pod to its chosen node, concurrently with the scheduling loop: its volumes first, then the pod itself.
//!
//! Each step is decided on fresh inputs. After a crash the written objects determine what happens next: a claim with a
//! selected node restricts its pod to that node, a claim is bound to the volume that references it, and a pod without a
//! node is scheduled again.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use wharf_cluster::{ApiError, EventType, Patch};
use wharf_model::names::annotation;
use wharf_model::{Key, Kind, Meta, PersistentVolume, PersistentVolumeClaim, Pod};

use self::decide::{Binding, Item, Provision, Step, View, decide};
use super::assume::Retained;
use super::queue::PodQueue;
use super::volumes::Plan;
use super::wakeups::{Wakeup, WatchedObject};
use super::{Scheduler, report, wake};

mod decide;

/// Why a binding did not complete.
enum BindError {
    /// The pod was deleted, or has another node.
    Gone,
    /// The gate is closed: this replica does not hold the lease, or is stopping.
    NotLeader,
    /// It failed with this message.
    Failed(String),
    /// The API server may or may not have bound the pod.
    Unknown(String),
}

impl Scheduler {
    /// Binds the pod's volumes and the pod, and handles the result.
    pub(super) async fn bind(self: Arc<Self>, pod: Arc<Pod>, node: String, plan: Plan) {
        let preassigned = !pod.node_name.is_empty();
        let result = match self.bind_volumes(&pod, &node, &plan).await {
            Ok(()) if preassigned => Ok(()),
            Ok(()) => self.bind_pod(&pod, &node).await,
            Err(error) => Err(error),
        };
        let now = Instant::now();
        match &result {
            Ok(()) if !preassigned => self.assumed().retain_place(&pod, Retained::Bound),
            Err(BindError::Unknown(_)) => self.assumed().retain_place(&pod, Retained::MaybeBound),
            _ => self.assumed().forget(&pod),
        }
        match result {
            Ok(()) => {
                if !preassigned {
                    let message = format!("Successfully assigned {} to {node}", pod.metadata.key());
                    self.context.events.record_for(&*pod, EventType::Normal, report::SCHEDULED, message);
                }
                self.finish(&pod, PodQueue::done);
            }
            Err(BindError::Gone) => {
                self.finish(&pod, PodQueue::done);
                // The pod never was on the assumed node, so no watch event reports that it left.
                self.wake(wake::POD_LEFT);
            }
            Err(BindError::NotLeader) => self.finish(&pod, |queue, key| queue.retry(key, now)),
            Err(BindError::Failed(message) | BindError::Unknown(message)) => {
                self.finish(&pod, |queue, key| queue.retry(key, now));
                // The resources and volumes that were assumed for the pod are available again.
                self.wake(wake::POD_LEFT);
                self.report(&pod, report::ERROR, &message).await;
            }
        }
    }

    async fn bind_volumes(&self, pod: &Arc<Pod>, node: &str, plan: &Plan) -> Result<(), BindError> {
        if plan.is_empty() {
            return Ok(());
        }
        let failed =
            |reason: String| BindError::Failed(format!("running PreBind plugin \"VolumeBinding\": {reason}"));
        let deadline = Instant::now() + self.settings.bind_timeout;
        let wakeup = self.register_wakeup(pod, node, plan);
        let mut completed = Completed::default();
        loop {
            if !self.context.gate.is_open() {
                return Err(BindError::NotLeader);
            }
            let view = self.binding_view(pod, node, plan, &completed);
            match decide(&view) {
                Step::PreBind(index) => {
                    let Binding { volume: Some(volume), claim: Some(claim), .. } = &view.bindings[index]
                    else {
                        continue;
                    };
                    if self
                        .write::<PersistentVolume>(&volume.metadata, pre_bind_patch(volume, claim))
                        .await
                        .map_err(failed)?
                    {
                        completed.bindings.insert(index);
                    }
                }
                Step::SelectNode(index) => {
                    let Some(claim) = &view.provisions[index].claim else { continue };
                    if self
                        .write::<PersistentVolumeClaim>(&claim.metadata, select_node_patch(claim, node))
                        .await
                        .map_err(failed)?
                    {
                        completed.provisions.insert(index);
                    }
                }
                Step::MarkCompleted(Item::Binding(index)) => {
                    completed.bindings.insert(index);
                }
                Step::MarkCompleted(Item::Provision(index)) => {
                    completed.provisions.insert(index);
                }
                Step::Wait => {
                    let woken = async {
                        tokio::select! {
                            biased;
                            () = self.context.gate.wait_stopped() => {}
                            () = self.context.gate.wait_lost() => {}
                            () = wakeup.woken() => {}
                        }
                    };
                    if timeout_at(deadline, woken).await.is_err() {
                        return Err(failed("binding volumes: context deadline exceeded".to_owned()));
                    }
                }
                Step::Done => return Ok(()),
                Step::PodGone => return Err(BindError::Gone),
                Step::Fail(reason) => return Err(failed(reason)),
            }
        }
    }

    fn register_wakeup(&self, pod: &Pod, node: &str, plan: &Plan) -> Wakeup {
        let bound = plan.bindings.iter().map(|binding| binding.claim.metadata.key());
        let provisioned = plan.provisions.iter().map(|claim| claim.metadata.key());
        let mut objects: Vec<WatchedObject> = bound.chain(provisioned).map(WatchedObject::Claim).collect();
        objects.extend([WatchedObject::Pod(pod.metadata.key()), WatchedObject::Node(node.to_owned())]);
        self.wakeups.register(objects)
    }

    fn binding_view(&self, pod: &Pod, node: &str, plan: &Plan, completed: &Completed) -> View {
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
                completed: completed.bindings.contains(&index),
            }
        };
        let provision = |(index, planned): (usize, &Arc<PersistentVolumeClaim>)| {
            let claim = claim(planned);
            let names = claim.as_ref().map(|claim| &claim.spec.volume_name).filter(|name| !name.is_empty());
            Provision {
                claim_key: planned.metadata.key(),
                volume: names.and_then(|name| self.volumes.get(&Key::cluster(name))),
                claim,
                completed: completed.provisions.contains(&index),
            }
        };
        let labels = self.nodes.get(&Key::cluster(node)).map(|node| BTreeMap::from(&node.metadata.labels));
        View {
            pod_waiting: now.is_some_and(|now| !now.metadata.is_deleting() && now.node_name == pod.node_name),
            node: node.to_owned(),
            labels,
            bindings: plan.bindings.iter().enumerate().map(binding).collect(),
            provisions: plan.provisions.iter().enumerate().map(provision).collect(),
        }
    }

    /// Applies a patch, and returns whether it was applied. If the object had changed, the next view contains its
    /// current version.
    async fn write<K: Kind>(&self, meta: &Meta, patch: Patch) -> Result<bool, String> {
        match self.context.cluster.patch(&K::API, &meta.key(), None, patch).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {
                // The watch may be behind: this read updates the store.
                match self.context.cluster.get::<K>(&meta.key()).await {
                    Ok(Some(_)) => Ok(false),
                    Ok(None) => Err(format!("{} {:?} not found", K::API.plural, meta.name)),
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn bind_pod(&self, pod: &Pod, node: &str) -> Result<(), BindError> {
        if !self.context.gate.is_open() {
            return Err(BindError::NotLeader);
        }
        let key = pod.metadata.key();
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": pod.metadata.namespace, "name": pod.metadata.name, "uid": pod.metadata.uid},
            "target": {"kind": "Node", "name": node},
        });
        let error = match self.context.cluster.create_subresource(&Pod::API, &key, "binding", &body).await {
            Ok(_) => return Ok(()),
            Err(ApiError::NotFound(_)) => return Err(BindError::Gone),
            Err(error) => error,
        };
        let message = format!("running Bind plugin \"DefaultBinder\": {error}");
        match error {
            ApiError::Unavailable(_) => Err(BindError::Unknown(message)),
            // The pod was bound by another scheduler, or is being deleted: read it to find out which.
            ApiError::Conflict(_) => match self.context.cluster.get::<Pod>(&key).await {
                Ok(Some(now)) if now.metadata.uid == pod.metadata.uid && now.node_name == node => Ok(()),
                Ok(Some(now)) if now.metadata.uid == pod.metadata.uid && now.node_name.is_empty() => {
                    Err(BindError::Failed(message))
                }
                Ok(_) => Err(BindError::Gone),
                Err(_) => Err(BindError::Unknown(message)),
            },
            _ => Err(BindError::Failed(message)),
        }
    }
}

/// The completed parts of the plan.
#[derive(Default)]
struct Completed {
    bindings: BTreeSet<usize>,
    provisions: BTreeSet<usize>,
}

/// Writes the claim into the volume's claimRef. A volume that a user reserved for the claim does not get the
/// bound-by-controller annotation: no controller chose it.
fn pre_bind_patch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Patch {
    let mut body = at_version(&volume.metadata);
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

/// Writes the selected node into a claim.
fn select_node_patch(claim: &PersistentVolumeClaim, node: &str) -> Patch {
    let mut body = at_version(&claim.metadata);
    body["metadata"]["annotations"] = json!({annotation::SELECTED_NODE: node});
    Patch::Merge(body)
}

/// Restricts a patch to this version of the object, because the step was decided for this version.
fn at_version(meta: &Meta) -> Value {
    json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}})
}
