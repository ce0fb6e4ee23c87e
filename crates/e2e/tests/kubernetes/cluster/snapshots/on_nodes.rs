//! The local driver with its sidecar on two nodes: each node takes the snapshots of its own volumes.

use std::time::Instant;

use wharf_linux::FsType;
use wharf_testkit::{ChildProcess, TestCluster, upstream_program};

use super::super::MINUTE;
use super::super::local::{DRIVER, GIB, LocalCluster, READY};
use super::super::objects::{claim, pod};
use super::{
    content_of, controller, delete, from_snapshot, install, no_contents, ready, snapshot, snapshot_class,
};

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn each_node_snapshots_its_own_volumes() {
    let cluster = TestCluster::start();
    install(&cluster);
    let mut snapshot_controller = controller(&cluster, &["--enable-distributed-snapshotting"]);
    let local = LocalCluster::new(&cluster);
    local.add_node("node-a", FsType::Xfs, 2 * GIB);
    local.add_node("node-b", FsType::Xfs, 2 * GIB);
    local.classes();
    cluster.apply(
        &[snapshot_class("snap", DRIVER, "Delete"), snapshot_class("kept", DRIVER, "Retain")].concat(),
    );
    cluster.apply(GROUP_CLASS);
    let run_step = |name: &str, step: &dyn Fn(&LocalCluster<'_>)| {
        let started = Instant::now();
        step(&local);
        println!("{name}: {:.1?}", started.elapsed());
    };
    run_step("restore a snapshot and clone the restored volume", &restore);
    run_step("restore with another volume mode", &restore_with_other_volume_mode);
    run_step("group snapshot under load", &group_under_load);
    run_step("group snapshot across nodes", &group_across_nodes);
    run_step("import a retained snapshot", &|local| import_retained(local, true));
    run_step("deletion orders", &deletion_orders);
    no_contents(&cluster);
    local.end();
    snapshot_controller.stop();
}

/// U-12: a snapshot controller with its default flags labels no content. Each node takes, labels and deletes its own.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn nodes_take_their_snapshots_without_distributed_snapshotting() {
    let cluster = TestCluster::start();
    install(&cluster);
    let local = LocalCluster::new(&cluster);
    local.add_node("node-a", FsType::Xfs, 2 * GIB);
    local.add_node("node-b", FsType::Xfs, 2 * GIB);
    local.classes();
    cluster.apply(
        &[snapshot_class("snap", DRIVER, "Delete"), snapshot_class("kept", DRIVER, "Retain")].concat(),
    );
    for name in ["upstream", "ours"] {
        let started = Instant::now();
        let mut snapshot_controller = match name {
            "upstream" => upstream_controller(&cluster),
            _ => controller(&cluster, &[]),
        };
        restore(&local);
        import_retained(&local, false);
        deletion_of_content_that_no_node_has(&cluster);
        no_contents(&cluster);
        snapshot_controller.terminate();
        println!("{name}: {:.1?}", started.elapsed());
    }
    local.end();
}

fn upstream_controller(cluster: &TestCluster) -> ChildProcess {
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let log = cluster.directory().join("log/upstream-snapshot-controller.log");
    ChildProcess::start(
        &upstream_program("snapshot-controller"),
        &["--kubeconfig", &kubeconfig, "-v=4"],
        &log,
    )
}

/// The YAML of a pod's node selector.
fn node_selector(node: &str) -> String {
    format!("nodeSelector: {{kubernetes.io/hostname: {node}}}")
}

fn restore(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("data", "ext4", "64Mi", ""), pod("data", "data", "")].concat());
    cluster.wait_for("pod/data", READY, MINUTE);
    let same_node = node_selector(&local.node_of("data"));
    local.run("data", "echo before > /data/file && sync");
    cluster.apply(&snapshot("first", "snap", "data"));
    ready(cluster, "first");
    assert_eq!(
        cluster.field(&format!("volumesnapshotcontent/{}", content_of(cluster, "first")), ".metadata.labels"),
        format!(r#"{{"snapshot.storage.kubernetes.io/managed-by":"{}"}}"#, local.node_of("data"))
    );
    local.run("data", "echo after > /data/file && sync");
    cluster.apply(
        &[claim("back", "ext4", "64Mi", &from_snapshot("first")), pod("back", "back", &same_node)].concat(),
    );
    cluster.wait_for("pod/back", READY, MINUTE);
    assert_eq!(local.run("back", "cat /data/file"), "before\n");
    let copy = "dataSource: {kind: PersistentVolumeClaim, name: back}";
    cluster.apply(&[claim("copy", "ext4", "64Mi", copy), pod("copy", "copy", &same_node)].concat());
    cluster.wait_for("pod/copy", READY, MINUTE);
    assert_eq!(local.run("copy", "cat /data/file"), "before\n");
    delete(cluster, &["first"]);
    local.delete(&["data", "back", "copy"], &["data", "back", "copy"]);
}

