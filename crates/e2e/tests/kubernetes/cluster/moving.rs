//! Volumes that move with their pods: attached to one node at a time, despite delays and failures.

use std::time::Duration;

use wharf_testkit::{ChildProcess, ClusterOptions, ScriptedDriver, TestCluster, built_program};

use super::MINUTE;
use super::objects::{claim, class, pod};

const DRIVER: &str = "moving.test.wharf.dev";
const PODS: usize = 5;
/// All controllers except the replaced one.
const WITHOUT_ATTACH_DETACH: &str = "*,-persistentvolume-attach-detach-controller";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn moving_pods_keep_single_attachment() {
    moves(&TestCluster::start(), |_| {});
}

/// The same with our attach/detach controller instead of kube-controller-manager's. It is killed while volumes
/// move, and rebuilds its state from the objects.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn moving_pods_keep_single_attachment_with_our_attach_detach() {
    let options = ClusterOptions { controllers: WITHOUT_ATTACH_DETACH, ..ClusterOptions::default() };
    let cluster = TestCluster::start_with(options);
    let kubeconfig = cluster.kubeconfig().display().to_string();
    // A killed process leaves its lease to expire, which would take longer than a round.
    let which = ["--controllers", "persistentvolume-attach-detach-controller", "--leader-election=false"];
    let args = [&["controllers", "--kubeconfig", &kubeconfig][..], &which].concat();
    let log = cluster.directory().join("log/controllers.log");
    let mut controllers = ChildProcess::start(&built_program("wharf"), &args, &log);
    moves(&cluster, |round| {
        if round % 2 == 1 {
            controllers.kill();
            controllers.restart();
        }
    });
    controllers.stop();
}

/// Each round creates the pods on the other node while the old ones still run, so that the attach/detach controller
/// attaches there as soon as it can. Calls are slow, and one in four fails after its effect. `on_the_way` is called
/// with the number of the round after the deletion of the old pods was requested.
fn moves(cluster: &TestCluster, mut on_the_way: impl FnMut(usize)) {
    // Every call that can carry a secret must carry it.
    let demanding = ["--require-secrets", "password=open"];
    let mut driver = ScriptedDriver::start(cluster, DRIVER, &demanding);
    for node in cluster.nodes() {
        driver.join(cluster, node, &demanding);
    }
    cluster.kubectl(&["create", "secret", "generic", "pass", "--from-literal=password=open"]);
    let of = ["provisioner", "controller-publish", "node-stage", "node-publish"].map(|of| {
        format!(
            "csi.storage.k8s.io/{of}-secret-name: pass, csi.storage.k8s.io/{of}-secret-namespace: default"
        )
    });
    let mut sidecar = driver.sidecar("sidecar", &["--reconcile-sync", "5s"]);
    let mut objects = class("moving", DRIVER, &format!("parameters: {{{}}}", of.join(", ")));
    objects.extend((0..PODS).map(|n| claim(&format!("data-{n}"), "moving", "1Mi", "")));
    cluster.apply(&objects);
    driver.set_faults(
        r#"{"ControllerPublishVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.25, "delay_ms": 50},
            "ControllerUnpublishVolume": {"code": "Unavailable", "when": "after", "probability": 0.25, "delay_ms": 50}}"#,
    );

    let rounds = ["node-a", "node-b", "node-a", "node-b"];
    for (round, node) in rounds.into_iter().enumerate() {
        let place = format!("nodeSelector: {{kubernetes.io/hostname: {node}}}");
        let pods = (0..PODS).map(|n| pod(&format!("pod-{n}-{round}"), &format!("data-{n}"), &place));
        cluster.apply(&pods.collect::<String>());
        if round > 0 {
            let old: Vec<String> = (0..PODS).map(|n| format!("pod-{n}-{}", round - 1)).collect();
            let mut delete = vec!["delete", "pod", "--wait=false"];
            delete.extend(old.iter().map(String::as_str));
            cluster.kubectl(&delete);
        }
        on_the_way(round);
        for n in 0..PODS {
            let pod = format!("pod/pod-{n}-{round}");
            cluster.wait_for(&pod, "condition=Ready", 3 * MINUTE);
            let write = format!("echo {round} on {node} >> /data/log; cat /data/log");
            let lines = cluster.kubectl(&["exec", &pod, "--", "sh", "-c", &write]);
            let wanted: Vec<String> = rounds[..=round]
                .iter()
                .enumerate()
                .map(|(round, node)| format!("{round} on {node}"))
                .collect();
            assert_eq!(lines.lines().collect::<Vec<_>>(), wanted, "{pod}");
        }
        driver.assert_no_violation();
    }

    cluster.kubectl(&["delete", "pod", "--selector", "app=test", "--wait=false"]);
    cluster.kubectl(&["delete", "pvc", "--selector", "app=test", "--wait=false"]);
    cluster.eventually("everything is deleted", 2 * MINUTE, |cluster| {
        let left = [cluster.names("pv"), cluster.names("volumeattachment")].concat();
        (left.is_empty() && driver.volumes().is_empty()).then_some(())
    });
    driver.assert_no_violation();
    let published = driver.calls().into_iter().filter(|call| call.method == "ControllerPublishVolume");
    assert!(published.count() >= PODS * rounds.len());
    sidecar.stop();
}

/// A volume is detached from its node outside of Kubernetes: reconciliation with ListVolumes reattaches it.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn externally_detached_volume_is_reattached() {
    let cluster = TestCluster::start_with(super::API_ONLY);
    let driver = ScriptedDriver::start(&cluster, DRIVER, &[]);
    let _sidecar = driver.sidecar("sidecar", &["--reconcile-sync", "2s"]);
    cluster.apply(&super::objects::node_without_kubelet("node-x", DRIVER));
    cluster.apply(&[class("moving", DRIVER, ""), claim("data", "moving", "1Mi", "")].concat());
    cluster.wait_for("pvc/data", "jsonpath={.status.phase}=Bound", MINUTE);
    let volume = cluster.field("pvc/data", ".spec.volumeName");
    cluster.apply(&super::objects::attachment("by-hand", DRIVER, &volume, "node-x"));
    cluster.wait_for("volumeattachment/by-hand", "jsonpath={.status.attached}=true", MINUTE);

    let record = cluster.directory().join(DRIVER).join("state/volumes").join(format!("vol-{volume}"));
    let published = std::fs::read_to_string(&record).unwrap();
    let mut parsed: serde_json::Value = serde_json::from_str(&published).unwrap();
    parsed["published"] = serde_json::json!({});
    std::fs::write(&record, parsed.to_string()).unwrap();
    cluster.eventually("the volume is published again", Duration::from_secs(30), |_| {
        std::fs::read_to_string(&record).unwrap().contains(r#""published":{"node-x""#).then_some(())
    });
    driver.assert_no_violation();
}
