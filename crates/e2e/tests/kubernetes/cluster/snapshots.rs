//! Snapshots and group snapshots with only our own programs: the snapshot controller for the cluster, and the
//! snapshotter on each node ([`on_nodes`]) or for a cluster-wide driver ([`slow`]).

mod on_nodes;
mod slow;

use std::process::Command;

use wharf_testkit::{ChildProcess, TestCluster, built_program};

use super::MINUTE;

/// Installs the snapshot CRDs.
fn install(cluster: &TestCluster) {
    let output = Command::new(built_program("wharf"))
        .args(["install", "crds", "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .output()
        .expect("wharf install crds");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn controller(cluster: &TestCluster, more: &[&str]) -> ChildProcess {
    let kubeconfig = cluster.kubeconfig().display().to_string();
    // Its lease must not be among those of intents.
    let own =
        ["snapshot-controller", "--kubeconfig", &kubeconfig, "--leader-election-namespace", "kube-system"];
    let args = [&own[..], more].concat();
    let env = [("RUST_LOG", "info,wharf_sidecar=debug,wharf_controllers=debug")];
    let log = cluster.directory().join("log/snapshot-controller.log");
    ChildProcess::start_with(&built_program("wharf"), &args, &env, &log)
}

/// A VolumeSnapshotClass.
fn snapshot_class(name: &str, driver: &str, policy: &str) -> String {
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {{name: {name}}}\n\
         driver: {driver}\ndeletionPolicy: {policy}\n---"
    )
}

/// A snapshot of a claim.
fn snapshot(name: &str, class: &str, claim: &str) -> String {
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\n\
         spec: {{volumeSnapshotClassName: {class}, source: {{persistentVolumeClaimName: {claim}}}}}\n---"
    )
}

/// The dataSource of a claim that restores a snapshot, as a field of its spec.
fn from_snapshot(name: &str) -> String {
    format!("dataSource: {{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {name}}}")
}

fn ready(cluster: &TestCluster, snapshot: &str) {
    cluster.wait_for(&format!("volumesnapshot/{snapshot}"), "jsonpath={.status.readyToUse}=true", 2 * MINUTE);
}

/// The content of a snapshot.
fn content_of(cluster: &TestCluster, snapshot: &str) -> String {
    cluster.eventually("the snapshot is bound", MINUTE, |cluster| {
        let path = ".status.boundVolumeSnapshotContentName";
        let name = cluster.field(&format!("volumesnapshot/{snapshot}"), path);
        (!name.is_empty()).then_some(name)
    })
}

/// Deletes snapshots and waits until all contents are gone.
fn delete(cluster: &TestCluster, snapshots: &[&str]) {
    cluster.kubectl(&[&["delete", "volumesnapshot", "--timeout=60s"], snapshots].concat());
    no_contents(cluster);
}

fn no_contents(cluster: &TestCluster) {
    cluster.eventually("all contents are gone", MINUTE, |cluster| {
        let kinds = ["volumesnapshotcontents", "volumegroupsnapshotcontents"];
        kinds.iter().all(|kind| cluster.names(kind).is_empty()).then_some(())
    });
}
