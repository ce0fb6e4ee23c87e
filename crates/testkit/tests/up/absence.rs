//! A driver that is away, and pods that go while their volume is being mounted.

use std::time::Duration;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, pod};
use crate::scripted::{CLASS, Scripted};

#[test]
fn a_driver_is_away_for_a_while() {
    is_away(with_sidecars(), Duration::from_secs(5));
}

/// `wharf up --csi` instead of sidecars: what has to wait for the driver there is in the same process.
#[test]
fn a_driver_that_is_served_is_away_for_a_while() {
    is_away(Scripted::served(), Duration::from_secs(5));
}

/// Long enough for pauses to have grown, and for what is looked at once a minute to be looked at.
#[test]
#[ignore = "takes longer than a minute: make test-all"]
fn a_driver_is_away_for_a_minute() {
    is_away(with_sidecars(), Duration::from_secs(60));
}

fn with_sidecars() -> (Machine, Scripted) {
    let mut machine = Machine::new();
    let scripted = Scripted::start(&mut machine);
    (machine, scripted)
}

/// While a driver is away its volumes stay as they are, and those of others come and go; then all goes on. Meanwhile
/// `wharf up` is killed, too.
fn is_away((mut machine, mut scripted): (Machine, Scripted), time: Duration) {
    let class = scripted.class;
    machine.create(&claim_of("first", "1Gi", class));
    machine.create(&claim_of("second", "1Gi", class));
    machine.create(&pod("first", "first", KEEPER));
    machine.create(&pod("stays", "second", KEEPER));
    machine.running("first");
    machine.running("stays");
    scripted.driver.kill();
    machine.delete("pod/first");
    machine.create(&claim_of("third", "1Gi", class));
    machine.create(&pod("third", "third", KEEPER));
    machine.create(&claim("other", "32Mi"));
    machine.create(&pod("other", "other", KEEPER));
    machine.running("other");
    std::thread::sleep(time);
    assert!(machine.get("pod/first").is_some(), "its volume is still mounted");
    machine.restart();
    machine.ready();
    machine.running("other");
    machine.delete("pod/other");
    machine.gone("pod/other");
    assert!(machine.get("pod/first").is_some(), "its volume is still mounted");
    scripted.driver.restart();
    machine.gone("pod/first");
    machine.running("third");
    machine.running("stays");
    for claim in ["first", "second", "third"] {
        machine.check_data(claim);
    }
    machine.delete_everything();
    scripted.is_as_before(&mut machine);
}

/// A pod is deleted while the driver stages or publishes its volume, before and after the effect; in half of the cases
/// `wharf up` is killed then, too.
#[test]
fn a_pod_goes_while_its_volume_comes() {
    let mut machine = Machine::new();
    let scripted = Scripted::start(&mut machine);
    machine.create(&claim_of("data", "1Gi", CLASS));
    machine.says("pvc/data", "/status/phase", "Bound");
    for method in ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"] {
        for when in ["before", "after"] {
            for killed in [false, true] {
                println!("{method}, {when} the effect, wharf up killed: {killed}");
                scripted.forget_held();
                // Counted anew, since it is another text each time.
                let fault = format!(r#"{{"hold": true, "when": "{when}", "count": 1}}"#);
                scripted.faults(&format!(r#"{{"{method}": {fault}, "killed: {killed}": {{}}}}"#));
                machine.create(&pod("short", "data", KEEPER));
                machine.until("the driver is at it", |_| {
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
                machine.gone("pod/short");
                machine.until("it is mounted and attached nowhere", |machine| {
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
    scripted.is_as_before(&mut machine);
}
