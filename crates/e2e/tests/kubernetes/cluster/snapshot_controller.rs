//! The snapshot controller with upstream's RBAC rules, our CRDs and our snapshotter: snapshots of all kinds are
//! created and deleted in the orders that make upstream hang.

use std::process::Command;

use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster, built_program};

use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "snap.test.wharf.dev";
const CAN: &str = "--capabilities=CREATE_DELETE_VOLUME,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn snapshots_are_created_and_deleted_in_any_order() {
    let cluster = TestCluster::start_with(API_ONLY);
    let driver = ScriptedDriver::start(&cluster, DRIVER, &[CAN]);
    // The controller starts first: it waits for its CRDs.
    let kubeconfig = cluster.sidecar_kubeconfig("snapshot-controller");
    let mut controller =
        driver.sidecar_with("snapshot-controller", &kubeconfig, &["--roles", "snapshot-controller"]);
    assert_eq!(install(&cluster).matches("created ").count(), 7);
    assert_eq!(install(&cluster).matches("unchanged ").count(), 7);
    kinds_are_guarded(&cluster);
    let mut others = driver.sidecar("others", &["--roles", "provisioner,snapshotter"]);
    let snapshot_class =
        snapshot_class("fast", "Delete", "snapshot.storage.kubernetes.io/is-default-class: \"true\"");
    cluster.apply(&[class("plain", DRIVER, ""), claim("data", "plain", "1Gi", ""), snapshot_class].concat());

    // Dynamic, with the default class; then all objects that it refers to are deleted first.
    cluster.apply(&snapshot("a", "persistentVolumeClaimName: data", ""));
    ready(&cluster, "a");
    assert_eq!(cluster.field("vs/a", ".spec.volumeSnapshotClassName"), "fast");
    let content = format!("vsc/{}", cluster.field("vs/a", ".status.boundVolumeSnapshotContentName"));
    cluster.eventually("the claim is released", MINUTE, |cluster| {
        (!cluster.field("pvc/data", ".metadata.finalizers").contains("snapshot")).then_some(())
    });
    assert!(
        cluster.field(&content, ".metadata.finalizers").contains("volumesnapshotcontent-bound-protection")
    );
    for object in [content.as_str(), "vsclass/fast", "pvc/data", "vs/a"] {
        cluster.kubectl(&["delete", object, "--wait=false"]);
    }
    gone(&cluster, "vs/a");
    gone(&cluster, &content);
    gone(&cluster, "pvc/data");

    // In use: a claim that is restored from it protects it.
    let keep = self::snapshot_class("keep", "Retain", "a: b");
    cluster.apply(&[claim("logs", "plain", "1Gi", ""), keep].concat());
    cluster.apply(&snapshot("b", "persistentVolumeClaimName: logs", "keep"));
    ready(&cluster, "b");
    let source = "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: b}";
    cluster.apply(&claim("restored", "unhandled", "1Gi", source));
    cluster.kubectl(&["delete", "vs/b", "--wait=false"]);
    cluster.eventually("an event reports that it is in use", MINUTE, |cluster| {
        let events = cluster.kubectl(&["get", "events", "--output", "jsonpath={.items[*].reason}"]);
        events.contains("SnapshotDeletePending").then_some(())
    });
    let kept = format!("vsc/{}", cluster.field("vs/b", ".status.boundVolumeSnapshotContentName"));
    let handle = cluster.field(&kept, ".status.snapshotHandle");
    cluster.kubectl(&["delete", "pvc/restored"]);
    gone(&cluster, "vs/b");
    // Retained: the content and the driver's snapshot.
    assert_eq!(driver.snapshots().len(), 1);
    cluster.kubectl(&["delete", &kept]);
    gone(&cluster, &kept);
    assert_eq!(driver.snapshots().len(), 1);

    // Pre-provisioned from the retained snapshot; its class no longer exists when it is deleted.
    cluster.apply(&format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {{name: pre}}\nspec:\n  \
         driver: {DRIVER}\n  deletionPolicy: Delete\n  source: {{snapshotHandle: {handle}}}\n  \
         volumeSnapshotRef: {{name: c, namespace: default}}\n---"
    ));
    cluster.apply(&snapshot("c", "volumeSnapshotContentName: pre", ""));
    ready(&cluster, "c");
    // Deleting a namespace deletes everything in it, in any order.
    cluster.kubectl(&["create", "namespace", "short"]);
    let in_namespace = |yaml: String| yaml.replace("metadata: {", "metadata: {namespace: short, ");
    cluster.apply(&in_namespace(claim("data", "plain", "1Gi", "")));
    cluster.apply(&in_namespace(snapshot("d", "persistentVolumeClaimName: data", "keep")));
    cluster.eventually("the snapshot is taken", MINUTE, |cluster| {
        let state =
            cluster.kubectl(&["get", "vs/d", "-n", "short", "--output", "jsonpath={.status.readyToUse}"]);
        (state == "true").then_some(())
    });
    cluster.kubectl(&["delete", "vsclass/keep", "--wait=false"]);
    cluster.kubectl(&["delete", "namespace", "short", "--timeout=60s"]);
    for kept in cluster.names("vsc").iter().filter(|name| name.contains("snapcontent-")) {
        cluster.kubectl(&["delete", "vsc", kept]);
    }
    cluster.kubectl(&["delete", "vs/c"]);
    gone(&cluster, "vsc/pre");
    cluster.kubectl(&["delete", "pvc", "--all"]);
    assert_eq!(cluster.names("vs,vsc,pvc"), Vec::<String>::new());
    assert_eq!(refused(&controller), Vec::<String>::new());
    controller.stop();
    others.stop();
}

