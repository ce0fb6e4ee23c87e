//! Pod lifecycle, from admission to the removal of its last file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wharf_cluster::Patch;
use wharf_model::{Key, Kind as _, Pod};

use crate::harness::TestNode;

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

fn ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// The node-lifecycle-controller sets the condition to False while it does not hear from the node.
/// kubernetes.md 1.9 "Pods of a lost node".
#[tokio::test]
async fn ready_condition_that_a_controller_changed_is_written_again() {
    let node = TestNode::new().await;
    node.pod("p", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |_| {}).await;
    let pod = node.wait_for("p", ready).await;
    let changed = Patch::Strategic(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    let key = Key::namespaced("default", "p");
    let written = node.cluster.patch(&Pod::API, &key, Some("status"), changed).await.unwrap();
    assert!(!ready(&written));
    node.wait_for("p", ready).await;
    node.delete("p").await;
    node.wait_until_removed("p", uid(&pod)).await;
}

#[tokio::test]
async fn deleted_pod_leaves_nothing_behind() {
    let node = TestNode::new().await;
    node.pod("p", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    let pod = node.wait_for("p", ready).await;
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!((&status["podIP"], &status["hostIP"]), (&json!("127.0.0.1"), &json!("127.0.0.1")));
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["started"], &container["restartCount"]), (&json!(true), &json!(0)));
    assert!(container["containerID"].as_str().unwrap().starts_with("wharf://"));
    node.wait_for_event("Pulled Image \"busybox\" is not pulled: the container runs programs of the host")
        .await;
    node.wait_for_event("Created Created container: c").await;
    node.wait_for_event("Started Started container c").await;
    node.delete("p").await;
    node.wait_until_removed("p", uid(&pod)).await;
    node.wait_for_event("Killing Stopping container c").await;
}

#[tokio::test]
async fn init_containers_and_sidecars_run_and_pod_succeeds() {
    let node = TestNode::new().await;
    let sh = |name: &str, script: &str| {
        json!({
            "name": name, "image": "i", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "v", "mountPath": "/data"}],
        })
    };
    node.pod("p", "", |pod| {
        let spec = &mut pod["spec"];
        spec["restartPolicy"] = "Never".into();
        spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        let mut sidecar = sh("sidecar", "echo sidecar >> /data/log; trap 'echo bye >> /data/log; exit 0' TERM; while :; do sleep 0.1; done");
        sidecar["restartPolicy"] = "Always".into();
        spec["initContainers"] =
            json!([sh("first", "echo first >> /data/log"), sidecar, sh("second", "sleep 0.5; echo second >> /data/log")]);
        spec["containers"] = json!([sh("c", "cat /data/log; echo main >> /data/log; test \"$(cat /data/log | wc -l)\" = 4")]);
    })
    .await;
    let pod = node.wait_for_phase("p", "Succeeded").await;
    let code = |list: &str, at: usize| pod["status"][list][at]["state"]["terminated"]["exitCode"].clone();
    assert_eq!(code("containerStatuses", 0), json!(0), "{pod:#}");
    assert_eq!(code("initContainerStatuses", 0), json!(0));
    assert_eq!(code("initContainerStatuses", 1), json!(0), "the sidecar exited on SIGTERM");
    node.delete("p").await;
    node.wait_until_removed("p", uid(&pod)).await;
}

#[tokio::test]
async fn failing_container_is_restarted_with_backoff() {
    let node = TestNode::new().await;
    node.pod("p", "echo once more; exit 3", |_| {}).await;
    let pod = node
        .wait_for("p", |pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64() >= Some(2))
        .await;
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], json!(3));
    let pod = node
        .wait_for("p", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    assert_eq!(pod["status"]["phase"], "Running");
    node.wait_for_event("BackOff Back-off restarting failed container c in pod p_default(").await;
    node.delete("p").await;
    node.wait_until_removed("p", uid(&pod)).await;
}

#[tokio::test]
async fn missing_program_fails_and_missing_command_is_a_config_error() {
    let node = TestNode::new().await;
    node.pod("absent", "", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    })
    .await;
    let pod = node.wait_for_phase("absent", "Failed").await;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(128), &json!("StartError")), "{ended}");
    node.pod("none", "", |pod| {
        pod["spec"]["containers"][0].as_object_mut().unwrap().remove("command");
    })
    .await;
    let pod = node
        .wait_for("none", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
                == "CreateContainerConfigError"
        })
        .await;
    let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("images are not pulled"), "{message}");
}

#[tokio::test]
async fn exec_probes_and_hooks_run() {
    let node = TestNode::new().await;
    node.pod("p", "touch /tmp/alive; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        let container = &mut pod["spec"]["containers"][0];
        let exec = |script: &str| json!({"command": ["/bin/sh", "-c", script]});
        let probe = |script: &str, failures: i32| {
            json!({"exec": exec(script), "periodSeconds": 1, "failureThreshold": failures})
        };
        container["startupProbe"] = probe("test -e /tmp/alive", 30);
        container["readinessProbe"] = probe("test -e /tmp/hooked && test -e /tmp/ready", 1);
        container["livenessProbe"] = probe("test -e /tmp/alive", 1);
        container["lifecycle"] = json!({"postStart": {"exec": exec("touch /tmp/hooked")}});
    })
    .await;
    let runs = |times: i32| {
        move |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            container["restartCount"] == json!(times) && container["state"]["running"].is_object()
        }
    };
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    node.wait_for_event("Unhealthy Readiness probe failed: ").await;
    let first = node.wait_for("p", runs(0)).await;
    node.exec(&id(&first), "touch /tmp/ready").await;
    let pod = node.wait_for("p", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    node.exec(&id(&first), "rm /tmp/alive").await;
    let second = node.wait_for("p", runs(1)).await;
    node.wait_for_event("Killing Container c failed liveness probe, will be restarted").await;
    node.exec(&id(&second), "touch /tmp/ready").await;
    node.wait_for("p", ready).await;
}

