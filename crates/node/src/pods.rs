//! Pod lifecycle on this node, from admission to the removal of its last file: what kubelet does, with host processes
//! as containers.
//!
//! - Each pod is reconciled by one worker at a time, one step after the other; pods do not wait for each other.
//! - A pod's status is reported as soon as nothing more urgent is left to do. A terminal phase is reported only after
//!   its containers have exited; a deleted pod is removed from the API only after its volumes are unmounted.
//! - A pod that is missing from a list is not terminated before a GET confirms that it is gone.
//! - A restarted agent finds the containers of its predecessor and continues with them. Until containers of pods that
//!   are gone have exited, no unrequested volume is unmounted.
//!
//! Start reading at `view`, then `decide`: the rules. `status` computes the pod status, `act` executes steps,
//! `attend` runs the background tasks of a running container.

mod act;
mod attend;
mod clean;
mod decide;
mod env;
mod evict;
pub mod fields;
mod hooks;
mod pod_state;
mod probe;
mod spec;
mod status;
mod versions;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::work::{
    EnqueueRequest, Gate, RESYNC_INTERVAL, StepLimit, StepOutcome, Steps, WorkOutcome, enqueue_changes,
    resync, run_role,
};
use wharf_cluster::{
    Backoff, Change, Cluster, EventRecorder, ObjectList, Priority, Queue, Store, WatchOptions, monotonic, now,
};
use wharf_container::{Cause, Containers, Exit, State};
use wharf_model::Pod;
use wharf_model::container::Container;
use wharf_model::{ConfigMap, Key, Kind, Secret};

use crate::paths::Root;
use crate::volumes::Volumes;
use decide::decide;
use env::NodeEnv;
use pod_state::{PodStates, PodVolumes, Presence};
use versions::{Reference, Version};
use view::{CrashBackoff, View};

/// Reporting component of events: kubelet, as in a cluster.
pub const COMPONENT: &str = "kubelet";
/// Prefix of container IDs in a pod's status.
const SCHEME: &str = "wharf://";
/// Pods reconciled concurrently. Long operations run as separate tasks.
const WORKERS: usize = 100;
/// A pod takes a few steps for each of its containers, and each container has its own backoff.
const STEP_LIMIT: StepLimit = StepLimit::Requeue(64);
/// Maximum retry delay after a failed write to the API server.
const MAX_WRITE_RETRY: Duration = Duration::from_secs(30);

/// Settings of the pod manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Delay before a container's second restart; the first is immediate. Doubles with each further restart.
    pub crash_start: Duration,
    /// Maximum restart delay. After a run of twice this length, the delay is reset.
    pub crash_max: Duration,
}

impl Default for Settings {
    /// Upstream's: 10 s to 5 min.
    fn default() -> Self {
        Self { crash_start: Duration::from_secs(10), crash_max: Duration::from_secs(300) }
    }
}

/// Dependencies of the pod manager.
#[derive(Clone)]
pub struct Agent {
    /// API client with node permissions.
    pub cluster: Cluster,
    /// API client with more permissions, if there is one: it watches Secrets and ConfigMaps.
    pub privileged_client: Option<Cluster>,
    /// This node's name.
    pub node: String,
    /// The node's address, which its pods share; empty if it has none.
    pub address: String,
    /// Host and port of the API server for pods; if `None`, pods get no such environment variables.
    pub server: Option<(String, u16)>,
    /// Event recorder, with [`COMPONENT`] as the reporting component.
    pub events: EventRecorder,
    /// The volume manager.
    pub volumes: Volumes,
    /// The container runtime.
    pub runtime: Arc<dyn Containers>,
    /// Kubelet's root directory.
    pub root: Root,
    /// Settings.
    pub settings: Settings,
    /// Whether steps may begin, and when to stop. Containers keep running.
    pub gate: Gate,
}

