//! Failed nodes and the claims of the pods on them (`--enable-node-watcher`).
//!
//! How long a node has not been ready is computed from its condition, so that a restart does not reset the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::{EventType, Store, WatchOptions, monotonic, now};
use wharf_model::names::reason;
use wharf_model::{Key, Monotonic, Node, PersistentVolumeClaim, Pod, Time};

use super::Monitor;
use super::decide::{MIN_INTERVAL, REPEAT_AFTER, is_monitored};
use crate::resizer::NON_TERMINAL_PODS;

/// A node that is not ready for longer has failed.
const NOT_READY_TIMEOUT: Duration = Duration::from_secs(300);
/// The text before the node name at the end of the note.
const ON_NODE: &str = " are now on a failed node: ";

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeState {
    /// Ready.
    Ready,
    /// Not ready, but not for long enough to count as failed.
    NotReady,
    /// Not ready for too long, or deleted.
    Failed,
}

/// The state of a node; `None`: it does not exist.
pub(super) fn node_state(node: Option<&Node>, now: Time) -> NodeState {
    let Some(node) = node else { return NodeState::Failed };
    match node.ready {
        Some(ready) if ready.is_ready => NodeState::Ready,
        Some(ready) if ready.since.is_some_and(|since| since.plus(NOT_READY_TIMEOUT) < now) => {
            NodeState::Failed
        }
        _ => NodeState::NotReady,
    }
}

/// Whether to report, for the first time or again.
pub(super) fn is_due(reported: Option<Monotonic>, now: Monotonic) -> bool {
    reported.is_none_or(|at| now.since(at) >= REPEAT_AFTER)
}

/// Upstream's note.
pub(super) fn failed_note(pods: &[&str], claim: &str, namespace: &str, node: &str) -> String {
    let pods: String = pods.iter().map(|pod| format!("{pod} ")).collect();
    format!("Pods: [ {pods}] consuming PVC: {claim} in namespace: {namespace}{ON_NODE}{node}")
}

/// The node named in such a note.
pub(super) fn failed_node(note: &str) -> Option<&str> {
    note.rsplit_once(ON_NODE).map(|(_, node)| node).filter(|node| !node.is_empty())
}

/// Pods by node and by the claims they use.
type PodsByNode = BTreeMap<String, BTreeMap<Key, Vec<String>>>;

/// Nodes without a claim are not checked, so pods without claims are left out.
fn pods_by_node_and_claim(pods: &[Arc<Pod>]) -> PodsByNode {
    let mut users = PodsByNode::new();
    for pod in pods.iter().filter(|pod| !pod.node_name.is_empty() && !pod.claims.is_empty()) {
        let claims = users.entry(pod.node_name.clone()).or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for claim in &pod.claims {
            claims.entry(Key::namespaced(namespace, claim)).or_default().push(pod.metadata.name.clone());
        }
    }
    users
}

/// Checks the nodes periodically. Runs until dropped.
pub(super) async fn watch(monitor: &Monitor, every: Duration) {
    let cluster = &monitor.context.cluster;
    let field_selector = Some(NON_TERMINAL_PODS.to_owned());
    let pods = cluster.store::<Pod>(WatchOptions { field_selector, ..WatchOptions::slim() });
    let nodes = cluster.store::<Node>(WatchOptions::slim());
    tokio::join!(pods.wait_synced(), nodes.wait_synced());
    loop {
        if monitor.load_history().await {
            check_nodes(monitor, &nodes, &pods_by_node_and_claim(&pods.all())).await;
        }
        tokio::time::sleep(every).await;
    }
}

async fn check_nodes(monitor: &Monitor, nodes: &Store<Node>, users: &PodsByNode) {
    for (node, claims) in users {
        let mut seen = nodes.get(&Key::cluster(node));
        if seen.is_none() {
            // The cache may not have it yet: only the API server's response counts.
            match monitor.context.cluster.get::<Node>(&Key::cluster(node)).await {
                Ok(found) => seen = found.map(Arc::new),
                Err(error) => {
                    tracing::warn!(node, %error, "failed to get node");
                    continue;
                }
            }
        }
        match node_state(seen.as_deref(), now()) {
            NodeState::NotReady => {}
            NodeState::Failed => failed(monitor, node, claims).await,
            NodeState::Ready => recovered(monitor, node, claims).await,
        }
    }
    // No pod is left on the node: no recovery needs to be reported.
    for node in monitor.history.failed_nodes() {
        if !users.contains_key(&node) {
            monitor.history.take_failed(&node);
        }
    }
}

