//! Nodes that have failed, and the claims of the pods on them: `--enable-node-watcher`.
//!
//! How long a node has not been ready is read from its condition, so a restart of ours does not start the time anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::{EventType, Store, WatchOptions, now};
use wharf_model::names::reason;
use wharf_model::{Key, Node, PersistentVolumeClaim, Pod, Time};

use super::Monitor;
use super::decide::{GAP, REPEAT, is_watched};
use crate::resizer::NOT_ENDED;

/// A node that has not been ready for longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);
/// What stands before the node's name at the end of the note.
const ON_NODE: &str = " are now on a failed node: ";

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is ready.
    Ready,
    /// It is not, but may be soon.
    Doubtful,
    /// It has not been for too long, or is gone.
    Failed,
}

/// Decides how a node stands; `None` is one that the server does not have.
pub(super) fn standing(node: Option<&Node>, now: Time) -> Standing {
    let Some(node) = node else { return Standing::Failed };
    match node.ready {
        Some(ready) if ready.is => Standing::Ready,
        Some(ready) if ready.since.is_some_and(|since| since.plus(PATIENCE) < now) => Standing::Failed,
        _ => Standing::Doubtful,
    }
}

/// Whether it is to be told, or told again.
pub(super) fn is_due(told: Option<Time>, now: Time) -> bool {
    told.is_none_or(|at| at.plus(REPEAT) <= now)
}

/// Upstream's words.
pub(super) fn failed_note(pods: &[&str], claim: &str, namespace: &str, node: &str) -> String {
    let pods: String = pods.iter().map(|pod| format!("{pod} ")).collect();
    format!("Pods: [ {pods}] consuming PVC: {claim} in namespace: {namespace}{ON_NODE}{node}")
}

/// The node that such a note speaks of.
pub(super) fn failed_node(note: &str) -> Option<&str> {
    note.rsplit_once(ON_NODE).map(|(_, node)| node).filter(|node| !node.is_empty())
}

/// The pods on each node, by the claims they use.
type Users = BTreeMap<String, BTreeMap<Key, Vec<String>>>;

fn users(pods: &[Arc<Pod>]) -> Users {
    let mut users = Users::new();
    for pod in pods.iter().filter(|pod| !pod.node_name.is_empty()) {
        let claims = users.entry(pod.node_name.clone()).or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for claim in &pod.claims {
            claims.entry(Key::namespaced(namespace, claim)).or_default().push(pod.metadata.name.clone());
        }
    }
    users
}

/// Looks at nodes from time to time, for as long as it is awaited.
pub(super) async fn watch(monitor: &Monitor, every: Duration) {
    let cluster = &monitor.context.cluster;
    let field_selector = Some(NOT_ENDED.to_owned());
    let pods = cluster.store::<Pod>(WatchOptions { field_selector, ..WatchOptions::default() });
    let nodes = cluster.store::<Node>(WatchOptions::default());
    tokio::join!(pods.synced(), nodes.synced());
    loop {
        if monitor.past().await {
            look(monitor, &nodes, &users(&pods.all())).await;
        }
        tokio::time::sleep(every).await;
    }
}

async fn look(monitor: &Monitor, nodes: &Store<Node>, users: &Users) {
    for (node, claims) in users {
        let mut seen = nodes.get(&Key::cluster(node));
        if seen.is_none() {
            // The store may not have it yet: only the server's word counts.
            match monitor.context.cluster.get::<Node>(&Key::cluster(node)).await {
                Ok(found) => seen = found.map(Arc::new),
                Err(error) => {
                    tracing::warn!(node, %error, "cannot see whether the node is still there");
                    continue;
                }
            }
        }
        match standing(seen.as_deref(), now()) {
            Standing::Doubtful => {}
            Standing::Failed => failed(monitor, node, claims).await,
            Standing::Ready => recovered(monitor, node, claims).await,
        }
    }
    // What no pod on it speaks of any more, nobody waits to hear of.
    for node in monitor.memory.failed_nodes() {
        if !users.contains_key(&node) {
            monitor.memory.take_failed(&node);
        }
    }
}

