//! Expansion of claims.

use super::super::MINUTE;
use super::super::harness::mounts;
use super::super::objects::{claim, pod};
use super::{LocalCluster, READY};

const MIB: f64 = 1024.0;

/// The size of the file system at /data, in MiB.
fn size(local: &LocalCluster<'_>, pod: &str) -> f64 {
    let output = local.run(pod, "df -k /data | tail -n 1");
    let blocks = output.split_whitespace().nth(1).and_then(|number| number.parse::<f64>().ok());
    blocks.unwrap_or_else(|| panic!("{output}")) / MIB
}

fn capacity(local: &LocalCluster<'_>, claim: &str, size: &str) {
    let object = format!("pvc/{claim}");
    local.cluster.wait_for(&object, &format!("jsonpath={{.status.capacity.storage}}={size}"), 2 * MINUTE);
    local.cluster.eventually("the expansion's conditions are gone", MINUTE, |cluster| {
        cluster.field(&object, ".status.conditions").is_empty().then_some(())
    });
}

/// Expansion while a pod writes to the volume.
pub(super) fn online(local: &LocalCluster<'_>) {
    local.cluster.apply(&[claim("grows", "xfs", "320Mi", ""), pod("grows", "grows", "")].concat());
    local.cluster.wait_for("pod/grows", READY, MINUTE);
    local.run("grows", "echo kept > /data/file && sync");
    let before = size(local, "grows");
    local.resize("grows", "640Mi");
    capacity(local, "grows", "640Mi");
    let after = size(local, "grows");
    assert!(after > before + 280.0, "{before} MiB became {after} MiB");
    assert_eq!(local.run("grows", "cat /data/file"), "kept\n");
    local.delete(&["grows"], &["grows"]);
}

/// Expansion of an unused volume: the volume is expanded at once, the file system when the next pod uses it.
pub(super) fn offline(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("rests", "ext4", "64Mi", ""), pod("rests", "rests", "")].concat());
    cluster.wait_for("pod/rests", READY, MINUTE);
    local.run("rests", "echo kept > /data/file && sync");
    let before = size(local, "rests");
    let node = cluster.kubelet_root(&local.node_of("rests"));
    cluster.kubectl(&["delete", "pod", "rests", "--timeout=60s"]);
    // A pod without a grace period is deleted from the API before kubelet has cleaned up.
    cluster.eventually("kubelet releases the volume", MINUTE, |_| mounts(&node).is_empty().then_some(()));
    local.resize("rests", "128Mi");
    cluster.wait_for("pvc/rests", "condition=FileSystemResizePending", MINUTE);
    let volume = format!("pv/{}", cluster.field("pvc/rests", ".spec.volumeName"));
    assert_eq!(cluster.field(&volume, ".spec.capacity.storage"), "128Mi");
    assert_eq!(cluster.field("pvc/rests", ".status.capacity.storage"), "64Mi");
    cluster.apply(&pod("rests", "rests", ""));
    cluster.wait_for("pod/rests", READY, MINUTE);
    capacity(local, "rests", "128Mi");
    let after = size(local, "rests");
    assert!(after > before + 50.0, "{before} MiB became {after} MiB");
    assert_eq!(local.run("rests", "cat /data/file"), "kept\n");
    local.delete(&["rests"], &["rests"]);
}

/// An expansion beyond the capacity, then a smaller request.
pub(super) fn recovered(local: &LocalCluster<'_>) {
    let cluster = local.cluster;
    cluster.apply(&[claim("greedy", "xfs", "320Mi", ""), pod("greedy", "greedy", "")].concat());
    cluster.wait_for("pod/greedy", READY, MINUTE);
    local.resize("greedy", "10Ti");
    cluster.eventually("the driver refuses", MINUTE, |cluster| {
        let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=greedy"]);
        events.contains("VolumeResizeFailed").then_some(())
    });
    local.resize("greedy", "400Mi");
    capacity(local, "greedy", "400Mi");
    assert!(size(local, "greedy") > 320.0);
    local.delete(&["greedy"], &["greedy"]);
}
