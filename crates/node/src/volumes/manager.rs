//! The volume manager's control loop: what enqueues pods and volumes, and how a volume is reconciled.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use wharf_cluster::work::{
    EnqueueRequest, Gate, RESYNC_INTERVAL, StepLimit, Steps, WorkOutcome, enqueue_changes, resync,
    run_workers,
};
use wharf_cluster::{Backoff, Change, Cluster, Priority, Queue, Store, WatchOptions, monotonic};
use wharf_model::{CSIDriver, Key, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};

use super::decide::{Step, decide};
use super::disk::Disk;
use super::failure::{Class, Operation};
use super::in_use::InUse;
use super::view::{Driver, NodeView, View, Waiting};
use super::world::{Source, Volume, World};
use super::{Mounted, NotMounted, Settings, Statistics, VolumeManagerDeps, names, selinux};
use crate::machine;
use crate::plugins::NodeCapabilities;

mod pods;
mod start;

/// A volume takes a few steps for each of its pods, and each operation has its own backoff.
const STEP_LIMIT: StepLimit = StepLimit::Requeue(64);
/// Timeout after which a waiting caller gets the current problems: upstream's podAttachAndMountTimeout.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);

/// A key in the work queue, handled by one worker at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// A pod: resolves its volumes, and sets up or tears down its plain ones.
    Pod(String),
    /// A CSI volume, by unique name.
    Volume(String),
}

pub(super) struct Manager {
    pub(super) parts: VolumeManagerDeps,
    pub(super) settings: Settings,
    pub(super) backoff: Backoff,
    pub(super) disk: Disk,
    pub(super) in_use: InUse,
    pub(super) statistics: Statistics,
    pub(super) node: Store<Node>,
    world: Mutex<World>,
    /// Wakes tasks that wait for a change of the world, in order of arrival.
    changes: Notify,
    queue: Queue<Subject>,
    drivers: Store<CSIDriver>,
    pub(super) privileged: Option<PrivilegedStores>,
    /// The SELinux label of containers' files, if the node has SELinux.
    label: Option<String>,
}

/// Stores of objects that a node may not watch.
pub(super) struct PrivilegedStores {
    claims: Store<PersistentVolumeClaim>,
    persistent: Store<PersistentVolume>,
    pub(super) attachments: Store<VolumeAttachment>,
}

impl PrivilegedStores {
    fn watch(cluster: &Cluster) -> Self {
        Self {
            claims: cluster.store(WatchOptions::default()),
            persistent: cluster.store(WatchOptions::default()),
            attachments: cluster.store(WatchOptions::default()),
        }
    }
}

/// Snapshot of everything known about a volume, for one step.
pub(super) struct Inputs {
    pub(super) volume: Volume,
    released: Vec<String>,
    pods_known: bool,
    node: Option<Arc<Node>>,
    reported: bool,
    attached: bool,
    drivers_known: bool,
    driver: Option<Arc<CSIDriver>>,
    capabilities: Option<NodeCapabilities>,
}

impl Inputs {
    /// The driver's CSIDriver object.
    pub(super) fn driver(&self) -> Driver<'_> {
        match (&self.driver, self.drivers_known) {
            (Some(driver), _) => Driver::Object(driver),
            (None, true) => Driver::NoObject,
            (None, false) => Driver::Unknown,
        }
    }

    fn view(&self, resync: Duration) -> View<'_> {
        View {
            volume: &self.volume,
            released: &self.released,
            pods_known: self.pods_known,
            node: self.node.as_ref().map(|node| NodeView {
                name: &node.metadata.name,
                labels: &node.metadata.labels,
                reported: self.reported,
                attached: self.attached,
            }),
            driver: self.driver(),
            capabilities: self.capabilities.as_ref(),
            resync,
        }
    }
}

