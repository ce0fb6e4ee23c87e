//! Secrets, ConfigMaps, tokens and fields: as files and as variables, and their updates.

use serde_json::json;
use wharf_cluster::Patch;
use wharf_model::{ConfigMap, Key, Kind as _, Secret};

use crate::harness::TestNode;

#[tokio::test]
async fn secret_volume_waits_for_its_secret_and_follows_changes() {
    waits_and_sees(TestNode::new().await).await;
}

/// With node permissions only: Secrets cannot be watched and are polled.
#[tokio::test]
async fn secret_volume_is_updated_without_a_watch() {
    waits_and_sees(TestNode::with(false).await).await;
}

async fn waits_and_sees(node: TestNode) {
    node.create(&ConfigMap::API, json!({"metadata": {"name": "m"}, "data": {"color": "red"}})).await;
    node.pod("p", "echo $COLOR $NAME; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
        let container = &mut pod["spec"]["containers"][0];
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/secret"}]);
        container["env"] = json!([
            {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "color"}}},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]);
    })
    .await;
    node.wait_for_event("FailedMount MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found")
        .await;
    let waiting = node.wait_for_phase("p", "Pending").await;
    assert_eq!(waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    node.create(&Secret::API, json!({"metadata": {"name": "s"}, "data": {"a": "MQ=="}})).await;
    let pod = node.wait_for_phase("p", "Running").await;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    assert_eq!(node.exec(&id, "cat /secret/a").await, "1");
    assert_eq!(node.log(&id).await, "red p\n");
    let change = Patch::Merge(json!({"data": {"a": "Mg=="}}));
    node.cluster.patch(&Secret::API, &Key::namespaced("default", "s"), None, change).await.unwrap();
    for _ in 0..1000 {
        if node.exec(&id, "cat /secret/a").await == "2" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the file never changed");
}

#[tokio::test]
async fn missing_secret_for_a_variable_delays_the_start() {
    let node = TestNode::new().await;
    node.pod("p", "echo $A; sleep 1000", |pod| {
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}}]);
    })
    .await;
    let reason = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let pod = node.wait_for("p", |pod| reason(pod)["reason"] == "CreateContainerConfigError").await;
    assert_eq!(reason(&pod)["message"], "secret \"s\" not found");
    node.wait_for_event("Failed Error: secret \"s\" not found").await;
    node.create(&Secret::API, json!({"metadata": {"name": "s"}, "data": {"a": "MQ=="}})).await;
    node.wait_for_phase("p", "Running").await;
}

/// The service account's token, the CA certificate and the namespace, as in every pod.
#[tokio::test]
async fn service_account_token_is_mounted() {
    let node = TestNode::new().await;
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount; cat namespace ca.crt; echo; \
                  tr -dc . < token; echo $KUBERNETES_SERVICE_HOST";
    node.pod("p", script, |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"].as_object_mut().unwrap().remove("automountServiceAccountToken");
    })
    .await;
    let pod = node.wait_for_phase("p", "Succeeded").await;
    let id = pod["status"]["containerStatuses"][0]["state"]["terminated"]["containerID"].as_str().unwrap();
    assert_eq!(node.log(id).await, "defaulta certificate\n..127.0.0.1\n");
    // The agent reports the phase while it still unmounts the volumes.
    let volumes = node.volume(&pod, "kubernetes.io~projected", "");
    let is_empty = || volumes.read_dir().map_or(0, Iterator::count) == 0;
    for _ in 0..1000 {
        if is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the volume is still there: {}", volumes.display());
}
