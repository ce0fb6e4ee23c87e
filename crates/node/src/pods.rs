//! A pod's life on this node, from the first look to the last file: what kubelet does, with host processes for
//! containers.
//!
//! - Each pod has its own worker, which does one step at a time; pods do not wait for each other.
//! - The server knows how a pod is as soon as there is nothing more urgent to do for it, and that it is over only when
//!   its containers have ended and its volumes are gone.
//! - Nothing of a pod is ended because it was not in a list: the server is asked for it first.
//! - An agent that begins finds the containers of the one before it and goes on with them. Until those of pods that
//!   are gone have ended, no volume is taken down that nobody asked for.
//!
//! Start reading at `view`, then `decide`: the rules. `status` has the words, `act` the deeds, `attend` what goes on
//! while a container runs. [`Streams`] serves logs and commands.

mod act;
mod attend;
mod clean;
mod decide;
mod env;
pub mod fields;
mod hooks;
mod memory;
mod probe;
mod spec;
mod status;
mod streams;
mod versions;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::work::{Gate, Outcome, Wish, feed, work};
use wharf_cluster::{Backoff, Change, Cluster, Events, Listed, Priority, Queue, Store, WatchOptions, now};
use wharf_model::whole::Pod;
use wharf_model::whole::container::Container;
use wharf_model::{ConfigMap, Key, Kind, Secret};

use crate::containers::Containers;
use crate::paths::Root;
use crate::runtime::{Cause, Exit, State};
use crate::volumes::Volumes;
use act::Then;
use decide::decide;
use env::Surroundings;
use memory::{Kept, Memories, There};
pub use streams::Streams;
use versions::{Reference, Version};
use view::{CrashPace, View};

/// Who tells the events: kubelet, as far as users can see.
pub const COMPONENT: &str = "kubelet";
/// How container IDs begin in a pod's status.
const SCHEME: &str = "wharf://";
/// Pods worked on at once. What takes long goes on beside.
const WORKERS: usize = 100;
/// After so many steps a pod lets others have a turn.
const STEPS: usize = 64;
/// The longest pause after a write that the server did not take.
const UNWRITTEN: Duration = Duration::from_secs(30);

/// How pods are treated.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The pause before a container's third life; the second begins at once. Doubled each time.
    pub crash_start: Duration,
    /// The longest such pause. After a life of twice this length all begins anew.
    pub crash_max: Duration,
}

impl Default for Settings {
    /// Upstream's: 10 s to 5 min.
    fn default() -> Self {
        Self { crash_start: Duration::from_secs(10), crash_max: Duration::from_secs(300) }
    }
}

/// What runs the pods of a node.
#[derive(Clone)]
pub struct Agent {
    /// The API, with a node's rights.
    pub cluster: Cluster,
    /// The same under a wider name, where there is one: it tells at once of secrets and config maps that change.
    pub wide: Option<Cluster>,
    /// This node's name.
    pub node: String,
    /// Its address, which its pods share; empty if it has none.
    pub address: String,
    /// Host and port under which pods find the API server; without, they are not told.
    pub server: Option<(String, u16)>,
    /// Where events are told, by [`COMPONENT`].
    pub events: Events,
    /// Volumes of pods.
    pub volumes: Volumes,
    /// Containers.
    pub runtime: Arc<dyn Containers>,
    /// Where pods are on disk.
    pub root: Root,
    /// How pods are treated.
    pub settings: Settings,
    /// Whether steps may begin, and when to stop. Containers go on.
    pub gate: Gate,
}

/// Runs pods until the stop.
pub async fn run(agent: Agent) {
    let gate = agent.gate.clone();
    let pods = Arc::new(Pods::new(agent));
    // What goes on beside pods knows of us, and we of it: it ends with this function, however that ends.
    let _end = Ends(pods.memories.clone());
    tokio::select! {
        biased;
        () = pods.store.synced() => {}
        () = gate.stopped() => return,
    }
    let orphans = pods.adopt().await;
    // These end with this function.
    let mut besides = JoinSet::new();
    pods.feeds(&mut besides);
    let this = Arc::clone(&pods);
    besides.spawn(async move { this.settle(orphans).await });
    let one = |uid: String| {
        let pods = Arc::clone(&pods);
        async move { pods.see_to(&uid).await }
    };
    work(&pods.queue, &gate, WORKERS, one).await;
}

/// Dropped, nothing goes on beside any pod.
struct Ends(Memories);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// The pods of one node.
struct Pods {
    agent: Agent,
    pace: CrashPace,
    around: Surroundings,
    store: Store<Pod>,
    queue: Queue<String>,
    memories: Memories,
}

