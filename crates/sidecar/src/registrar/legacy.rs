//! The two modes of the driver-registrar that was there before kubelet registered drivers by itself. Manifests still
//! ask for them; nothing else needs them.
//!
//! - [`Mode::Describe`] keeps the driver's CSIDriver object: made at the start, and again when it is gone, which a
//!   watch tells at once and a look every two minutes without one. Interrupted, it deletes the object.
//! - [`Mode::NodeId`] keeps the driver's id of this node in the Node's annotation, beside those of other drivers, with
//!   a look every two minutes. Interrupted, it takes its own away.
//! - Terminated, as a pod is when it is moved or updated, both leave things as they are.
//! - An API server or a driver that does not answer is asked again; nothing but a configuration that cannot work
//!   ends it.

mod act;
mod decide;
mod view;

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use wharf_cluster::{Cluster, ConnectError, ConnectOptions, Notice, Store, WatchOptions};
use wharf_csi::{Client, Endpoint};
use wharf_model::{CSIDriver, Key};

use super::view::Backoff;
use crate::metrics::Metrics;
use act::{Actor, Known};
use decide::{Step, decide};
use view::View;

pub use view::Leaving;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(120);
/// Between attempts that fail.
const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: LOOK };

/// What it is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's socket.
    pub driver: Endpoint,
    /// How to reach the cluster.
    pub connect: ConnectOptions,
    /// How long the driver may take to answer.
    pub timeout: Duration,
    /// What to keep.
    pub mode: Mode,
}

/// What is kept.
#[derive(Debug, Clone)]
pub enum Mode {
    /// `kubernetes-register`: the CSIDriver object.
    Describe {
        /// Volumes are attached before they are mounted; `None`: if the driver can do that.
        attach_required: Option<bool>,
        /// The driver is told for which pod it mounts.
        pod_info_on_mount: bool,
    },
    /// `node-register` without a socket for kubelet: the Node's annotation.
    NodeId {
        /// This node's name in Kubernetes.
        node: String,
    },
}

/// Keeps it until `stop` says how to end.
pub async fn run(config: Config, stop: impl Future<Output = Leaving>) -> Result<(), ConnectError> {
    let Config { driver, connect, timeout, mode } = config;
    let cluster = Cluster::connect(&connect).await?;
    let client = Client::new(&driver).with_deadline(timeout);
    let actor = Actor { cluster, client, metrics: Metrics::new(), timeout, mode };
    let started = Instant::now();
    let mut view = View { known: false, due: Duration::ZERO, failures: 0, removed: false, leaving: None };
    let mut known: Option<Known> = None;
    let mut gone = None;
    tokio::pin!(stop);
    loop {
        let now = started.elapsed();
        let step = decide(&view, now);
        let doing = async {
            match step {
                Step::Ask => Some(actor.ask(&mut known).await),
                Step::Put => Some(actor.put(known.as_mut()).await),
                Step::Remove => Some(actor.remove(known.as_ref()).await),
                Step::Wait(until) => {
                    tokio::select! {
                        () = sleep_until(started + until) => {}
                        () = vanished(&mut gone) => {}
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
            leaving = &mut stop, if view.leaving.is_none() => {
                view.leaving = Some(leaving);
                // What failed so far says nothing of the end.
                view.failures = 0;
                continue;
            }
            outcome = doing => outcome,
        };
        let now = started.elapsed();
        match outcome {
            // The wait is over: the time has come, or it is gone.
            None => view.due = now,
            Some(Ok(())) => {
                view.failures = 0;
                match step {
                    Step::Ask => view.known = true,
                    Step::Put => view.due = now + LOOK,
                    Step::Remove => view.removed = true,
                    Step::Wait(_) | Step::End => {}
                }
            }
            Some(Err(error)) => {
                view.failures = view.failures.saturating_add(1);
                let pause = RETRY.after(view.failures);
                view.due = now + pause;
                tracing::warn!(%error, again_in = ?pause, "the driver's entry is not as it should be");
            }
        }
        if let (Mode::Describe { .. }, Some(known), None) = (&actor.mode, &known, &gone) {
            gone = Some(watch(&actor.cluster, &known.name));
        }
    }
}

/// A store with the one object in it, and its changes.
struct Watched {
    key: Key,
    store: Store<CSIDriver>,
    changes: wharf_cluster::Changes<CSIDriver>,
}

fn watch(cluster: &Cluster, driver: &str) -> Watched {
    let field_selector = Some(format!("metadata.name={driver}"));
    let store = cluster.store::<CSIDriver>(WatchOptions { field_selector, ..WatchOptions::default() });
    let changes = store.changes();
    Watched { key: Key::cluster(driver), store, changes }
}

/// Waits until the object is seen to be gone; for ever, if it is not watched.
async fn vanished(watched: &mut Option<Watched>) {
    let Some(Watched { key, store, changes }) = watched else { return std::future::pending().await };
    while let Some(notice) = changes.next().await {
        // A resync alone says nothing of an object: only a complete list or its own end does.
        let gone = match notice {
            Notice::Change(change) => change.new.is_none(),
            Notice::Resync => store.served() && store.get(key).is_none(),
        };
        if gone {
            return;
        }
    }
    std::future::pending().await
}
