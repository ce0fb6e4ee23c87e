//! Binds claims to volumes; the contract is that of kube-controller-manager's persistentvolume-binder.
//!
//! - A claim and the volumes that name it are worked on by one worker at a time, so the two halves of a binding never
//!   meet two writers of ours. All else goes side by side.
//! - A binding is four writes, in order, each only if it is needed. A crash between any two is repaired by the next
//!   look; what another writer changed meanwhile is looked at again at once, not at a resync.
//! - A volume that is newly to be had wakes as many claims as it can serve, and claims that come at once choose
//!   different volumes.
//! - Nothing is provisioned or deleted here: claims are handed to provisioners by annotation, volumes to deleters by
//!   their phase. Before a claim is said to be lost, or a volume released, the server is asked.
//!
//! Start reading at [`view`], then [`decide`]: the rules. [`wake`] says what calls for a look, [`offers`] who may take
//! which volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use wharf_cluster::work::{Outcome, Wish, feed, serve};
use wharf_cluster::{Backoff, Change, Priority, Queue, Store, WatchOptions};
use wharf_model::class::VolumeBindingMode;
use wharf_model::matching::{Seeker, best, class, offered_in};
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};

use crate::Context;
use act::{Hand, Then};
use decide::{decide, free};
use offers::Offers;
use view::{Found, Live, Rules, Subject, View, default_class, has_ended, index, is_waiting};

mod act;
mod decide;
pub(crate) mod migration;
mod offers;
mod view;
mod wake;
mod write;

pub use decide::no_deleter;
pub use migration::provisioner;

/// The name in events; upstream's.
pub const COMPONENT: &str = "persistentvolume-controller";
/// Pods by the claims they use, in the store that all controllers share.
pub(crate) const PODS_BY_CLAIM: &str = "pods/claim";
/// After so many steps a subject lets others have a turn.
const STEPS: usize = 64;
/// Everything is looked at this often, whether or not anything called for it.
const RESYNC: Duration = Duration::from_secs(600);

/// What the binder is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Claims and volumes seen to at once; upstream has one worker for each.
    pub workers: usize,
    /// The pause after a first failure; upstream waits for its resync, every 15 s.
    pub retry_start: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// Clear `selected-node` of a claim whose node is gone, so that the scheduler chooses again. Upstream leaves it, and
    /// the claim waits for ever (kubernetes/kubernetes#100485).
    pub clear_selected_node: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 100,
            retry_start: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
            clear_selected_node: true,
        }
    }
}

/// Runs until the stop.
pub async fn run(context: Context, settings: Settings) {
    let binder = Arc::new(Binder::new(context, settings));
    let one = |subject| {
        let binder = Arc::clone(&binder);
        async move { binder.see_to(&subject).await }
    };
    let feeds = |besides: &mut JoinSet<()>| {
        // Whoever looks for a volume is to know all of them.
        for volume in binder.volumes.all() {
            binder.offers.update(&volume.metadata.name, Some(&volume));
        }
        binder.feeds(besides);
    };
    let workers = binder.settings.workers;
    serve(&binder.context.gate, binder.synced(), feeds, &binder.queue, workers, one).await;
}

struct Binder {
    context: Context,
    settings: Settings,
    rules: Rules,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    nodes: Store<Node>,
    pods: Store<Pod>,
    offers: Offers,
    queue: Queue<Subject>,
}