/// A file system snapshot can be restored as a raw block volume only if an administrator allows it on the content.
fn restore_with_other_volume_mode(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("data", "ext4", "64Mi", ""), pod("data", "data", "")].concat());
    cluster.wait_for("pod/data", READY, MINUTE);
    let same_node = node_selector(&local.node_of("data"));
    local.run("data", "echo before > /data/file && sync");
    cluster.apply(&snapshot("files", "snap", "data"));
    ready(cluster, "files");
    let block = format!("volumeMode: Block\n  {}", from_snapshot("files"));
    let reader = pod("raw", "raw", &same_node).replace(
        "volumeMounts: [{name: data, mountPath: /data}]",
        "securityContext: {privileged: true}\n    volumeDevices: [{name: data, devicePath: /dev/data}]",
    );
    cluster.apply(&[claim("raw", "ext4", "64Mi", &block), reader].concat());
    cluster.eventually("the restore is rejected with a reason", MINUTE, |cluster| {
        let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=raw"]);
        events.contains("allow-volume-mode-change").then_some(())
    });
    assert_eq!(cluster.field("pvc/raw", ".status.phase"), "Pending");
    let content = content_of(cluster, "files");
    let allow_mode_change = "snapshot.storage.kubernetes.io/allow-volume-mode-change=true";
    cluster.kubectl(&["annotate", "volumesnapshotcontent", &content, allow_mode_change]);
    cluster.wait_for("pod/raw", READY, 2 * MINUTE);
    assert_eq!(local.run("raw", "grep -q before /dev/data && echo found"), "found\n");
    delete(cluster, &["files"]);
    local.delete(&["data", "raw"], &["data", "raw"]);
}

/// A pod writes increasing numbers to two volumes, one after the other: in a group snapshot they are equal, or the
/// first is one ahead.
fn group_under_load(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(
        &[claim("left", "ext4", "64Mi", ""), claim("right", "ext4", "64Mi", ""), WRITER.to_owned()].concat(),
    );
    cluster.kubectl(&["label", "pvc", "left", "right", "group=pair"]);
    cluster.wait_for("pod/writer", READY, MINUTE);
    let same_node = node_selector(&local.node_of("writer"));
    cluster.eventually("the pod has written a count", MINUTE, |_| {
        (local.run("writer", "cat /right/count 2>/dev/null; true").len() > 1).then_some(())
    });
    cluster.apply(GROUP);
    cluster.wait_for("volumegroupsnapshot/pair", "jsonpath={.status.readyToUse}=true", 2 * MINUTE);
    let members = cluster.eventually("the group has two members", MINUTE, |cluster| {
        let members = cluster.names("volumesnapshots");
        (members.len() == 2).then_some(members)
    });
    let mut counts = Vec::new();
    for (i, member) in members.iter().enumerate() {
        ready(cluster, member);
        let name = format!("back-{i}");
        cluster.apply(
            &[claim(&name, "ext4", "64Mi", &from_snapshot(member)), pod(&name, &name, &same_node)].concat(),
        );
        cluster.wait_for(&format!("pod/{name}"), READY, MINUTE);
        let output = local.run(&name, "cat /data/count");
        let (side, count) = output.trim().split_once(' ').expect("a side and a count");
        counts.push((side.to_owned(), count.parse::<i64>().expect("a count")));
    }
    counts.sort();
    let [(left, first), (right, second)] = &counts[..] else { panic!("{counts:?}") };
    assert_eq!((left.as_str(), right.as_str()), ("left", "right"));
    assert!(
        *first == *second || *first == second + 1,
        "the members were not taken at one point in time: {counts:?}"
    );
    cluster.kubectl(&["delete", "volumegroupsnapshot", "pair", "--timeout=60s"]);
    no_contents(cluster);
    assert_eq!(
        cluster.names("volumesnapshots"),
        Vec::<String>::new(),
        "members must be deleted with their group"
    );
    local.delete(&["writer", "back-0", "back-1"], &["left", "right", "back-0", "back-1"]);
}

/// A group snapshot of volumes on different nodes is rejected.
fn group_across_nodes(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    for node in ["node-a", "node-b"] {
        cluster.apply(&[claim(node, "ext4", "64Mi", ""), pod(node, node, &node_selector(node))].concat());
        cluster.wait_for(&format!("pod/{node}"), READY, MINUTE);
        cluster.kubectl(&["label", "pvc", node, "group=pair"]);
    }
    cluster.apply(GROUP);
    cluster.eventually("it is rejected with a reason", MINUTE, |cluster| {
        let message = cluster.field("volumegroupsnapshot/pair", ".status.error.message");
        message.contains("on different nodes").then_some(())
    });
    cluster.kubectl(&["delete", "volumegroupsnapshot", "pair", "--timeout=60s"]);
    no_contents(cluster);
    local.delete(&["node-a", "node-b"], &["node-a", "node-b"]);
}

