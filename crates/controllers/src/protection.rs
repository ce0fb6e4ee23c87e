//! Protects claims, volumes and VolumeAttributesClasses that are in use: the finalizers of Kubernetes' three protection
//! controllers.
//!
//! - An object without its finalizer gets it; an object that is being deleted retains it while it is in use.
//! - Every pod that has a node and names a claim uses it, whatever the pod's phase. Before the finalizer of a claim is
//!   removed, all pods of the namespace are listed from the API server, once for all claims that wait there.
//! - A volume is in use while it is bound, a VolumeAttributesClass while a claim or a volume names it. Upstream trusts
//!   its caches here. This controller removes a volume's finalizer only at the version it checked, and lists claims and
//!   volumes from the API server before it removes the finalizer of a class.
//!
//! Start reading at `decide`: the rules.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::indexes::PODS_BY_CLAIM;
use wharf_cluster::work::{EnqueueRequest, RESYNC_INTERVAL, WorkOutcome, enqueue_changes, resync, run_role};
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use crate::Context;
use act::ProtectionError;
pub use decide::pod_uses_claim;
use decide::{FinalizerAction, claim_action, class_action, volume_action};

mod act;
mod decide;
mod wake;

/// Index of claims that are being deleted and have the finalizer, by namespace.
const DELETING: &str = "protection/deleting";
/// Index of claims and volumes by the VolumeAttributesClasses they name.
const BY_CLASS: &str = "protection/class";

/// Work items handled in parallel.
const WORKERS: usize = 30;
/// The backoff after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest backoff.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What one worker at a time handles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkItem {
    /// A claim that is not being deleted.
    Claim(Key),
    /// All claims of a namespace that are being deleted: one list of pods serves all.
    Namespace(String),
    Volume(String),
    /// A VolumeAttributesClass.
    Class(String),
}

/// Runs until the gate is stopped.
pub async fn run(context: Context) {
    let controller = Arc::new(ProtectionController::new(context));
    let one = |item| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&item).await }
    };
    let feeds = |tasks: &mut JoinSet<()>| controller.spawn_feeds(tasks);
    run_role(&controller.context.gate, controller.synced(), feeds, &controller.queue, WORKERS, one).await;
}

struct ProtectionController {
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<VolumeAttributesClass>,
    pods: Store<Pod>,
    queue: Queue<WorkItem>,
}

