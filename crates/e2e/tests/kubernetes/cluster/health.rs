//! The health monitor with upstream's RBAC rules: volume conditions of a driver become events on claims, also
//! across a restart.

use std::collections::BTreeSet;
use std::path::Path;

use wharf_testkit::{ChildProcess, ScriptedDriver, TestCluster};

use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "health.test.wharf.dev";
const CONDITIONS: &str = "--capabilities=CREATE_DELETE_VOLUME,LIST_VOLUMES,VOLUME_CONDITION";
const HEALTH: &str = "--capabilities=CREATE_DELETE_VOLUME,GET_VOLUME_HEALTH";
const QUICK: [&str; 4] = ["--list-volumes-interval", "1s", "--monitor-interval", "1s"];

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn abnormal_condition_is_reported_and_cleared() {
    let cluster = TestCluster::start_with(API_ONLY);
    let mut driver = ScriptedDriver::start(&cluster, DRIVER, &[CONDITIONS]);
    let mut provisioner = driver.sidecar("provisioner", &["--roles", "provisioner"]);
    let names: Vec<String> = (0..40).map(|i| format!("c{i}")).collect();
    let claims: String = names.iter().map(|name| claim(name, "plain", "1Gi", "")).collect();
    cluster.apply(&[class("plain", DRIVER, ""), claims].concat());
    cluster.eventually("all claims are bound", 2 * MINUTE, |cluster| {
        let phases = cluster.kubectl(&["get", "pvc", "--output", "jsonpath={.items[*].status.phase}"]);
        (phases.split(' ').filter(|phase| *phase == "Bound").count() == names.len()).then_some(())
    });
    provisioner.stop();
    let volume = format!("pv/{}", cluster.field("pvc/c7", ".spec.volumeName"));
    let handle = cluster.field(&volume, ".spec.csi.volumeHandle");
    let broken = format!(r#"{{"{handle}": "the disk is on fire"}}"#);

    let kubeconfig = cluster.sidecar_kubeconfig("health-monitor");
    let mut monitor = start(&driver, &kubeconfig);
    driver.set_conditions(&broken);
    cluster.eventually("the claim has an event", MINUTE, |cluster| {
        (monitor_events(cluster) == ["VolumeConditionAbnormal c7 the disk is on fire"]).then_some(())
    });

    // A condition reported before a restart is cleared after it.
    monitor.stop();
    driver.set_conditions("{}");
    let mut monitor = start(&driver, &kubeconfig);
    let both = [
        "VolumeConditionAbnormal c7 the disk is on fire",
        "VolumeConditionNormal c7 The Volume returns to the healthy state",
    ];
    cluster.eventually("the condition is cleared", MINUTE, |cluster| {
        (monitor_events(cluster) == both).then_some(())
    });
    assert_eq!(refused(&monitor.log()), Vec::<String>::new());
    monitor.stop();

    // A CSI 1.13 driver that is queried for each volume.
    driver.replace_controller(&[HEALTH]);
    driver.set_conditions(&broken);
    let mut monitor = start(&driver, &kubeconfig);
    cluster.eventually("the volume health is reported", MINUTE, |cluster| {
        let line = "VolumeConditionAbnormal c7 INACCESSIBLE: Scripted: the disk is on fire";
        monitor_events(cluster).iter().any(|monitor_events| monitor_events == line).then_some(())
    });
    cluster.eventually("every volume was queried", MINUTE, |_| {
        let calls = driver.calls();
        let queried = calls.iter().filter(|call| call.method == "ControllerGetVolumeHealth");
        let volumes: BTreeSet<&str> = queried.filter_map(|call| call.field("volume")).collect();
        (volumes.len() == names.len()).then_some(())
    });
    assert_eq!(refused(&monitor.log()), Vec::<String>::new());
    monitor.stop();
    driver.assert_no_violation();
}

fn start(driver: &ScriptedDriver, kubeconfig: &Path) -> ChildProcess {
    driver.sidecar_with("health-monitor", kubeconfig, &[&["--roles", "health-monitor"], &QUICK[..]].concat())
}

/// The monitor's events as reason, claim and message, sorted.
fn monitor_events(cluster: &TestCluster) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.reason} {.involvedObject.name} {.message}{\"\\n\"}{end}";
    let events = cluster.kubectl(&["get", "events", "--output", path]);
    let mut lines: Vec<String> =
        events.lines().filter(|line| line.starts_with("VolumeCondition")).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Requests that the API server rejected: upstream's rules must be sufficient.
fn refused(log: &str) -> Vec<String> {
    let log = log.to_lowercase();
    log.lines().filter(|line| line.contains("forbidden")).map(str::to_owned).collect()
}