/// A retained snapshot outlives its objects, and can be imported as a pre-provisioned snapshot.
fn import_retained(local: &LocalCluster<'_>, labelled: bool) {
    let cluster = local.cluster;
    cluster.apply(&[claim("data", "ext4", "64Mi", ""), pod("data", "data", "")].concat());
    cluster.wait_for("pod/data", READY, MINUTE);
    let node = local.node_of("data");
    cluster.apply(&snapshot("kept", "kept", "data"));
    ready(cluster, "kept");
    let content = format!("volumesnapshotcontent/{}", content_of(cluster, "kept"));
    let handle = cluster.field(&content, ".status.snapshotHandle");
    cluster.kubectl(&["delete", "volumesnapshot", "kept", "--timeout=60s"]);
    assert_eq!(cluster.field(&content, ".status.snapshotHandle"), handle, "the content must be retained");
    cluster.kubectl(&["delete", &content, "--timeout=60s"]);
    let label =
        if labelled { format!("snapshot.storage.kubernetes.io/managed-by: {node}") } else { String::new() };
    cluster.apply(&format!(
        r#"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {{name: imported, labels: {{{label}}}}}
spec:
  driver: {DRIVER}
  deletionPolicy: Delete
  source: {{snapshotHandle: {handle}}}
  volumeSnapshotRef: {{name: imported, namespace: default}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {{name: imported}}
spec: {{source: {{volumeSnapshotContentName: imported}}}}
"#
    ));
    ready(cluster, "imported");
    let restored = claim("back", "ext4", "64Mi", &from_snapshot("imported"));
    cluster.apply(&[restored, pod("back", "back", &node_selector(&node))].concat());
    cluster.wait_for("pod/back", READY, MINUTE);
    delete(cluster, &["imported"]);
    local.delete(&["data", "back"], &["data", "back"]);
}

/// A content that is retained needs no driver, so any node may release it.
fn deletion_of_content_that_no_node_has(cluster: &TestCluster) {
    cluster.apply(&format!(
        r#"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {{name: unknown}}
spec:
  driver: {DRIVER}
  deletionPolicy: Retain
  source: {{snapshotHandle: snap-00000000000000000000000000000000}}
  volumeSnapshotRef: {{name: unknown, namespace: default}}
"#
    ));
    cluster.kubectl(&["delete", "volumesnapshotcontent", "unknown", "--timeout=60s"]);
}

/// Deletion orders in which upstream's controllers hang.
fn deletion_orders(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&snapshot_class("temporary", DRIVER, "Delete"));
    cluster.apply(&[claim("data", "ext4", "64Mi", ""), pod("data", "data", "")].concat());
    cluster.wait_for("pod/data", READY, MINUTE);
    let names = ["content-first", "class-first", "claim-first"];
    for name in names {
        cluster.apply(&snapshot(name, "temporary", "data"));
    }
    for name in names {
        ready(cluster, name);
    }
    let content = content_of(cluster, "content-first");
    cluster.kubectl(&["delete", "volumesnapshotcontent", &content, "--wait=false"]);
    cluster.kubectl(&["delete", "volumesnapshot", "content-first", "--timeout=60s"]);
    cluster.kubectl(&["delete", "volumesnapshotclass", "temporary", "--timeout=60s"]);
    cluster.kubectl(&["delete", "volumesnapshot", "class-first", "--timeout=60s"]);
    local.delete(&["data"], &["data"]);
    delete(cluster, &["claim-first"]);

    cluster.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: temporary}\n");
    let objects = [claim("data", "immediate", "64Mi", ""), snapshot("data", "snap", "data")].concat();
    cluster.apply(&objects.replace("metadata: {name:", "metadata: {namespace: temporary, name:"));
    cluster.eventually("the snapshot is ready", MINUTE, |cluster| {
        let path = "jsonpath={.status.readyToUse}";
        let ready = cluster.kubectl(&["get", "volumesnapshot/data", "-n", "temporary", "--output", path]);
        (ready == "true").then_some(())
    });
    cluster.kubectl(&["delete", "namespace", "temporary", "--timeout=120s"]);
    no_contents(cluster);
}

const GROUP_CLASS: &str = "
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: group}
driver: local.csi.wharf.dev
deletionPolicy: Delete
";

const GROUP: &str = "
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: pair}
spec:
  volumeGroupSnapshotClassName: group
  source: {selector: {matchLabels: {group: pair}}}
";

const WRITER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command:
    - sh
    - -c
    - |
      i=0
      while true; do
        i=$((i+1))
        for side in left right; do
          echo "$side $i" > /$side/new && sync && mv /$side/new /$side/count && sync
        done
      done
    volumeMounts: [{name: left, mountPath: /left}, {name: right, mountPath: /right}]
  volumes:
  - {name: left, persistentVolumeClaim: {claimName: left}}
  - {name: right, persistentVolumeClaim: {claimName: right}}
---"#;
