//! A failed expansion can be recovered in two ways: by a smaller request, and by rebinding the volume to a new
//! claim.

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, field, pod, sized};

/// Far more than the pool's capacity.
const TOO_MUCH: &str = "100Ti";

/// A pool of 4 GiB rejects the request for lack of capacity, a retriable error; then the request is reduced.
#[test]
fn smaller_request_recovers_failed_expansion() {
    let mut machine = Machine::new();
    machine.create(&claim_of("data", "300Mi", "local-xfs"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    machine.patch("pvc/data", &sized(TOO_MUCH));
    machine.wait_until("an event reports the failed expansion", |machine| {
        let claim = machine.get("pvc/data").ok_or("the claim does not exist")?;
        let status = claim["status"].to_string();
        if status.contains("ControllerResize") { Ok(()) } else { Err(status) }
    });
    let failed = machine.wait_until("an event reports the failure", |machine| {
        let events = machine.try_events("data", "VolumeResizeFailed")?;
        events.first().cloned().ok_or_else(|| "no event".to_owned())
    });
    assert!(failed.contains("room") || failed.contains("pool"), "{failed}");
    // Not below the current capacity.
    let refused = machine.try_patch("pvc/data", &sized("200Mi")).unwrap_err();
    assert!(refused.contains("storage"), "{refused}");
    assert_eq!(machine.field("pvc/data", "/status/capacity/storage"), "300Mi");
    machine.patch("pvc/data", &sized("350Mi"));
    machine.wait_for_field("pvc/data", "/status/capacity/storage", "350Mi");
    machine.wait_until("the failure is cleared", |machine| {
        let claim = machine.get("pvc/data").ok_or("the claim does not exist")?;
        let states = field(&claim, "/status/allocatedResourceStatuses/storage");
        let conditions = field(&claim, "/status/conditions");
        let none = conditions.is_empty() || conditions == "[]";
        if states.is_empty() && none { Ok(()) } else { Err(format!("{:#}", claim["status"])) }
    });
    assert_eq!(machine.field("pvc/data", "/status/allocatedResources/storage"), "350Mi");
    machine.wait_until_running("keeper");
    machine.check_data("data");
    machine.delete_everything();
}

/// The procedure: reclaim policy Retain, delete the claim, clear claimRef, create a smaller claim that names the
/// volume.
#[test]
fn retain_and_rebind_recovers_failed_expansion() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    machine.patch("pvc/data", &sized(TOO_MUCH));
    machine.wait_until("an event reports the failure", |machine| {
        match machine.try_events("data", "VolumeResizeFailed")?.is_empty() {
            true => Err("no event".to_owned()),
            false => Ok(()),
        }
    });
    let volume = machine.field("pvc/data", "/spec/volumeName");
    let object = format!("pv/{volume}");
    machine.patch(&object, &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    machine.delete("pod/keeper");
    machine.wait_until_gone("pod/keeper");
    machine.delete("pvc/data");
    machine.wait_until_gone("pvc/data");
    machine.wait_for_field(&object, "/status/phase", "Released");
    assert_eq!(machine.names("pool/volumes").len(), 1, "the volume must be retained");
    machine.patch(&object, &json!({"spec": {"claimRef": null}}));
    machine.wait_for_field(&object, "/status/phase", "Available");
    let mut again = claim("data", "32Mi");
    again["spec"]["volumeName"] = json!(volume);
    machine.create(&again);
    machine.wait_for_field("pvc/data", "/status/phase", "Bound");
    assert_eq!(machine.field("pvc/data", "/spec/volumeName"), volume);
    machine.wait_for_field("pvc/data", "/status/capacity/storage", "32Mi");
    assert_eq!(machine.field("pvc/data", "/status/allocatedResourceStatuses"), "");
    machine.check_data("data");
    // A later expansion within the capacity works.
    machine.patch("pvc/data", &sized("48Mi"));
    machine.wait_for_field("pvc/data", "/status/allocatedResourceStatuses/storage", "NodeResizePending");
    machine.check_data("data");
    machine.wait_for_field("pvc/data", "/status/capacity/storage", "48Mi");
    machine.patch(&object, &json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    machine.delete_everything();
}
