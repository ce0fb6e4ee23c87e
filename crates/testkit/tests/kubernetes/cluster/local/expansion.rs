//! Stories of claims that grow.

use super::super::MINUTE;
use super::super::harness::mounts;
use super::super::objects::{claim, pod};
use super::{READY, Story};

const MIB: f64 = 1024.0;

/// The size of the file system at /data, in MiB.
fn size(story: &Story<'_>, pod: &str) -> f64 {
    let output = story.run(pod, "df -k /data | tail -n 1");
    let blocks = output.split_whitespace().nth(1).and_then(|number| number.parse::<f64>().ok());
    blocks.unwrap_or_else(|| panic!("{output}")) / MIB
}

fn capacity(story: &Story<'_>, claim: &str, size: &str) {
    let object = format!("pvc/{claim}");
    story.cluster.wait_for(&object, &format!("jsonpath={{.status.capacity.storage}}={size}"), 2 * MINUTE);
    story.cluster.eventually("the expansion's conditions are gone", MINUTE, |cluster| {
        cluster.field(&object, ".status.conditions").is_empty().then_some(())
    });
}

/// While a pod writes to it.
pub(super) fn online(story: &Story<'_>) {
    story.cluster.apply(&[claim("grows", "xfs", "320Mi", ""), pod("grows", "grows", "")].concat());
    story.cluster.wait_for("pod/grows", READY, MINUTE);
    story.run("grows", "echo kept > /data/file && sync");
    let before = size(story, "grows");
    story.resize("grows", "640Mi");
    capacity(story, "grows", "640Mi");
    let after = size(story, "grows");
    assert!(after > before + 280.0, "{before} MiB became {after} MiB");
    assert_eq!(story.run("grows", "cat /data/file"), "kept\n");
    story.delete(&["grows"], &["grows"]);
}

/// The volume grows while nobody uses it, the file system when the next pod comes.
pub(super) fn offline(story: &Story<'_>) {
    let cluster = story.cluster;
    cluster.apply(&[claim("rests", "ext4", "64Mi", ""), pod("rests", "rests", "")].concat());
    cluster.wait_for("pod/rests", READY, MINUTE);
    story.run("rests", "echo kept > /data/file && sync");
    let before = size(story, "rests");
    let node = cluster.kubelet_root(&story.place("rests"));
    cluster.kubectl(&["delete", "pod", "rests", "--timeout=60s"]);
    // A pod without a grace period is gone from the API before kubelet has cleaned up after it.
    cluster.eventually("kubelet lets go of the volume", MINUTE, |_| mounts(&node).is_empty().then_some(()));
    story.resize("rests", "128Mi");
    cluster.wait_for("pvc/rests", "condition=FileSystemResizePending", MINUTE);
    let volume = format!("pv/{}", cluster.field("pvc/rests", ".spec.volumeName"));
    assert_eq!(cluster.field(&volume, ".spec.capacity.storage"), "128Mi");
    assert_eq!(cluster.field("pvc/rests", ".status.capacity.storage"), "64Mi");
    cluster.apply(&pod("rests", "rests", ""));
    cluster.wait_for("pod/rests", READY, MINUTE);
    capacity(story, "rests", "128Mi");
    let after = size(story, "rests");
    assert!(after > before + 50.0, "{before} MiB became {after} MiB");
    assert_eq!(story.run("rests", "cat /data/file"), "kept\n");
    story.delete(&["rests"], &["rests"]);
}

/// Asked for more than there is, then for less.
pub(super) fn recovered(story: &Story<'_>) {
    let cluster = story.cluster;
    cluster.apply(&[claim("greedy", "xfs", "320Mi", ""), pod("greedy", "greedy", "")].concat());
    cluster.wait_for("pod/greedy", READY, MINUTE);
    story.resize("greedy", "10Ti");
    cluster.eventually("the driver refuses", MINUTE, |cluster| {
        let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=greedy"]);
        events.contains("VolumeResizeFailed").then_some(())
    });
    story.resize("greedy", "400Mi");
    capacity(story, "greedy", "400Mi");
    assert!(size(story, "greedy") > 320.0);
    story.delete(&["greedy"], &["greedy"]);
}
