//! An expansion that failed is undone both ways: by a smaller request, and by the old recipe.

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, claim_of, field, pod, sized};

/// Far more than the pool has to give.
const TOO_MUCH: &str = "100Ti";

/// A pool of 4 GiB refuses, for lack of room (which may come), and then gets a smaller request.
#[test]
fn a_smaller_request_undoes_an_expansion_that_failed() {
    let mut machine = Machine::new();
    machine.create(&claim_of("data", "300Mi", "local-xfs"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    machine.patch("pvc/data", &sized(TOO_MUCH));
    machine.until("it is said that the expansion failed", |machine| {
        let claim = machine.get("pvc/data").ok_or("it is not there")?;
        let status = claim["status"].to_string();
        if status.contains("ControllerResize") { Ok(()) } else { Err(status) }
    });
    let failed = machine.until("people are told", |machine| {
        let events = machine.try_events("data", "VolumeResizeFailed")?;
        events.first().cloned().ok_or_else(|| "no event".to_owned())
    });
    assert!(failed.contains("room") || failed.contains("pool"), "{failed}");
    // Not below what it has.
    let refused = machine.try_patch("pvc/data", &sized("200Mi")).unwrap_err();
    assert!(refused.contains("storage"), "{refused}");
    assert_eq!(machine.field("pvc/data", "/status/capacity/storage"), "300Mi");
    machine.patch("pvc/data", &sized("350Mi"));
    machine.says("pvc/data", "/status/capacity/storage", "350Mi");
    machine.until("nothing of the failure is left", |machine| {
        let claim = machine.get("pvc/data").ok_or("it is not there")?;
        let states = field(&claim, "/status/allocatedResourceStatuses/storage");
        let conditions = field(&claim, "/status/conditions");
        let none = conditions.is_empty() || conditions == "[]";
        if states.is_empty() && none { Ok(()) } else { Err(format!("{:#}", claim["status"])) }
    });
    assert_eq!(machine.field("pvc/data", "/status/allocatedResources/storage"), "350Mi");
    machine.running("keeper");
    machine.check_data("data");
    machine.delete_everything();
}

/// Retain, delete the claim, clear claimRef, a smaller claim that names the volume.
#[test]
fn the_old_recipe_undoes_an_expansion_that_failed() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    machine.patch("pvc/data", &sized(TOO_MUCH));
    machine.until("people are told", |machine| {
        match machine.try_events("data", "VolumeResizeFailed")?.is_empty() {
            true => Err("no event".to_owned()),
            false => Ok(()),
        }
    });
    let volume = machine.field("pvc/data", "/spec/volumeName");
    let object = format!("pv/{volume}");
    machine.patch(&object, &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    machine.delete("pod/keeper");
    machine.gone("pod/keeper");
    machine.delete("pvc/data");
    machine.gone("pvc/data");
    machine.says(&object, "/status/phase", "Released");
    assert_eq!(machine.names("pool/volumes").len(), 1, "it is kept");
    machine.patch(&object, &json!({"spec": {"claimRef": null}}));
    machine.says(&object, "/status/phase", "Available");
    let mut again = claim("data", "32Mi");
    again["spec"]["volumeName"] = json!(volume);
    machine.create(&again);
    machine.says("pvc/data", "/status/phase", "Bound");
    assert_eq!(machine.field("pvc/data", "/spec/volumeName"), volume);
    machine.says("pvc/data", "/status/capacity/storage", "32Mi");
    assert_eq!(machine.field("pvc/data", "/status/allocatedResourceStatuses"), "");
    machine.check_data("data");
    // It grows again, to what there is room for.
    machine.patch("pvc/data", &sized("48Mi"));
    machine.says("pvc/data", "/status/allocatedResourceStatuses/storage", "NodeResizePending");
    machine.check_data("data");
    machine.says("pvc/data", "/status/capacity/storage", "48Mi");
    machine.patch(&object, &json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    machine.delete_everything();
}
