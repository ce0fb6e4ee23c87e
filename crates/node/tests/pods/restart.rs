//! The agent is killed and restarted: pods keep running, and what happened in between is handled.

use serde_json::{Value, json};

use crate::harness::TestNode;

fn started(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].clone()
}

#[tokio::test]
async fn containers_keep_running_without_the_agent() {
    let mut node = TestNode::new().await;
    node.pod("stays", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    node.pod("ends", "while [ ! -e /data/end ]; do sleep 0.05; done; exit 5", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    node.pod("goes", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |_| {}).await;
    let stays = node.wait_for_phase("stays", "Running").await;
    let ends = node.wait_for_phase("ends", "Running").await;
    let goes = node.wait_for_phase("goes", "Running").await;
    node.kill().await;

    // Happens without an agent.
    std::fs::write(node.volume(&ends, "kubernetes.io~empty-dir", "v").join("end"), "").unwrap();
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let ended = || {
        let found = node.runtime.list().unwrap().into_iter().find(|found| found.pod_uid == uid(&ends));
        found.is_some_and(|found| matches!(found.state, wharf_container::State::Exited(_)))
    };
    while !ended() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (api, key) =
        (<wharf_model::Pod as wharf_model::Kind>::API, wharf_model::Key::namespaced("default", "goes"));
    node.cluster.delete_without_grace(&api, &key, Default::default()).await.unwrap();
    node.pod("new", "sleep 1000", |_| {}).await;

    node.start();
    node.wait_for_phase("new", "Running").await;
    let pod = node.wait_for_phase("ends", "Failed").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], json!(5));
    node.wait_until_removed("goes", &uid(&goes)).await;
    let now = node.wait_for_phase("stays", "Running").await;
    assert_eq!(started(&now), started(&stays), "it was not restarted");
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], json!(0));
    node.delete("stays").await;
    node.wait_until_removed("stays", &uid(&stays)).await;
}

/// Also for a pod with restartPolicy Never: its program never ran.
#[tokio::test]
async fn container_with_interrupted_start_is_started_again() {
    let mut node = TestNode::new().await;
    node.pod("once", "while [ ! -e /data/end ]; do sleep 0.05; done", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    let pod = node.wait_for_phase("once", "Running").await;
    node.kill().await;
    let found = node.runtime.list().unwrap().remove(0);
    node.runtime.stop(&found.id, std::time::Duration::ZERO).await;
    // As if the agent crashed before the shim existed, and before the status was reported.
    let record = node.root.path().with_file_name("containers").join(found.id.as_str());
    for file in ["running.json", "exit.json"] {
        std::fs::remove_file(record.join(file)).unwrap();
    }
    let (api, key) =
        (<wharf_model::Pod as wharf_model::Kind>::API, wharf_model::Key::namespaced("default", "once"));
    let unreported =
        wharf_cluster::Patch::Merge(json!({"status": {"phase": "Pending", "containerStatuses": null}}));
    node.cluster.patch(&api, &key, Some("status"), unreported).await.unwrap();
    node.start();
    let again = node.wait_for_phase("once", "Running").await;
    assert_eq!(again["status"]["containerStatuses"][0]["restartCount"], json!(0));
    std::fs::write(node.volume(&pod, "kubernetes.io~empty-dir", "v").join("end"), "").unwrap();
    node.wait_for_phase("once", "Succeeded").await;
}

/// The startup probe is not repeated after an agent restart: it may fail by now, and would kill the container.
#[tokio::test]
async fn startup_probe_is_not_repeated_after_agent_restart() {
    let mut node = TestNode::new().await;
    node.pod("p", "touch /tmp/new; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        let probe = |script: &str| {
            json!({"exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1})
        };
        let container = &mut pod["spec"]["containers"][0];
        // Succeeds only once.
        container["startupProbe"] = probe("rm /tmp/new");
        container["readinessProbe"] = probe("true");
    })
    .await;
    let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    node.wait_for("p", ready).await;
    node.kill().await;
    node.start();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let pod = node.wait_for("p", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    assert!(!node.events().await.contains("Startup probe failed"), "{}", node.events().await);
}
