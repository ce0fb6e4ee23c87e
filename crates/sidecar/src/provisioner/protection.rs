//! Sources that volumes are made from are not deleted meanwhile: upstream's finalizers on claims that are cloned and
//! on snapshots that are restored from.
//!
//! [`protect`] puts one on before the driver is asked; [`run`] takes it off when nobody needs the source any more:
//! from a claim once it is to be deleted, from a snapshot at once. Promises:
//!
//! - No finalizer goes while a claim waits to be made from the source, or while the journal holds an intent that
//!   names it, also if that intent's claim is gone.
//! - Whatever is forgotten (a crash, a claim deleted in between) is found again: claims in deletion by the watch,
//!   snapshots by a sweep.
//! - Without permission to change snapshots they are restored from unprotected, as by older releases upstream; that
//!   is said once, and counted.
//!
//! Rules in [`decide`] and [`wake`], edits of raw objects in [`crate::finalizer`]: there is no permission to patch
//! claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use wharf_cluster::{ApiError, Backoff, Cluster, Priority, Queue, Store, WatchOptions};
use wharf_model::names::finalizer::{CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot};

use self::decide::{CloneView, Hold, SnapshotView, Step};
use super::intent::Intent;
use super::source::{Named, Source, content_of};
use crate::context::Context;
use crate::finalizer;
use wharf_cluster::work::{Outcome, feed, work};

mod decide;
mod wake;

pub(crate) use crate::finalizer::ProtectError;

/// Claims that wait for their volumes, by the source that these are to be made from.
const BY_SOURCE: &str = "provisioner/source";
/// How often an intent that holds a source is looked for again; its end is not told to us.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// A claim that holds a source wakes us by its change. A change may be left out when very many come at once, so one
/// looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Sources looked at once.
const WORKERS: usize = 4;
const ROLE: &str = "provisioner";

/// Protects a source before a volume is made from it.
pub(crate) async fn protect(context: &Context, source: &Source) -> Result<(), ProtectError> {
    let cluster = &context.cluster;
    match source {
        Source::None | Source::Foreign => Ok(()),
        Source::Volume { claim, uid, .. } => {
            finalizer::add(cluster, &PersistentVolumeClaim::API, claim, uid, CLONING_PROTECTION).await
        }
        Source::Snapshot { snapshot, uid, .. } => {
            let added =
                finalizer::add(cluster, &VolumeSnapshot::API, snapshot, uid, SNAPSHOT_SOURCE_PROTECTION)
                    .await;
            match added {
                Err(ProtectError::Api(error @ ApiError::Forbidden(_))) => {
                    context.metrics.family(Counts::register).forbidden(&error);
                    Ok(())
                }
                added => added,
            }
        }
    }
}

/// Adds the index that [`run`] and [`waiting_for`] need.
pub(crate) fn index(claims: &Store<PersistentVolumeClaim>) {
    claims.index(BY_SOURCE, wake::values);
}

/// The claims that wait for volumes made from a source.
pub(crate) fn waiting_for(
    claims: &Store<PersistentVolumeClaim>,
    source: &Named,
) -> Vec<Arc<PersistentVolumeClaim>> {
    claims.by_index(BY_SOURCE, &wake::value(source))
}

/// What is under way, from the journal.
pub(crate) type Intents = Arc<dyn Fn() -> Vec<Arc<Intent>> + Send + Sync>;

/// Takes finalizers off sources that nobody needs any more, until it is dropped or stopped. Both stores must have
/// been listed, the claims indexed and the journal read before: what is not known to wait must not be taken for done.
pub(crate) async fn run(
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    intents: Intents,
    backoff: Backoff,
    sweep_every: Option<Duration>,
) {
    let metrics = context.cluster.metrics();
    let cloned: Queue<Key> = Queue::new("clonesources", backoff, metrics);
    let restored: Queue<Key> = Queue::new("snapshotsources", backoff, metrics);
    let sources = Sources { context: context.clone(), claims: claims.clone(), volumes, intents };
    let of_clones = feed(claims.clone(), cloned.clone(), {
        let claims = claims.clone();
        move |change| wake::cloned_by(change, |key| claims.get(key))
    });
    let clones = work(&cloned, &context.gate, WORKERS, |key| sources.clone().claim(key));
    let snapshots = async {
        if !context.driver.can().create_delete_snapshot {
            return;
        }
        tokio::join!(
            feed(claims.clone(), restored.clone(), wake::restored_by),
            work(&restored, &context.gate, WORKERS, |key| sources.clone().snapshot(key)),
            sweep(&context, &restored, sweep_every),
        );
    };
    tokio::select! {
        biased;
        ((), (), ()) = async { tokio::join!(of_clones, clones, snapshots) } => {}
        () = context.gate.stopped() => {}
    }
}

/// Looks for snapshots with our finalizer, again and again: a watch of all snapshots is not worth it.
async fn sweep(context: &Context, queue: &Queue<Key>, every: Option<Duration>) {
    let Some(every) = every else { return };
    loop {
        context.gate.opened().await;
        match context.cluster.list::<VolumeSnapshot>(&WatchOptions::default()).await {
            Ok(listed) => {
                let protected =
                    |snapshot: &&VolumeSnapshot| snapshot.metadata.has_finalizer(SNAPSHOT_SOURCE_PROTECTION);
                for snapshot in listed.items.iter().filter(protected) {
                    queue.add(snapshot.key(), Priority::Low);
                }
            }
            Err(ApiError::NotServed(_)) => {}
            Err(error @ ApiError::Forbidden(_)) => context.metrics.family(Counts::register).forbidden(&error),
            Err(error) => tracing::warn!(%error, "cannot look for snapshots that are protected in vain"),
        }
        sleep(every).await;
    }
}

