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
use wharf_cluster::{Change, Priority, Queue, now};
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, topology};

use self::act::{Actor, Memories, Progress, ROLE};
use self::capacity::CapacityHandle;
use self::decide::decide;
use self::journal::Journal;
use self::metrics::Counts;
use self::view::Own;
use self::world::World;
use crate::context::Context;
use wharf_cluster::work::{Outcome, Wish, feed, work};

mod act;
mod capacity;
mod claiming;
mod decide;
mod intent;
mod journal;
mod metrics;
mod protection;
mod reclaim;
mod request;
mod settings;
#[cfg(test)]
mod simulation;
mod source;
#[cfg(test)]
mod testing;
mod view;
mod volume;
mod world;

pub use settings::{CapacitySettings, ImmediateBinding, Settings};

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
    let capacity = CapacityHandle::default();
    let rooms = async {
        if let Some(settings) = own.settings.capacity.clone() {
            capacity::run(context.clone(), own.settings.pace, settings, capacity.clone()).await;
        }
    };
    let terms = async {
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
            term(&context, &own, &world, &capacity).await;
        }
    };
    tokio::join!(terms, rooms);
}

/// From getting the lease to losing it, or to the stop.
async fn term(context: &Context, own: &Arc<Own>, world: &World, capacity: &CapacityHandle) {
    let (gate, end) = context.gate.term();
    let context = Context { gate, ..context.clone() };
    let journal = Journal::open(&context).await;
    let queue: Queue<String> = Queue::new("volumes", own.settings.pace.backoff(), context.cluster.metrics());
    let mut beside = feeds(&context, world, &journal, &queue);
    let intents = journal.clone();
    beside.spawn(protection::run(
        context.clone(),
        world.claims.clone(),
        world.volumes.clone(),
        Arc::new(move || intents.volumes().iter().filter_map(|volume| intents.get(volume)).collect()),
        own.settings.pace.backoff(),
        own.settings.orphan_sweep,
    ));
    let actor = Actor {
        context: context.clone(),
        own: Arc::clone(own),
        journal: journal.clone(),
        memories: Memories::default(),
        counts: context.metrics.family(Counts::register),
        capacity: capacity.clone(),
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
        biased;
        () = working => {}
        () = lost => {}
    }
    beside.abort_all();
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
fn feeds(context: &Context, world: &World, journal: &Journal, queue: &Queue<String>) -> JoinSet<()> {
    let mut feeds = JoinSet::new();
    let wish = |key, priority| Wish { key, priority };

    // Claims, for as long as they wait, and once more when they no longer do; and those that wait for a clone of one
    // that is bound now.
    let (of, attempts) = (world.clone(), context.attempts.clone());
    feeds.spawn(feed(world.claims.clone(), queue.clone(), move |change| {
        if change.new.is_none() {
            attempts.forget(ROLE, &change.key.to_string());
        }
        let waited = change.old.as_ref().filter(|old| old.spec.volume_name.is_empty());
        let waits = change.new.as_ref().filter(|new| new.spec.volume_name.is_empty());
        let clones = match became(change, |claim| claim.status.phase == ClaimPhase::Bound) {
            true => of.waiting_for_clone_of(&change.key),
            false => Vec::new(),
        };
        let claims = waits.or(waited).into_iter().chain(&clones);
        claims.filter_map(|claim| of.volume_of(claim)).map(|key| wish(key, Priority::High)).collect()
    }));

    let (of, intents) = (world.clone(), journal.clone());
    feeds.spawn(feed(world.volumes.clone(), queue.clone(), move |change| {
        let volume = change.new.as_ref().or(change.old.as_ref());
        let Some(volume) = volume.filter(|volume| of.concerns_us(volume, &intents)) else {
            return Vec::new();
        };
        let mut wishes = vec![wish(change.key.name.clone(), Priority::Normal)];
        // Others with the same handle wait for it to go, or for its policy to say so.
        let siblings = of.siblings(volume);
        let others = siblings.iter().filter(|other| other.metadata.name != change.key.name);
        wishes.extend(others.map(|other| wish(other.metadata.name.clone(), Priority::Normal)));
        // Its claim may be told to be bound before it is itself: a clone needs both.
        if let (true, Some(claim)) = (became(change, is_bound), &volume.spec.claim_ref) {
            let clones = of.waiting_for_clone_of(&claim.key());
            wishes.extend(
                clones.iter().filter_map(|claim| of.volume_of(claim)).map(|key| wish(key, Priority::High)),
            );
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
            let keys =
                |node: &Option<Arc<_>>| node.as_ref().map(|node| topology::keys(node, driver).to_vec());
            if keys(&change.old) == keys(&change.new) {
                return Vec::new();
            }
            // Others' pauses do not end because some node joins.
            let waiting = of.waiting();
            waiting
                .iter()
                .filter(|claim| may_use(claim, &change.key.name))
                .filter_map(|claim| of.volume_of(claim))
                .map(|key| wish(key, Priority::High))
                .collect()
        }));
    }

    let (intents, found) = (journal.clone(), queue.clone());
    feeds.spawn(async move {
        loop {
            for volume in intents.found().await {
                tracing::info!(volume, "an intent was found: the volume is finished or undone");
                found.add(volume, Priority::High);
            }
        }
    });

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

/// Whether a claim may have waited for this node: the one chosen for it, or any, if none is.
fn may_use(claim: &PersistentVolumeClaim, node: &str) -> bool {
    claim.selected_node().is_none_or(|selected| selected == node)
}

/// Whether an object is now, and was not before.
fn became<K>(change: &Change<K>, is: impl Fn(&K) -> bool) -> bool {
    let holds = |object: &Option<Arc<K>>| object.as_ref().is_some_and(|object| is(object));
    holds(&change.new) && !holds(&change.old)
}

fn is_bound(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Bound
}

/// Who made a volume: in the attributes of each, as upstream writes it. Another one for each process.
fn identity(context: &Context) -> String {
    let mut random = [0; 2];
    // Without randomness the time has to do.
    let _ = wharf_model::chance::fill(&mut random);
    let random = u16::from_le_bytes(random) % 10_000;
    let mut identity = format!("{}-{random}-{}", now().0, context.driver.name());
    if let Some(node) = &context.node {
        identity = format!("{identity}-{}", node.name);
    }
    identity
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provisioner::testing::claim;

    #[test]
    fn a_node_that_joins_ends_only_the_pauses_that_it_may_have_caused() {
        let chosen = |node: &str| {
            claim(json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}))
        };
        for (claim, expected) in [(claim(json!({})), true), (chosen("a"), true), (chosen("b"), false)] {
            assert_eq!(may_use(&claim, "a"), expected, "{claim:?}");
        }
    }
}