async fn failed(monitor: &Monitor, node: &str, claims: &BTreeMap<Key, Vec<String>>) {
    for (key, pods) in claims {
        let Some(claim) = watched_claim(monitor, key) else { continue };
        let uid = &claim.metadata.uid;
        if !monitor.context.gate.is_open() || !is_due(monitor.memory.node_failed_at(node, uid), now()) {
            continue;
        }
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let note = failed_note(&pods, &key.name, namespace, node);
        monitor.context.event(&*claim, EventType::Warning, reason::NODE_FAILED, note);
        monitor.memory.node_failed(node, uid, now());
        tokio::time::sleep(GAP).await;
    }
}

async fn recovered(monitor: &Monitor, node: &str, claims: &BTreeMap<Key, Vec<String>>) {
    let told = monitor.memory.take_failed(node);
    for key in claims.keys().filter(|_| !told.is_empty()) {
        let Some(claim) = watched_claim(monitor, key) else { continue };
        if told.contains(&claim.metadata.uid) && monitor.context.gate.is_open() {
            let note = format!("Node: {node} recovered");
            monitor.context.event(&*claim, EventType::Warning, reason::NODE_RECOVERED, note);
            tokio::time::sleep(GAP).await;
        }
    }
}

/// The claim, if its volume is of this driver and ours to speak of.
fn watched_claim(monitor: &Monitor, key: &Key) -> Option<Arc<PersistentVolumeClaim>> {
    let claim = monitor.claims.get(key)?;
    let volume = monitor.volumes.get(&Key::cluster(&claim.spec.volume_name))?;
    let ours = is_watched(&volume, monitor.context.driver.name()) && monitor.is_own(&volume);
    (ours && volume.is_bound_to(&claim.metadata)).then_some(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::node::Ready;

    use super::*;

    /// sidecars.md 1.6 "Node watcher": not ready for more than five minutes, or gone.
    #[test]
    fn how_nodes_stand() {
        let since = Time(1_000_000);
        let node = |ready| Some(Node { ready, ..Node::default() });
        let is = |is| Some(Ready { is, since: Some(since) });
        let (still, over) = (since.plus(PATIENCE), since.plus(PATIENCE + Duration::from_millis(1)));
        for (node, now, expected) in [
            (None, still, Standing::Failed),
            (node(None), over, Standing::Doubtful),
            (node(is(true)), over, Standing::Ready),
            (node(is(false)), still, Standing::Doubtful),
            (node(is(false)), over, Standing::Failed),
            (node(Some(Ready { is: false, since: None })), over, Standing::Doubtful),
        ] {
            assert_eq!(standing(node.as_ref(), now), expected, "{node:?}");
        }
    }

    /// sidecars.md 1.6 "Node watcher": upstream's words, which say the node.
    #[test]
    fn notes() {
        let note = failed_note(&["a", "b"], "data", "shop", "n1");
        let expected = "Pods: [ a b ] consuming PVC: data in namespace: shop are now on a failed node: n1";
        assert_eq!(note, expected);
        assert_eq!(failed_node(&note), Some("n1"));
        for other in ["", "Node: n1 recovered", " are now on a failed node: "] {
            assert_eq!(failed_node(other), None, "{other}");
        }
    }

    #[test]
    fn told_again_after_a_while() {
        let at = Time(5);
        assert!(is_due(None, at));
        assert!(!is_due(Some(at), at.plus(REPEAT - Duration::from_millis(1))));
        assert!(is_due(Some(at), at.plus(REPEAT)));
    }

    #[test]
    fn users_by_node_and_claim() {
        let pod = |name: &str, node: &str, claim: &str| -> Arc<Pod> {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
            let metadata = json!({"name": name, "namespace": "shop"});
            let pod = json!({"metadata": metadata, "spec": {"nodeName": node, "volumes": volumes}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let users =
            users(&[pod("a", "n1", "c1"), pod("b", "n1", "c1"), pod("c", "n2", "c2"), pod("d", "", "c3")]);
        let expected = [
            ("n1".to_owned(), [(Key::namespaced("shop", "c1"), vec!["a".to_owned(), "b".to_owned()])].into()),
            ("n2".to_owned(), [(Key::namespaced("shop", "c2"), vec!["c".to_owned()])].into()),
        ];
        assert_eq!(users, expected.into());
    }
}
