//! The Node object of this machine: that it is there, what it has, and that it is alive.
//!
//! - It is made at the start, or taken over as it is found, with kubelet's labels and annotation.
//! - Its status is written when it changes and every five minutes; who wants to know whether it is alive reads its
//!   lease, which is renewed every ten seconds.
//! - It is ready as long as no part of the agent is in trouble; [`Health`] is where they say so.
//! - Where no node-lifecycle-controller runs, the taint of nodes that are not ready is put on and taken off here.
//!
//! The rules are in `decide`.

mod decide;
mod facts;
mod lease;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use wharf_cluster::work::Gate;
use wharf_cluster::{ApiError, Backoff, Cluster, Store, WatchOptions, now};
use wharf_model::whole::Node;
use wharf_model::{Key, Kind as _};

use decide::{Report, Rules, Step, View, decide};
use facts::Facts;
pub use facts::own_address;

/// What keeps this machine from being ready; clones are the same. Without any trouble it is ready.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<watch::Sender<BTreeMap<&'static str, String>>>);

impl Health {
    /// All is well.
    pub fn new() -> Self {
        Self::default()
    }

    /// A part of the agent says what is wrong with it.
    pub fn trouble(&self, part: &'static str, message: impl Into<String>) {
        let message = message.into();
        self.0.send_if_modified(|parts| parts.insert(part, message.clone()).as_ref() != Some(&message));
    }

    /// Nothing is wrong with a part any more.
    pub fn well(&self, part: &'static str) {
        self.0.send_if_modified(|parts| parts.remove(part).is_some());
    }

    /// All that is wrong, in one sentence; empty is nothing.
    fn sentence(&self) -> String {
        let parts: Vec<String> = self.0.borrow().values().cloned().collect();
        parts.join("; ")
    }
}

/// The Node object of this name, and no other. All who ask for it share one watch.
pub fn store(cluster: &Cluster, node: &str) -> Store<Node> {
    let field_selector = Some(format!("metadata.name={node}"));
    cluster.store(WatchOptions { field_selector, ..WatchOptions::default() })
}

/// What the machine is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name.
    pub node: String,
    /// Whose file system is the node's storage: [`crate::paths::Root::path`].
    pub root: PathBuf,
    /// Where others reach it; without, the address of the default route.
    pub address: Option<IpAddr>,
    /// How many pods fit.
    pub pods: u32,
    /// A Node that somebody deletes is made again. Kubelet makes it again when it is restarted.
    pub register_again: bool,
    /// The taint of nodes that are not ready is seen to here: where no node-lifecycle-controller does.
    pub taints: bool,
    /// How often the status is written without a change.
    pub report_every: Duration,
    /// How often the lease is renewed.
    pub renew_every: Duration,
}

impl Settings {
    /// Kubelet's figures.
    pub fn new(node: impl Into<String>, root: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            root: root.into(),
            address: None,
            pods: 110,
            register_again: false,
            taints: false,
            report_every: Duration::from_secs(300),
            renew_every: Duration::from_secs(10),
        }
    }
}

/// Keeps the Node. Runs until the gate's stop, and leaves the Node as it is: whoever waits for the lease finds out. A node
/// may not change its own taints: that is done under the wider name, where there is one.
pub async fn run(cluster: Cluster, wide: Option<Cluster>, gate: Gate, health: Health, settings: Settings) {
    let wide = wide.unwrap_or_else(|| cluster.clone());
    let nodes = store(&cluster, &settings.node);
    tokio::select! {
        biased;
        () = gate.stopped() => {}
        () = keep(&cluster, &wide, &nodes, &health, &settings) => {}
        () = lease::run(&cluster, &nodes, &settings.node, settings.renew_every) => {}
    }
}

async fn keep(cluster: &Cluster, wide: &Cluster, nodes: &Store<Node>, health: &Health, settings: &Settings) {
    let facts = Facts::read(settings);
    let key = Key::cluster(&*settings.node);
    let &Settings { register_again, taints, report_every, pods, .. } = settings;
    let rules = Rules { register_again, taints, report_every };
    let backoff =
        Backoff { start: Duration::from_millis(200), max: Duration::from_secs(7), ..Backoff::default() };
    let started = Instant::now();
    let mut changes = nodes.changes();
    let mut trouble = health.0.subscribe();
    let (mut known, mut reported, mut failures) = (false, None::<Report>, 0);
    nodes.synced().await;
    loop {
        let node = nodes.get(&key);
        trouble.borrow_and_update();
        let sentence = health.sentence();
        let view = View { node: node.as_deref(), known, reported: reported.as_ref(), trouble: &sentence };
        let elapsed = started.elapsed();
        let report = |uid: &str| Report { uid: uid.to_owned(), at: elapsed, trouble: sentence.clone() };
        let done: Result<(), ApiError> = match (decide(&view, rules, elapsed), &node) {
            (Step::Create, _) => {
                let body = decide::create(&settings.node, &facts, pods, &sentence, now());
                match cluster.create(&Node::API, None, &body).await {
                    Ok(made) => {
                        tracing::info!(node = settings.node, "the Node is registered");
                        reported = made["metadata"]["uid"].as_str().map(report);
                        known = true;
                        Ok(())
                    }
                    // We did not know of it; a look enters the store.
                    Err(ApiError::AlreadyExists(_)) => cluster.get::<Node>(&key).await.map(drop),
                    Err(error) => Err(error),
                }
            }
            (Step::Report, Some(node)) => {
                let patch = decide::report(node, &facts, pods, &sentence, now());
                let written = cluster.patch(&Node::API, &key, Some("status"), patch).await;
                written.map(|_| {
                    reported = Some(report(&node.metadata.uid));
                    known = true;
                })
            }
            (Step::Taint(patch), _) => match wide.patch(&Node::API, &key, None, patch).await {
                // A look enters the store, which is not the one that the answer has entered.
                Ok(_) => cluster.get::<Node>(&key).await.map(drop),
                Err(error) => Err(error),
            },
            (Step::Report, None) => Ok(()),
            (Step::Wait(until), _) => {
                let due = async {
                    match until {
                        Some(until) => sleep_until(started + until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    _ = changes.next() => {}
                    _ = trouble.changed() => {}
                    () = due => {}
                }
                Ok(())
            }
        };
        match done {
            Ok(()) => failures = 0,
            // Another Node of its name, or one that has just changed: a fresh look will do.
            Err(ApiError::Conflict(_)) => {}
            Err(error) => {
                let pause = backoff.after(failures);
                failures += 1;
                tracing::warn!(node = settings.node, %error, again_in = ?pause, "the Node is not written");
                tokio::time::sleep(pause).await;
            }
        }
    }
}