/// Runs pods until the gate stops it.
pub async fn run(agent: Agent) {
    let gate = agent.gate.clone();
    let pods = Arc::new(Pods::new(agent));
    // Background tasks and `pods` reference each other: the guard drops the tasks however this function ends.
    let _end = DropTasks(pods.pod_states.clone());
    tokio::select! {
        biased;
        () = pods.store.wait_synced() => {}
        () = gate.wait_stopped() => return,
    }
    let orphans = pods.adopt().await;
    let feeds = |tasks: &mut JoinSet<()>| {
        pods.start_watches(tasks);
        let this = Arc::clone(&pods);
        tasks.spawn(async move { this.finish_adoption(orphans).await });
    };
    let one = |uid: String| {
        let pods = Arc::clone(&pods);
        async move { pods.reconcile(&uid).await }
    };
    run_role(&gate, std::future::ready(()), feeds, &pods.queue, WORKERS, one).await;
}

/// Drops all background tasks of pods when dropped.
struct DropTasks(PodStates);

impl Drop for DropTasks {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// The pods of one node.
struct Pods {
    agent: Agent,
    crash_backoff: CrashBackoff,
    node_env: NodeEnv,
    store: Store<Pod>,
    queue: Queue<String>,
    pod_states: PodStates,
}

impl Pods {
    fn new(agent: Agent) -> Self {
        let only = format!("spec.nodeName={}", agent.node);
        let store =
            agent.cluster.store(WatchOptions { field_selector: Some(only), ..WatchOptions::default() });
        let backoff = Backoff { max: MAX_WRITE_RETRY, ..Backoff::default() };
        let common = agent.server.iter().flat_map(|(host, port)| {
            [
                ("KUBERNETES_SERVICE_HOST".to_owned(), host.clone()),
                ("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string()),
                ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port.to_string()),
            ]
        });
        Self {
            crash_backoff: CrashBackoff { start: agent.settings.crash_start, max: agent.settings.crash_max },
            node_env: NodeEnv { address: agent.address.clone(), common: common.collect() },
            store,
            queue: Queue::new("pods", backoff, agent.cluster.metrics()),
            pod_states: PodStates::default(),
            agent,
        }
    }

    /// Adopts the existing state: all pods of this node, and containers started by an earlier agent. Returns the UIDs
    /// of pods of which only containers are left.
    async fn adopt(self: &Arc<Self>) -> BTreeSet<String> {
        for pod in self.store.all() {
            self.pod_states.update_pod(pod, now());
        }
        let found = loop {
            match self.agent.runtime.list() {
                Ok(found) => break found,
                Err(error) => {
                    // Without the list, no container may be started: it could already be running.
                    tracing::error!(%error, "failed to list containers of an earlier agent; starting none until it succeeds");
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(MAX_WRITE_RETRY) => {}
                        () = self.agent.gate.wait_stopped() => return BTreeSet::new(),
                    }
                }
            }
        };
        let mut orphans = BTreeSet::new();
        for one in found {
            // The earlier agent crashed while creating it. It never ran, so it does not count for the restart policy.
            if matches!(&one.state, State::Exited(Exit { cause: Cause::NeverRan, .. })) {
                self.discard(&one.id).await;
                continue;
            }
            let known = self.pod_states.with(&one.pod_uid, |pod_state| pod_state.adopt_container(&one));
            if known.is_some() && !orphans.contains(&one.pod_uid) {
                continue;
            }
            orphans.insert(one.pod_uid.clone());
            // Of a pod that is gone, only its containers are known.
            let pod = self.pod_states.with(&one.pod_uid, |pod_state| (*pod_state.pod).clone());
            let mut pod = pod.unwrap_or_else(|| orphan(&one.namespace, &one.pod, &one.pod_uid));
            if !pod.spec.containers.iter().any(|container| container.name == one.container) {
                pod.spec.containers.push(Container { name: one.container.clone(), ..Container::default() });
            }
            self.pod_states.update_pod(Arc::new(pod), now());
            self.pod_states.with(&one.pod_uid, |pod_state| {
                pod_state.presence = Presence::Unconfirmed;
                pod_state.adopt_container(&one);
            });
        }
        // Request the volumes of all pods that may still use them, before anything on disk counts as unused.
        for uid in self.pod_states.uids() {
            let pod = self.pod_states.with(&uid, |pod_state| {
                let view = pod_state.view(&*self.agent.runtime, &self.agent.address, monotonic());
                let used = view.containers.iter().any(view::ContainerView::runs);
                (!orphans.contains(&uid) && (used || !pod_state.pod.has_ended()))
                    .then(|| Arc::clone(&pod_state.pod))
            });
            if let Some(pod) = pod.flatten() {
                self.agent.volumes.request(pod);
            }
            self.queue.add(uid, Priority::Normal);
        }
        orphans
    }

