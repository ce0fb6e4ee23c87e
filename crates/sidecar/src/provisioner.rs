//! Makes volumes for claims and deletes those that are released.
//!
//! The story of a volume: a claim calls for it → the whole request is written to the [`journal`] → CreateVolume →
//! the PersistentVolume is written → the intent is forgotten; and when its claim is gone and its policy says so,
//! it is deleted by the rules of [`reclaim`]. Promises:
//!
//! - Nothing leaks: whatever dies between two steps, the same call is repeated from the journal and finished or
//!   undone, also when claim, class and node are gone.
//! - Making and deleting the same volume never run side by side: the queue's key is the volume's name.
//! - What the driver made is deleted only if no PersistentVolume stands for it.
//! - Nothing of ours sits on the users' objects.
//!
//! Read [`view`] (what is seen), [`decide`] (the rules), [`act`] (effects); [`world`] finds what belongs to a volume.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use wharf_cluster::{Change, Priority, Queue};
use wharf_model::names::VolumeNaming;
use wharf_model::topology;

use self::act::{Actor, Memories, Progress};
use self::decide::decide;
use self::journal::Journal;
use self::metrics::Counts;
use self::view::Own;
use self::world::World;
use crate::attempts::now;
use crate::context::Context;
use crate::work::{Outcome, Pace, Wish, feed, work};

mod act;
mod claiming;
mod decide;
mod intent;
mod journal;
mod metrics;
mod protection;
mod reclaim;
mod request;
mod source;
#[cfg(test)]
mod testing;
mod view;
mod volume;
mod world;

/// What the provisioner is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// How volumes are named.
    pub naming: VolumeNaming,
    /// The file system where the class names none; empty leaves it to the driver.
    pub default_fstype: String,
    /// Tell the driver the names of claim and volume.
    pub extra_create_metadata: bool,
    /// The selected node's place and no other.
    pub strict_topology: bool,
    /// Tell the driver about places even where no node is selected.
    pub immediate_topology: bool,
    /// Restore a snapshot only in the volume mode of its source.
    pub prevent_volume_mode_conversion: bool,
    /// Mark volumes that are only ever read as such.
    pub controller_publish_readonly: bool,
    /// Keep CSIStorageCapacity objects.
    pub capacity: Option<CapacitySettings>,
    /// Where the sidecar is a node's own: how it competes with other nodes for claims that any node could have.
    pub immediate_binding: Option<ImmediateBinding>,
}

/// How CSIStorageCapacity objects are kept.
#[derive(Debug, Clone)]
pub struct CapacitySettings {
    /// Also for classes that bind at once.
    pub immediate_binding: bool,
    /// How often the driver is asked without another reason.
    pub poll_interval: Duration,
    /// Who owns them: 0 our pod, 1 what controls it, and so on; negative: nobody.
    pub owner_level: i32,
    /// Our pod, for the owner.
    pub pod: Option<String>,
}

/// How nodes compete for a claim that any of them could have.
#[derive(Debug, Clone)]
pub struct ImmediateBinding {
    /// The shortest wait.
    pub base_delay: Duration,
    /// The longest.
    pub max_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace {
                workers: 100,
                timeout: Duration::from_secs(10),
                retry_start: Duration::from_secs(1),
                retry_max: Duration::from_secs(300),
            },
            naming: VolumeNaming::default(),
            default_fstype: String::new(),
            extra_create_metadata: false,
            strict_topology: false,
            immediate_topology: true,
            prevent_volume_mode_conversion: true,
            controller_publish_readonly: false,
            capacity: None,
            immediate_binding: None,
        }
    }
}

/// Runs until the stop. While the lease is lost nothing is done; when it is back, everything is looked at anew, since
/// another process may have worked meanwhile.
pub(crate) async fn run(context: Context, settings: Settings) {
    let own = Arc::new(Own {
        driver: context.driver.name().to_owned(),
        can: *context.driver.can(),
        identity: identity(&context),
        node: context.node.clone(),
        settings,
    });
    let world = World::watch(&context.cluster, &own);
    loop {
        let ready = async {
            context.gate.opened().await;
            world.synced().await;
        };
        tokio::select! {
            biased;
            () = context.gate.stopped() => return,
            () = ready => {}
        }
        term(&context, &own, &world).await;
    }
}

