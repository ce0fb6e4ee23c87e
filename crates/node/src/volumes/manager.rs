//! The volume manager at work: what calls for a look, the look, and the steps that follow.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use wharf_cluster::work::{Gate, Outcome, Wish, feed, work};
use wharf_cluster::{Backoff, Change, Cluster, Priority, Queue, Store, WatchOptions, now};
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, Key, PersistentVolume, PersistentVolumeClaim, VolumeAttachment};

use super::decide::{Step, decide};
use super::disk::Disk;
use super::failure::{Class, Doing};
use super::in_use::InUse;
use super::view::{Driver, NodeSeen, View, Waiting};
use super::world::{Source, Volume, World};
use super::{Mounted, NotYet, Parts, Settings, Statistics, names, selinux};
use crate::machine;
use crate::plugins::NodeCapabilities;

mod pods;
mod start;

/// After so many steps a volume lets others have a turn.
const STEPS: usize = 64;
/// Who waits for a pod's volumes is told what they wait for, at the latest after this long: upstream's patience.
const PATIENCE: Duration = Duration::from_secs(123);

/// What is worked on by one worker at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// What a pod's volumes are, and its plain ones.
    Pod(String),
    /// A driver's volume, by unique name.
    Volume(String),
}

/// See the module.
pub(super) struct Manager {
    pub(super) parts: Parts,
    pub(super) settings: Settings,
    pub(super) backoff: Backoff,
    pub(super) disk: Disk,
    pub(super) in_use: InUse,
    pub(super) statistics: Statistics,
    pub(super) node: Store<Node>,
    world: Mutex<World>,
    /// Wakes who waits for another world, in the order in which they came.
    changes: Notify,
    queue: Queue<Subject>,
    drivers: Store<CSIDriver>,
    pub(super) wide: Option<Wide>,
    /// The label of containers' files, where the node has SELinux.
    label: Option<String>,
}

/// What a node may not watch.
pub(super) struct Wide {
    claims: Store<PersistentVolumeClaim>,
    persistent: Store<PersistentVolume>,
    pub(super) attachments: Store<VolumeAttachment>,
}

impl Wide {
    fn watch(cluster: &Cluster) -> Self {
        Self {
            claims: cluster.store(WatchOptions::default()),
            persistent: cluster.store(WatchOptions::default()),
            attachments: cluster.store(WatchOptions::default()),
        }
    }
}

/// What was seen of a volume, for one step.
pub(super) struct Seen {
    pub(super) volume: Volume,
    released: Vec<String>,
    settled: bool,
    node: Option<Arc<Node>>,
    reported: bool,
    attached: bool,
    drivers_known: bool,
    driver: Option<Arc<CSIDriver>>,
    can: Option<NodeCapabilities>,
}

impl Seen {
    /// What the deployer said of the driver.
    pub(super) fn driver(&self) -> Driver<'_> {
        match (&self.driver, self.drivers_known) {
            (Some(driver), _) => Driver::Said(driver),
            (None, true) => Driver::Silent,
            (None, false) => Driver::Unknown,
        }
    }

    fn view(&self, resync: Duration) -> View<'_> {
        View {
            volume: &self.volume,
            released: &self.released,
            settled: self.settled,
            node: self.node.as_ref().map(|node| NodeSeen {
                name: &node.metadata.name,
                labels: &node.metadata.labels,
                reported: self.reported,
                attached: self.attached,
            }),
            driver: self.driver(),
            can: self.can.as_ref(),
            resync,
        }
    }
}

impl Manager {
    pub(super) fn new(parts: Parts, settings: Settings) -> Self {
        let cluster = &parts.cluster;
        let backoff = Backoff { start: settings.retry_start, max: settings.retry_max, ..Backoff::default() };
        Self {
            disk: Disk::new(Arc::clone(&parts.kernel), parts.root.clone()),
            in_use: InUse::new(),
            statistics: Statistics::default(),
            node: machine::store(cluster, &parts.node),
            world: Mutex::default(),
            changes: Notify::new(),
            queue: Queue::new("volumes", backoff, cluster.metrics()),
            drivers: cluster.store(WatchOptions::default()),
            wide: parts.wide.as_ref().map(Wide::watch),
            label: selinux::base_label(),
            backoff,
            parts,
            settings,
        }
    }

