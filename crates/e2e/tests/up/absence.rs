//! Driver outages, and pods that are deleted while their volume is being mounted.

use std::time::Duration;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};
use crate::scripted::{CLASS, Scripted};

#[test]
fn driver_outage_recovers() {
    outage_recovers(with_sidecars(), Duration::from_secs(5));
}

/// `wharf up --csi` instead of sidecars: the roles that wait for the driver run in the same process.
#[test]
fn served_driver_outage_recovers() {
    outage_recovers(Scripted::served(), Duration::from_secs(5));
}

/// Long enough for retry intervals to grow, and for checks that run once a minute.
#[test]
#[ignore = "takes longer than a minute: make test-all"]
fn minute_long_driver_outage_recovers() {
    outage_recovers(with_sidecars(), Duration::from_secs(60));
}

fn with_sidecars() -> (Machine, Scripted) {
    let mut machine = Machine::new();
    let scripted = Scripted::start(&mut machine);
    (machine, scripted)
}

/// During the outage the driver's volumes stay as they are, and volumes of other drivers work. `wharf up` is killed
/// during the outage, too. Afterwards everything continues.
fn outage_recovers((mut machine, mut scripted): (Machine, Scripted), time: Duration) {
    let class = scripted.class;
    machine.create(&claim_of("first", "1Gi", class));
    machine.create(&claim_of("second", "1Gi", class));
    machine.create(&pod("first", "first", KEEPER));
    machine.create(&pod("stays", "second", KEEPER));
    machine.wait_until_running("first");
    machine.wait_until_running("stays");
    scripted.driver.kill();
    machine.delete("pod/first");
    machine.create(&claim_of("third", "1Gi", class));
    machine.create(&pod("third", "third", KEEPER));
    machine.create(&claim("other", "32Mi"));
    machine.create(&pod("other", "other", KEEPER));
    machine.wait_until_running("other");
    std::thread::sleep(time);
    assert!(machine.get("pod/first").is_some(), "the pod must remain while its volume is mounted");
    machine.restart();
    machine.wait_until_ready();
    machine.wait_until_running("other");
    machine.delete("pod/other");
    machine.wait_until_gone("pod/other");
    assert!(machine.get("pod/first").is_some(), "the pod must remain while its volume is mounted");
    scripted.driver.restart();
    machine.wait_until_gone("pod/first");
    machine.wait_until_running("third");
    machine.wait_until_running("stays");
    for claim in ["first", "second", "third"] {
        machine.check_data(claim);
    }
    machine.delete_everything();
    scripted.assert_no_volumes_left(&mut machine);
}

/// A pod is deleted while the driver stages or publishes its volume, before and after the effect. In half of the
/// cases `wharf up` is also killed at that moment.
#[test]
fn pod_deleted_during_mount_is_cleaned_up() {
    let mut machine = Machine::new();
    let scripted = Scripted::start(&mut machine);
    machine.create(&claim_of("data", "1Gi", CLASS));
    machine.wait_for_field("pvc/data", "/status/phase", "Bound");
    for method in ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"] {
        for when in ["before", "after"] {
            for killed in [false, true] {
                println!("{method}, {when} the effect, wharf up killed: {killed}");
                scripted.clear_held();
                // The counts restart, since the text of the file differs each time.
                let fault = format!(r#"{{"hold": true, "when": "{when}", "count": 1}}"#);
                scripted.faults(&format!(r#"{{"{method}": {fault}, "killed: {killed}": {{}}}}"#));
                machine.create(&pod("short", "data", KEEPER));
                machine.wait_until("the driver holds the call", |_| {
                    let held = scripted.held();
                    if held.contains(method) { Ok(()) } else { Err(held) }
                });
                machine.delete("pod/short");
                if killed {
                    machine.restart();
                } else {
                    std::thread::sleep(Duration::from_millis(100));
                }
                scripted.faults("{}");
                machine.wait_until_gone("pod/short");
                machine.wait_until("the volume is unmounted and detached", |machine| {
                    let (mounts, attached) = (machine.mounts(), machine.try_list("va")?);
                    if mounts.is_empty() && attached.is_empty() {
                        Ok(())
                    } else {
                        Err(format!("{mounts:?} {attached:?}"))
                    }
                });
            }
        }
    }
    let unstaged = scripted.calls().iter().filter(|call| call.method == "NodeUnstageVolume").count();
    assert!(unstaged >= 4, "{unstaged}");
    machine.delete_everything();
    scripted.assert_no_volumes_left(&mut machine);
}
