//! Makes the claims of ephemeral volumes; the contract is that of kube-controller-manager's ephemeral-volume-controller.
//!
//! - A pod that asks for a volume of its own gets a claim `<pod>-<volume>`, as its template says, owned by the pod: it
//!   goes with the pod.
//! - A claim of that name which is not the pod's is never used; the pod is told, and waits until it is gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use wharf_cluster::work::{Outcome, Wish, feed, serve};
use wharf_cluster::{ApiError, Backoff, Change, EventType, Priority, Queue, Store, WatchOptions};
use wharf_model::names::reason::FAILED_BINDING;
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, PersistentVolumeClaim};

use crate::Context;
use crate::binder::{PODS_BY_CLAIM, index_pods};
use decide::{Step, asks, changes_hands, decide};

mod decide;

/// The name in events; upstream's.
pub const COMPONENT: &str = "ephemeral_volume";

/// Pods seen to at once.
const WORKERS: usize = 30;
/// The pause after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Runs until the stop.
pub async fn run(context: Context) {
    let maker = Arc::new(Maker::new(context));
    let one = |pod| {
        let maker = Arc::clone(&maker);
        async move { maker.see_to(&pod).await }
    };
    let feeds = |besides: &mut JoinSet<()>| maker.feeds(besides);
    serve(&maker.context.gate, maker.synced(), feeds, &maker.queue, WORKERS, one).await;
}

struct Maker {
    context: Context,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    queue: Queue<Key>,
}

impl Maker {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let pods = cluster.store::<Pod>(WatchOptions::default());
        index_pods(&pods);
        let backoff = Backoff { start: RETRY_START, max: RETRY_MAX, ..Backoff::default() };
        let queue = Queue::new("ephemeral", backoff, cluster.metrics());
        Self { pods, claims: cluster.store(WatchOptions::default()), queue, context }
    }

    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
    }

    /// What brings work: pods that come, and claims that go or change hands.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let wishes = |change: &Change<Pod>| {
            let known = change.old.as_ref().map(|old| &old.metadata.uid);
            let new = change.new.as_ref().filter(|new| known != Some(&new.metadata.uid) && asks(new));
            new.map(|_| wish(change.key.clone())).into_iter().collect()
        };
        into.spawn(feed(self.pods.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<PersistentVolumeClaim>| {
            if !changes_hands(change) {
                return Vec::new();
            }
            let users = this.pods.by_index(PODS_BY_CLAIM, &change.key.to_string());
            users.iter().filter(|pod| asks(pod)).map(|pod| wish(pod.key())).collect()
        };
        into.spawn(feed(self.claims.clone(), self.queue.clone(), wishes));
    }

    /// One pod, claim by claim.
    async fn see_to(&self, key: &Key) -> Outcome {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        loop {
            let Some(pod) = self.pods.get(key) else { return Outcome::Done };
            if !self.context.gate.is_open() {
                return Outcome::After(Duration::ZERO);
            }
            let (volume, name, body) =
                match decide(&pod, |name| self.claims.get(&Key::namespaced(namespace, name))) {
                    Step::Rest => return Outcome::Done,
                    // The claim's end, or another owner, calls for another look.
                    Step::Refuse { volume, why } => {
                        self.tell(&pod, &volume, &why);
                        return Outcome::Done;
                    }
                    Step::Make { volume, claim, body } => (volume, claim, body),
                };
            if let Err(error) = self.make(namespace, &name, &body).await {
                tracing::warn!(pod = %key, claim = name, %error, "cannot make the claim of an ephemeral volume");
                self.tell(&pod, &volume, &format!("create PVC {name}: {error}"));
                return Outcome::Retry;
            }
        }
    }

    async fn make(&self, namespace: &str, name: &str, body: &Value) -> Result<(), ApiError> {
        let cluster = &self.context.cluster;
        match cluster.create(&PersistentVolumeClaim::API, Some(namespace), body).await {
            Ok(_) => {
                tracing::info!(claim = %Key::namespaced(namespace, name), "made for an ephemeral volume");
                Ok(())
            }
            // Made before we died, or somebody else's: what we read now enters the store, and the next look tells.
            Err(error @ ApiError::AlreadyExists(_)) => {
                match cluster.get::<PersistentVolumeClaim>(&Key::namespaced(namespace, name)).await? {
                    Some(_) => Ok(()),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn tell(&self, pod: &Pod, volume: &str, why: &str) {
        let note = format!("ephemeral volume {volume}: {why}");
        self.context.events.tell(pod, EventType::Warning, FAILED_BINDING, note);
    }
}

fn wish(key: Key) -> Wish<Key> {
    Wish { key, priority: Priority::Normal }
}
