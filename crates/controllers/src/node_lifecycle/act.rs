//! Reads leases, and writes nodes and pods.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_cluster::work::{StepOutcome, Steps, WorkOutcome, write};
use wharf_cluster::{ApiError, EventType, Patch, Preconditions, Priority, WatchOptions, monotonic, now};
use wharf_model::names::reason::{NODE_NOT_READY, TAINT_MANAGER_EVICTION};
use wharf_model::{Key, Kind as _, Lease, Node, Pod};

use super::heartbeat::{LeaseState, PERIOD};
use super::node::{self, NodeStep};
use super::pod::{self, Garbage, PodStep, PodView};
use super::{NodeLifecycle, STEP_LIMIT, WorkItem};

/// Namespace of node leases.
const LEASES: &str = "kube-node-lease";

impl NodeLifecycle {
    /// Reads all leases, and enqueues the nodes for which something follows.
    pub(super) async fn reconcile_leases(&self) -> WorkOutcome {
        let options = WatchOptions { namespace: Some(LEASES.to_owned()), ..WatchOptions::default() };
        let leases = match self.context.cluster.list::<Lease>(&options).await {
            Ok(leases) if leases.undecodable.iter().all(Option::is_some) => leases,
            Ok(_) => {
                tracing::warn!(
                    "failed to read node leases: an object has no readable name; treating no node as lost until the next read"
                );
                return WorkOutcome::RetryAfter(PERIOD);
            }
            // Without a read no node becomes silent.
            Err(error) => {
                tracing::warn!(%error, "failed to list node leases; retrying");
                return WorkOutcome::RetryAfter(PERIOD);
            }
        };
        let undecodable =
            leases.undecodable.iter().flatten().map(|key| (&*key.name, LeaseState::Undecodable));
        let decoded = leases.items.iter().map(|lease| {
            let state = lease.spec.renew_time.map_or(LeaseState::Missing, LeaseState::Renewed);
            (&*lease.metadata.name, state)
        });
        let states: BTreeMap<&str, LeaseState> = decoded.chain(undecodable).collect();
        let lease_of = |node: &Node| states.get(&*node.metadata.name).copied().unwrap_or(LeaseState::Missing);
        let nodes = self.nodes.all();
        let observed = &mut *self.observed();
        if observed.heartbeats.is_gap(monotonic()) {
            // Nodes may have come and gone, and taints, too.
            observed.missing.clear();
            observed.tainted.clear();
        }
        let became_silent =
            observed.heartbeats.observe(monotonic(), nodes.iter().map(|node| (&**node, lease_of(node))));
        let disruption = self.disruption(observed);
        for node in &nodes {
            let step = node::decide(&self.view(observed, node, disruption), now());
            if step != NodeStep::Idle {
                self.queue.add(WorkItem::Node(node.metadata.name.clone()), Priority::Normal);
            }
        }
        for node in became_silent {
            tracing::warn!(node, "node stopped renewing its lease");
            self.pods_of(&node).for_each(|request| self.queue.add(request.key, request.priority));
        }
        WorkOutcome::RetryAfter(PERIOD)
    }