impl Pods {
    fn new(agent: Agent) -> Self {
        let only = format!("spec.nodeName={}", agent.node);
        let store =
            agent.cluster.store(WatchOptions { field_selector: Some(only), ..WatchOptions::default() });
        let backoff = Backoff { max: UNWRITTEN, ..Backoff::default() };
        let common = agent.server.iter().flat_map(|(host, port)| {
            [
                ("KUBERNETES_SERVICE_HOST".to_owned(), host.clone()),
                ("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string()),
                ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port.to_string()),
            ]
        });
        Self {
            pace: CrashPace { start: agent.settings.crash_start, max: agent.settings.crash_max },
            around: Surroundings { address: agent.address.clone(), common: common.collect() },
            store,
            queue: Queue::new("pods", backoff, agent.cluster.metrics()),
            memories: Memories::default(),
            agent,
        }
    }

    /// Takes over what is there: all pods of this node, and containers that an earlier agent has started. Answers with
    /// the UIDs of pods of which only containers are left.
    async fn adopt(self: &Arc<Self>) -> BTreeSet<String> {
        for pod in self.store.all() {
            self.memories.see(pod, now());
        }
        let found = loop {
            match self.agent.runtime.list() {
                Ok(found) => break found,
                Err(error) => {
                    // Without knowing them no container may be started: it could run already.
                    tracing::error!(%error, "containers of the agent before this one cannot be found");
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(UNWRITTEN) => {}
                        () = self.agent.gate.stopped() => return BTreeSet::new(),
                    }
                }
            }
        };
        let mut orphans = BTreeSet::new();
        for one in found {
            // The agent before us died while it made this one. It was no life: it counts for no restart policy.
            if matches!(&one.state, State::Exited(Exit { cause: Cause::NeverRan, .. })) {
                self.discard(&one.id).await;
                continue;
            }
            let known = self.memories.with(&one.pod_uid, |memory| memory.take_over(&one));
            if known.is_some() && !orphans.contains(&one.pod_uid) {
                continue;
            }
            orphans.insert(one.pod_uid.clone());
            // Of a pod that is gone, its containers are all that is known.
            let pod = self.memories.with(&one.pod_uid, |memory| (*memory.pod).clone());
            let mut pod = pod.unwrap_or_else(|| orphan(&one.namespace, &one.pod, &one.pod_uid));
            if !pod.spec.containers.iter().any(|container| container.name == one.container) {
                pod.spec.containers.push(Container { name: one.container.clone(), ..Container::default() });
            }
            self.memories.see(Arc::new(pod), now());
            self.memories.with(&one.pod_uid, |memory| {
                memory.there = There::Perhaps;
                memory.take_over(&one);
            });
        }
        // All who may still use their volumes are told of before anything on disk is taken for nobody's.
        for uid in self.memories.uids() {
            let pod = self.memories.with(&uid, |memory| {
                let view = memory.view(&*self.agent.runtime, &self.agent.address);
                let used = view.containers.iter().any(view::Seen::runs);
                (!orphans.contains(&uid) && (used || !memory.pod.has_ended()))
                    .then(|| Arc::clone(&memory.pod))
            });
            if let Some(pod) = pod.flatten() {
                self.agent.volumes.want(pod);
            }
            self.queue.add(uid, Priority::Normal);
        }
        orphans
    }

    /// Containers of pods that are gone may still use volumes: only after their end, what nobody asked for may go.
    async fn settle(&self, orphans: BTreeSet<String>) {
        for uid in &orphans {
            let ids = self.memories.with(uid, |memory| {
                let lives = memory.containers.values().flat_map(|known| known.lives.values().cloned());
                lives.collect::<Vec<_>>()
            });
            for id in ids.unwrap_or_default() {
                self.agent.runtime.exited(&id).await;
            }
        }
        self.agent.volumes.settle();
        let known: BTreeSet<String> = self.memories.uids().into_iter().collect();
        for uid in clean::left(&self.agent.root).difference(&known) {
            self.agent.volumes.released(uid).await;
            clean::prune(&self.agent.root.pod(uid));
        }
    }

    /// What brings work.
    fn feeds(self: &Arc<Self>, into: &mut JoinSet<()>) {
        let this = Arc::clone(self);
        let wishes = move |change: &Change<Pod>| this.pod_changed(change);
        into.spawn(feed(self.store.clone(), self.queue.clone(), wishes));
        // Without it, the volume manager looks from time to time.
        let Some(cluster) = &self.agent.wide else { return };
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.object_changed(Reference::Secret, &change.key);
        into.spawn(feed(
            cluster.store::<Version<Secret>>(WatchOptions::default()),
            self.queue.clone(),
            wishes,
        ));
        let this = Arc::clone(self);
        let wishes = move |change: &Change<_>| this.object_changed(Reference::ConfigMap, &change.key);
        into.spawn(feed(
            cluster.store::<Version<ConfigMap>>(WatchOptions::default()),
            self.queue.clone(),
            wishes,
        ));
    }

    fn pod_changed(&self, change: &Change<Pod>) -> Vec<Wish<String>> {
        let mut wishes = Vec::new();
        let mut wish = |uid: &str| wishes.push(Wish { key: uid.to_owned(), priority: Priority::Normal });
        let new = change.new.as_ref();
        if let Some(old) =
            change.old.as_ref().filter(|old| new.is_none_or(|new| new.metadata.uid != old.metadata.uid))
        {
            self.memories.with(&old.metadata.uid, |memory| memory.there = There::Perhaps);
            wish(&old.metadata.uid);
        }
        if let Some(new) = new {
            self.memories.see(Arc::clone(new), now());
            let old = change.old.as_ref().filter(|old| old.metadata.uid == new.metadata.uid);
            if old.is_some_and(|old| differ_in_fields(old, new)) {
                self.refresh(&new.metadata.uid);
            }
            // Our own words about it call for nothing.
            if old.is_none_or(|old| calls_for_a_look(old, new)) {
                wish(&new.metadata.uid);
            }
        }
        wishes
    }

    /// A secret or config map is another: files made of it are brought up to date, and who waits for it need not.
    fn object_changed(&self, of: fn(String) -> Reference, key: &Key) -> Vec<Wish<String>> {
        let reference = of(key.name.clone());
        let mut wishes = Vec::new();
        for uid in self.memories.uids() {
            let waits = self.memories.with(&uid, |memory| {
                let concerned = memory.pod.metadata.namespace == key.namespace
                    && versions::references(&memory.pod).contains(&reference);
                for known in memory.containers.values_mut().filter(|_| concerned) {
                    if let Some(trouble) = &mut known.trouble {
                        trouble.again = now();
                    }
                }
                concerned
            });
            if waits == Some(true) {
                self.refresh(&uid);
                wishes.push(Wish { key: uid, priority: Priority::Normal });
            }
        }
        wishes
    }

    /// Volumes that are made of objects are looked at again.
    fn refresh(&self, uid: &str) {
        let pod = self.memories.with(uid, |memory| match memory.volumes {
            Kept::Coming { .. } | Kept::Mounted(_) => Some(Arc::clone(&memory.pod)),
            Kept::Unasked | Kept::Going { .. } | Kept::Released => None,
        });
        if let Some(pod) = pod.flatten() {
            self.agent.volumes.want(pod);
        }
    }

    /// One pod, step by step, until there is nothing to do for it now.
    async fn see_to(self: &Arc<Self>, uid: &str) -> Outcome {
        for _ in 0..STEPS {
            if !self.agent.gate.is_open() {
                break;
            }
            if let Err(outcome) = self.confirm(uid).await {
                return outcome;
            }
            let Some(view) = self.look(uid) else { return Outcome::Done };
            let step = decide(&view, self.pace, now());
            if let Then::End(outcome) = self.act(uid, &view, step).await {
                return outcome;
            }
        }
        Outcome::After(Duration::ZERO)
    }

    fn look(self: &Arc<Self>, uid: &str) -> Option<View> {
        let (runtime, address) = (&*self.agent.runtime, &self.agent.address);
        let view = self.memories.with(uid, |memory| memory.view(runtime, address))?;
        self.attend(uid, &view);
        Some(view)
    }

    /// A pod that may be gone: the server knows. A node is refused one that is not bound to it, which one that is gone is
    /// not either; so it is looked for by its name among the node's own. That is no list of which it might be missing.
    async fn confirm(&self, uid: &str) -> Result<(), Outcome> {
        let key =
            self.memories.with(uid, |memory| (memory.there == There::Perhaps).then(|| memory.pod.key()));
        let Some(key) = key.flatten() else { return Ok(()) };
        let only = WatchOptions {
            namespace: key.namespace.clone(),
            field_selector: Some(format!("metadata.name={},spec.nodeName={}", key.name, self.agent.node)),
            ..WatchOptions::default()
        };
        match self.agent.cluster.list::<Pod>(&only).await {
            Ok(Listed { items, unreadable }) => {
                match items.into_iter().find(|pod| pod.metadata.uid == uid) {
                    Some(pod) => self.memories.see(Arc::new(pod), now()),
                    None if unreadable.is_empty() => {
                        self.memories.with(uid, |memory| memory.there = There::No);
                        self.agent.volumes.keep(uid);
                    }
                    None => return Err(Outcome::Retry),
                }
                Ok(())
            }
            Err(error) => {
                tracing::debug!(pod = %key, %error, "nobody knows whether the pod is gone");
                Err(Outcome::Retry)
            }
        }
    }
}

/// What files of the downward API may show.
fn differ_in_fields(old: &Pod, new: &Pod) -> bool {
    old.metadata.labels != new.metadata.labels || old.metadata.annotations != new.metadata.annotations
}

/// Whether a change is more than what we wrote ourselves.
fn calls_for_a_look(old: &Pod, new: &Pod) -> bool {
    old.spec != new.spec
        || old.status.phase != new.status.phase
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || differ_in_fields(old, new)
}

/// A pod of which only containers are left.
fn orphan(namespace: &str, name: &str, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = Some(namespace.to_owned());
    pod.metadata.uid = uid.to_owned();
    pod
}