/// From getting the lease to losing it, or to the stop.
async fn term(context: &Context, own: &Arc<Own>, world: &World) {
    let (gate, end) = context.gate.term();
    let context = Context { gate, ..context.clone() };
    let journal = Journal::open(&context).await;
    let queue: Queue<String> = Queue::new("volumes", own.settings.pace.backoff(), context.cluster.metrics());
    for volume in journal.volumes() {
        tracing::info!(volume, "an intent was found: the volume is finished or undone");
        queue.add(volume, Priority::High);
    }
    let mut feeds = feeds(world, &journal, &queue);
    let actor = Actor {
        context: context.clone(),
        own: Arc::clone(own),
        journal: journal.clone(),
        memories: Memories::default(),
        counts: context.metrics.family(Counts::register),
    };
    let working = work(&queue, &context.gate, own.settings.pace.workers, |volume| {
        one(volume, world.clone(), actor.clone())
    });
    let lost = async {
        context.gate.lost().await;
        // Work under way may end in its own time; nothing new begins.
        end.cancel();
        std::future::pending().await
    };
    tokio::select! {
        () = working => {}
        () = lost => {}
    }
    feeds.abort_all();
    journal.flush().await;
}

/// Takes a volume as far as it goes now.
async fn one(volume: String, world: World, actor: Actor) -> Outcome {
    loop {
        if !actor.context.gate.is_open() {
            return Outcome::After(Duration::ZERO);
        }
        let seen = world.see(&volume, &actor.journal, &actor.memories);
        let step = decide(&seen.view(&volume, &world), now());
        match actor.act(&volume, &seen, step).await {
            Progress::Again => {}
            Progress::End(outcome) => return outcome,
        }
    }
}

/// What wakes a volume.
fn feeds(world: &World, journal: &Journal, queue: &Queue<String>) -> JoinSet<()> {
    let mut feeds = JoinSet::new();
    let wish = |key, priority| Wish { key, priority };

    // Claims, for as long as they wait, and once more when they no longer do.
    let of = world.clone();
    feeds.spawn(feed(world.claims.clone(), queue.clone(), move |change| {
        let waited = change.old.as_ref().filter(|old| old.spec.volume_name.is_empty());
        let waits = change.new.as_ref().filter(|new| new.spec.volume_name.is_empty());
        let claim = waits.or(waited);
        claim.and_then(|claim| of.volume_of(claim)).map(|key| wish(key, Priority::High)).into_iter().collect()
    }));

    let (of, intents) = (world.clone(), journal.clone());
    feeds.spawn(feed(world.volumes.clone(), queue.clone(), move |change| {
        let volume = change.new.as_ref().or(change.old.as_ref());
        let Some(volume) = volume.filter(|volume| of.concerns_us(volume, &intents)) else { return Vec::new() };
        let mut wishes = vec![wish(change.key.name.clone(), Priority::Normal)];
        if change.new.is_none() {
            // Others with the same handle waited for it to go.
            let siblings = of.siblings(volume);
            wishes.extend(siblings.iter().map(|other| wish(other.metadata.name.clone(), Priority::Normal)));
        }
        wishes
    }));

    let of = world.clone();
    feeds.spawn(feed(world.classes.clone(), queue.clone(), move |change| {
        let waiting = of.waiting_for_class(&change.key.name);
        waiting.iter().filter_map(|claim| of.volume_of(claim)).map(|key| wish(key, Priority::High)).collect()
    }));

    if let Some(nodes) = &world.nodes {
        let of = world.clone();
        feeds.spawn(feed(nodes.csi_nodes.clone(), queue.clone(), move |change| {
            let driver = of.own.driver.as_str();
            let keys = |node: &Option<Arc<_>>| node.as_ref().map(|node| topology::keys(node, driver).to_vec());
            if keys(&change.old) == keys(&change.new) {
                return Vec::new();
            }
            let waiting = of.waiting();
            waiting.iter().filter_map(|claim| of.volume_of(claim)).map(|key| wish(key, Priority::High)).collect()
        }));
    }

    // A volume waits for its attachments to go.
    if let Some(attachments) = &world.attachments {
        feeds.spawn(feed(attachments.clone(), queue.clone(), move |change: &Change<_>| {
            let gone = change.old.as_ref().filter(|_| change.new.is_none());
            let volume = gone.and_then(|gone| gone.spec.source.persistent_volume_name.clone());
            volume.map(|key| wish(key, Priority::Normal)).into_iter().collect()
        }));
    }
    feeds
}

/// Who made a volume: in the attributes of each, as upstream writes it. Another one for each process.
fn identity(context: &Context) -> String {
    let mut random = [0; 2];
    // Without randomness the time has to do.
    let _ = getrandom::fill(&mut random);
    let random = u16::from_le_bytes(random) % 10_000;
    let mut identity = format!("{}-{random}-{}", now().0, context.driver.name());
    if let Some(node) = &context.node {
        identity = format!("{identity}-{}", node.name);
    }
    identity
}
