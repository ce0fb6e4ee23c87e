//! The health monitor under upstream's own rules: what a driver says becomes events on claims, also across a restart.

use std::collections::BTreeSet;
use std::path::Path;

use wharf_testkit::{Beside, ScriptedDriver, TestCluster};

use super::objects::{claim, class};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "health.test.wharf.dev";
const CONDITIONS: &str = "--capabilities=CREATE_DELETE_VOLUME,LIST_VOLUMES,VOLUME_CONDITION";
const HEALTH: &str = "--capabilities=CREATE_DELETE_VOLUME,GET_VOLUME_HEALTH";
const QUICK: [&str; 4] = ["--list-volumes-interval", "1s", "--monitor-interval", "1s"];

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn what_is_wrong_is_told_and_taken_back() {
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

    let kubeconfig = cluster.kubeconfig_of("health-monitor");
    let mut monitor = start(&driver, &kubeconfig);
    driver.conditions(&broken);
    cluster.eventually("the claim's users are told", MINUTE, |cluster| {
        (told(cluster) == ["VolumeConditionAbnormal c7 the disk is on fire"]).then_some(())
    });

    // What was told before a restart is taken back after it.
    monitor.stop();
    driver.conditions("{}");
    let mut monitor = start(&driver, &kubeconfig);
    let both = [
        "VolumeConditionAbnormal c7 the disk is on fire",
        "VolumeConditionNormal c7 The Volume returns to the healthy state",
    ];
    cluster.eventually("it is taken back", MINUTE, |cluster| (told(cluster) == both).then_some(()));
    assert_eq!(refused(&monitor.log()), Vec::<String>::new());
    monitor.stop();

    // A driver of CSI 1.13 that is asked about each volume alone.
    driver.replace_controller(&[HEALTH]);
    driver.conditions(&broken);
    let mut monitor = start(&driver, &kubeconfig);
    cluster.eventually("health is told, too", MINUTE, |cluster| {
        let line = "VolumeConditionAbnormal c7 INACCESSIBLE: Scripted: the disk is on fire";
        told(cluster).iter().any(|told| told == line).then_some(())
    });
    cluster.eventually("every volume has had its turn", MINUTE, |_| {
        let calls = driver.calls();
        let asked = calls.iter().filter(|call| call.method == "ControllerGetVolumeHealth");
        let volumes: BTreeSet<&str> = asked.filter_map(|call| call.field("volume")).collect();
        (volumes.len() == names.len()).then_some(())
    });
    assert_eq!(refused(&monitor.log()), Vec::<String>::new());
    monitor.stop();
    driver.assert_no_violation();
}

fn start(driver: &ScriptedDriver, kubeconfig: &Path) -> Beside {
    driver.sidecar_with("health-monitor", kubeconfig, &[&["--roles", "health-monitor"], &QUICK[..]].concat())
}

/// The monitor's events, as reason, claim and message, sorted.
fn told(cluster: &TestCluster) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.reason} {.involvedObject.name} {.message}{\"\\n\"}{end}";
    let events = cluster.kubectl(&["get", "events", "--output", path]);
    let mut lines: Vec<String> =
        events.lines().filter(|line| line.starts_with("VolumeCondition")).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// What the server did not allow: upstream's rules must do.
fn refused(log: &str) -> Vec<String> {
    let log = log.to_lowercase();
    log.lines().filter(|line| line.contains("forbidden")).map(str::to_owned).collect()
}
