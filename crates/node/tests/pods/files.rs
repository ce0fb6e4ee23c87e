//! Secrets, config maps, tokens and fields: as files and as variables, and when they change.

use serde_json::json;
use wharf_cluster::Patch;
use wharf_model::{ConfigMap, Key, Kind as _, Secret};

use crate::home::Home;

#[tokio::test]
async fn a_pod_waits_for_its_secret_and_sees_it_change() {
    waits_and_sees(Home::new().await).await;
}

/// The same with a node's rights alone: it may not watch secrets, and looks from time to time.
#[tokio::test]
async fn a_node_that_is_told_of_no_change_looks_itself() {
    waits_and_sees(Home::with(false).await).await;
}

async fn waits_and_sees(home: Home) {
    home.make(&ConfigMap::API, json!({"metadata": {"name": "m"}, "data": {"color": "red"}})).await;
    home.pod("p", "echo $COLOR $NAME; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
        let container = &mut pod["spec"]["containers"][0];
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/secret"}]);
        container["env"] = json!([
            {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "color"}}},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]);
    })
    .await;
    home.told("FailedMount MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found").await;
    let waiting = home.phase("p", "Pending").await;
    assert_eq!(waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    home.make(&Secret::API, json!({"metadata": {"name": "s"}, "data": {"a": "MQ=="}})).await;
    let pod = home.phase("p", "Running").await;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    assert_eq!(home.exec(&id, "cat /secret/a").await, "1");
    assert_eq!(home.log(&id).await, "red p\n");
    let change = Patch::Merge(json!({"data": {"a": "Mg=="}}));
    home.cluster.patch(&Secret::API, &Key::namespaced("default", "s"), None, change).await.unwrap();
    for _ in 0..1000 {
        if home.exec(&id, "cat /secret/a").await == "2" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the file never changed");
}

#[tokio::test]
async fn a_variable_that_nobody_has_yet() {
    let home = Home::new().await;
    home.pod("p", "echo $A; sleep 1000", |pod| {
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}}]);
    })
    .await;
    let reason = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let pod = home.until("p", |pod| reason(pod)["reason"] == "CreateContainerConfigError").await;
    assert_eq!(reason(&pod)["message"], "secret \"s\" not found");
    home.told("Failed Error: secret \"s\" not found").await;
    home.make(&Secret::API, json!({"metadata": {"name": "s"}, "data": {"a": "MQ=="}})).await;
    home.phase("p", "Running").await;
}

/// The account's token, the server's authority and the namespace, as every pod has them.
#[tokio::test]
async fn the_accounts_token() {
    let home = Home::new().await;
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount; cat namespace ca.crt; echo; \
                  tr -dc . < token; echo $KUBERNETES_SERVICE_HOST";
    home.pod("p", script, |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"].as_object_mut().unwrap().remove("automountServiceAccountToken");
    })
    .await;
    let pod = home.phase("p", "Succeeded").await;
    let id = pod["status"]["containerStatuses"][0]["state"]["terminated"]["containerID"].as_str().unwrap();
    assert_eq!(home.log(id).await, "defaulta certificate\n..127.0.0.1\n");
    assert_eq!(home.volume(&pod, "kubernetes.io~projected", "").read_dir().map_or(0, Iterator::count), 0);
}
