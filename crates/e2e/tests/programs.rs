//! `wharf explain`, `wharf node` and `wharf controllers` as programs on the embedded API: exit codes for scripts,
//! JSON for other programs, and the pages of `--metrics`.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_testkit::{ApiClient, ChildProcess, EmbeddedServer, built_program, free_address, http_get};

const NAMESPACE: &str = "default";
/// How long a program may take to serve a page.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Creates one bound claim, one pending claim, and a failed snapshot.
fn create_objects(server: &ApiClient) {
    let create = |object: Value| server.create(NAMESPACE, &object).unwrap();
    let status = |object: &str, status: Value| {
        server.patch(NAMESPACE, object, true, &json!({"status": status})).unwrap();
    };
    let claim = |name: &str, volume: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}}},
        })
    };
    create(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "d.test",
    }));
    create(claim("waits", ""));
    let bound = create(claim("data", "pv"));
    let claim_ref = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "data",
        "uid": bound["metadata"]["uid"],
    });
    create(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d.test", "volumeHandle": "h"}, "claimRef": claim_ref},
    }));
    status("pvc/data", json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}));
    status("pv/pv", json!({"phase": "Bound"}));
    let default = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    create(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "cuts", "annotations": default}, "driver": "d.test", "deletionPolicy": "Delete",
    }));
    create(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "before"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    }));
    status("vs/before", json!({"error": {"message": "no room", "time": "2026-01-01T00:00:00Z"}}));
}

fn explain(kubeconfig: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(built_program("wharf"));
    command.arg("explain").args(words).env_remove("KUBECONFIG").env_remove("RUST_LOG");
    let Output { status, stdout, stderr } = command.arg("--kubeconfig").arg(kubeconfig).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Pending, failed and forbidden objects: reported by exit code for scripts and as JSON for programs.
#[test]
fn explain_reports_state_by_exit_code_and_json() {
    let api = EmbeddedServer::start();
    let server = ApiClient::connect(api.kubeconfig()).unwrap();
    create_objects(&server);
    let admin = api.kubeconfig();
    for (subject, status, state, object, message) in [
        ("pvc/data", 0, "done", "claim default/data", "pv"),
        ("pv/pv", 0, "done", "volume pv", "claim default/data"),
        ("pvc/waits", 3, "waiting", "claim default/waits", "d.test"),
        ("pvc/none", 3, "waiting", "claim default/none", "PersistentVolumeClaim default/none does not exist"),
        ("volumesnapshot/before", 4, "failed", "snapshot default/before", "no VolumeSnapshotContent"),
    ] {
        let (code, out, errors) = explain(admin, &[subject, "--output", "json"]);
        assert_eq!(code, Some(status), "{subject}: {out} {errors}");
        let explanation: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(explanation["state"], state, "{subject}: {out}");
        let steps = explanation["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["state"] == state && step["object"] == object);
        let step = step.unwrap_or_else(|| panic!("{subject}: no such step: {out}"));
        assert!(step["message"].as_str().unwrap().contains(message), "{subject}: {out}");
        assert_eq!(step["waiting_for"] == "", state == "done", "{subject}: only a pending step waits: {out}");
        // The same for people, and with the same status.
        let (code, out, _) = explain(admin, &[subject]);
        assert_eq!(code, Some(status), "{subject}");
        assert!(out.contains(object), "{subject}: {out}");
    }
    let (_, out, _) = explain(admin, &["volumesnapshot/before", "--output", "json"]);
    let explanation: Value = serde_json::from_str(&out).unwrap();
    let errors: Vec<&Value> =
        explanation["steps"].as_array().unwrap().iter().map(|step| &step["error"]).collect();
    assert!(errors.iter().any(|error| error["message"] == "no room"), "{out}");
    // A node may read the objects of its own pods, but not list other users of them.
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "volumes": volumes});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"}, "spec": spec});
    server.create(NAMESPACE, &pod).unwrap();
    let (code, out, _) = explain(&of_node(&api, "n"), &["pvc/data", "--output", "json"]);
    let explanation: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &explanation["state"]), (Some(5), &json!("unknown")), "{out}");
    assert!(explanation["missing"].to_string().contains("pods"), "{out}");
    // In another namespace the claim does not exist.
    assert_eq!(explain(admin, &["pvc/data", "--namespace", "kube-system"]).0, Some(3));
}

