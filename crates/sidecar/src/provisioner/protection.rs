//! Protects data sources from deletion while volumes are created from them, with upstream's finalizers on cloned claims
//! and restored snapshots.
//!
//! [`protect`] adds the finalizer before CreateVolume. [`run`] removes it when nothing needs the source any more: from
//! a claim once it is being deleted, from a snapshot at once. Guarantees:
//!
//! - No finalizer is removed while a pending claim names the source, or while the journal holds an intent that names
//!   it, even if the claim of that intent is gone.
//! - Leftover finalizers, for example after a crash, are found again: on claims in deletion by the watch, on snapshots
//!   by a periodic sweep.
//! - Without permission to update snapshots, restores run unprotected, as in older upstream releases. That is logged
//!   once and counted.
//!
//! The rules are in [`decide`] and [`wake`]. [`wharf_cluster::finalizer`] updates the objects, since RBAC does not allow
//! patching claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use wharf_cluster::{ApiError, Cluster, Priority, Queue, Store, WatchOptions, finalizer};
use wharf_model::names::finalizer::{CLONING_PROTECTION, SNAPSHOT_SOURCE_PROTECTION};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeSnapshot};

use self::decide::{CloneView, HeldBy, SnapshotView, Step};
use super::Settings;
use super::intent::Intent;
use super::source::{Source, SourceRef, fetch_content};
use crate::context::Context;
use wharf_cluster::work::{WorkOutcome, enqueue_changes, resync, run_workers};

mod decide;
mod wake;

pub(crate) use wharf_cluster::finalizer::ProtectError;

/// The index of pending claims by data source.
const BY_SOURCE: &str = "provisioner/source";
/// How often a source held by an intent is checked again: the end of an intent wakes nothing here.
const INTENT_RECHECK: Duration = Duration::from_secs(5);
/// A source held by a claim is woken when the claim changes. A watch may skip changes under heavy load, so it is also
/// checked at this interval.
const CLAIM_RECHECK: Duration = Duration::from_secs(60);
/// Restored snapshots whose protection is checked concurrently.
const SNAPSHOT_WORKERS: usize = 4;
const ROLE: &str = "provisioner";

/// Protects a source before a volume is created from it.
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
                    context.metrics.get_or_register(ProtectionMetrics::register).forbidden(&error);
                    Ok(())
                }
                added => added,
            }
        }
    }
}

/// Adds the index that [`run`] and [`waiting_for`] need.
pub(crate) fn index(claims: &Store<PersistentVolumeClaim>) {
    claims.add_index(BY_SOURCE, wake::index_values);
}

/// The pending claims that name a source.
pub(crate) fn waiting_for(
    claims: &Store<PersistentVolumeClaim>,
    source: &SourceRef,
) -> Vec<Arc<PersistentVolumeClaim>> {
    claims.by_index(BY_SOURCE, &wake::index_value(source))
}

/// Lists the open intents of the journal.
pub(crate) type Intents = Arc<dyn Fn() -> Vec<Arc<Intent>> + Send + Sync>;

/// Removes finalizers from unused sources until it is dropped or stopped. Both stores must be synced, the claims
/// indexed and the journal loaded before: an unknown pending claim must not count as finished.
pub(crate) async fn run(
    context: Context,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    intents: Intents,
    settings: Settings,
) {
    let Settings { worker_options, orphan_sweep, cloning_protection_threads, .. } = settings;
    let backoff = worker_options.backoff();
    let metrics = context.cluster.metrics();
    let cloned: Queue<Key> = Queue::new("clonesources", backoff, metrics);
    let restored: Queue<Key> = Queue::new("snapshotsources", backoff, metrics);
    let sources = Sources { context: context.clone(), claims: claims.clone(), volumes, intents };
    let of_clones = enqueue_changes(claims.clone(), cloned.clone(), {
        let claims = claims.clone();
        move |change| wake::clone_sources_released_by(change, |key| claims.get(key))
    });
    let in_deletion = {
        let claims = claims.clone();
        move || {
            let all = claims.all();
            all.iter().filter(|claim| wake::may_be_released(claim)).map(|claim| claim.key()).collect()
        }
    };
    let resync = resync(cloned.clone(), worker_options.resync, in_deletion);
    let clones = run_workers(&cloned, &context.gate, cloning_protection_threads, |key| {
        sources.clone().reconcile_claim(key)
    });
    let snapshots = async {
        if !context.driver.capabilities().create_delete_snapshot {
            return;
        }
        tokio::join!(
            enqueue_changes(claims.clone(), restored.clone(), wake::snapshots_released_by),
            run_workers(&restored, &context.gate, SNAPSHOT_WORKERS, |key| sources
                .clone()
                .reconcile_snapshot(key)),
            sweep(&context, &restored, orphan_sweep),
        );
    };
    tokio::select! {
        biased;
        ((), (), (), ()) = async { tokio::join!(of_clones, clones, snapshots, resync) } => {}
        () = context.gate.wait_stopped() => {}
    }
}

