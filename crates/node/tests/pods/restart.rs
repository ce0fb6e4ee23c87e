//! The agent dies and another begins: pods go on, and what ended meanwhile is seen to.

use serde_json::{Value, json};

use crate::home::Home;

fn started(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].clone()
}

#[tokio::test]
async fn containers_go_on_without_the_agent() {
    let mut home = Home::new().await;
    home.pod("stays", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    home.pod("ends", "while [ ! -e /data/end ]; do sleep 0.05; done; exit 5", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    home.pod("goes", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |_| {}).await;
    let stays = home.phase("stays", "Running").await;
    let ends = home.phase("ends", "Running").await;
    let goes = home.phase("goes", "Running").await;
    home.kill().await;

    // Nobody sees this.
    std::fs::write(home.volume(&ends, "kubernetes.io~empty-dir", "v").join("end"), "").unwrap();
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let ended = || {
        let found = home.runtime.list().unwrap().into_iter().find(|found| found.pod_uid == uid(&ends));
        found.is_some_and(|found| matches!(found.state, wharf_node::runtime::State::Exited(_)))
    };
    while !ended() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (api, key) = (
        <wharf_model::whole::Pod as wharf_model::Kind>::API,
        wharf_model::Key::namespaced("default", "goes"),
    );
    home.cluster.delete_now(&api, &key, Default::default()).await.unwrap();
    home.pod("new", "sleep 1000", |_| {}).await;

    home.start();
    home.phase("new", "Running").await;
    let pod = home.phase("ends", "Failed").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], json!(5));
    home.gone("goes", &uid(&goes)).await;
    let now = home.phase("stays", "Running").await;
    assert_eq!(started(&now), started(&stays), "it was not touched");
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], json!(0));
    home.delete("stays").await;
    home.gone("stays", &uid(&stays)).await;
}

/// Also a pod that is to run once: nothing of it has run.
#[tokio::test]
async fn a_container_whose_start_was_broken_off_is_started_again() {
    let mut home = Home::new().await;
    home.pod("once", "while [ ! -e /data/end ]; do sleep 0.05; done", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    let pod = home.phase("once", "Running").await;
    home.kill().await;
    let found = home.runtime.list().unwrap().remove(0);
    home.runtime.stop(&found.id, std::time::Duration::ZERO).await;
    // As it is when the agent died before the shim was there, and before anybody was told.
    let record = home.root.path().with_file_name("containers").join(found.id.as_str());
    for file in ["running.json", "exit.json"] {
        std::fs::remove_file(record.join(file)).unwrap();
    }
    let (api, key) = (
        <wharf_model::whole::Pod as wharf_model::Kind>::API,
        wharf_model::Key::namespaced("default", "once"),
    );
    let untold =
        wharf_cluster::Patch::Merge(json!({"status": {"phase": "Pending", "containerStatuses": null}}));
    home.cluster.patch(&api, &key, Some("status"), untold).await.unwrap();
    home.start();
    let again = home.phase("once", "Running").await;
    assert_eq!(again["status"]["containerStatuses"][0]["restartCount"], json!(0));
    std::fs::write(home.volume(&pod, "kubernetes.io~empty-dir", "v").join("end"), "").unwrap();
    home.phase("once", "Succeeded").await;
}

/// Who has started has started: its startup probe may well fail by now, and would kill it.
#[tokio::test]
async fn the_start_of_a_container_is_over_once() {
    let mut home = Home::new().await;
    home.pod("p", "touch /tmp/new; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        let probe = |script: &str| {
            json!({"exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1})
        };
        let container = &mut pod["spec"]["containers"][0];
        // Once, and never again.
        container["startupProbe"] = probe("rm /tmp/new");
        container["readinessProbe"] = probe("true");
    })
    .await;
    let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    home.until("p", ready).await;
    home.kill().await;
    home.start();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let pod = home.until("p", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    assert!(!home.events().await.contains("Startup probe failed"), "{}", home.events().await);
}