async fn failed(monitor: &Monitor, node: &str, claims: &BTreeMap<Key, Vec<String>>) {
    for (key, pods) in claims {
        let Some(claim) = monitored_claim(monitor, key) else { continue };
        let uid = &claim.metadata.uid;
        if !monitor.context.gate.is_open() || !is_due(monitor.history.node_failed_at(node, uid), monotonic())
        {
            continue;
        }
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let note = failed_note(&pods, &key.name, namespace, node);
        monitor.context.record_event(&*claim, EventType::Warning, reason::NODE_FAILED, note);
        monitor.history.node_failed(node, uid, monotonic());
        tokio::time::sleep(MIN_INTERVAL).await;
    }
}

async fn recovered(monitor: &Monitor, node: &str, claims: &BTreeMap<Key, Vec<String>>) {
    let reported = monitor.history.take_failed(node);
    for key in claims.keys().filter(|_| !reported.is_empty()) {
        let Some(claim) = monitored_claim(monitor, key) else { continue };
        if reported.contains(&claim.metadata.uid) && monitor.context.gate.is_open() {
            let note = format!("Node: {node} recovered");
            monitor.context.record_event(&*claim, EventType::Warning, reason::NODE_RECOVERED, note);
            tokio::time::sleep(MIN_INTERVAL).await;
        }
    }
}

/// The claim, if its volume belongs to this driver and is monitored here.
fn monitored_claim(monitor: &Monitor, key: &Key) -> Option<Arc<PersistentVolumeClaim>> {
    let claim = monitor.claims.get(key)?;
    let volume = monitor.volumes.get(&Key::cluster(&claim.spec.volume_name))?;
    let ours = is_monitored(&volume, monitor.context.driver.name()) && monitor.is_on_own_node(&volume);
    (ours && volume.is_bound_to(&claim.metadata)).then_some(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::node::ReadyCondition;

    use super::*;

    /// sidecars.md 1.6 "Node watcher": not ready for more than five minutes, or deleted.
    #[test]
    fn node_fails_after_five_minutes_not_ready() {
        let since = Time(1_000_000);
        let node = |ready| Some(Node { ready, ..Node::default() });
        let is = |is| Some(ReadyCondition { is_ready: is, since: Some(since) });
        let (still, over) =
            (since.plus(NOT_READY_TIMEOUT), since.plus(NOT_READY_TIMEOUT + Duration::from_millis(1)));
        for (node, now, expected) in [
            (None, still, NodeState::Failed),
            (node(None), over, NodeState::NotReady),
            (node(is(true)), over, NodeState::Ready),
            (node(is(false)), still, NodeState::NotReady),
            (node(is(false)), over, NodeState::Failed),
            (node(Some(ReadyCondition { is_ready: false, since: None })), over, NodeState::NotReady),
        ] {
            assert_eq!(node_state(node.as_ref(), now), expected, "{node:?}");
        }
    }

    /// sidecars.md 1.6 "Node watcher": upstream's note, which names the node.
    #[test]
    fn failed_note_names_node() {
        let note = failed_note(&["a", "b"], "data", "shop", "n1");
        let expected = "Pods: [ a b ] consuming PVC: data in namespace: shop are now on a failed node: n1";
        assert_eq!(note, expected);
        assert_eq!(failed_node(&note), Some("n1"));
        for other in ["", "Node: n1 recovered", " are now on a failed node: "] {
            assert_eq!(failed_node(other), None, "{other}");
        }
    }

    #[test]
    fn failed_node_is_reported_again_after_a_while() {
        let at = Monotonic(5);
        assert!(is_due(None, at));
        assert!(!is_due(Some(at), at.plus(REPEAT_AFTER - Duration::from_millis(1))));
        assert!(is_due(Some(at), at.plus(REPEAT_AFTER)));
    }

    #[test]
    fn pods_are_grouped_by_node_and_claim() {
        let pod = |name: &str, node: &str, claim: &str| -> Arc<Pod> {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
            let metadata = json!({"name": name, "namespace": "shop"});
            let pod = json!({"metadata": metadata, "spec": {"nodeName": node, "volumes": volumes}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let without_claim = json!({"metadata": {"name": "e"}, "spec": {"nodeName": "n3"}});
        let users = pods_by_node_and_claim(&[
            Arc::new(serde_json::from_value(without_claim).unwrap()),
            pod("a", "n1", "c1"),
            pod("b", "n1", "c1"),
            pod("c", "n2", "c2"),
            pod("d", "", "c3"),
        ]);
        let expected = [
            ("n1".to_owned(), [(Key::namespaced("shop", "c1"), vec!["a".to_owned(), "b".to_owned()])].into()),
            ("n2".to_owned(), [(Key::namespaced("shop", "c2"), vec!["c".to_owned()])].into()),
        ];
        assert_eq!(users, expected.into());
    }
}
