//! The node's heartbeat: a lease in `kube-node-lease`, renewed every few seconds.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use wharf_cluster::{ApiError, Backoff, Cluster, Store, now};
use wharf_model::Node;
use wharf_model::{Key, Kind as _, Lease, Time};

/// Namespace of node leases.
const NAMESPACE: &str = "kube-node-lease";
/// Lease duration; without a renewal for this long the node counts as lost.
const DURATION: Duration = Duration::from_secs(40);
/// Kubelet's.
const RETRY: Backoff = Backoff::without_jitter(Duration::from_millis(200), Duration::from_secs(7));

/// Renews the lease forever. Without a Node there is no lease.
pub(super) async fn run(cluster: &Cluster, nodes: &Store<Node>, node: &str, every: Duration) {
    let mut changes = nodes.subscribe();
    let mut failures = 0_u32;
    let mut last: Option<Value> = None;
    loop {
        let Some(owner) = nodes.get(&Key::cluster(node)) else {
            last = None;
            if changes.next().await.is_none() {
                return;
            }
            continue;
        };
        let pause = match renew(cluster, &owner, last.take()).await {
            Ok(lease) => {
                (failures, last) = (0, Some(lease));
                every
            }
            Err(error) => {
                let pause = RETRY.delay(failures);
                failures = failures.saturating_add(1);
                tracing::warn!(node, %error, retry_in = ?pause, "failed to renew node lease; retrying");
                pause
            }
        };
        sleep(pause).await;
    }
}

/// Renews once. `last` is the lease as last written: we are its only writer, so it need not be read.
async fn renew(cluster: &Cluster, node: &Node, last: Option<Value>) -> Result<Value, ApiError> {
    let key = Key::namespaced(NAMESPACE, &node.metadata.name);
    let known = last.is_some();
    let current = match last {
        Some(last) => Some(last),
        None => cluster.get_raw(&Lease::API, &key).await?,
    };
    let written = match current {
        Some(lease) => cluster.update(&Lease::API, &key, None, &renewed(lease, node, now())).await,
        None => cluster.create(&Lease::API, Some(NAMESPACE), &renewed(new(node), node, now())).await,
    };
    match written {
        // The lease was changed or deleted by another client.
        Err(ApiError::Conflict(_) | ApiError::NotFound(_)) if known => {
            Box::pin(renew(cluster, node, None)).await
        }
        written => written,
    }
}

fn new(node: &Node) -> Value {
    json!({
        "apiVersion": Lease::API.api_version(),
        "kind": Lease::API.kind,
        "metadata": {"name": node.metadata.name, "namespace": NAMESPACE},
    })
}

/// The lease, held by this node as of now.
fn renewed(mut lease: Value, node: &Node, now: Time) -> Value {
    let name = &node.metadata.name;
    lease["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}]);
    lease["spec"]["holderIdentity"] = json!(name);
    lease["spec"]["leaseDurationSeconds"] = json!(DURATION.as_secs());
    lease["spec"]["renewTime"] = json!(micro_time(now));
    lease
}

/// Format of `metav1.MicroTime`: always six fractional digits.
fn micro_time(time: Time) -> String {
    let seconds = time.to_string();
    format!("{}.{:03}000Z", seconds.trim_end_matches('Z'), time.0.rem_euclid(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_matches_kubelet() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u"}})).unwrap();
        let time = Time(1_763_300_000_042);
        let lease = renewed(new(&node), &node, time);
        assert_eq!(
            lease,
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": "n", "namespace": "kube-node-lease",
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
                },
                "spec": {
                    "holderIdentity": "n", "leaseDurationSeconds": 40,
                    "renewTime": "2025-11-16T13:33:20.042000Z",
                },
            })
        );
        let mut before = lease.clone();
        before["metadata"]["resourceVersion"] = json!("5");
        before["spec"]["other"] = json!(1);
        let after = renewed(before.clone(), &node, Time(time.0 + 10_000));
        before["spec"]["renewTime"] = json!("2025-11-16T13:33:30.042000Z");
        assert_eq!(after, before, "foreign fields and the resource version stay");
    }
}
