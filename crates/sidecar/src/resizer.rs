//! Expands and modifies volumes as their claims ask.
//!
//! - The state is in the claim's status, as upstream writes it: a crash between any two writes, or a swap for
//!   upstream's resizer, finds everything where it stands.
//! - One queue, whose key is the claim: its expansion and its modification never meet, on the server or in the
//!   driver. Neither waits for the other's pause.
//! - What may be under way in the driver is ended before anything else is asked of it.
//! - Pods are watched only once the driver has refused to expand a volume because it is in use, and of those only
//!   pods that use claims are kept.
//!
//! The rules are in [`decide`]; what this process remembers between two steps in [`memory`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use wharf_cluster::{Queue, Store, WatchOptions, now};
use wharf_model::{Key, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use crate::context::Context;
use decide::{Reason, Step, Waiting, decide};
use memory::{Epoch, Memories, Memory};
use view::{Can, Classes, Users, View};
use wake::{BY_ATTRIBUTES_CLASS, BY_CLAIM, wish};
use wharf_cluster::work::{Outcome, Pace, feed, work};

mod act;
mod decide;
mod memory;
#[cfg(test)]
mod simulation;
mod view;
mod wake;
mod write;

/// In attempts: the two have one each, so that the success of one does not hide the failure of the other.
const ROLE: &str = "resizer";
const MODIFIER: &str = "modifier";
/// More steps than that in a row are not progress.
const ROUNDS: usize = 64;
/// Between looks at classes that cannot be read.
const CLASSES_AGAIN: Duration = Duration::from_secs(5);
/// Pods that have ended use nothing.
pub(crate) const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What the resizer is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// Wait with an expansion that the driver refused because the volume is in use until no pod uses it.
    pub handle_volume_inuse_error: bool,
    /// Tell the driver the names of claim and volume when a volume is modified.
    pub extra_modify_metadata: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace::with_timeout(Duration::from_secs(10)),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
        }
    }
}

/// Runs until the stop.
pub(crate) async fn run(context: Context, settings: Settings) {
    let Some(can) = Can::of(context.driver.can()) else {
        let driver = context.driver.name();
        tracing::error!(driver, "the driver can neither expand nor modify volumes: leave the resizer out");
        context.gate.stopped().await;
        return;
    };
    let resizer = Arc::new(Resizer::new(context, settings, can));
    let (queue, gate) = (resizer.queue.clone(), resizer.context.gate.clone());
    let one = |key| {
        let resizer = Arc::clone(&resizer);
        async move { resizer.work_on(key).await }
    };
    let worked = work(&queue, &gate, resizer.settings.pace.workers, one);
    tokio::select! {
        biased;
        () = worked => {}
        () = resizer.feed() => {}
    }
}

/// Everything that expands and modifies one driver's volumes.
struct Resizer {
    context: Context,
    settings: Settings,
    can: Can,
    queue: Queue<Key>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    /// `None`: the driver cannot modify.
    classes: Option<Store<VolumeAttributesClass>>,
    /// Empty until the driver has shown that pods matter to it.
    pods: OnceLock<Store<Pod>>,
    pods_wanted: Notify,
    memories: Memories,
}

/// What was seen of a claim, for one step.
struct Seen {
    key: Key,
    uid: String,
    claim: Option<Arc<PersistentVolumeClaim>>,
    volume: Option<Arc<PersistentVolume>>,
    asked: Option<Arc<VolumeAttributesClass>>,
    target: Option<Arc<VolumeAttributesClass>>,
    classes_known: bool,
    reached: bool,
    users: Users,
    epoch: Epoch,
    memory: Memory,
}

impl Seen {
    fn classes(&self) -> Classes<'_> {
        Classes { known: self.classes_known, asked: self.asked.as_deref(), target: self.target.as_deref() }
    }

    fn view<'a>(&'a self, driver: &'a str, can: Can) -> View<'a> {
        View {
            claim: self.claim.as_deref(),
            volume: self.volume.as_deref(),
            driver,
            can,
            reached: self.reached,
            users: self.users,
            classes: self.classes(),
            memory: &self.memory,
        }
    }
}

impl Resizer {
    fn new(context: Context, settings: Settings, can: Can) -> Self {
        let cluster = &context.cluster;
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        let volumes = cluster.store(WatchOptions::default());
        let classes = can.modify.then(|| cluster.store(WatchOptions::default()));
        if can.modify {
            claims.index(BY_ATTRIBUTES_CLASS, wake::classes_of);
        }
        Self {
            queue: Queue::new(ROLE, settings.pace.backoff(), cluster.metrics()),
            claims,
            volumes,
            classes,
            pods: OnceLock::new(),
            pods_wanted: Notify::new(),
            memories: Memories::default(),
            context,
            settings,
            can,
        }
    }

    /// Keeps the queue filled.
    async fn feed(&self) {
        let driver = self.context.driver.name();
        let claims = feed(self.claims.clone(), self.queue.clone(), |change| {
            let known = self.memories.knows(&change.key);
            wake::is_of_claim(change, known).then(|| wish(change.key.clone())).into_iter().collect()
        });
        let volumes = feed(self.volumes.clone(), self.queue.clone(), |change| {
            let wants = |key: &Key| self.claims.get(key).is_some_and(|claim| wake::wants(&claim));
            wake::of_volume(change, driver, wants).map(wish).into_iter().collect()
        });
        tokio::join!(claims, volumes, self.feed_classes(), self.feed_pods(), self.forget());
    }

