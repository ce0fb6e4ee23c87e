use serde_json::{Value, json};

use super::*;

fn claim(requested: Value, status: Value) -> PersistentVolumeClaim {
    let mut status = status;
    status["phase"] = json!("Bound");
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {"volumeName": "pv1", "volumeAttributesClassName": requested},
        "status": status,
    }))
    .unwrap()
}

fn volume() -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": "pv1", "uid": "v"},
        "spec": {
            "csi": {
                "driver": "d", "volumeHandle": "h",
                "controllerExpandSecretRef": {"name": "expand", "namespace": "n"},
            },
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
        },
    }))
    .unwrap()
}

/// sidecars.md 1.3 "Modify". Each row: the requested class, the applied one, the one being applied and its state, whether
/// the last call is uncertain, and the expected plan. `lost` does not exist.
#[test]
fn plan_follows_the_state_machine() {
    let begin = |target: &str| Plan::Begin { target: target.into() };
    let repeat = |target: &str| Plan::Continue { target: target.into() };
    let none = json!(null);
    let applying =
        |target: &str, status: &str| json!({"targetVolumeAttributesClassName": target, "status": status});
    for (requested, current, in_progress, uncertain, expected) in [
        (none.clone(), none.clone(), none.clone(), false, Plan::Idle(IdleReason::UpToDate)),
        (json!("gold"), json!("gold"), none.clone(), false, Plan::Idle(IdleReason::UpToDate)),
        (json!(""), none.clone(), none.clone(), false, Plan::Idle(IdleReason::UpToDate)),
        (json!("gold"), none.clone(), none.clone(), false, begin("gold")),
        (json!("gold"), json!("silver"), none.clone(), true, begin("gold")),
        (none.clone(), json!("gold"), none.clone(), false, Plan::Idle(IdleReason::NotRequested)),
        // In progress: after a final result the new class is applied, without one the old target must be completed.
        (json!("gold"), json!("silver"), applying("gold", "InProgress"), false, begin("gold")),
        (json!("gold"), json!("silver"), applying("gold", "InProgress"), true, repeat("gold")),
        (json!("tin"), json!("silver"), applying("gold", "InProgress"), false, begin("tin")),
        (json!("tin"), json!("silver"), applying("gold", "InProgress"), true, repeat("gold")),
        (json!("silver"), json!("silver"), applying("gold", "InProgress"), true, repeat("gold")),
        (json!("silver"), json!("silver"), applying("gold", "InProgress"), false, begin("silver")),
        (none.clone(), none.clone(), applying("gold", "InProgress"), false, repeat("gold")),
        (
            json!("gold"),
            none.clone(),
            applying("lost", "InProgress"),
            true,
            Plan::Stuck { target: "lost".into() },
        ),
        // Infeasible: any class may follow.
        (json!("gold"), none.clone(), applying("gold", "Infeasible"), true, begin("gold")),
        (json!("tin"), none.clone(), applying("gold", "Infeasible"), false, begin("tin")),
        (json!("silver"), json!("silver"), applying("gold", "Infeasible"), false, begin("silver")),
        (
            none.clone(),
            none.clone(),
            applying("gold", "Infeasible"),
            false,
            Plan::Idle(IdleReason::NotRequested),
        ),
        // Pending: the class is missing, or was created.
        (
            json!("lost"),
            none.clone(),
            none.clone(),
            false,
            Plan::Pending { target: "lost".into(), unwritten: true },
        ),
        (
            json!("lost"),
            none.clone(),
            applying("", "Pending"),
            false,
            Plan::Pending { target: "lost".into(), unwritten: false },
        ),
        (json!("gold"), none.clone(), applying("", "Pending"), false, begin("gold")),
        (
            json!("lost"),
            none.clone(),
            applying("gold", "InProgress"),
            false,
            Plan::Pending { target: "lost".into(), unwritten: true },
        ),
        (none.clone(), none.clone(), applying("", "Pending"), false, Plan::Idle(IdleReason::NotRequested)),
        (none.clone(), none.clone(), applying("gold", "Odd"), true, Plan::Idle(IdleReason::NotRequested)),
    ] {
        let row = format!("{requested} {current} {in_progress} {uncertain}");
        let claim = claim(
            requested,
            json!({"currentVolumeAttributesClassName": current, "modifyVolumeStatus": in_progress}),
        );
        let exists = |class: &str| {
            assert!(relevant_classes(&claim).contains(class), "{row}: {class}");
            class != "lost"
        };
        assert_eq!(plan(&claim, &volume(), "d", uncertain, exists), expected, "{row}");
    }
}

/// sidecars.md 1.3 "Modify": whose claim and volume.
#[test]
fn other_drivers_and_claims_are_ignored() {
    let wants = || claim(json!("gold"), json!({}));
    let planned = |claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver| {
        plan(claim, volume, driver, false, |_| true)
    };
    let mut pending = wants();
    pending.status.phase = ClaimPhase::Pending;
    assert_eq!(planned(&pending, &volume(), "d"), Plan::Idle(IdleReason::NotBound));
    assert_eq!(planned(&wants(), &volume(), "e"), Plan::Idle(IdleReason::OtherDriver));
    let mut foreign = volume();
    foreign.spec.claim_ref = None;
    assert_eq!(planned(&wants(), &foreign, "d"), Plan::Idle(IdleReason::BoundToOtherClaim));
}

/// sidecars.md 1.3 "Modify": cancelled, and recorded once.
#[test]
fn cancellation_is_recorded_once() {
    let infeasible = json!({"targetVolumeAttributesClassName": "gold", "status": "Infeasible"});
    let conditions = json!([{"type": "ModifyingVolume", "status": "True"}, {"type": "ModifyVolumeError"}]);
    let claim = claim(json!(null), json!({"modifyVolumeStatus": infeasible, "conditions": conditions}));
    assert_eq!(plan(&claim, &volume(), "d", false, |_| true), Plan::Cancel);
    assert_eq!(
        mark_cancelled(&claim).body(),
        &json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"$patch": "delete", "type": "ModifyingVolume"}]}})
    );
}

