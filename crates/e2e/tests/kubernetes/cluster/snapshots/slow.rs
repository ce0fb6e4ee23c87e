//! A driver that needs a minute, fails and loses responses, and a snapshotter that is killed: no snapshot is left
//! in the driver.

use std::time::Duration;

use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster};

use super::super::objects::{claim, class};
use super::super::{API_ONLY, MINUTE};
use super::{content_of, controller, delete, install, no_contents, ready, snapshot, snapshot_class};

const DRIVER: &str = "slow.test.wharf.dev";
const BEING_CREATED: &str =
    r".metadata.annotations.snapshot\.storage\.kubernetes\.io/volumesnapshot-being-created";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn slow_and_failing_driver_leaks_no_snapshot() {
    let cluster = TestCluster::start_with(API_ONLY);
    let mut driver = ScriptedDriver::start(&cluster, DRIVER, &["--snapshot-ready-after", "60000"]);
    let _provisioner = driver.sidecar("provisioner", &["--roles", "provisioner"]);
    // Started before the CRDs exist, and with upstream's RBAC rules.
    let rights = cluster.sidecar_kubeconfig("snapshotter");
    let mut snapshotter = driver.sidecar_with("snapshotter", &rights, &["--roles", "snapshotter"]);
    cluster.eventually("the snapshotter reports what it waits for", MINUTE, |_| {
        snapshotter.log().contains("not served by this cluster").then_some(())
    });
    install(&cluster);
    let mut control = controller(&cluster, &[]);
    cluster.apply(&[class("plain", DRIVER, ""), snapshot_class("snap", DRIVER, "Delete")].concat());
    cluster.apply(&claim("data", "plain", "1Gi", ""));
    cluster.wait_for("pvc/data", "jsonpath={.status.phase}=Bound", MINUTE);

    a_minute(&cluster, &driver);
    driver.replace_controller(&[]);
    lost_answers(&cluster, &driver);
    deleted_while_being_created(&cluster, &driver);
    died_while_being_created(&cluster, &driver, &mut snapshotter);
    class_gone_while_being_created(&cluster, &driver);
    missing_snapshot_is_reported(&cluster);

    no_contents(&cluster);
    assert!(driver.snapshots().is_empty(), "{:?}", driver.snapshots());
    driver.assert_no_violation();
    let log = snapshotter.log().to_lowercase();
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    snapshotter.stop();
    control.stop();
}

fn calls(driver: &ScriptedDriver, method: &str) -> usize {
    driver.calls().iter().filter(|call| call.method == method).count()
}

/// Ready after a minute: polled at intervals, and reported soon after.
fn a_minute(cluster: &TestCluster, driver: &ScriptedDriver) {
    cluster.apply(&snapshot("slow", "snap", "data"));
    let content = format!("volumesnapshotcontent/{}", content_of(cluster, "slow"));
    cluster.eventually("the snapshot has a handle", MINUTE, |cluster| {
        (!cluster.field(&content, ".status.snapshotHandle").is_empty()).then_some(())
    });
    assert_eq!(cluster.field(&content, ".status.readyToUse"), "false");
    assert_eq!(cluster.field(&content, BEING_CREATED), "");
    ready(cluster, "slow");
    let polls = calls(driver, "CreateSnapshot");
    // Every second at first, then after a quarter of the time since the first poll.
    assert!((8..=24).contains(&polls), "polled {polls} times in a minute");
    delete(cluster, &["slow"]);
    assert!(driver.snapshots().is_empty());
}

fn lost_answers(cluster: &TestCluster, driver: &ScriptedDriver) {
    driver.set_faults(
        r#"{"CreateSnapshot": {"code": "DeadlineExceeded", "when": "after", "count": 2},
            "DeleteSnapshot": {"code": "Internal", "when": "after", "count": 1}}"#,
    );
    cluster.apply(&snapshot("lost", "snap", "data"));
    ready(cluster, "lost");
    let content = format!("volumesnapshotcontent/{}", content_of(cluster, "lost"));
    assert_eq!(cluster.field(&content, ".status.error"), "", "a resolved error must be cleared");
    assert_eq!(driver.snapshots().len(), 1, "three calls, one snapshot");
    delete(cluster, &["lost"]);
    let events = cluster.kubectl(&["get", "events", "--output", "jsonpath={.items[*].reason}"]);
    for reason in ["SnapshotCreationFailed", "SnapshotDeleteError"] {
        assert!(events.split(' ').any(|event| event == reason), "event {reason} is missing in {events}");
    }
    driver.set_faults("{}");
}