/// What the workers share.
#[derive(Clone)]
struct Sources {
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    intents: Intents,
}

impl Sources {
    fn waiting(&self, source: &Named) -> Vec<Arc<PersistentVolumeClaim>> {
        waiting_for(&self.claims, source)
    }

    /// A claim that may have been cloned.
    async fn claim(self, key: Key) -> Outcome {
        let Some(claim) = self.claims.get(&key) else { return Outcome::Done };
        let volume = self.volumes.get(&Key::cluster(claim.spec.volume_name.as_str()));
        let step = decide::cloned(&CloneView {
            claim: &claim,
            volume: volume.as_deref(),
            waiting: &self.waiting(&Named::Claim(key.clone())),
            intents: &(self.intents)(),
            driver: self.context.driver.name(),
            own: self.context.node.as_ref(),
        });
        match step {
            Step::Nothing => Outcome::Done,
            Step::Wait(hold) => held(&key, hold),
            Step::Remove => {
                let api = &PersistentVolumeClaim::API;
                let uid = &claim.metadata.uid;
                self.ended(&key, finalizer::remove(self.cluster(), api, &key, uid, CLONING_PROTECTION).await)
            }
        }
    }

    /// A snapshot that may have been restored from.
    async fn snapshot(self, key: Key) -> Outcome {
        match self.release(&key).await {
            Ok(outcome) => outcome,
            // The next sweep finds it again.
            Err(error @ ApiError::Forbidden(_)) => {
                self.context.metrics.family(Counts::register).forbidden(&error);
                Outcome::Done
            }
            Err(error) => self.ended(&key, Err(error)),
        }
    }

    async fn release(&self, key: &Key) -> Result<Outcome, ApiError> {
        let Some(snapshot) = self.cluster().get::<VolumeSnapshot>(key).await? else {
            return Ok(Outcome::Done);
        };
        if !snapshot.metadata.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
            return Ok(Outcome::Done);
        }
        let content = content_of(self.cluster(), &snapshot).await?;
        let source = Named::Snapshot(key.clone());
        let step = decide::restored(&SnapshotView {
            snapshot: &snapshot,
            content: content.as_ref(),
            waiting: &self.waiting(&source),
            intents: &(self.intents)(),
            driver: self.context.driver.name(),
        });
        match step {
            Step::Nothing => return Ok(Outcome::Done),
            Step::Wait(hold) => return Ok(held(key, hold)),
            Step::Remove => {}
        }
        let (api, uid) = (&VolumeSnapshot::API, &snapshot.metadata.uid);
        finalizer::remove(self.cluster(), api, key, uid, SNAPSHOT_SOURCE_PROTECTION).await?;
        // A claim may have come meanwhile and found the finalizer still there. If the snapshot cannot be protected
        // any more, the driver will say what it can still do.
        if !self.waiting(&source).is_empty() {
            let added = finalizer::add(self.cluster(), api, key, uid, SNAPSHOT_SOURCE_PROTECTION).await;
            tracing::debug!(snapshot = %key, ?added, "the snapshot is needed again");
        }
        Ok(self.ended(key, Ok(())))
    }

    fn cluster(&self) -> &Cluster {
        &self.context.cluster
    }

    fn ended(&self, key: &Key, removed: Result<(), ApiError>) -> Outcome {
        match removed {
            Ok(()) => {
                tracing::info!(source = %key, "the source is no longer protected: nothing is made from it");
                self.context.attempts.forget(ROLE, &key.to_string());
                Outcome::Done
            }
            // It is gone.
            Err(ApiError::NotFound(_)) => Outcome::Done,
            Err(error) => {
                tracing::warn!(source = %key, %error, "the source's finalizer could not be removed, trying again");
                let step = "end the protection of the source";
                self.context.attempts.note(ROLE, &key.to_string(), step, Some(error.to_string()));
                Outcome::Retry
            }
        }
    }
}

fn held(source: &Key, hold: Hold) -> Outcome {
    tracing::debug!(%source, ?hold, "the source stays protected");
    match hold {
        Hold::Claim(_) => Outcome::After(LOOK_AGAIN),
        Hold::Intent(_) => Outcome::After(ASK_AGAIN),
    }
}

/// What is counted here.
#[derive(Clone)]
struct Counts {
    forbidden: Counter,
    told: Arc<AtomicBool>,
}

impl Counts {
    fn register(registry: &mut Registry) -> Self {
        let counts = Self { forbidden: Counter::default(), told: Arc::default() };
        registry.register(
            "wharf_provisioner_protection_forbidden",
            "Times that a snapshot could not be protected or released for want of permission",
            counts.forbidden.clone(),
        );
        counts
    }

    fn forbidden(&self, error: &ApiError) {
        self.forbidden.inc();
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "snapshots may be deleted while they are restored from: grant get, list and update of volumesnapshots"
            );
        }
    }
}