/// sidecars.md 1.3 "Modify": the same failure is written once.
#[test]
fn recorded_failure_is_recognized() {
    let with = |status: &str, message: &str| {
        claim(
            json!("gold"),
            json!({
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": status},
                "conditions": [
                    {"type": "ModifyingVolume", "status": "True", "message": message},
                    {"type": "ModifyVolumeError", "status": "True", "reason": "Internal", "message": "no"},
                ],
            }),
        )
    };
    let failed = "Modifying volume to \"gold\" failed. Waiting for retry.";
    let running = "Modifying volume to \"gold\" is still in progress.";
    for (status, message, failure, code, error, recorded) in [
        ("InProgress", failed, Failure::Final, "Internal", "no", true),
        ("InProgress", failed, Failure::Final, "Unknown", "no", false),
        ("InProgress", failed, Failure::Final, "Internal", "never", false),
        ("InProgress", failed, Failure::Infeasible, "Internal", "no", false),
        ("InProgress", failed, Failure::StillRunning, "Internal", "no", false),
        ("InProgress", running, Failure::StillRunning, "Internal", "no", true),
        ("Infeasible", failed, Failure::Infeasible, "Internal", "no", true),
        ("Infeasible", failed, Failure::Final, "Internal", "no", false),
    ] {
        assert_eq!(
            already_reports(&with(status, message), failure, code, error),
            recorded,
            "{status} {failure:?} {code}"
        );
    }
    assert!(!already_reports(&claim(json!("gold"), json!({})), Failure::Final, "Internal", "no"));
}

fn condition(kind: &str, reason: Value, message: &str, since: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since})
}

/// sidecars.md 1.3 "Modify": the writes before the call and after a failure.
#[test]
fn progress_is_recorded_in_status() {
    let metadata = json!({"uid": "u", "resourceVersion": "7"});
    let old = "1970-01-01T00:00:01Z";
    let now = "1970-01-01T00:00:09Z";
    let claim = claim(
        json!("gold"),
        json!({
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "InProgress"},
            "conditions": [
                {"type": "ModifyingVolume", "status": "True", "lastTransitionTime": old},
                {"type": "ModifyVolumeError", "status": "True", "reason": "Internal", "lastTransitionTime": old},
            ],
        }),
    );
    assert_eq!(
        mark_pending(&claim).body(),
        &json!({"metadata": metadata, "status": {"modifyVolumeStatus": {"status": "Pending"}}})
    );
    let message = "Modifying volume to \"gold\" is in progress.";
    assert_eq!(
        mark_in_progress(&claim, "gold", Time(9000)).body(),
        &json!({"metadata": metadata, "status": {
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "InProgress"},
            "conditions": [condition("ModifyingVolume", json!(null), message, old)],
        }})
    );
    // The time of a condition changes with its reason only.
    for (failure, code, status, message, since) in [
        (
            Failure::StillRunning,
            "Internal",
            "InProgress",
            "Modifying volume to \"gold\" is still in progress.",
            old,
        ),
        (
            Failure::Final,
            "Unknown",
            "InProgress",
            "Modifying volume to \"gold\" failed. Waiting for retry.",
            now,
        ),
        (
            Failure::Infeasible,
            "InvalidArgument",
            "Infeasible",
            "Modifying volume to \"gold\" failed. Waiting for retry.",
            now,
        ),
    ] {
        assert_eq!(
            mark_failed(&claim, failure, code, "no", Time(9000)).body(),
            &json!({"metadata": metadata, "status": {
                "modifyVolumeStatus": {"status": status},
                "conditions": [
                    condition("ModifyingVolume", json!(null), message, old),
                    condition("ModifyVolumeError", json!(code), "no", since),
                ],
            }})
        );
    }
}

/// sidecars.md 1.3 "Modify": success, the volume first.
#[test]
fn completion_is_recorded_on_volume_and_claim() {
    assert_eq!(
        set_volume_class(&volume(), "gold"),
        Patch::Merge(json!({"metadata": {"uid": "v"}, "spec": {"volumeAttributesClassName": "gold"}}))
    );
    let conditions =
        json!([{"type": "ModifyingVolume", "status": "True"}, {"type": "Resizing", "status": "True"}]);
    assert_eq!(
        mark_completed(&claim(json!("gold"), json!({"conditions": conditions})), "gold").body(),
        &json!({"metadata": {"uid": "u"}, "status": {
            "modifyVolumeStatus": null,
            "currentVolumeAttributesClassName": "gold",
            "conditions": [{"$patch": "delete", "type": "ModifyingVolume"}],
        }})
    );
}

/// sidecars.md 1.3 "Modify": secrets.
#[test]
fn modify_secret_falls_back_to_expand_secret() {
    let mut volume = volume();
    let named = |name: &str| Some(SecretRef { name: name.into(), namespace: "n".into() });
    assert_eq!(modify_secret(&volume), named("expand"));
    volume.metadata.annotations.insert(annotation::MODIFY_SECRET_NAME, "modify");
    assert_eq!(modify_secret(&volume), named("expand"), "an incomplete reference is ignored");
    volume.metadata.annotations.insert(annotation::MODIFY_SECRET_NAMESPACE, "n");
    assert_eq!(modify_secret(&volume), named("modify"));
    volume.spec.csi = None;
    volume.metadata.annotations = crate::StringMap::default();
    assert_eq!(modify_secret(&volume), None);
}
