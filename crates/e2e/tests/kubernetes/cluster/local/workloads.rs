//! Pods and their claims.

use std::time::Duration;

use wharf_linux::FsType;

use super::super::MINUTE;
use super::super::objects::{claim, pod};
use super::super::static_volumes::statistic;
use super::{BOUND, GIB, LocalCluster, READY};

/// Three replicas with their own claims, deleted and recreated.
pub(super) fn stateful_set(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    let pods = ["web-0", "web-1", "web-2"];
    cluster.apply(STATEFUL_SET);
    let ready = |cluster: &wharf_testkit::TestCluster| {
        for pod in pods {
            cluster.eventually("the pod is created", MINUTE, |cluster| {
                (!cluster.field(&format!("pod/{pod}"), ".metadata.name").is_empty()).then_some(())
            });
            cluster.wait_for(&format!("pod/{pod}"), READY, 2 * MINUTE);
        }
    };
    ready(cluster);
    let places: Vec<String> = pods.iter().map(|pod| local.node_of(pod)).collect();
    for pod in pods {
        local.run(pod, &format!("echo I am {pod} > /data/who && sync"));
    }
    let capacity = cluster.eventually("kubelet's statistics of the claim", MINUTE, |cluster| {
        statistic(&cluster.kubelet_metrics(&places[0]), "capacity_bytes", "data-web-0")
    });
    assert!((0.7..=1.0).contains(&(capacity / (320.0 * 1024.0 * 1024.0))), "{capacity} bytes");

    cluster.kubectl(&["delete", "statefulset", "web", "--timeout=60s"]);
    cluster.kubectl(&["wait", "--for=delete", "pod", "--selector", "app=web", "--timeout=60s"]);
    cluster.apply(STATEFUL_SET);
    ready(cluster);
    for (pod, place) in pods.iter().zip(&places) {
        assert_eq!(local.run(pod, "cat /data/who"), format!("I am {pod}\n"));
        assert_eq!(local.node_of(pod), *place, "{pod} follows its volume");
    }
    cluster.kubectl(&["delete", "statefulset", "web", "--timeout=60s"]);
    local
        .delete(&pods, &pods.map(|pod| format!("data-{pod}")).iter().map(String::as_str).collect::<Vec<_>>());
}

/// The scheduler knows from the CSIStorageCapacity objects where the claim fits.
pub(super) fn too_big_for_one_node(local: &LocalCluster<'_>) {
    local.cluster.apply(&[claim("big", "xfs", "6Gi", ""), pod("big", "big", "")].concat());
    local.cluster.wait_for("pod/big", READY, MINUTE);
    assert_eq!(local.node_of("big"), "node-b");
    local.delete(&["big"], &["big"]);
}

pub(super) fn raw_block(local: &LocalCluster<'_>) {
    let block = claim("block", "xfs", "64Mi", "volumeMode: Block");
    local.cluster.apply(&[block.as_str(), BLOCK_POD].concat());
    local.cluster.wait_for("pod/block", READY, MINUTE);
    let written = local
        .run("block", "echo as bytes | dd of=/dev/data conv=notrunc 2>/dev/null; sync; head -c 9 /dev/data");
    assert_eq!(written, "as bytes\n");
    local.delete(&["block"], &["block"]);
}

/// The clone is on the node of its source, the only possible node.
pub(super) fn clone(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("source", "ext4", "64Mi", ""), pod("source", "source", "")].concat());
    cluster.wait_for("pod/source", READY, MINUTE);
    local.run("source", "echo copied > /data/file && sync");
    let place = local.node_of("source");
    let from = "dataSource: {kind: PersistentVolumeClaim, name: source}";
    let node_selector = format!("nodeSelector: {{kubernetes.io/hostname: {place}}}");
    cluster.apply(&[claim("copy", "ext4", "64Mi", from), pod("copy", "copy", &node_selector)].concat());
    cluster.wait_for("pod/copy", READY, MINUTE);
    assert_eq!(local.run("copy", "cat /data/file"), "copied\n");
    local.run("copy", "echo changed > /data/file && sync");
    assert_eq!(local.run("source", "cat /data/file"), "copied\n");
    local.delete(&["source", "copy"], &["source", "copy"]);
}

/// ReadWriteOncePod.
pub(super) fn one_pod_only(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    let own = claim("own", "ext4", "64Mi", "accessModes: [ReadWriteOncePod]");
    cluster.apply(&[own, pod("owner", "own", "")].concat());
    cluster.wait_for("pod/owner", READY, MINUTE);
    cluster.apply(&pod("other", "own", ""));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.field("pod/other", ".status.phase"), "Pending");
    cluster.kubectl(&["delete", "pod", "owner", "--timeout=60s"]);
    cluster.wait_for("pod/other", READY, MINUTE);
    local.delete(&["other"], &["own"]);
}

/// An Immediate claim is provisioned on one of the nodes.
pub(super) fn immediate(local: &LocalCluster<'_>) {
    local.cluster.apply(&claim("now", "immediate", "64Mi", ""));
    local.cluster.wait_for("pvc/now", BOUND, MINUTE);
    local.cluster.apply(&pod("now", "now", ""));
    local.cluster.wait_for("pod/now", READY, MINUTE);
    local.delete(&["now"], &["now"]);
}

/// With reclaim policy Retain, a volume outlives its claim until its owner changes the policy.
pub(super) fn retain(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("kept", "retain", "64Mi", ""), pod("kept", "kept", "")].concat());
    cluster.wait_for("pod/kept", READY, MINUTE);
    let volume = format!("pv/{}", cluster.field("pvc/kept", ".spec.volumeName"));
    cluster.kubectl(&["delete", "pod", "kept", "--timeout=60s"]);
    cluster.kubectl(&["delete", "pvc", "kept", "--timeout=60s"]);
    cluster.wait_for(&volume, "jsonpath={.status.phase}=Released", MINUTE);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.field(&volume, ".status.phase"), "Released");
    let patch = r#"{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}"#;
    cluster.kubectl(&["patch", &volume, "--patch", patch]);
    cluster.wait_for(&volume, "delete", MINUTE);
}

pub(super) fn late_node(local: &LocalCluster<'_>) {
    local.cluster.join("node-c");
    local.add_node("node-c", FsType::Ext4, GIB);
    local.wait_for_capacity("node-c");
    let node_selector = "nodeSelector: {kubernetes.io/hostname: node-c}";
    local.cluster.apply(&[claim("late", "ext4", "64Mi", ""), pod("late", "late", node_selector)].concat());
    local.cluster.wait_for("pod/late", READY, MINUTE);
    local.delete(&["late"], &["late"]);
}

const STATEFUL_SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
      containers:
      - name: main
        image: busybox:1.36
        imagePullPolicy: Never
        command: [sleep, "100000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: xfs
      resources: {requests: {storage: 320Mi}}
"#;

const BLOCK_POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: block}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command: [sleep, "100000"]
    securityContext: {privileged: true}
    volumeDevices: [{name: data, devicePath: /dev/data}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: block}
"#;