/// Creates a snapshot whose CreateSnapshot call takes 4 s. Returns its content once it is annotated as being created.
fn start_slow_snapshot(cluster: &TestCluster, driver: &ScriptedDriver, name: &str, class: &str) -> String {
    // The name makes the file's text different, so that counting restarts.
    driver.set_faults(&format!(r#"{{"CreateSnapshot": {{"delay_ms": 4000, "count": 1}}, "{name}": {{}}}}"#));
    cluster.apply(&snapshot(name, class, "data"));
    let content = format!("volumesnapshotcontent/{}", content_of(cluster, name));
    cluster.eventually("the content is annotated", MINUTE, |cluster| {
        (cluster.field(&content, BEING_CREATED) == "yes").then_some(())
    });
    content
}

fn assert_snapshot_deleted(cluster: &TestCluster, driver: &ScriptedDriver, name: &str) {
    cluster.wait_for(&format!("volumesnapshot/{name}"), "delete", MINUTE);
    no_contents(cluster);
    assert!(driver.snapshots().is_empty(), "{:?}", driver.snapshots());
    driver.set_faults("{}");
}

fn deleted_while_being_created(cluster: &TestCluster, driver: &ScriptedDriver) {
    start_slow_snapshot(cluster, driver, "hasty", "snap");
    cluster.kubectl(&["delete", "volumesnapshot", "hasty", "--wait=false"]);
    assert_snapshot_deleted(cluster, driver, "hasty");
}

fn died_while_being_created(cluster: &TestCluster, driver: &ScriptedDriver, snapshotter: &mut ChildProcess) {
    driver.set_faults(r#"{"CreateSnapshot": {"code": "Unavailable", "when": "after"}}"#);
    cluster.apply(&snapshot("orphan", "snap", "data"));
    cluster.eventually("the driver created the snapshot after the snapshotter was killed", MINUTE, |_| {
        (driver.snapshots().len() == 1).then_some(())
    });
    snapshotter.kill();
    driver.set_faults("{}");
    cluster.kubectl(&["delete", "volumesnapshot", "orphan", "--wait=false"]);
    snapshotter.restart();
    assert_snapshot_deleted(cluster, driver, "orphan");
}

/// Upstream keeps reading the missing class forever.
fn class_gone_while_being_created(cluster: &TestCluster, driver: &ScriptedDriver) {
    cluster.apply(&snapshot_class("passing", DRIVER, "Delete"));
    start_slow_snapshot(cluster, driver, "classless", "passing");
    driver.set_faults(r#"{"CreateSnapshot": {"code": "Unavailable", "when": "after", "count": 1}}"#);
    cluster.kubectl(&["delete", "volumesnapshotclass", "temporary", "--timeout=60s"]);
    cluster.kubectl(&["delete", "volumesnapshot", "classless", "--wait=false"]);
    assert_snapshot_deleted(cluster, driver, "classless");
}

/// The content of a snapshot that the driver does not have reports that, and can be deleted.
fn missing_snapshot_is_reported(cluster: &TestCluster) {
    cluster.apply(&format!(
        r#"
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {{name: missing}}
spec:
  driver: {DRIVER}
  deletionPolicy: Retain
  source: {{snapshotHandle: nowhere}}
  volumeSnapshotRef: {{name: missing, namespace: default}}
"#
    ));
    cluster.eventually("the content reports that the snapshot does not exist", MINUTE, |cluster| {
        let message = cluster.field("volumesnapshotcontent/missing", ".status.error.message");
        message.contains("can not find snapshot for snapshotID nowhere").then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    cluster.kubectl(&["delete", "volumesnapshotcontent", "missing", "--timeout=60s"]);
}
