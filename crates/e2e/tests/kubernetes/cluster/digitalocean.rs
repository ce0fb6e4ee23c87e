//! The DigitalOcean driver in a real Kubernetes cluster, with a fake droplet for each node: the lifecycle of a volume, and
//! the adoption of volumes that the previous driver created.

mod cloud;

use wharf_testkit::TestCluster;

use super::MINUTE;
use super::objects::{claim, class, pod};
use cloud::{ADOPTED_VOLUMES, Cloud, DRIVER};

/// The lifecycle of a volume: created, attached, written, moved to the other node and back, snapshotted, restored
/// larger, expanded in use, deleted.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn digitalocean_volume_completes_full_lifecycle() {
    let cluster = TestCluster::start();
    let mut cloud = Cloud::start(&cluster);
    // Expanding a mounted ext4 needs CAP_SYS_RESOURCE; the tests in the virtual machine cover that.
    let xfs = "parameters: {csi.storage.k8s.io/fstype: xfs}";
    cluster
        .apply(&[class("do", DRIVER, xfs), snapshot_class("do"), claim("data", "do", "1500Mi", "")].concat());
    cluster.wait_for("pvc/data", "jsonpath={.status.phase}=Bound", MINUTE);
    assert_eq!(
        cluster.field("pvc/data", ".status.capacity.storage"),
        "2Gi",
        "sizes are rounded up to whole GiB and reported"
    );

    let nodes = ["node-a", "node-b", "node-a"];
    for (round, node) in nodes.into_iter().enumerate() {
        let node_selector = format!("nodeSelector: {{kubernetes.io/hostname: {node}}}");
        cluster.apply(&pod("writer", "data", &node_selector));
        cluster.wait_for("pod/writer", "condition=Ready", 3 * MINUTE);
        let log = shell(&cluster, "writer", &format!("echo {round} >> /data/log; sync; cat /data/log"));
        assert_eq!(log.lines().count(), round + 1, "{log}");
        if round + 1 < nodes.len() {
            cluster.kubectl(&["delete", "pod", "writer"]);
        }
    }

    cluster.apply(&snapshot("snap", "do", "data"));
    cluster.wait_for("volumesnapshot/snap", "jsonpath={.status.readyToUse}=true", MINUTE);
    shell(&cluster, "writer", "echo later >> /data/log; sync");
    let source = "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: snap}";
    cluster.apply(&[claim("restored", "do", "5Gi", source), pod("reader", "restored", "")].concat());
    cluster.wait_for("pod/reader", "condition=Ready", 3 * MINUTE);
    assert_eq!(
        shell(&cluster, "reader", "cat /data/log"),
        "0\n1\n2\n",
        "the content at the time of the snapshot"
    );
    assert!(size_of(&cluster, "reader") > 4 << 30, "the file system must fill the larger volume");

    let expansion = r#"{"spec": {"resources": {"requests": {"storage": "4Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "data", "--patch", expansion]);
    cluster.wait_for("pvc/data", "jsonpath={.status.capacity.storage}=4Gi", 3 * MINUTE);
    assert!(size_of(&cluster, "writer") > 3 << 30, "the expansion must be visible without a restart");
    assert_eq!(shell(&cluster, "writer", "cat /data/log"), "0\n1\n2\nlater\n");

    cluster.kubectl(&["delete", "pod", "--selector", "app=test"]);
    cluster.kubectl(&["delete", "volumesnapshot", "snap"]);
    cluster.kubectl(&["delete", "pvc", "--selector", "app=test", "--timeout=120s"]);
    cloud.wait_until_empty_and_stop(&cluster);
}

/// Volumes of the previous dobs.csi.digitalocean.com driver: one in use with data, one that was never formatted.
#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn volumes_of_previous_driver_are_adopted() {
    let cluster = TestCluster::start();
    let mut cloud = Cloud::start(&cluster);
    cluster.apply(&[class("do-block-storage", DRIVER, ""), snapshot_class("do")].concat());
    let (used, blank) = ADOPTED_VOLUMES;
    for name in [used, blank] {
        let id = cloud.create_volume(name, 2);
        cluster.apply(&cloud::volume_of_previous_driver(name, &id));
        cluster.wait_for(&format!("pvc/{name}"), "jsonpath={.status.phase}=Bound", MINUTE);
        if name == used {
            cloud.fill(&id, name, "precious");
            cloud.attach(&id, cloud::DROPLETS[0]);
            cluster.apply(&cloud::attachment_of_previous_driver(name, &id));
            let status = cloud::attachment_status_of_previous_driver(name);
            let object = format!("volumeattachment/{}", cloud::attachment_name(&id));
            let patch = ["patch", &object, "--subresource=status", "--type=merge", "--patch", &status];
            cluster.kubectl(&patch);
        }
    }
    let node_selector = "nodeSelector: {kubernetes.io/hostname: node-a}";
    cluster.apply(&[pod("user", used, node_selector), pod("first", blank, "")].concat());
    cluster.wait_for("pod/user", "condition=Ready", 3 * MINUTE);
    cluster.wait_for("pod/first", "condition=Ready", 3 * MINUTE);
    assert_eq!(shell(&cluster, "user", "cat /data/file"), "precious\n");
    shell(&cluster, "first", "echo new > /data/file; sync");

    let expansion = r#"{"spec": {"resources": {"requests": {"storage": "3Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", used, "--patch", expansion]);
    cluster.wait_for(&format!("pvc/{used}"), "jsonpath={.status.capacity.storage}=3Gi", 3 * MINUTE);
    cluster.apply(&snapshot("snap", "do", used));
    cluster.wait_for("volumesnapshot/snap", "jsonpath={.status.readyToUse}=true", MINUTE);

    cluster.kubectl(&["delete", "pod", "--selector", "app=test"]);
    cluster.kubectl(&["delete", "volumesnapshot", "snap"]);
    cluster.kubectl(&["delete", "pvc", used, blank, "--timeout=120s"]);
    cloud.wait_until_empty_and_stop(&cluster);
}

fn shell(cluster: &TestCluster, pod: &str, script: &str) -> String {
    cluster.kubectl(&["exec", &format!("pod/{pod}"), "--", "sh", "-c", script])
}

/// The size of the file system at /data, in bytes.
fn size_of(cluster: &TestCluster, pod: &str) -> u64 {
    let blocks = shell(cluster, pod, "stat -f -c '%b %S' /data");
    blocks.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product()
}

fn snapshot_class(name: &str) -> String {
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {{name: {name}}}\n\
         driver: {DRIVER}\ndeletionPolicy: Delete\n---"
    )
}

fn snapshot(name: &str, class: &str, claim: &str) -> String {
    format!(
        "\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\n\
         spec: {{volumeSnapshotClassName: {class}, source: {{persistentVolumeClaimName: {claim}}}}}\n---"
    )
}
