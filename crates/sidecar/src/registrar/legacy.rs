//! The two modes of the legacy driver-registrar, from before kubelet registered drivers itself. Only old manifests
//! need them.
//!
//! - `Mode::CsiDriverObject` maintains the driver's CSIDriver object: it is created at the start and re-created
//!   when it is deleted, which is noticed through a watch or at the latest by a check every two minutes. On SIGINT
//!   the object is deleted.
//! - `Mode::NodeAnnotation` maintains the driver's node ID in the Node's annotation, next to those of other
//!   drivers, with a check every two minutes. On SIGINT its own entry is removed.
//! - On SIGTERM, as when a pod is moved or updated, both leave everything in place.
//! - Calls to an API server or driver that does not respond are retried. Only a configuration that cannot work ends
//!   it.

mod act;
mod decide;
mod view;

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use wharf_cluster::{Backoff, Cluster, ConnectError, ConnectOptions, Store, StoreEvent, WatchOptions};
use wharf_csi::{Client, Endpoint};
use wharf_model::{CSIDriver, Key};

use crate::metrics::Metrics;
use act::{Actor, DriverEntry};
use decide::{Step, decide};
use view::View;

pub use view::StopReason;

/// Interval between two checks.
const RECHECK_INTERVAL: Duration = Duration::from_secs(120);
/// Backoff after failures.
const RETRY: Backoff = Backoff::without_jitter(Duration::from_secs(1), RECHECK_INTERVAL);

/// Configuration of a legacy mode.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's socket.
    pub driver: Endpoint,
    /// How to connect to the cluster.
    pub connect: ConnectOptions,
    /// Timeout of calls to the driver.
    pub timeout: Duration,
    /// What to maintain.
    pub mode: Mode,
}

/// What to maintain.
#[derive(Debug, Clone)]
pub enum Mode {
    /// `kubernetes-register`: the CSIDriver object.
    CsiDriverObject {
        /// Sets `attachRequired`; `None`: if the driver supports ControllerPublishVolume.
        attach_required: Option<bool>,
        /// Sets `podInfoOnMount`.
        pod_info_on_mount: bool,
    },
    /// `node-register` without a socket for kubelet: the Node's annotation.
    NodeAnnotation {
        /// The name of this Node.
        node: String,
    },
}

/// Maintains the entry until `stop` returns the reason to stop.
pub async fn run(config: Config, stop: impl Future<Output = StopReason>) -> Result<(), ConnectError> {
    let Config { driver, connect, timeout, mode } = config;
    let cluster = Cluster::connect(&connect).await?;
    let client = Client::new(&driver).with_deadline(timeout);
    let actor = Actor { cluster, client, metrics: Metrics::new(), timeout, mode };
    let started = Instant::now();
    let mut view =
        View { discovered: false, due: Duration::ZERO, failures: 0, removed: false, stop_reason: None };
    let mut entry: Option<DriverEntry> = None;
    let mut watched = None;
    tokio::pin!(stop);
    loop {
        let now = started.elapsed();
        let step = decide(&view, now);
        let action = async {
            match step {
                Step::Discover => Some(actor.discover(&mut entry).await),
                Step::Ensure => Some(actor.ensure(entry.as_mut()).await),
                Step::Remove => Some(actor.remove(entry.as_ref()).await),
                Step::Wait(until) => {
                    tokio::select! {
                        () = sleep_until(started + until) => {}
                        () = wait_until_deleted(&mut watched) => {}
                    }
                    None
                }
                Step::End => None,
            }
        };
        if step == Step::End {
            return Ok(());
        }
        let outcome = tokio::select! {
            stop_reason = &mut stop, if view.stop_reason.is_none() => {
                view.stop_reason = Some(stop_reason);
                // Earlier failures do not count for the removal.
                view.failures = 0;
                continue;
            }
            outcome = action => outcome,
        };
        let now = started.elapsed();
        match outcome {
            // The recheck is due, or the object was deleted.
            None => view.due = now,
            Some(Ok(())) => {
                view.failures = 0;
                match step {
                    Step::Discover => view.discovered = true,
                    Step::Ensure => view.due = now + RECHECK_INTERVAL,
                    Step::Remove => view.removed = true,
                    Step::Wait(_) | Step::End => {}
                }
            }
            Some(Err(error)) => {
                view.failures = view.failures.saturating_add(1);
                let pause = RETRY.after(view.failures);
                view.due = now + pause;
                tracing::warn!(?step, %error, retry_in = ?pause, "failed to update CSIDriver object or node ID annotation; retrying");
            }
        }
        if let (Mode::CsiDriverObject { .. }, Some(entry), None) = (&actor.mode, &entry, &watched) {
            watched = Some(watch(&actor.cluster, &entry.name));
        }
    }
}

/// A store with the one object, and its changes.
struct Watched {
    key: Key,
    store: Store<CSIDriver>,
    changes: wharf_cluster::Subscription<CSIDriver>,
}

fn watch(cluster: &Cluster, driver: &str) -> Watched {
    let field_selector = Some(format!("metadata.name={driver}"));
    let store = cluster.store::<CSIDriver>(WatchOptions { field_selector, ..WatchOptions::default() });
    let changes = store.subscribe();
    Watched { key: Key::cluster(driver), store, changes }
}

/// Waits until the object is deleted; never returns if it is not watched.
async fn wait_until_deleted(watched: &mut Option<Watched>) {
    let Some(Watched { key, store, changes }) = watched else { return std::future::pending().await };
    while let Some(notice) = changes.next().await {
        // A resync alone proves nothing: only a complete list or a deletion event does.
        let deleted = match notice {
            StoreEvent::Change(change) => change.new.is_none(),
            StoreEvent::Resync => store.is_synced() && store.get(key).is_none(),
        };
        if deleted {
            return;
        }
    }
    std::future::pending().await
}
