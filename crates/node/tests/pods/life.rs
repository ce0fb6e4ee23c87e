//! From the first look to the last file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::home::Home;

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

fn ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

#[tokio::test]
async fn a_pod_runs_and_goes_and_nothing_is_left() {
    let home = Home::new().await;
    home.pod("p", "trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    })
    .await;
    let pod = home.until("p", ready).await;
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!((&status["podIP"], &status["hostIP"]), (&json!("127.0.0.1"), &json!("127.0.0.1")));
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["started"], &container["restartCount"]), (&json!(true), &json!(0)));
    assert!(container["containerID"].as_str().unwrap().starts_with("wharf://"));
    home.told("Pulled Image \"busybox\" is not pulled: the container runs the host's programs").await;
    home.told("Created Created container: c").await;
    home.told("Started Started container c").await;
    home.delete("p").await;
    home.gone("p", uid(&pod)).await;
    home.told("Killing Stopping container c").await;
}

#[tokio::test]
async fn init_containers_sidecars_and_a_good_end() {
    let home = Home::new().await;
    let sh = |name: &str, script: &str| {
        json!({
            "name": name, "image": "i", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "v", "mountPath": "/data"}],
        })
    };
    home.pod("p", "", |pod| {
        let spec = &mut pod["spec"];
        spec["restartPolicy"] = "Never".into();
        spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        let mut beside = sh("beside", "echo beside >> /data/log; trap 'echo bye >> /data/log; exit 0' TERM; while :; do sleep 0.1; done");
        beside["restartPolicy"] = "Always".into();
        spec["initContainers"] =
            json!([sh("first", "echo first >> /data/log"), beside, sh("second", "sleep 0.5; echo second >> /data/log")]);
        spec["containers"] = json!([sh("c", "cat /data/log; echo main >> /data/log; test \"$(cat /data/log | wc -l)\" = 4")]);
    })
    .await;
    let pod = home.phase("p", "Succeeded").await;
    let code = |list: &str, at: usize| pod["status"][list][at]["state"]["terminated"]["exitCode"].clone();
    assert_eq!(code("containerStatuses", 0), json!(0), "{pod:#}");
    assert_eq!(code("initContainerStatuses", 0), json!(0));
    assert_eq!(code("initContainerStatuses", 1), json!(0), "the sidecar was asked to end, and did");
    home.delete("p").await;
    home.gone("p", uid(&pod)).await;
}

#[tokio::test]
async fn who_fails_is_started_again_after_a_pause() {
    let home = Home::new().await;
    home.pod("p", "echo once more; exit 3", |_| {}).await;
    let pod = home
        .until("p", |pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64() >= Some(2))
        .await;
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], json!(3));
    let pod = home
        .until("p", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    assert_eq!(pod["status"]["phase"], "Running");
    home.told("BackOff Back-off restarting failed container c in pod p_default(").await;
    home.delete("p").await;
    home.gone("p", uid(&pod)).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_and_one_that_nobody_named() {
    let home = Home::new().await;
    home.pod("absent", "", |pod| {
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    })
    .await;
    let pod = home.phase("absent", "Failed").await;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(128), &json!("StartError")), "{ended}");
    home.pod("none", "", |pod| {
        pod["spec"]["containers"][0].as_object_mut().unwrap().remove("command");
    })
    .await;
    let pod = home
        .until("none", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
                == "CreateContainerConfigError"
        })
        .await;
    let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("images are not pulled"), "{message}");
}