impl Binder {
    fn new(context: Context, settings: Settings) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        claims.index(index::CLAIMS_BY_VOLUME, view::by_volume);
        let waiting = |claim: &PersistentVolumeClaim| is_waiting(claim).then(|| class(claim).to_owned());
        claims.index(index::WAITING, move |claim| waiting(claim).into_iter().collect());
        claims.index(index::BY_NODE, |claim| {
            claim.selected_node().filter(|_| is_waiting(claim)).map(str::to_owned).into_iter().collect()
        });
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.index(index::VOLUMES_BY_CLAIM, view::by_claim);
        let pods = cluster.store::<Pod>(WatchOptions::default());
        index_pods(&pods);
        let backoff = Backoff { start: settings.retry_start, max: settings.retry_max, ..Backoff::default() };
        Self {
            rules: Rules { clear_selected_node: settings.clear_selected_node },
            claims,
            volumes,
            classes: cluster.store(WatchOptions::default()),
            nodes: cluster.store(WatchOptions::default()),
            pods,
            offers: Offers::default(),
            queue: Queue::new("binder", backoff, cluster.metrics()),
            context,
            settings,
        }
    }

    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.nodes.synced().await;
        self.pods.synced().await;
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let wishes = |change: &Change<PersistentVolumeClaim>| vec![wish(Subject::Claim(change.key.clone()))];
        into.spawn(feed(self.claims.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.volume_changed(change);
        into.spawn(feed(self.volumes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.class_changed(change);
        into.spawn(feed(self.classes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| {
            let claims = wake::by_node(change).map(|node| this.claims.by_index(index::BY_NODE, node));
            claims.into_iter().flatten().map(|claim| wish(Subject::Claim(claim.key()))).collect()
        };
        into.spawn(feed(self.nodes.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.pod_changed(change);
        into.spawn(feed(self.pods.clone(), self.queue.clone(), wishes));
        let this = Arc::clone(self);
        into.spawn(async move { this.resync().await });
    }

    fn volume_changed(&self, change: &Change<PersistentVolume>) -> Vec<Wish<Subject>> {
        let name = &change.key.name;
        self.offers.update(name, change.new.as_deref());
        let news = wake::by_volume(change);
        let mut wishes: Vec<_> = news.subjects.into_iter().map(wish).collect();
        if news.asked_for {
            let asking = self.claims.by_index(index::CLAIMS_BY_VOLUME, name);
            wishes.extend(asking.iter().map(|claim| wish(Subject::Claim(claim.key()))));
        }
        wishes
    }

    fn class_changed(&self, change: &Change<StorageClass>) -> Vec<Wish<Subject>> {
        if !wake::by_class(change) {
            return Vec::new();
        }
        let of_class = self.claims.by_index(index::WAITING, &change.key.name);
        let of_none = self.claims.by_index(index::WAITING, "");
        of_class.iter().chain(&of_none).map(|claim| wish(Subject::Claim(claim.key()))).collect()
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<Wish<Subject>> {
        let concerned = |key: &Key| self.claims.get(key).is_none_or(|claim| is_waiting(&claim));
        wake::by_pod(change).into_iter().filter(concerned).map(|key| wish(Subject::Claim(key))).collect()
    }

    /// One subject, step by step, until there is nothing to do for it now.
    async fn see_to(&self, subject: &Subject) -> Outcome {
        match subject {
            Subject::Claim(key) => self.see_to_claim(key).await,
            Subject::Volume(name) => self.see_to_volume(name).await,
            Subject::Class(name) => self.see_to_class(name),
        }
    }

    async fn see_to_claim(&self, key: &Key) -> Outcome {
        let mut hand = Hand::new(self.offers.hold(key));
        let outcome = 'steps: {
            for _ in 0..STEPS {
                if !self.context.gate.is_open() {
                    break;
                }
                let view = self.look(key, &mut hand);
                let step = decide(&view);
                if let Then::End(outcome) = self.act(key, &view, step, &mut hand).await {
                    break 'steps outcome;
                }
            }
            Outcome::After(Duration::ZERO)
        };
        // What was held for this claim and is still to be had may be another's, who found nothing meanwhile.
        let kept = hand.held.kept().filter_map(|name| self.volumes.get(&Key::cluster(name)));
        let left: BTreeSet<String> =
            kept.filter_map(|volume| offered_in(&volume).map(str::to_owned)).collect();
        drop(hand);
        for class in left {
            match outcome {
                Outcome::Done => self.queue.add(Subject::Class(class), Priority::Normal),
                // This claim comes again first, and by its own backoff.
                Outcome::Retry | Outcome::After(_) => {
                    self.queue.add_after(Subject::Class(class), self.settings.retry_max);
                }
            }
        }
        outcome
    }

    async fn see_to_volume(&self, name: &str) -> Outcome {
        let mut stale = 0;
        for _ in 0..STEPS {
            let volume = self.volumes.get(&Key::cluster(name));
            let Some(volume) = volume.filter(|volume| volume.spec.claim_ref.is_none()) else { break };
            if !self.context.gate.is_open() {
                return Outcome::After(Duration::ZERO);
            }
            let step = free(&volume);
            let view = View { volumes: vec![volume], ..self.nothing() };
            if let Then::End(outcome) = self.act_on_volume(&view, step, &mut stale).await {
                return outcome;
            }
        }
        Outcome::Done
    }

    /// Wakes those who wait for a volume of the class and may get one, the oldest first.
    fn see_to_class(&self, name: &str) -> Outcome {
        let class = self.classes.get(&Key::cluster(name));
        if class.is_some_and(|class| class.waits_for_first_consumer()) {
            // The scheduler chooses among these.
            return Outcome::Done;
        }
        let mut waiting = self.claims.by_index(index::WAITING, name);
        waiting.sort_by_key(|claim| claim.metadata.creation_timestamp);
        let volumes_of = |claim: &PersistentVolumeClaim| {
            self.volumes.by_index(index::VOLUMES_BY_CLAIM, &claim.key().to_string())
        };
        let waiting =
            waiting.iter().map(|claim| &**claim).filter(|claim| !is_given(claim, &volumes_of(claim)));
        let lucky = self.offers.spread(name, waiting, |name| self.volumes.get(&Key::cluster(name)));
        for claim in lucky {
            self.queue.add(Subject::Claim(claim), Priority::Normal);
        }
        Outcome::Done
    }

    fn nothing(&self) -> View {
        View {
            rules: self.rules,
            claim: None,
            class: None,
            default_class: None,
            named: None,
            volumes: Vec::new(),
            offer: None,
            unscheduled: Vec::new(),
            users: Vec::new(),
            node_known: true,
            live: Live::default(),
        }
    }

    fn look(&self, key: &Key, hand: &mut Hand) -> View {
        let claim = self.claims.get(key).filter(|_| hand.live.claim != Some(Found::Gone));
        let volumes = self.volumes.by_index(index::VOLUMES_BY_CLAIM, &key.to_string());
        let users: Vec<Arc<Pod>> = self.pods.by_index(PODS_BY_CLAIM, &key.to_string());
        let users = users.iter().filter(|pod| !has_ended(pod));
        let mut view = View {
            volumes,
            users: users.clone().map(|pod| pod.key().to_string()).collect(),
            live: hand.live.clone(),
            ..self.nothing()
        };
        let Some(claim) = claim else { return view };
        if !claim.spec.volume_name.is_empty() {
            view.named = self.volumes.get(&Key::cluster(&claim.spec.volume_name));
        } else if is_waiting(&claim) {
            let by_name = |name: &str| self.classes.get(&Key::cluster(name));
            view.class = Some(class(&claim)).filter(|name| !name.is_empty()).and_then(by_name);
            let immediate = Some(VolumeBindingMode::Immediate);
            // Who has one already keeps no other from anybody.
            if view.class.as_ref().is_none_or(|class| class.volume_binding_mode == immediate)
                && !is_given(&claim, &view.volumes)
            {
                view.offer = hand.held.take(&claim, |name| self.volumes.get(&Key::cluster(name)));
            }
            if claim.class().is_none() {
                view.default_class = default_class(&self.classes.all());
            }
            let unscheduled = users.filter(|pod| pod.spec.node_name.is_empty());
            view.unscheduled = unscheduled.map(|pod| pod.metadata.name.clone()).collect();
            view.node_known =
                claim.selected_node().is_none_or(|node| self.nodes.get(&Key::cluster(node)).is_some());
        }
        view.claim = Some(claim);
        view
    }

    async fn resync(&self) {
        loop {
            sleep(RESYNC).await;
            for claim in self.claims.all() {
                self.queue.add(Subject::Claim(claim.key()), Priority::Low);
            }
            for volume in self.volumes.all() {
                self.queue.add(Subject::of(&volume), Priority::Low);
            }
        }
    }
}

fn wish(key: Subject) -> Wish<Subject> {
    Wish { key, priority: Priority::Normal }
}

/// Whether one of the volumes that name the claim will be its own, so that it looks for no other.
fn is_given(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> bool {
    best(claim, volumes.iter().map(|volume| &**volume), Seeker::Binder { delayed: false }).is_some()
}

/// Lets pods be found by the claims that they use.
pub(crate) fn index_pods(pods: &Store<Pod>) {
    pods.index(PODS_BY_CLAIM, |pod| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        pod.claims().map(|claim| Key::namespaced(namespace, claim).to_string()).collect()
    });
}

#[cfg(test)]
mod tests;