    /// Containers of pods that are gone may still use volumes: wait for their exit before unrequested volumes are
    /// unmounted.
    async fn finish_adoption(&self, orphans: BTreeSet<String>) {
        for uid in &orphans {
            let ids = self.pod_states.with(uid, |pod_state| {
                let attempts =
                    pod_state.containers.values().flat_map(|known| known.attempts.values().cloned());
                attempts.collect::<Vec<_>>()
            });
            for id in ids.unwrap_or_default() {
                self.agent.runtime.exited(&id).await;
            }
        }
        self.agent.volumes.mark_pods_known();
        let known: BTreeSet<String> = self.pod_states.uids().into_iter().collect();
        for uid in clean::left(&self.agent.root).difference(&known) {
            self.agent.volumes.wait_released(uid).await;
            clean::prune(&self.agent.root.pod(uid));
        }
    }

    /// Starts the tasks that enqueue work.
    fn start_watches(self: &Arc<Self>, into: &mut JoinSet<()>) {
        into.spawn(Arc::clone(self).enforce_limits());
        let this = Arc::clone(self);
        let requests = move |change: &Change<Pod>| this.pod_changed(change);
        into.spawn(enqueue_changes(self.store.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        into.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || this.all_pods()));
        // Without it, the volume manager resyncs periodically.
        let Some(cluster) = &self.agent.privileged_client else { return };
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.object_changed(Reference::Secret, &change.key);
        into.spawn(enqueue_changes(
            cluster.store::<Version<Secret>>(WatchOptions::default()),
            self.queue.clone(),
            requests,
        ));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.object_changed(Reference::ConfigMap, &change.key);
        into.spawn(enqueue_changes(
            cluster.store::<Version<ConfigMap>>(WatchOptions::default()),
            self.queue.clone(),
            requests,
        ));
    }