#[tokio::test]
async fn probes_and_hooks() {
    let home = Home::new().await;
    home.pod("p", "touch /tmp/alive; trap 'exit 0' TERM; while :; do sleep 0.1; done", |pod| {
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
    home.told("Unhealthy Readiness probe failed: ").await;
    let first = home.until("p", runs(0)).await;
    home.exec(&id(&first), "touch /tmp/ready").await;
    let pod = home.until("p", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    home.exec(&id(&first), "rm /tmp/alive").await;
    let second = home.until("p", runs(1)).await;
    home.told("Killing Container c failed liveness probe, will be restarted").await;
    home.exec(&id(&second), "touch /tmp/ready").await;
    home.until("p", ready).await;
}

/// With grace 0 the object is gone at once; its containers end all the same, and its files go.
#[tokio::test]
async fn a_pod_that_is_deleted_by_force() {
    let home = Home::new().await;
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    home.pod("p", script, |_| {}).await;
    let pod = home.phase("p", "Running").await;
    let (api, key) =
        (<wharf_model::whole::Pod as wharf_model::Kind>::API, wharf_model::Key::namespaced("default", "p"));
    home.cluster.delete_now(&api, &key, Default::default()).await.unwrap();
    assert!(home.get("p").await.is_none());
    // Another of its name does not wait, and is not taken for it.
    home.pod("p", script, |_| {}).await;
    let other = home.phase("p", "Running").await;
    assert_ne!(uid(&pod), uid(&other));
    home.gone("p", uid(&pod)).await;
    assert_eq!(home.get("p").await.unwrap()["status"]["phase"], "Running");
}

/// Containers share the machine's network, so the test itself can be what is asked.
#[tokio::test]
async fn pages_and_ports_are_probed() {
    let home = Home::new().await;
    let (port, status) = serve().await;
    home.pod("p", "exec sleep 1000", |pod| {
        let container = &mut pod["spec"]["containers"][0];
        container["ports"] = json!([{"name": "web", "containerPort": port}]);
        container["startupProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
        container["readinessProbe"] =
            json!({"httpGet": {"port": "web", "path": "/ready"}, "periodSeconds": 1});
        container["livenessProbe"] = json!({"grpc": {"port": port}});
    })
    .await;
    home.told("Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 503").await;
    home.told("ProbeWarning Liveness probe warning: gRPC is not asked here").await;
    assert!(!ready(&home.phase("p", "Running").await));
    status.store(204, Ordering::Relaxed);
    home.until("p", ready).await;
    status.store(404, Ordering::Relaxed);
    home.until("p", |pod| !ready(pod)).await;
}

/// A hook may ask for a page, whatever that answers; if nobody does, people are told why.
#[tokio::test]
async fn hooks_ask_for_pages() {
    let home = Home::new().await;
    let (port, _) = serve().await;
    let hooked = |after: Value, before: Value| {
        move |pod: &mut Value| {
            let container = &mut pod["spec"]["containers"][0];
            container["ports"] = json!([{"name": "web", "containerPort": port}]);
            container["lifecycle"] = json!({"postStart": {"httpGet": after}, "preStop": {"httpGet": before}});
        }
    };
    let (page, nowhere) = (json!({"port": "web", "path": "/ready"}), json!({"port": 1}));
    home.pod("well", "exec sleep 1000", hooked(page.clone(), nowhere.clone())).await;
    home.pod("unwell", "exec sleep 1000", hooked(nowhere, page)).await;
    home.told("FailedPostStartHook PostStartHook failed: Get \"http://127.0.0.1:1/\": Connection refused")
        .await;
    let pod = home.until("well", ready).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0));
    home.delete("well").await;
    home.told("FailedPreStopHook PreStopHook failed: Get \"http://127.0.0.1:1/\": Connection refused").await;
    home.gone("well", uid(&pod)).await;
}

/// Answers requests for `/ready` with this status, and all others with 500; begins with 503.
async fn serve() -> (u16, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, status) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU16::new(503)));
    let answer = Arc::clone(&status);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let read = stream.read(&mut asked).await.unwrap_or(0);
            let code = match asked[..read].starts_with(b"GET /ready HTTP/1.1\r\n") {
                true => answer.load(Ordering::Relaxed),
                false => 500,
            };
            let _ = stream
                .write_all(format!("HTTP/1.1 {code} Any\r\nContent-Length: 0\r\n\r\n").as_bytes())
                .await;
        }
    });
    (port, status)
}

/// A pod that names the data directory is told no in an event, and nothing is made there for it.
#[tokio::test]
async fn a_path_into_the_data_directory_is_refused() {
    let home = Home::new().await;
    let data = home.root.path().parent().unwrap().to_owned();
    home.pod("p", "true", |pod| {
        let path = data.join("new").display().to_string();
        pod["spec"]["volumes"] =
            json!([{"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    })
    .await;
    let path = data.join("new");
    home.told(&format!(
        "FailedMount MountVolume.SetUp failed for volume \"v\" : hostPath {path:?} is refused"
    ))
    .await;
    home.phase("p", "Pending").await;
    assert!(!path.exists());
}