/// With a grace period of 0 the object is deleted immediately. The containers are stopped and the files removed anyway.
#[tokio::test]
async fn force_deleted_pod_is_cleaned_up() {
    let node = TestNode::new().await;
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    node.pod("p", script, |_| {}).await;
    let pod = node.wait_for_phase("p", "Running").await;
    let (api, key) =
        (<wharf_model::Pod as wharf_model::Kind>::API, wharf_model::Key::namespaced("default", "p"));
    node.cluster.delete_without_grace(&api, &key, Default::default()).await.unwrap();
    assert!(node.get("p").await.is_none());
    // Another pod of the same name does not wait, and is not mistaken for it.
    node.pod("p", script, |_| {}).await;
    let other = node.wait_for_phase("p", "Running").await;
    assert_ne!(uid(&pod), uid(&other));
    node.wait_until_removed("p", uid(&pod)).await;
    assert_eq!(node.get("p").await.unwrap()["status"]["phase"], "Running");
}

/// Containers share the host's network, so the test itself can serve the probes.
#[tokio::test]
async fn http_and_tcp_probes_run() {
    let node = TestNode::new().await;
    let (port, status) = serve().await;
    node.pod("p", "exec sleep 1000", |pod| {
        let container = &mut pod["spec"]["containers"][0];
        container["ports"] = json!([{"name": "web", "containerPort": port}]);
        container["startupProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
        container["readinessProbe"] =
            json!({"httpGet": {"port": "web", "path": "/ready"}, "periodSeconds": 1});
        container["livenessProbe"] = json!({"grpc": {"port": port}});
    })
    .await;
    node.wait_for_event("Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 503").await;
    node.wait_for_event("ProbeWarning Liveness probe warning: gRPC is not supported").await;
    assert!(!ready(&node.wait_for_phase("p", "Running").await));
    status.store(204, Ordering::Relaxed);
    node.wait_for("p", ready).await;
    status.store(404, Ordering::Relaxed);
    node.wait_for("p", |pod| !ready(pod)).await;
}

/// A hook may send an HTTP request, whatever the response; a failed one is recorded as an event.
#[tokio::test]
async fn http_hooks_run_and_failures_are_recorded() {
    let node = TestNode::new().await;
    let (port, _) = serve().await;
    let hooked = |after: Value, before: Value| {
        move |pod: &mut Value| {
            let container = &mut pod["spec"]["containers"][0];
            container["ports"] = json!([{"name": "web", "containerPort": port}]);
            container["lifecycle"] = json!({"postStart": {"httpGet": after}, "preStop": {"httpGet": before}});
        }
    };
    let (page, nowhere) = (json!({"port": "web", "path": "/ready"}), json!({"port": 1}));
    node.pod("well", "exec sleep 1000", hooked(page.clone(), nowhere.clone())).await;
    node.pod("unwell", "exec sleep 1000", hooked(nowhere, page)).await;
    node.wait_for_event(
        "FailedPostStartHook PostStartHook failed: Get \"http://127.0.0.1:1/\": Connection refused",
    )
    .await;
    let pod = node.wait_for("well", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    node.delete("well").await;
    node.wait_for_event(
        "FailedPreStopHook PreStopHook failed: Get \"http://127.0.0.1:1/\": Connection refused",
    )
    .await;
    node.wait_until_removed("well", uid(&pod)).await;
}

/// Responds to `/ready` with this status, and to everything else with 500; starts with 503.
async fn serve() -> (u16, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, status) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU16::new(503)));
    let response = Arc::clone(&status);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let code = match request[..read].starts_with(b"GET /ready HTTP/1.1\r\n") {
                true => response.load(Ordering::Relaxed),
                false => 500,
            };
            let _ = stream
                .write_all(format!("HTTP/1.1 {code} Any\r\nContent-Length: 0\r\n\r\n").as_bytes())
                .await;
        }
    });
    (port, status)
}

/// A hostPath into the data directory is refused with an event, and nothing is created there.
#[tokio::test]
async fn host_path_into_the_data_directory_is_refused() {
    let node = TestNode::new().await;
    let data = node.root.path().parent().unwrap().to_owned();
    node.pod("p", "true", |pod| {
        let path = data.join("new").display().to_string();
        pod["spec"]["volumes"] =
            json!([{"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    })
    .await;
    let path = data.join("new");
    node.wait_for_event(&format!(
        "FailedMount MountVolume.SetUp failed for volume \"v\" : hostPath {path:?} is refused"
    ))
    .await;
    node.wait_for_phase("p", "Pending").await;
    assert!(!path.exists());
}