    /// Writes a node's conditions and taints.
    pub(super) async fn reconcile_node(&self, name: &str) -> WorkOutcome {
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let Some(node) = self.nodes.get(&Key::cluster(name)) else { return WorkOutcome::Done };
            let step = {
                let observed = &mut *self.observed();
                let disruption = self.disruption(observed);
                let step = node::decide(&self.view(observed, &node, disruption), now());
                if let NodeStep::Taint { evicts: true, .. } = step {
                    // Before the write: several nodes are reconciled at once.
                    observed.evicted = Some(monotonic());
                }
                step
            };
            let (patch, subresource) = match step {
                NodeStep::Idle => return WorkOutcome::Done,
                NodeStep::MarkUnknown(patch) => (patch, Some("status")),
                NodeStep::Taint { patch, .. } => (patch, None),
            };
            let written =
                write::patch::<Node>(&self.context.cluster, &node.metadata, subresource, patch).await;
            let outcome =
                written.next_step(|error| tracing::warn!(node = name, %error, "failed to update node"));
            if let StepOutcome::Finish(outcome) = outcome {
                return outcome;
            }
        }
        steps.unfinished(name)
    }

    pub(super) async fn reconcile_pod(&self, key: &Key) -> WorkOutcome {
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let Some(pod) = self.pods.get(key) else {
                self.observed().tainted.remove(key);
                return WorkOutcome::Done;
            };
            let step = self.decide_pod(&pod);
            let outcome = match step {
                PodStep::Idle => return WorkOutcome::Done,
                PodStep::Wait(left) => return WorkOutcome::RetryAfter(left),
                PodStep::StartCountdown => {
                    let since = (pod.metadata.uid.clone(), monotonic());
                    self.observed().tainted.insert(key.clone(), since);
                    Ok(StepOutcome::Continue)
                }
                PodStep::StopCountdown => {
                    self.observed().tainted.remove(key);
                    if !pod.metadata.is_deleting() {
                        self.record_eviction(&pod, "Cancelling deletion of Pod");
                    }
                    Ok(StepOutcome::Continue)
                }
                PodStep::ReportNotReady => self.report_not_ready(&pod).await,
                PodStep::Evict => self.evict(&pod).await,
                PodStep::Collect(reason) => self.collect(&pod, reason).await,
            };
            match outcome {
                Ok(StepOutcome::Continue) => {}
                Ok(StepOutcome::Finish(outcome)) => return outcome,
                // The watch reports that the pod is gone.
                Err(ApiError::NotFound(_)) => return WorkOutcome::Done,
                Err(error) => {
                    tracing::warn!(pod = %key, node = pod.node_name, %error, ?step, "failed to update pod");
                    return WorkOutcome::Retry;
                }
            }
        }
        steps.unfinished(key)
    }

    fn decide_pod(&self, pod: &Pod) -> PodStep {
        let node = self.nodes.get(&Key::cluster(&*pod.node_name));
        let now = monotonic();
        let observed = &mut *self.observed();
        if observed.heartbeats.is_gap(now) {
            return PodStep::Wait(PERIOD);
        }
        let missing_since = match node {
            Some(_) => {
                observed.missing.remove(&pod.node_name);
                now
            }
            None => *observed.missing.entry(pod.node_name.clone()).or_insert(now),
        };
        let report_not_ready = node.as_ref().is_some_and(|node| {
            observed.heartbeats.is_silent(node)
                && !observed.heartbeats.is_pod_reported(&pod.node_name, &pod.metadata.uid)
        });
        let tainted = observed.tainted.get(&pod.key()).filter(|(uid, _)| *uid == pod.metadata.uid);
        let tainted_since = tainted.map(|(_, since)| *since);
        pod::decide(
            &PodView { pod, node: node.as_deref(), missing_since, report_not_ready, tainted_since },
            now,
        )
    }

    /// Reads the node from the API server, which also updates the store. Whether the step for the pod is the same then.
    async fn is_confirmed(&self, pod: &Pod, step: PodStep) -> Result<bool, ApiError> {
        let exists = self.context.cluster.get::<Node>(&Key::cluster(&*pod.node_name)).await?.is_some();
        let should_exist = step != PodStep::Collect(Garbage::NodeMissing);
        Ok(exists == should_exist && self.decide_pod(pod) == step)
    }

    async fn evict(&self, pod: &Pod) -> Result<StepOutcome, ApiError> {
        if !self.is_confirmed(pod, PodStep::Evict).await? {
            return Ok(self.again());
        }
        self.record_eviction(pod, "Marking for deletion Pod");
        tracing::info!(pod = %pod.key(), node = pod.node_name, "evicting pod: its node has a taint that it does not tolerate");
        let message = "Taint manager: deleting due to NoExecute taint";
        self.patch_status(pod, json!({"conditions": [disruption("DeletionByTaintManager", message)]}))
            .await?;
        self.context.cluster.delete(&Pod::API, &pod.key(), of(pod)).await?;
        Ok(StepOutcome::Continue)
    }

    /// Removes a pod whose node cannot finish its deletion.
    async fn collect(&self, pod: &Pod, reason: Garbage) -> Result<StepOutcome, ApiError> {
        if !self.is_confirmed(pod, PodStep::Collect(reason)).await? {
            return Ok(self.again());
        }
        tracing::info!(pod = %pod.key(), node = pod.node_name, ?reason, "deleting pod without its node");
        let mut status = json!({});
        if !pod.has_ended() {
            status["phase"] = "Failed".into();
        }
        if reason == Garbage::NodeMissing {
            let message = "PodGC: node no longer exists";
            status["conditions"] = json!([disruption("DeletionByPodGC", message)]);
        }
        if status != json!({}) {
            self.patch_status(pod, status).await?;
        }
        self.context.cluster.delete_without_grace(&Pod::API, &pod.key(), of(pod)).await?;
        Ok(StepOutcome::Continue)
    }

    async fn report_not_ready(&self, pod: &Pod) -> Result<StepOutcome, ApiError> {
        let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": now().to_string()});
        self.patch_status(pod, json!({"conditions": [ready]})).await?;
        self.observed().heartbeats.pod_reported(&pod.node_name, &pod.metadata.uid);
        self.context.events.record_for(pod, EventType::Warning, NODE_NOT_READY, "Node is not ready");
        Ok(StepOutcome::Continue)
    }

    async fn patch_status(&self, pod: &Pod, status: Value) -> Result<(), ApiError> {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        self.context.cluster.patch(&Pod::API, &pod.key(), Some("status"), patch).await.map(drop)
    }

    fn record_eviction(&self, pod: &Pod, what: &str) {
        let note = format!("{what} {}", pod.key());
        self.evictions.record_for(pod, EventType::Normal, TAINT_MANAGER_EVICTION, note);
    }

    /// The store and the API server differ: the watch is behind.
    fn again(&self) -> StepOutcome {
        StepOutcome::retry_after(PERIOD)
    }
}

/// The condition that says why a pod is deleted.
fn disruption(reason: &str, message: &str) -> Value {
    let at = now().to_string();
    json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message, "lastTransitionTime": at})
}

/// This pod, and no other one of the same name.
fn of(pod: &Pod) -> Preconditions {
    Preconditions { uid: Some(pod.metadata.uid.clone()), ..Preconditions::default() }
}