#[test]
fn explain_distinguishes_failed_requests_from_usage_errors() {
    let api = EmbeddedServer::start();
    let unreachable = api.directory().join("unreachable");
    let text = std::fs::read_to_string(api.kubeconfig()).unwrap();
    std::fs::write(&unreachable, text.replace(&server_of(&text), "https://127.0.0.1:1")).unwrap();
    let (code, out, errors) = explain(&unreachable, &["pvc/data", "--output", "json"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{errors}");
    assert!(!errors.is_empty());
    for wrong in [&["data"][..], &["deployment/web"], &["pvc/"], &["pvc/data", "--output", "xml"]] {
        let (code, out, errors) = explain(api.kubeconfig(), wrong);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{wrong:?}: {errors}");
        assert!(!errors.is_empty(), "{wrong:?}");
    }
}

/// Pages are served over TCP. If the address is in use, the program exits instead of running without its pages.
#[test]
fn metrics_of_node_and_controllers_are_served() {
    let api = EmbeddedServer::start();
    let dir = api.directory().canonicalize().unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    let (kubeconfig, root, logs) = (api.kubeconfig().display().to_string(), at("kubelet"), at("logs"));
    let node = ["node", "--node-name", "n", "--root-dir", &root, "--log-dir", &logs];
    for (args, expected) in [
        (&node[..], "wharf_plugins_registered{part=\"node\"} 0"),
        (&["controllers"][..], "workqueue_depth{part=\"controllers\",name=\"attach_detach\"}"),
    ] {
        let address = free_address();
        let all = [args, &["--kubeconfig", &kubeconfig, "--metrics", &address]].concat();
        let mut program =
            ChildProcess::start(&built_program("wharf"), &all, &dir.join(format!("{}.log", args[0])));
        let until = Instant::now() + TIMEOUT;
        loop {
            let shown = http_get(&address, "/metrics");
            if shown.as_ref().is_ok_and(|shown| shown.contains(expected)) {
                break;
            }
            assert!(program.is_running() && Instant::now() < until, "{shown:?}\n{}", program.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(http_get(&address, "/healthz").unwrap(), "ok");
        program.stop();
        let _taken = TcpListener::bind(&address).unwrap();
        let refused = Command::new(built_program("wharf")).args(&all).output().unwrap();
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("serve metrics on {address}")), "{errors}");
    }
}

/// A-M1: leader election is on by default, and two processes on one host never both lead.
#[test]
fn only_one_of_two_controller_processes_on_a_host_leads() {
    const LEADS: &str = "leader_election_master_status{part=\"controllers\",name=\"wharf-controllers\"} ";
    let api = EmbeddedServer::start();
    let kubeconfig = api.kubeconfig().display().to_string();
    let start = |name: &str| {
        let address = free_address();
        let args = ["controllers", "--kubeconfig", &kubeconfig, "--metrics", &address];
        let log = api.directory().join(format!("{name}.log"));
        (ChildProcess::start(&built_program("wharf"), &args, &log), address)
    };
    let leads = |address: &str| {
        let shown = http_get(address, "/metrics").ok()?;
        let value = shown.lines().find_map(|line| line.strip_prefix(LEADS))?.to_owned();
        Some(value == "1")
    };
    let wait_for = |address: &str, expected: bool| {
        let until = Instant::now() + TIMEOUT;
        while leads(address) != Some(expected) {
            assert!(Instant::now() < until, "{:?}", leads(address));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (mut one, first) = start("one");
    wait_for(&first, true);
    let (mut two, second) = start("two");
    wait_for(&second, false);
    // Longer than the retry period: the second has tried, and the first has renewed.
    let until = Instant::now() + Duration::from_secs(7);
    while Instant::now() < until {
        assert_eq!((leads(&first), leads(&second)), (Some(true), Some(false)));
        std::thread::sleep(Duration::from_millis(100));
    }
    one.stop();
    wait_for(&second, true);
    two.stop();
}

/// U-6: on the embedded API, `wharf controllers` and `wharf node` are enough for a pod to be scheduled: nothing else
/// removes the taint of a new node.
#[test]
fn joined_node_becomes_schedulable_by_itself() {
    let api = EmbeddedServer::start();
    let server = ApiClient::connect(api.kubeconfig()).unwrap();
    let dir = api.directory().canonicalize().unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    let (admin, kubeconfig) = (at("kubeconfig"), of_node(&api, "n").display().to_string());
    let wharf = built_program("wharf");
    let mut controllers =
        ChildProcess::start(&wharf, &["controllers", "--kubeconfig", &admin], &dir.join("controllers.log"));
    let (root, logs) = (at("kubelet"), at("logs"));
    let args =
        ["node", "--node-name", "n", "--kubeconfig", &kubeconfig, "--root-dir", &root, "--log-dir", &logs];
    let mut node = ChildProcess::start(&wharf, &args, &dir.join("node.log"));
    // Without the secret its container does not start, so that the test leaves no process behind.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i", "command": ["true"]}],
        "volumes": [{"name": "v", "secret": {"secretName": "missing"}}],
    }});
    let until = Instant::now() + TIMEOUT;
    while server.create(NAMESPACE, &pod).is_err() {
        assert!(Instant::now() < until, "the service account was not created");
        std::thread::sleep(Duration::from_millis(50));
    }
    loop {
        let pod = server.get(NAMESPACE, "pod/p").unwrap().unwrap();
        if pod["spec"]["nodeName"] == "n" {
            break;
        }
        let shown = (controllers.log(), node.log(), server.get(NAMESPACE, "node/n").unwrap());
        assert!(Instant::now() < until, "{pod}\n{shown:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.delete(NAMESPACE, "pod/p").unwrap();
    while server.get(NAMESPACE, "pod/p").unwrap().is_some() {
        assert!(Instant::now() < until, "the pod was not removed\n{}", node.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    node.stop();
    controllers.stop();
}

/// Credentials of a node.
fn of_node(api: &EmbeddedServer, node: &str) -> PathBuf {
    let file = api.directory().join(node);
    let admin = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let created = Command::new(built_program("wharf"))
        .args(["apiserver", "kubeconfig", "--server", &server_of(&admin)])
        .args(["--identity", &format!("node:{node}")])
        .arg("--data-dir")
        .arg(api.directory().join("data"))
        .arg("--out")
        .arg(&file)
        .status()
        .unwrap();
    assert!(created.success());
    file
}

/// The server address of a kubeconfig.
fn server_of(kubeconfig: &str) -> String {
    let parsed: Value = serde_saphyr::from_str(kubeconfig).unwrap();
    parsed["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned()
}
