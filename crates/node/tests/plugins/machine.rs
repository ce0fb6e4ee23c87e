//! The Node object and Lease that the agent maintains.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_apiserver::access::User;
use wharf_cluster::Preconditions;
use wharf_model::Node;
use wharf_model::{Key, Kind as _, Lease};

use crate::harness::{Agent, NODE, until};

fn ready(node: &Value) -> Option<&Value> {
    node["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "Ready")
}

async fn ready_is(agent: &Agent, status: &str) -> Value {
    until("Ready", || async {
        let node = agent.node().await?;
        (ready(&node)?["status"] == status).then_some(node)
    })
    .await
}

#[tokio::test]
async fn node_is_ready_once_its_csi_node_exists() {
    let mut agent = Agent::new().await;
    agent.health.report_problem("CSINode", "CSINode is not yet initialized");
    agent.run_machine(|_| {});
    let node = ready_is(&agent, "False").await;
    assert_eq!(ready(&node).unwrap()["message"], "CSINode is not yet initialized");
    assert_eq!(ready(&node).unwrap()["reason"], "KubeletNotReady");
    agent.run_plugins(|_| {});
    let node = ready_is(&agent, "True").await;
    assert_eq!(ready(&node).unwrap()["reason"], "KubeletReady");
    assert!(agent.csi_node().await.is_some());
    let metadata = &node["metadata"];
    assert_eq!(metadata["labels"]["kubernetes.io/hostname"], NODE);
    assert_eq!(metadata["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"], "true");
    let addresses =
        json!([{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}]);
    assert_eq!(node["status"]["addresses"], addresses);
    assert_eq!(node["status"]["capacity"]["pods"], "110");
    let taints = &node["spec"]["taints"];
    assert_eq!(
        taints[0]["key"], "node.kubernetes.io/not-ready",
        "a node does not change its own taints: {taints}"
    );

    agent.health.report_problem("disk", "no room");
    ready_is(&agent, "False").await;
    agent.health.clear_problem("disk");
    ready_is(&agent, "True").await;
}

#[tokio::test]
async fn lease_is_renewed_and_recreated() {
    let mut agent = Agent::new().await;
    agent.run_machine(|settings| settings.renew_every = Duration::from_millis(20));
    let key = Key::namespaced("kube-node-lease", NODE);
    let lease = until("a lease", || agent.object(&Lease::API, &key)).await;
    let node = until("the Node", || agent.node()).await;
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    assert_eq!(lease["spec"]["holderIdentity"], NODE);
    let renewed = async |than: &Value| {
        until("a renewal", || async {
            let lease = agent.object(&Lease::API, &key).await?;
            (lease["spec"]["renewTime"] != than["spec"]["renewTime"]).then_some(lease)
        })
        .await
    };
    let second = renewed(&lease).await;
    agent.admin.delete(&Lease::API, &key, Preconditions::default()).await.unwrap();
    let third = renewed(&second).await;
    assert_ne!(third["metadata"]["uid"], lease["metadata"]["uid"], "created again");
}

/// An existing Node keeps the fields that others have set. A deleted Node is created again only if this is configured.
#[tokio::test]
async fn existing_node_is_adopted_and_deleted_node_stays_deleted() {
    for again in [false, true] {
        let mut agent = Agent::with(User::admin()).await;
        let body = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE, "labels": {"zone": "x"}},
            "spec": {"unschedulable": true},
        });
        let made = agent.admin.create(&Node::API, None, &body).await.unwrap();
        agent.run_machine(|settings| settings.recreate_node = again);
        let found = ready_is(&agent, "True").await;
        assert_eq!(found["metadata"]["uid"], made["metadata"]["uid"]);
        assert_eq!(found["metadata"]["labels"]["zone"], "x");
        assert_eq!(found["spec"]["unschedulable"], true);

        agent.admin.delete(&Node::API, &Key::cluster(NODE), Preconditions::default()).await.unwrap();
        if again {
            let node = ready_is(&agent, "True").await;
            assert_ne!(node["metadata"]["uid"], made["metadata"]["uid"]);
        } else {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(agent.node().await.is_none());
        }
    }
}
