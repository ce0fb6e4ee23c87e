//! The Node object of this machine: registration, status and heartbeat.
//!
//! - The Node is created at start, or adopted as found, with kubelet's labels and annotation.
//! - Its status is written when it changes and every five minutes; the heartbeat is its lease, renewed every ten
//!   seconds.
//! - The node is ready as long as no component of the agent reports a problem to [`Health`].
//! - Its taints are those of the node-lifecycle-controller. If that has set the node to Unknown, the status is written
//!   at once.
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
use wharf_model::Node;
use wharf_model::{Key, Kind as _};

use decide::{Report, Rules, Step, View, decide};
use facts::Facts;
pub use facts::own_address;

/// Problems that keep this node from being ready; clones share the same set. Without any, the node is ready.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<watch::Sender<BTreeMap<&'static str, String>>>);

impl Health {
    /// No problems.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports a component's problem.
    pub fn report_problem(&self, component: &'static str, message: impl Into<String>) {
        let message = message.into();
        self.0.send_if_modified(|parts| parts.insert(component, message.clone()).as_ref() != Some(&message));
    }

    /// Clears a component's problem.
    pub fn clear_problem(&self, component: &'static str) {
        self.0.send_if_modified(|parts| parts.remove(component).is_some());
    }

    /// All problems as one message; empty if there are none.
    fn message(&self) -> String {
        let parts: Vec<String> = self.0.borrow().values().cloned().collect();
        parts.join("; ")
    }
}

/// A store of this one Node object. All callers share one watch.
pub fn store(cluster: &Cluster, node: &str) -> Store<Node> {
    let field_selector = Some(format!("metadata.name={node}"));
    cluster.store(WatchOptions { field_selector, ..WatchOptions::default() })
}

/// Settings of the Node object.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name.
    pub node: String,
    /// The directory whose file system is the node's ephemeral storage: [`crate::paths::Root::path`].
    pub root: PathBuf,
    /// The node's address; by default the source address of the default route.
    pub address: Option<IpAddr>,
    /// Maximum number of pods.
    pub pods: u32,
    /// Create the Node again if it is deleted. Kubelet does so only when it restarts.
    pub recreate_node: bool,
    /// Interval of status updates without a change.
    pub report_every: Duration,
    /// Interval of lease renewals.
    pub renew_every: Duration,
}

impl Settings {
    /// Kubelet's defaults.
    pub fn new(node: impl Into<String>, root: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            root: root.into(),
            address: None,
            pods: 110,
            recreate_node: false,
            report_every: Duration::from_secs(300),
            renew_every: Duration::from_secs(10),
        }
    }
}

/// Maintains the Node until the gate stops it, and leaves the Node as it is: its lease expires.
pub async fn run(cluster: Cluster, gate: Gate, health: Health, settings: Settings) {
    let nodes = store(&cluster, &settings.node);
    tokio::select! {
        biased;
        () = gate.wait_stopped() => {}
        () = maintain(&cluster, &nodes, &health, &settings) => {}
        () = lease::run(&cluster, &nodes, &settings.node, settings.renew_every) => {}
    }
}

async fn maintain(cluster: &Cluster, nodes: &Store<Node>, health: &Health, settings: &Settings) {
    let facts = Facts::read(settings);
    let key = Key::cluster(&*settings.node);
    let &Settings { recreate_node, report_every, pods, .. } = settings;
    let rules = Rules { recreate_node, report_every };
    let backoff =
        Backoff { start: Duration::from_millis(200), max: Duration::from_secs(7), ..Backoff::default() };
    let started = Instant::now();
    let mut changes = nodes.subscribe();
    let mut problems = health.0.subscribe();
    let (mut known, mut reported, mut failures) = (false, None::<Report>, 0);
    nodes.wait_synced().await;
    loop {
        let node = nodes.get(&key);
        problems.borrow_and_update();
        let message = health.message();
        let view = View { node: node.as_deref(), known, reported: reported.as_ref(), problem: &message };
        let elapsed = started.elapsed();
        let report = |uid: &str| Report { uid: uid.to_owned(), at: elapsed, problem: message.clone() };
        let done: Result<(), ApiError> = match (decide(&view, rules, elapsed), &node) {
            (Step::Create, _) => {
                let body = decide::create(&settings.node, &facts, pods, &message, now());
                match cluster.create(&Node::API, None, &body).await {
                    Ok(made) => {
                        tracing::info!(node = settings.node, "registered node");
                        reported = made["metadata"]["uid"].as_str().map(report);
                        known = true;
                        Ok(())
                    }
                    // It exists but is not in the store yet: a GET adds it.
                    Err(ApiError::AlreadyExists(_)) => cluster.get::<Node>(&key).await.map(drop),
                    Err(error) => Err(error),
                }
            }
            (Step::Report, Some(node)) => {
                let patch = decide::report(node, &facts, pods, &message, now());
                let written = cluster.patch(&Node::API, &key, Some("status"), patch).await;
                written.map(|_| {
                    reported = Some(report(&node.metadata.uid));
                    known = true;
                })
            }
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
                    _ = problems.changed() => {}
                    () = due => {}
                }
                Ok(())
            }
        };
        match done {
            Ok(()) => failures = 0,
            // The Node was replaced or changed: decide again.
            Err(ApiError::Conflict(_)) => {}
            Err(error) => {
                let pause = backoff.delay(failures);
                failures += 1;
                tracing::warn!(node = settings.node, %error, retry_in = ?pause, "failed to write Node; retrying");
                tokio::time::sleep(pause).await;
            }
        }
    }
}