/// Periodically lists the snapshots with our finalizer: a watch of all snapshots is not worth it.
async fn sweep(context: &Context, queue: &Queue<Key>, every: Option<Duration>) {
    let Some(every) = every else { return };
    loop {
        context.gate.wait_open().await;
        match context.cluster.list::<VolumeSnapshot>(&WatchOptions::default()).await {
            Ok(listed) => {
                let protected =
                    |snapshot: &&VolumeSnapshot| snapshot.metadata.has_finalizer(SNAPSHOT_SOURCE_PROTECTION);
                for snapshot in listed.items.iter().filter(protected) {
                    queue.add(snapshot.key(), Priority::Low);
                }
            }
            Err(ApiError::NotServed(_)) => {}
            Err(error @ ApiError::Forbidden(_)) => {
                context.metrics.get_or_register(ProtectionMetrics::register).forbidden(&error)
            }
            Err(error) => tracing::warn!(%error, "failed to list snapshots with leftover finalizers"),
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
    fn waiting(&self, source: &SourceRef) -> Vec<Arc<PersistentVolumeClaim>> {
        waiting_for(&self.claims, source)
    }

    /// Reconciles the finalizer of a claim that may have been cloned.
    async fn reconcile_claim(self, key: Key) -> WorkOutcome {
        let Some(claim) = self.claims.get(&key) else { return WorkOutcome::Done };
        let volume = self.volumes.get(&Key::cluster(claim.spec.volume_name.as_str()));
        let step = decide::decide_clone(&CloneView {
            claim: &claim,
            volume: volume.as_deref(),
            waiting: &self.waiting(&SourceRef::Claim(key.clone())),
            intents: &(self.intents)(),
            driver: self.context.driver.name(),
            node: self.context.node.as_ref(),
        });
        match step {
            Step::Idle => WorkOutcome::Done,
            Step::Wait(holder) => wait_for_holder(&key, holder),
            Step::Remove => {
                let api = &PersistentVolumeClaim::API;
                let uid = &claim.metadata.uid;
                self.after_removal(
                    &key,
                    finalizer::remove(self.cluster(), api, &key, uid, CLONING_PROTECTION).await,
                )
            }
        }
    }

    /// Reconciles the finalizer of a snapshot that may have been restored.
    async fn reconcile_snapshot(self, key: Key) -> WorkOutcome {
        match self.release(&key).await {
            Ok(outcome) => outcome,
            // The next sweep tries again.
            Err(error @ ApiError::Forbidden(_)) => {
                self.context.metrics.get_or_register(ProtectionMetrics::register).forbidden(&error);
                WorkOutcome::Done
            }
            Err(error) => self.after_removal(&key, Err(error)),
        }
    }

    async fn release(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let Some(snapshot) = self.cluster().get::<VolumeSnapshot>(key).await? else {
            return Ok(WorkOutcome::Done);
        };
        if !snapshot.metadata.has_finalizer(SNAPSHOT_SOURCE_PROTECTION) {
            return Ok(WorkOutcome::Done);
        }
        let content = fetch_content(self.cluster(), &snapshot).await?;
        let source = SourceRef::Snapshot(key.clone());
        let step = decide::decide_snapshot(&SnapshotView {
            snapshot: &snapshot,
            content: content.as_ref(),
            waiting: &self.waiting(&source),
            intents: &(self.intents)(),
            driver: self.context.driver.name(),
        });
        match step {
            Step::Idle => return Ok(WorkOutcome::Done),
            Step::Wait(holder) => return Ok(wait_for_holder(key, holder)),
            Step::Remove => {}
        }
        let (api, uid) = (&VolumeSnapshot::API, &snapshot.metadata.uid);
        finalizer::remove(self.cluster(), api, key, uid, SNAPSHOT_SOURCE_PROTECTION).await?;
        // A new claim may have relied on the finalizer just before it was removed: add it again. If the snapshot
        // cannot be protected any more, CreateVolume reports whether it can still be restored.
        if !self.waiting(&source).is_empty() {
            let added = finalizer::add(self.cluster(), api, key, uid, SNAPSHOT_SOURCE_PROTECTION).await;
            tracing::debug!(snapshot = %key, ?added, "snapshot is needed again; added finalizer back");
        }
        Ok(self.after_removal(key, Ok(())))
    }

    fn cluster(&self) -> &Cluster {
        &self.context.cluster
    }

    fn after_removal(&self, key: &Key, removed: Result<(), ApiError>) -> WorkOutcome {
        match removed {
            Ok(()) => {
                tracing::info!(%key, "removed protection finalizer from unused data source");
                self.context.attempts.remove(ROLE, &key.to_string());
                WorkOutcome::Done
            }
            // It was deleted.
            Err(ApiError::NotFound(_)) => WorkOutcome::Done,
            Err(error) => {
                tracing::warn!(%key, %error, "failed to remove protection finalizer from data source; retrying");
                let step = "remove protection finalizer";
                self.context.attempts.record(ROLE, &key.to_string(), step, Some(error.to_string()));
                WorkOutcome::Retry
            }
        }
    }
}

fn wait_for_holder(source: &Key, holder: HeldBy) -> WorkOutcome {
    tracing::debug!(key = %source, ?holder, "data source is still in use");
    match holder {
        HeldBy::Claim(_) => WorkOutcome::RetryAfter(CLAIM_RECHECK),
        HeldBy::Intent(_) => WorkOutcome::RetryAfter(INTENT_RECHECK),
    }
}

/// Metrics of source protection.
#[derive(Clone)]
struct ProtectionMetrics {
    forbidden: Counter,
    warned: Arc<AtomicBool>,
}

impl ProtectionMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self { forbidden: Counter::default(), warned: Arc::default() };
        registry.register(
            "wharf_provisioner_protection_forbidden",
            "Times that RBAC did not allow updating a snapshot's protection finalizer",
            metrics.forbidden.clone(),
        );
        metrics
    }

    fn forbidden(&self, error: &ApiError) {
        self.forbidden.inc();
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "cannot protect snapshots from deletion during restores: grant get, list and update on volumesnapshots"
            );
        }
    }
}