impl ProtectionController {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.add_index(DELETING, |claim| {
            let deleting = claim_action(claim) == FinalizerAction::RemoveIfUnused;
            claim.metadata.namespace.clone().filter(|_| deleting).into_iter().collect()
        });
        claims.add_index(BY_CLASS, |claim| decide::classes_of_claim(claim).into_iter().collect());
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.add_index(BY_CLASS, |volume| decide::classes_of_volume(volume).into_iter().collect());
        let pods = cluster.store::<Pod>(WatchOptions::default());
        pods.share_index(&PODS_BY_CLAIM);
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        Self {
            claims,
            volumes,
            classes: cluster.store(WatchOptions::default()),
            pods,
            queue: Queue::new("protection", backoff, cluster.metrics()),
            context,
        }
    }

    async fn synced(&self) {
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.pods.wait_synced().await;
        // Not every cluster serves VolumeAttributesClasses.
        self.classes.wait_settled().await;
    }

    /// Starts the tasks that turn changes into work items.
    fn spawn_feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.claim_changed(change);
        into.spawn(enqueue_changes(self.claims.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.volume_changed(change);
        into.spawn(enqueue_changes(self.volumes.clone(), self.queue.clone(), requests));
        let requests = |change: &Change<VolumeAttributesClass>| match &change.new {
            Some(class) if class_action(class) != FinalizerAction::Keep => {
                enqueue(WorkItem::Class(change.key.name.clone()))
            }
            _ => Vec::new(),
        };
        into.spawn(enqueue_changes(self.classes.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        let requests = move |change: &Change<_>| this.pod_changed(change);
        into.spawn(enqueue_changes(self.pods.clone(), self.queue.clone(), requests));
        let this = Arc::clone(self);
        into.spawn(resync(self.queue.clone(), RESYNC_INTERVAL, move || this.all_items()));
    }

    /// What a resync reconciles: objects that lack their finalizer, and objects in deletion that have it.
    fn all_items(&self) -> Vec<WorkItem> {
        let (claims, volumes, classes) = (self.claims.all(), self.volumes.all(), self.classes.all());
        let namespaces = claims.iter().filter_map(|claim| match claim_action(claim) {
            FinalizerAction::Add => Some(WorkItem::Claim(claim.key())),
            FinalizerAction::RemoveIfUnused => {
                Some(WorkItem::Namespace(claim.metadata.namespace.clone().unwrap_or_default()))
            }
            FinalizerAction::Keep => None,
        });
        let volumes = volumes.iter().filter(|volume| volume_action(volume) != FinalizerAction::Keep);
        let classes = classes.iter().filter(|class| class_action(class) != FinalizerAction::Keep);
        let volumes = volumes.map(|volume| WorkItem::Volume(volume.metadata.name.clone()));
        let classes = classes.map(|class| WorkItem::Class(class.metadata.name.clone()));
        namespaces.chain(volumes).chain(classes).collect()
    }

    fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) -> Vec<EnqueueRequest<WorkItem>> {
        let namespace = || change.key.namespace.clone().unwrap_or_default();
        let mut requests = match change.new.as_deref().map(claim_action) {
            Some(FinalizerAction::Add) => enqueue(WorkItem::Claim(change.key.clone())),
            Some(FinalizerAction::RemoveIfUnused) => enqueue(WorkItem::Namespace(namespace())),
            Some(FinalizerAction::Keep) | None => Vec::new(),
        };
        requests.extend(self.released_classes(wake::dropped_classes(change, decide::classes_of_claim)));
        requests
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<EnqueueRequest<WorkItem>> {
        let mut requests = match change.new.as_deref().map(volume_action) {
            Some(FinalizerAction::Add | FinalizerAction::RemoveIfUnused) => {
                enqueue(WorkItem::Volume(change.key.name.clone()))
            }
            Some(FinalizerAction::Keep) | None => Vec::new(),
        };
        requests.extend(self.released_classes(wake::dropped_classes(change, decide::classes_of_volume)));
        requests
    }

    /// Enqueues classes that are being deleted and that an object no longer names: they may be unused now.
    fn released_classes(&self, classes: Vec<String>) -> Vec<EnqueueRequest<WorkItem>> {
        let deleting = |name: &String| {
            self.classes
                .get(&Key::cluster(name))
                .is_some_and(|class| class_action(&class) == FinalizerAction::RemoveIfUnused)
        };
        classes.into_iter().filter(deleting).flat_map(|name| enqueue(WorkItem::Class(name))).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<EnqueueRequest<WorkItem>> {
        let namespace = change.key.namespace.clone().unwrap_or_default();
        let deleting = |claim: &String| {
            let key = Key::namespaced(&namespace, claim);
            self.claims.get(&key).is_some_and(|claim| claim_action(&claim) == FinalizerAction::RemoveIfUnused)
        };
        match wake::dropped_claims(change).iter().any(deleting) {
            true => enqueue(WorkItem::Namespace(namespace)),
            false => Vec::new(),
        }
    }

    /// Whether a pod in the store uses the claim.
    fn has_users(&self, claim: &PersistentVolumeClaim) -> bool {
        let pods = self.pods.find(&PODS_BY_CLAIM, &claim.key().to_string());
        pods.iter().any(|pod| decide::pod_uses_claim(pod, claim))
    }

    async fn reconcile(&self, item: &WorkItem) -> WorkOutcome {
        let result = match item {
            WorkItem::Claim(key) => self.reconcile_claim(key).await,
            WorkItem::Namespace(name) => self.reconcile_namespace(name).await,
            WorkItem::Volume(name) => self.reconcile_volume(name).await,
            WorkItem::Class(name) => self.reconcile_class(name).await,
        };
        match result {
            Ok(()) => WorkOutcome::Done,
            Err(ProtectionError::NotLeader) => WorkOutcome::RetryAfter(Duration::ZERO),
            Err(error) => {
                tracing::warn!(?item, %error, "failed to update protection finalizer");
                WorkOutcome::Retry
            }
        }
    }
}

fn enqueue(key: WorkItem) -> Vec<EnqueueRequest<WorkItem>> {
    vec![EnqueueRequest { key, priority: Priority::Normal }]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio_util::sync::CancellationToken;
    use wharf_cluster::work::Gate;
    use wharf_cluster::{Cluster, EventRecorder};

    use super::*;

    /// The lease may be lost while pods are listed. The work item is requeued: no change would enqueue it again after
    /// the lease is reacquired.
    #[tokio::test]
    async fn closed_gate_requeues_work_item() {
        let server = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
        });
        let cluster = Cluster::with_client(kube::Client::new(server, "default"));
        let stop = CancellationToken::new();
        stop.cancel();
        let events = EventRecorder::start(&cluster, "protection", "test");
        let controller = ProtectionController::new(Context { gate: Gate::new(None, stop), events, cluster });
        for item in [WorkItem::Claim(Key::namespaced("ns", "c")), WorkItem::Volume("v".into())] {
            assert_eq!(
                controller.reconcile(&item).await,
                WorkOutcome::RetryAfter(Duration::ZERO),
                "{item:?}"
            );
        }
    }
}