    /// All pods, for a resync. Changes may have been dropped, so the pods are read from the store again.
    fn all_pods(&self) -> Vec<String> {
        let fields_changed = self.pod_states.resync(self.store.all(), now());
        fields_changed.iter().for_each(|uid| self.refresh(uid));
        self.pod_states.uids()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<EnqueueRequest<String>> {
        let mut requests = Vec::new();
        let mut enqueue_request =
            |uid: &str| requests.push(EnqueueRequest { key: uid.to_owned(), priority: Priority::Normal });
        let new = change.new.as_ref();
        if let Some(old) =
            change.old.as_ref().filter(|old| new.is_none_or(|new| new.metadata.uid != old.metadata.uid))
        {
            self.pod_states.with(&old.metadata.uid, |pod_state| pod_state.presence = Presence::Unconfirmed);
            enqueue_request(&old.metadata.uid);
        }
        if let Some(new) = new {
            self.pod_states.update_pod(Arc::clone(new), now());
            let old = change.old.as_ref().filter(|old| old.metadata.uid == new.metadata.uid);
            if old.is_some_and(|old| differ_in_fields(old, new)) {
                self.refresh(&new.metadata.uid);
            }
            // Another component changed what we reported: it is written again.
            if old.is_some_and(|old| is_ready(old) && !is_ready(new)) {
                self.pod_states.with(&new.metadata.uid, |pod_state| pod_state.reported = None);
            }
            // Our own status updates need no reconcile.
            if old.is_none_or(|old| needs_reconcile(old, new)) {
                enqueue_request(&new.metadata.uid);
            }
        }
        requests
    }

    /// A Secret or ConfigMap changed: updates files made from it, and retries containers that wait for it.
    fn object_changed(&self, of: fn(String) -> Reference, key: &Key) -> Vec<EnqueueRequest<String>> {
        let reference = of(key.name.clone());
        let mut requests = Vec::new();
        for uid in self.pod_states.uids() {
            let waits = self.pod_states.with(&uid, |pod_state| {
                let concerned = pod_state.pod.metadata.namespace == key.namespace
                    && versions::references(&pod_state.pod).contains(&reference);
                for known in pod_state.containers.values_mut().filter(|_| concerned) {
                    if let Some(start_failure) = &mut known.start_failure {
                        start_failure.retry_at = monotonic();
                    }
                }
                concerned
            });
            if waits == Some(true) {
                self.refresh(&uid);
                requests.push(EnqueueRequest { key: uid, priority: Priority::Normal });
            }
        }
        requests
    }

    /// Resyncs the pod's volumes.
    fn refresh(&self, uid: &str) {
        let pod = self.pod_states.with(uid, |pod_state| match pod_state.volumes {
            PodVolumes::Requested { .. } | PodVolumes::Mounted(_) => Some(Arc::clone(&pod_state.pod)),
            PodVolumes::Unrequested | PodVolumes::Releasing { .. } | PodVolumes::Released => None,
        });
        if let Some(pod) = pod.flatten() {
            self.agent.volumes.request(pod);
        }
    }

    /// Reconciles one pod, step by step, until nothing is left to do now.
    async fn reconcile(self: &Arc<Self>, uid: &str) -> WorkOutcome {
        let mut steps = Steps::new(&self.agent.gate, STEP_LIMIT);
        while steps.start_next() {
            if let Err(outcome) = self.confirm(uid).await {
                return outcome;
            }
            let Some(view) = self.inputs_of(uid) else { return WorkOutcome::Done };
            let step = decide(&view, self.crash_backoff, now(), monotonic());
            if let StepOutcome::Finish(outcome) = self.act(uid, &view, step).await {
                return outcome;
            }
        }
        steps.unfinished(uid)
    }

    fn inputs_of(self: &Arc<Self>, uid: &str) -> Option<View> {
        let (runtime, address) = (&*self.agent.runtime, &self.agent.address);
        let view = self.pod_states.with(uid, |pod_state| pod_state.view(runtime, address, monotonic()))?;
        self.attend(uid, &view);
        Some(view)
    }

    /// Confirms whether a pod is gone. A node may not GET a pod that is not bound to it, and a deleted pod is not; so
    /// the node's own pods are listed by name. Unlike a missed watch event, this list is authoritative.
    async fn confirm(&self, uid: &str) -> Result<(), WorkOutcome> {
        let key = self.pod_states.with(uid, |pod_state| {
            (pod_state.presence == Presence::Unconfirmed).then(|| pod_state.pod.key())
        });
        let Some(key) = key.flatten() else { return Ok(()) };
        let only = WatchOptions {
            namespace: key.namespace.clone(),
            field_selector: Some(format!("metadata.name={},spec.nodeName={}", key.name, self.agent.node)),
            ..WatchOptions::default()
        };
        match self.agent.cluster.list::<Pod>(&only).await {
            Ok(ObjectList { items, undecodable: unreadable }) => {
                match items.into_iter().find(|pod| pod.metadata.uid == uid) {
                    Some(pod) => self.pod_states.update_pod(Arc::new(pod), now()),
                    None if unreadable.is_empty() => {
                        self.pod_states.with(uid, |pod_state| pod_state.presence = Presence::No);
                        self.agent.volumes.retain(uid);
                    }
                    None => return Err(WorkOutcome::Retry),
                }
                Ok(())
            }
            Err(error) => {
                tracing::debug!(pod = %key, %error, "failed to confirm whether the pod is gone; retrying");
                Err(WorkOutcome::Retry)
            }
        }
    }
}

/// Whether a field changed that the downward API exposes in files.
fn differ_in_fields(old: &Pod, new: &Pod) -> bool {
    old.metadata.labels != new.metadata.labels || old.metadata.annotations != new.metadata.annotations
}

fn is_ready(pod: &Pod) -> bool {
    pod.status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
}

/// Whether a change is more than our own status update. A pod that is no longer Ready may have been changed by the
/// node-lifecycle-controller: then its status is written again.
fn needs_reconcile(old: &Pod, new: &Pod) -> bool {
    old.spec != new.spec
        || (is_ready(old) && !is_ready(new))
        || old.node_name != new.node_name
        || old.phase != new.phase
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || differ_in_fields(old, new)
}

/// A placeholder for a pod of which only containers are left.
fn orphan(namespace: &str, name: &str, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = Some(namespace.to_owned());
    pod.metadata.uid = uid.to_owned();
    pod
}