    async fn feed_classes(&self) {
        let Some(classes) = &self.classes else { return };
        feed(classes.clone(), self.queue.clone(), |change| {
            let Some(class) = wake::of_class(change) else { return Vec::new() };
            let claims = self.claims.by_index(BY_ATTRIBUTES_CLASS, class);
            claims.iter().map(|claim| wish(claim.metadata.key())).collect()
        })
        .await;
    }

    /// Watches pods from when they matter.
    async fn feed_pods(&self) {
        self.pods_wanted.notified().await;
        tracing::info!("the driver does not expand volumes in use: watching pods from now on");
        let field_selector = Some(NOT_ENDED.to_owned());
        let options = WatchOptions { field_selector, ..WatchOptions::default() };
        let pods = self.context.cluster.store::<Pod>(options);
        pods.index(BY_CLAIM, |pod| wake::claims_of(pod).iter().map(Key::to_string).collect());
        let pods = self.pods.get_or_init(|| pods).clone();
        feed(pods, self.queue.clone(), |change| {
            let waiting = wake::released(change).into_iter().filter(|key| self.memories.knows(key));
            waiting.map(wish).collect()
        })
        .await;
    }

    /// Forgets what holds only while nobody else acts, when somebody else may.
    async fn forget(&self) {
        loop {
            self.context.gate.opened().await;
            self.context.gate.lost().await;
            self.memories.forget_all();
        }
    }

    /// Works on a claim, step by step, until it has to wait.
    async fn work_on(&self, key: Key) -> Outcome {
        let driver = self.context.driver.name();
        for _ in 0..ROUNDS {
            if !self.context.gate.is_open() {
                return Outcome::After(Duration::ZERO);
            }
            let mut seen = self.look(&key);
            let now = now();
            let step = decide(&seen.view(driver, self.can), now);
            let (claim, volume) = match (&step, seen.claim.clone(), seen.volume.clone()) {
                (Step::Wait(waiting), _, _) => return self.wait(&key, waiting, now),
                (_, Some(claim), Some(volume)) => (claim, volume),
                // Without a claim there is nothing to do but to forget it, and without a volume to wait.
                _ => {
                    self.memories.forget(&key);
                    for role in [ROLE, MODIFIER] {
                        self.context.attempts.forget(role, &key.to_string());
                    }
                    return Outcome::Done;
                }
            };
            tracing::debug!(claim = %key, volume = volume.metadata.name, ?step, "next");
            if let Err(error) = self.act(&mut seen, &claim, &volume, &step).await {
                tracing::warn!(claim = %key, volume = volume.metadata.name, ?step, %error, "cannot write, trying again");
                self.context.attempts.note(
                    ROLE,
                    &key.to_string(),
                    format!("{step:?}"),
                    Some(error.to_string()),
                );
                return Outcome::Retry;
            }
        }
        tracing::warn!(claim = %key, "so many steps without an end: pausing");
        Outcome::Retry
    }

    fn wait(&self, key: &Key, waiting: &Waiting, now: wharf_model::Time) -> Outcome {
        let Waiting { expansion, modification } = waiting;
        tracing::debug!(claim = %key, %expansion, %modification, "waiting");
        if *expansion == Reason::InTree {
            self.context.attempts.note(ROLE, &key.to_string(), "expand", Some(expansion.to_string()));
        }
        match waiting.until() {
            Some(until) => {
                let millis = u64::try_from(until.0.saturating_sub(now.0)).unwrap_or(0);
                Outcome::After(Duration::from_millis(millis))
            }
            None if *modification == Reason::ClassesUnknown => Outcome::After(CLASSES_AGAIN),
            None => Outcome::Done,
        }
    }

    /// What is known of a claim now.
    fn look(&self, key: &Key) -> Seen {
        let claim = self.claims.get(key);
        let volume = claim.as_ref().filter(|claim| !claim.spec.volume_name.is_empty());
        let volume = volume.and_then(|claim| self.volumes.get(&Key::cluster(&claim.spec.volume_name)));
        let class = |name: Option<&String>| {
            let name = name.filter(|name| !name.is_empty())?;
            self.classes.as_ref()?.get(&Key::cluster(name))
        };
        let asked = claim.as_ref().and_then(|claim| claim.spec.volume_attributes_class_name.as_ref());
        let status = claim.as_ref().and_then(|claim| claim.status.modify_volume_status.as_ref());
        let (asked, target) =
            (class(asked), class(status.map(|status| &status.target_volume_attributes_class_name)));
        let uid = claim.as_ref().map(|claim| claim.metadata.uid.clone()).unwrap_or_default();
        let (epoch, memory) = self.memories.get(key, &uid);
        // A node's own sidecar acts on what is its node's.
        let own = self.context.node.as_ref();
        let reached = volume.as_ref().is_none_or(|volume| own.is_none_or(|node| node.has(volume)));
        let classes_known = self.classes.as_ref().is_some_and(Store::served);
        let (key, users) = (key.clone(), self.users(key));
        Seen { key, uid, claim, volume, asked, target, classes_known, reached, users, epoch, memory }
    }

    fn users(&self, key: &Key) -> Users {
        match self.pods.get().filter(|pods| pods.served()) {
            None => Users::Unknown,
            Some(pods) if pods.by_index(BY_CLAIM, &key.to_string()).is_empty() => Users::None,
            Some(_) => Users::Some,
        }
    }
}
