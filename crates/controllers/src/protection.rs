//! Keeps claims, volumes and mutable classes that are in use: the finalizers of Kubernetes' three protection
//! controllers.
//!
//! - What lacks its finalizer gets it; what is being deleted keeps it while it is in use.
//! - A claim is in use by every pod that has a node and names it, whatever the pod's phase. Before a claim is let go the
//!   server is asked for all pods of the namespace, once for all claims that wait there.
//! - A volume is in use while it is bound; a mutable class while a claim or a volume names it. Upstream believes its
//!   caches here: ours is the volume as it was seen, and for classes what the server lists.
//!
//! Start reading at [`decide`]: the rules.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::work::{Outcome, Wish, feed, serve};
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions};
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass};

use crate::Context;
use crate::binder::{PODS_BY_CLAIM, index_pods};
use act::KeepError;
pub(crate) use decide::is_made_for;
pub use decide::uses;
use decide::{Need, of_claim, of_class, of_volume};

mod act;
mod decide;
mod wake;

/// Claims that are to go and have the finalizer, by namespace.
const GOING: &str = "protection/going";
/// Claims and volumes by the mutable classes that they name.
const BY_CLASS: &str = "protection/class";

/// Objects seen to at once.
const WORKERS: usize = 30;
/// The pause after a first failure.
const RETRY_START: Duration = Duration::from_millis(200);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What is worked on by one worker at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    /// A claim that is not to go.
    Claim(Key),
    /// All claims of a namespace that are to go: one list of pods does for all.
    Namespace(String),
    /// A volume.
    Volume(String),
    /// A mutable class.
    Class(String),
}

/// Runs until the stop.
pub async fn run(context: Context) {
    let keeper = Arc::new(Keeper::new(context));
    let one = |subject| {
        let keeper = Arc::clone(&keeper);
        async move { keeper.see_to(&subject).await }
    };
    let feeds = |besides: &mut JoinSet<()>| keeper.feeds(besides);
    serve(&keeper.context.gate, keeper.synced(), feeds, &keeper.queue, WORKERS, one).await;
}

struct Keeper {
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<VolumeAttributesClass>,
    pods: Store<Pod>,
    queue: Queue<Subject>,
}

impl Keeper {
    fn new(context: Context) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.index(GOING, |claim| {
            let going = of_claim(claim) == Need::MayGo;
            claim.metadata.namespace.clone().filter(|_| going).into_iter().collect()
        });
        claims.index(BY_CLASS, |claim| decide::classes_of_claim(claim).into_iter().collect());
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.index(BY_CLASS, |volume| decide::classes_of_volume(volume).into_iter().collect());
        let pods = cluster.store::<Pod>(WatchOptions::default());
        index_pods(&pods);
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
        self.claims.synced().await;
        self.volumes.synced().await;
        self.pods.synced().await;
        // Not every cluster serves these.
        self.classes.settled().await;
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.claim_changed(change);
        into.spawn(feed(self.claims.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.volume_changed(change);
        into.spawn(feed(self.volumes.clone(), self.queue.clone(), wishes));
        let wishes = |change: &Change<VolumeAttributesClass>| match &change.new {
            Some(class) if of_class(class) != Need::Nothing => wish(Subject::Class(change.key.name.clone())),
            _ => Vec::new(),
        };
        into.spawn(feed(self.classes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.pod_changed(change);
        into.spawn(feed(self.pods.clone(), self.queue.clone(), wishes));
    }

    fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) -> Vec<Wish<Subject>> {
        let namespace = || change.key.namespace.clone().unwrap_or_default();
        let mut wishes = match change.new.as_deref().map(of_claim) {
            Some(Need::Add) => wish(Subject::Claim(change.key.clone())),
            Some(Need::MayGo) => wish(Subject::Namespace(namespace())),
            Some(Need::Nothing) | None => Vec::new(),
        };
        wishes.extend(self.left(wake::classes_left(change, decide::classes_of_claim)));
        wishes
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<Wish<Subject>> {
        let mut wishes = match change.new.as_deref().map(of_volume) {
            Some(Need::Add | Need::MayGo) => wish(Subject::Volume(change.key.name.clone())),
            Some(Need::Nothing) | None => Vec::new(),
        };
        wishes.extend(self.left(wake::classes_left(change, decide::classes_of_volume)));
        wishes
    }

    /// Classes that somebody no longer names: those that are to go may be free now.
    fn left(&self, classes: Vec<String>) -> Vec<Wish<Subject>> {
        let going = |name: &String| {
            self.classes.get(&Key::cluster(name)).is_some_and(|class| of_class(&class) == Need::MayGo)
        };
        classes.into_iter().filter(going).flat_map(|name| wish(Subject::Class(name))).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<Wish<Subject>> {
        let namespace = change.key.namespace.clone().unwrap_or_default();
        let going = |claim: &String| {
            let key = Key::namespaced(&namespace, claim);
            self.claims.get(&key).is_some_and(|claim| of_claim(&claim) == Need::MayGo)
        };
        match wake::claims_left(change).iter().any(going) {
            true => wish(Subject::Namespace(namespace)),
            false => Vec::new(),
        }
    }

    /// The pods that we know of and that use a claim.
    fn users(&self, claim: &PersistentVolumeClaim) -> bool {
        let pods = self.pods.by_index(PODS_BY_CLAIM, &claim.key().to_string());
        pods.iter().any(|pod| decide::uses(pod, claim))
    }

    async fn see_to(&self, subject: &Subject) -> Outcome {
        let seen = match subject {
            Subject::Claim(key) => self.see_to_claim(key).await,
            Subject::Namespace(name) => self.see_to_namespace(name).await,
            Subject::Volume(name) => self.see_to_volume(name).await,
            Subject::Class(name) => self.see_to_class(name).await,
        };
        match seen {
            Ok(()) => Outcome::Done,
            Err(KeepError::Shut) => Outcome::After(Duration::ZERO),
            Err(error) => {
                tracing::warn!(?subject, %error, "what is to be protected, or let go, is not yet");
                Outcome::Retry
            }
        }
    }
}

fn wish(key: Subject) -> Vec<Wish<Subject>> {
    vec![Wish { key, priority: Priority::Normal }]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio_util::sync::CancellationToken;
    use wharf_cluster::work::Gate;
    use wharf_cluster::{Cluster, Events};

    use super::*;

    /// The lease may be lost while pods are listed. Nothing changes for who gets it back, so nobody else would look again.
    #[tokio::test]
    async fn what_the_lease_forbids_is_not_done() {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
        });
        let cluster = Cluster::with_client(kube::Client::new(nobody, "default"));
        let stop = CancellationToken::new();
        stop.cancel();
        let events = Events::start(&cluster, "protection", "test");
        let keeper = Keeper::new(Context { gate: Gate::new(None, stop), events, cluster });
        for subject in [Subject::Claim(Key::namespaced("ns", "c")), Subject::Volume("v".into())] {
            assert_eq!(keeper.see_to(&subject).await, Outcome::After(Duration::ZERO), "{subject:?}");
        }
    }
}