impl Manager {
    pub(super) fn new(parts: VolumeManagerDeps, settings: Settings) -> Self {
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
            privileged: parts.privileged_client.as_ref().map(PrivilegedStores::watch),
            label: selinux::base_label(),
            backoff,
            parts,
            settings,
        }
    }

    /// The world. Never held across an await.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        // A panic leaves no half-written entries behind.
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes a volume and wakes waiting tasks.
    pub(super) fn change(&self, unique: &str, change: impl FnOnce(&mut Volume)) {
        if let Some(volume) = self.world().volumes.get_mut(unique) {
            change(volume);
        }
        self.notify_waiters();
    }

    fn notify_waiters(&self) {
        self.changes.notify_waiters();
    }

    /// Enqueues a key now, without backoff.
    pub(super) fn wake(&self, subject: Subject) {
        self.queue.reset_backoff(&subject);
        self.queue.add(subject, Priority::Normal);
    }

    /// A mount of the pod is gone.
    pub(super) fn wake_pod(&self, uid: &str) {
        self.notify_waiters();
        self.wake(Subject::Pod(uid.to_owned()));
    }

    /// Records a failed round for these pods.
    pub(super) fn round_failed<'a>(&self, pods: impl Iterator<Item = &'a String>) {
        let mut world = self.world();
        for uid in pods {
            world.count_round(uid);
        }
        drop(world);
        self.notify_waiters();
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
            world.pods_known = true;
            let pods = world.pods.keys().cloned().map(Subject::Pod);
            pods.chain(world.volumes.keys().cloned().map(Subject::Volume)).collect()
        };
        self.in_use.notify_changed();
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
                if volume.desired.remove(uid).is_some() || volume.mounts.contains_key(uid) {
                    touched.push(unique.clone());
                }
            }
            touched
        };
        volumes.into_iter().for_each(|unique| self.wake(Subject::Volume(unique)));
        self.wake_pod(uid);
    }

    pub(super) async fn mounted(&self, uid: &str) -> Result<Mounted, NotMounted> {
        let deadline = Instant::now() + MOUNT_TIMEOUT;
        loop {
            // Registered before the check, so that a later change wakes us.
            let changed = self.changes.notified();
            {
                let mut world = self.world();
                if let Some(mounted) = world.mounted(&self.parts.root, uid) {
                    return Ok(mounted);
                }
                let failed = world.pods.get_mut(uid).is_some_and(|entry| {
                    std::mem::replace(&mut entry.reported_rounds, entry.rounds) < entry.rounds
                });
                if failed || Instant::now() >= deadline {
                    return Err(NotMounted { message: not_mounted_message(&world.problems(uid)) });
                }
            }
            let _ = timeout_at(deadline, changed).await;
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

    /// Volumes that have to be attached, and whether all pods are known. A driver without a CSIDriver object counts
    /// as one that attaches.
    pub(super) fn attachable(&self) -> (Vec<String>, bool) {
        let world = self.world();
        let attaches = |volume: &Volume| {
            let driver = self.drivers.get(&Key::cluster(&volume.driver));
            CSIDriver::requires_attach(driver.as_deref())
        };
        let volumes = world.volumes.iter().filter(|(_, volume)| !volume.ephemeral && attaches(volume));
        (volumes.map(|(unique, _)| unique.clone()).collect(), world.pods_known)
    }

    pub(super) async fn run(self: &Arc<Self>, gate: Gate) {
        tokio::select! {
            biased;
            () = self.start() => {}
            () = gate.wait_stopped() => return,
        }
        let one = |subject| {
            let (manager, gate) = (Arc::clone(self), gate.clone());
            async move {
                match subject {
                    Subject::Pod(uid) => manager.reconcile_pod(&uid).await,
                    Subject::Volume(unique) => manager.reconcile(&unique, &gate).await,
                }
            }
        };
        let feeds = async {
            let maintained = (self.maintain_in_use(), self.collect_statistics(), self.recheck_unidentified());
            let resync = resync(self.queue.clone(), RESYNC_INTERVAL, || self.all_subjects());
            tokio::join!(self.feed(), self.feed_plugins(), resync, maintained.0, maintained.1, maintained.2);
        };
        tokio::select! {
            biased;
            () = run_workers(&self.queue, &gate, self.settings.workers, one) => {}
            () = feeds => {}
        }
    }

    /// Reconciles a volume, step by step, until it has to wait.
    async fn reconcile(&self, unique: &str, gate: &Gate) -> WorkOutcome {
        let mut steps = Steps::new(gate, STEP_LIMIT);
        while steps.start_next() {
            let Some(inputs) = self.inputs_of(unique) else { return WorkOutcome::Done };
            let step = decide(&inputs.view(self.settings.resync), monotonic());
            if let Step::Idle { until, waiting } = step {
                self.change(unique, |volume| volume.waiting = waiting);
                let publish_again = match waiting {
                    Some(Waiting::Attach) => self.check_attachment(unique, &inputs.volume).await,
                    _ => None,
                };
                return until
                    .into_iter()
                    .chain(publish_again)
                    .min()
                    .map_or(WorkOutcome::Done, WorkOutcome::RetryAfter);
            }
            let Volume { driver, handle, .. } = &inputs.volume;
            tracing::debug!(driver, volume_handle = handle, ?step, "decided next step");
            self.act(unique, &inputs, &step).await;
        }
        steps.unfinished(unique)
    }

    /// Takes a snapshot of everything known about a volume.
    fn inputs_of(&self, unique: &str) -> Option<Inputs> {
        let (volume, released, pods_known) = {
            let world = self.world();
            let volume = world.volumes.get(unique)?.clone();
            let released = volume.mounts.keys().filter(|uid| world.is_released(uid)).cloned().collect();
            (volume, released, world.pods_known)
        };
        let node = self.node.get(&Key::cluster(&self.parts.node));
        Some(Inputs {
            reported: node.as_ref().is_some_and(|node| self.in_use.reported(node, unique)),
            attached: node.as_ref().is_some_and(|node| is_attached(node, unique)),
            node,
            drivers_known: self.drivers.is_synced(),
            driver: self.drivers.get(&Key::cluster(&volume.driver)),
            capabilities: self.parts.plugins.get(&volume.driver).map(|plugin| plugin.capabilities),
            released,
            pods_known,
            volume,
        })
    }

    /// Drops a volume that is gone from this node.
    pub(super) fn forget(&self, unique: &str) {
        {
            let mut world = self.world();
            if world.volumes.get(unique).is_some_and(Volume::is_gone) {
                world.volumes.remove(unique);
            }
        }
        self.in_use.notify_changed();
        self.notify_waiters();
    }

    /// All pods and volumes, for a resync.
    fn all_subjects(&self) -> Vec<Subject> {
        let subjects = subjects_to_resync(&mut self.world());
        self.in_use.notify_changed();
        subjects
    }

    /// Enqueues keys on API changes.
    async fn feed(&self) {
        let node = enqueue_changes(self.node.clone(), self.queue.clone(), |change| {
            self.volumes_of_changed_node(change)
        });
        let drivers = enqueue_changes(self.drivers.clone(), self.queue.clone(), |change| {
            self.in_use.notify_changed();
            self.volumes_where(|_, volume| volume.driver == change.key.name)
        });
        let privileged = async {
            if let Some(privileged) = &self.privileged {
                self.feed_privileged(privileged).await;
            }
        };
        tokio::join!(node, drivers, privileged);
    }

    async fn feed_privileged(&self, privileged: &PrivilegedStores) {
        let attachments = enqueue_changes(privileged.attachments.clone(), self.queue.clone(), |change| {
            let is_it = |volume: &Volume| {
                names::attachment(&volume.handle, &volume.driver, &self.parts.node) == change.key.name
            };
            let requests = self.volumes_where(|_, volume| is_it(volume));
            self.clear_backoff(&requests, |operation| operation == Operation::Verify);
            requests
        });
        let claims = enqueue_changes(privileged.claims.clone(), self.queue.clone(), |change| {
            self.pods_of_changed_claim(change)
        });
        let persistent = enqueue_changes(privileged.persistent.clone(), self.queue.clone(), |change| {
            if same(change, |volume| volume.spec.capacity) {
                return Vec::new();
            }
            self.pods_wanting(&change.key.name)
        });
        tokio::join!(attachments, claims, persistent);
    }

    /// A driver that registers clears the backoff of its volumes.
    async fn feed_plugins(&self) {
        let mut changed = self.parts.plugins.subscribe();
        loop {
            let requests = self.volumes_where(|_, volume| self.parts.plugins.get(&volume.driver).is_some());
            self.clear_backoff(&requests, |_| true);
            for EnqueueRequest { key, .. } in requests {
                self.wake(key);
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Clears the backoff of failures that were not reported by the driver.
    fn clear_backoff(&self, requests: &[EnqueueRequest<Subject>], which: impl Fn(Operation) -> bool) {
        let mut world = self.world();
        for EnqueueRequest { key, .. } in requests {
            let Subject::Volume(unique) = key else { continue };
            if let Some(volume) = world.volumes.get_mut(unique) {
                volume.failures.retain(|(operation, _), failure| {
                    failure.class != Class::Transient || !which(*operation)
                });
            }
        }
    }

    /// Volumes whose `volumesInUse` or `volumesAttached` entry changed.
    fn volumes_of_changed_node(&self, change: &Change<Node>) -> Vec<EnqueueRequest<Subject>> {
        let entries_of = |node: &Option<Arc<Node>>, unique: &str| {
            node.as_ref().map(|node| {
                let in_use = node.status.volumes_in_use.iter().any(|name| name == unique);
                (in_use, is_attached(node, unique))
            })
        };
        let requests = self
            .volumes_where(|unique, _| entries_of(&change.old, unique) != entries_of(&change.new, unique));
        self.detached(change);
        self.clear_backoff(&requests, |operation| operation == Operation::Verify);
        requests
    }

    /// Drops the publish context of detached volumes: the next attachment is read again.
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

    fn volumes_where(&self, which: impl Fn(&str, &Volume) -> bool) -> Vec<EnqueueRequest<Subject>> {
        let world = self.world();
        let chosen = world.volumes.iter().filter(|(unique, volume)| which(unique, volume));
        chosen.map(|(unique, _)| enqueue_request(Subject::Volume(unique.clone()))).collect()
    }

    fn pods_wanting(&self, persistent: &str) -> Vec<EnqueueRequest<Subject>> {
        let world = self.world();
        let desired_mounts = world.volumes.values().flat_map(|volume| &volume.desired);
        let of = |source: &Source| matches!(source, Source::Persistent { volume, .. } if volume.metadata.name == persistent);
        desired_mounts
            .filter(|(_, desired)| of(&desired.source))
            .map(|(uid, _)| enqueue_request(Subject::Pod(uid.clone())))
            .collect()
    }
}

/// All pods and volumes. Changes may have been dropped, such as a detach: attachments are read again before they are used.
fn subjects_to_resync(world: &mut World) -> Vec<Subject> {
    world.volumes.values_mut().for_each(|volume| volume.context = None);
    let pods = world.pods.keys().cloned().map(Subject::Pod);
    pods.chain(world.volumes.keys().cloned().map(Subject::Volume)).collect()
}

fn enqueue_request(key: Subject) -> EnqueueRequest<Subject> {
    EnqueueRequest { key, priority: Priority::Normal }
}

fn is_attached(node: &Node, unique: &str) -> bool {
    node.status.volumes_attached.iter().any(|volume| volume.name == unique)
}

/// Whether a part of an object is unchanged.
fn same<K, P: PartialEq>(change: &Change<K>, part: impl Fn(&K) -> P) -> bool {
    matches!((&change.old, &change.new), (Some(old), Some(new)) if part(old) == part(new))
}

/// The unmounted volumes, each with its problem.
fn not_mounted_message(problems: &[(String, String)]) -> String {
    let names: Vec<&str> = problems.iter().map(|(name, _)| name.as_str()).collect();
    let reasons: Vec<String> = problems.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    format!("unmounted volumes=[{}]: {}", names.join(" "), reasons.join("; "))
}