    /// The world. Nobody waits while holding it.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        // Whoever panicked left whole entries behind.
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes a volume, and tells those who wait.
    pub(super) fn change(&self, unique: &str, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = self.world().volumes.get_mut(unique) {
            change(volume);
        }
        self.stir();
    }

    fn stir(&self) {
        self.changes.notify_waiters();
    }

    /// Wants something looked at now.
    pub(super) fn wake(&self, subject: Subject) {
        self.queue.reset(&subject);
        self.queue.add(subject, Priority::Normal);
    }

    /// A pod has less than before.
    pub(super) fn wake_pod(&self, uid: &str) {
        self.stir();
        self.wake(Subject::Pod(uid.to_owned()));
    }

    /// Rounds for these pods have failed.
    pub(super) fn round_failed<'a>(&self, pods: impl Iterator<Item = &'a String>) {
        let mut world = self.world();
        for uid in pods {
            world.count_round(uid);
        }
        drop(world);
        self.stir();
    }

    pub(super) fn want(&self, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone();
        {
            let mut world = self.world();
            let entry = world.pods.entry(uid.clone()).or_default();
            entry.pod = Some(pod);
            (entry.gone, entry.released) = (false, false);
        }
        self.wake(Subject::Pod(uid));
    }

    pub(super) fn keep(&self, uid: &str) {
        if let Some(entry) = self.world().pods.get_mut(uid) {
            entry.gone = true;
        }
    }

    pub(super) fn settle(&self) {
        let subjects: Vec<Subject> = {
            let mut world = self.world();
            world.settled = true;
            let pods = world.pods.keys().cloned().map(Subject::Pod);
            pods.chain(world.volumes.keys().cloned().map(Subject::Volume)).collect()
        };
        self.in_use.change();
        subjects.into_iter().for_each(|subject| self.wake(subject));
    }

    pub(super) fn release(&self, uid: &str) {
        let volumes: Vec<String> = {
            let mut world = self.world();
            let entry = world.pods.entry(uid.to_owned()).or_default();
            entry.released = true;
            entry.resolved.clear();
            let mut touched = Vec::new();
            for (unique, volume) in &mut world.volumes {
                if volume.wants.remove(uid).is_some() || volume.mounts.contains_key(uid) {
                    touched.push(unique.clone());
                }
            }
            touched
        };
        volumes.into_iter().for_each(|unique| self.wake(Subject::Volume(unique)));
        self.wake_pod(uid);
    }

    pub(super) async fn mounted(&self, uid: &str) -> Result<Mounted, NotYet> {
        let patience = Instant::now() + PATIENCE;
        loop {
            // Before the look, so that what changes after it wakes us.
            let changed = self.changes.notified();
            {
                let mut world = self.world();
                if let Some(mounted) = world.mounted(&self.parts.root, uid) {
                    return Ok(mounted);
                }
                let failed = world
                    .pods
                    .get_mut(uid)
                    .is_some_and(|entry| std::mem::replace(&mut entry.told, entry.rounds) < entry.rounds);
                if failed || Instant::now() >= patience {
                    return Err(NotYet { message: not_yet(&world.troubles(uid)) });
                }
            }
            let _ = timeout_at(patience, changed).await;
        }
    }

    pub(super) async fn released(&self, uid: &str) {
        loop {
            let changed = self.changes.notified();
            if !self.world().holds(uid) {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn pods(&self) -> BTreeSet<String> {
        let world = self.world();
        let mounts = world.volumes.values().flat_map(|volume| volume.mounts.keys().cloned());
        let plain = world.pods.iter().filter(|(_, entry)| entry.plain).map(|(uid, _)| uid.clone());
        mounts.chain(plain).collect()
    }

    pub(super) fn in_use(&self) -> watch::Receiver<Vec<String>> {
        self.in_use.watch()
    }

    pub(super) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub(super) fn metrics(&self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.statistics.register(&mut registry);
        self.parts.plugins.register_metrics(&mut registry);
        self.parts.cluster.metrics().register(&mut registry);
        // Writing to a String does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    /// Volumes that are attached before they are used, and whether all pods are known. A driver of which nobody knows
    /// whether it attaches counts as one that does.
    pub(super) fn attachable(&self) -> (Vec<String>, bool) {
        let world = self.world();
        let attaches = |volume: &Volume| {
            let driver = self.drivers.get(&Key::cluster(&volume.driver));
            driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
        };
        let volumes = world.volumes.iter().filter(|(_, volume)| !volume.ephemeral && attaches(volume));
        (volumes.map(|(unique, _)| unique.clone()).collect(), world.settled)
    }

    pub(super) async fn run(self: &Arc<Self>, gate: Gate) {
        tokio::select! {
            biased;
            () = self.start() => {}
            () = gate.stopped() => return,
        }
        let one = |subject| {
            let manager = Arc::clone(self);
            async move {
                match subject {
                    Subject::Pod(uid) => manager.see_to_pod(&uid).await,
                    Subject::Volume(unique) => manager.see_to(&unique).await,
                }
            }
        };
        let feeds = async {
            let kept = (self.keep_in_use(), self.keep_statistics(), self.keep_stuck());
            tokio::join!(self.feed(), self.feed_plugins(), kept.0, kept.1, kept.2);
        };
        tokio::select! {
            biased;
            () = work(&self.queue, &gate, self.settings.workers, one) => {}
            () = feeds => {}
        }
    }

    /// Works on a volume, step by step, until it has to wait.
    async fn see_to(&self, unique: &str) -> Outcome {
        for _ in 0..STEPS {
            let Some(seen) = self.look(unique) else { return Outcome::Done };
            let step = decide(&seen.view(self.settings.resync), now());
            if let Step::Rest { until, waiting } = step {
                self.change(unique, |volume| volume.waiting = waiting);
                let again = match waiting {
                    Some(Waiting::Attach) => self.ask_attacher(unique, &seen.volume).await,
                    _ => None,
                };
                return until.into_iter().chain(again).min().map_or(Outcome::Done, Outcome::After);
            }
            tracing::debug!(volume = unique, ?step, "next");
            self.act(unique, &seen, &step).await;
        }
        Outcome::After(Duration::ZERO)
    }

    /// What is known of a volume now.
    fn look(&self, unique: &str) -> Option<Seen> {
        let (volume, released, settled) = {
            let world = self.world();
            let volume = world.volumes.get(unique)?.clone();
            let released = volume.mounts.keys().filter(|uid| world.is_released(uid)).cloned().collect();
            (volume, released, world.settled)
        };
        let node = self.node.get(&Key::cluster(&self.parts.node));
        Some(Seen {
            reported: node.as_ref().is_some_and(|node| self.in_use.reported(node, unique)),
            attached: node.as_ref().is_some_and(|node| is_attached(node, unique)),
            node,
            drivers_known: self.drivers.served(),
            driver: self.drivers.get(&Key::cluster(&volume.driver)),
            can: self.parts.plugins.get(&volume.driver).map(|plugin| plugin.capabilities),
            released,
            settled,
            volume,
        })
    }

    /// Nothing of the volume is here any more.
    pub(super) fn forget(&self, unique: &str) {
        {
            let mut world = self.world();
            if world.volumes.get(unique).is_some_and(Volume::is_gone) {
                world.volumes.remove(unique);
            }
        }
        self.in_use.change();
        self.stir();
    }

    /// Keeps the queue filled from what the server says.
    async fn feed(&self) {
        let node = feed(self.node.clone(), self.queue.clone(), |change| self.of_node(change));
        let drivers = feed(self.drivers.clone(), self.queue.clone(), |change| {
            self.in_use.change();
            self.volumes_where(|_, volume| volume.driver == change.key.name)
        });
        let wide = async {
            if let Some(wide) = &self.wide {
                self.feed_wide(wide).await;
            }
        };
        tokio::join!(node, drivers, wide);
    }

    async fn feed_wide(&self, wide: &Wide) {
        let attachments = feed(wide.attachments.clone(), self.queue.clone(), |change| {
            let is_it = |volume: &Volume| {
                names::attachment(&volume.handle, &volume.driver, &self.parts.node) == change.key.name
            };
            let wishes = self.volumes_where(|_, volume| is_it(volume));
            self.forgive(&wishes, |doing| doing == Doing::Verify);
            wishes
        });
        let claims = feed(wide.claims.clone(), self.queue.clone(), |change| self.of_claim(change));
        let persistent = feed(wide.persistent.clone(), self.queue.clone(), |change| {
            if same(change, |volume| volume.spec.capacity) {
                return Vec::new();
            }
            self.pods_wanting(&change.key.name)
        });
        tokio::join!(attachments, claims, persistent);
    }

    /// A driver that comes back ends the pauses of those who waited for it.
    async fn feed_plugins(&self) {
        let mut changed = self.parts.plugins.changed();
        loop {
            let wishes = self.volumes_where(|_, volume| self.parts.plugins.get(&volume.driver).is_some());
            self.forgive(&wishes, |_| true);
            for Wish { key, .. } in wishes {
                self.wake(key);
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends pauses after failures that had nothing to do with the driver's own answer.
    fn forgive(&self, wishes: &[Wish<Subject>], which: impl Fn(Doing) -> bool) {
        let mut world = self.world();
        for Wish { key, .. } in wishes {
            let Subject::Volume(unique) = key else { continue };
            if let Some(volume) = world.volumes.get_mut(unique) {
                volume
                    .failures
                    .retain(|(doing, _), failure| failure.class != Class::Transient || !which(*doing));
            }
        }
    }

    /// Volumes that the Node says something else of than before.
    fn of_node(&self, change: &Change<Node>) -> Vec<Wish<Subject>> {
        let said = |node: &Option<Arc<Node>>, unique: &str| {
            node.as_ref().map(|node| {
                let in_use = node.status.volumes_in_use.iter().any(|name| name == unique);
                (in_use, is_attached(node, unique))
            })
        };
        let wishes = self.volumes_where(|unique, _| said(&change.old, unique) != said(&change.new, unique));
        self.detached(change);
        self.forgive(&wishes, |doing| doing == Doing::Verify);
        wishes
    }

    /// What the attachment gave goes with it: the next one is read anew.
    fn detached(&self, change: &Change<Node>) {
        let attached = |node: &Option<Arc<Node>>, unique: &str| {
            node.as_ref().is_some_and(|node| is_attached(node, unique))
        };
        for (unique, volume) in &mut self.world().volumes {
            if attached(&change.old, unique) && !attached(&change.new, unique) {
                volume.context = None;
            }
        }
    }

    fn volumes_where(&self, which: impl Fn(&str, &Volume) -> bool) -> Vec<Wish<Subject>> {
        let world = self.world();
        let chosen = world.volumes.iter().filter(|(unique, volume)| which(unique, volume));
        chosen.map(|(unique, _)| wish(Subject::Volume(unique.clone()))).collect()
    }

    fn pods_wanting(&self, persistent: &str) -> Vec<Wish<Subject>> {
        let world = self.world();
        let wants = world.volumes.values().flat_map(|volume| &volume.wants);
        let of = |source: &Source| matches!(source, Source::Persistent { volume, .. } if volume.metadata.name == persistent);
        wants.filter(|(_, want)| of(&want.source)).map(|(uid, _)| wish(Subject::Pod(uid.clone()))).collect()
    }
}

fn wish(key: Subject) -> Wish<Subject> {
    Wish { key, priority: Priority::Normal }
}

fn is_attached(node: &Node, unique: &str) -> bool {
    node.status.volumes_attached.iter().any(|volume| volume.name == unique)
}

/// Whether a part of an object is as it was.
fn same<K, P: PartialEq>(change: &Change<K>, part: impl Fn(&K) -> P) -> bool {
    matches!((&change.old, &change.new), (Some(old), Some(new)) if part(old) == part(new))
}

/// Each volume with what is the matter with it, and no others.
fn not_yet(troubles: &[(String, String)]) -> String {
    let names: Vec<&str> = troubles.iter().map(|(name, _)| name.as_str()).collect();
    let reasons: Vec<String> = troubles.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    format!("unmounted volumes=[{}]: {}", names.join(" "), reasons.join("; "))
}