/// The validation rules of the CRDs.
fn kinds_are_guarded(cluster: &TestCluster) {
    for (yaml, message) in [
        (snapshot("x", "", ""), "exactly one of"),
        (snapshot("x", "persistentVolumeClaimName: a, volumeSnapshotContentName: b", ""), "exactly one of"),
        (snapshot("x", "persistentVolumeClaimName: a", "\"\""), "must not be the empty string"),
    ] {
        let error = cluster.try_apply(&yaml).expect_err(&yaml);
        assert!(error.contains(message), "{yaml}\n{error}");
    }
    cluster.apply(&snapshot("x", "persistentVolumeClaimName: a", "none"));
    let patch = r#"{"spec":{"source":{"persistentVolumeClaimName":"b"}}}"#;
    let error = cluster
        .try_kubectl(&["patch", "vs/x", "--type=merge", "--patch", patch])
        .expect_err("the source is immutable");
    assert!(error.contains("persistentVolumeClaimName is immutable"), "{error}");
    cluster.kubectl(&["delete", "vs/x"]);
}

fn install(cluster: &TestCluster) -> String {
    let kubeconfig = cluster.kubeconfig();
    let output = Command::new(built_program("wharf"))
        .args(["install", "crds", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .expect("wharf install crds");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn snapshot_class(name: &str, policy: &str, annotation: &str) -> String {
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\n\
         metadata: {{name: {name}, annotations: {{{annotation}}}}}\ndriver: {DRIVER}\ndeletionPolicy: {policy}\n---"
    )
}

fn snapshot(name: &str, source: &str, class: &str) -> String {
    let class =
        if class.is_empty() { String::new() } else { format!("  volumeSnapshotClassName: {class}\n") };
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\nspec:\n\
         {class}  source: {{{source}}}\n---"
    )
}

fn ready(cluster: &TestCluster, name: &str) {
    cluster.wait_for(&format!("vs/{name}"), "jsonpath={.status.readyToUse}=true", MINUTE);
}

fn gone(cluster: &TestCluster, object: &str) {
    cluster.wait_for(object, "delete", MINUTE);
}

/// Requests that the API server rejected.
fn refused(controller: &ChildProcess) -> Vec<String> {
    let log = controller.log();
    log.lines().filter(|line| line.contains("is forbidden")).map(str::to_owned).collect()
}
