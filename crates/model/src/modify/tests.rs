use serde_json::{Value, json};

use super::*;

fn claim(asked: Value, status: Value) -> PersistentVolumeClaim {
    let mut status = status;
    status["phase"] = json!("Bound");
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {"volumeName": "pv1", "volumeAttributesClassName": asked},
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

/// sidecars.md 1.3 "Modify". Each line: the class asked for, the one in force, the one on its way and its state, whether
/// the last call is uncertain, and what follows. `lost` does not exist.
#[test]
fn the_states() {
    let begin = |target: &str| Plan::Begin { target: target.into() };
    let go_on = |target: &str| Plan::Continue { target: target.into() };
    let none = json!(null);
    let on_way =
        |target: &str, status: &str| json!({"targetVolumeAttributesClassName": target, "status": status});
    for (asked, current, under_way, uncertain, expected) in [
        (none.clone(), none.clone(), none.clone(), false, Plan::Nothing(Idle::InForce)),
        (json!("gold"), json!("gold"), none.clone(), false, Plan::Nothing(Idle::InForce)),
        (json!(""), none.clone(), none.clone(), false, Plan::Nothing(Idle::InForce)),
        (json!("gold"), none.clone(), none.clone(), false, begin("gold")),
        (json!("gold"), json!("silver"), none.clone(), true, begin("gold")),
        (none.clone(), json!("gold"), none.clone(), false, Plan::Nothing(Idle::GivenUp)),
        // In progress: with a final answer the new wish counts, without one the old target has to be ended.
        (json!("gold"), json!("silver"), on_way("gold", "InProgress"), false, begin("gold")),
        (json!("gold"), json!("silver"), on_way("gold", "InProgress"), true, go_on("gold")),
        (json!("tin"), json!("silver"), on_way("gold", "InProgress"), false, begin("tin")),
        (json!("tin"), json!("silver"), on_way("gold", "InProgress"), true, go_on("gold")),
        (json!("silver"), json!("silver"), on_way("gold", "InProgress"), true, go_on("gold")),
        (json!("silver"), json!("silver"), on_way("gold", "InProgress"), false, begin("silver")),
        (none.clone(), none.clone(), on_way("gold", "InProgress"), false, go_on("gold")),
        (
            json!("gold"),
            none.clone(),
            on_way("lost", "InProgress"),
            true,
            Plan::Stuck { target: "lost".into() },
        ),
        // Infeasible: anything may follow, whatever is remembered.
        (json!("gold"), none.clone(), on_way("gold", "Infeasible"), true, begin("gold")),
        (json!("tin"), none.clone(), on_way("gold", "Infeasible"), false, begin("tin")),
        (json!("silver"), json!("silver"), on_way("gold", "Infeasible"), false, begin("silver")),
        (none.clone(), none.clone(), on_way("gold", "Infeasible"), false, Plan::Nothing(Idle::GivenUp)),
        // Pending: the class is missing, or has come.
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
            on_way("", "Pending"),
            false,
            Plan::Pending { target: "lost".into(), unwritten: false },
        ),
        (json!("gold"), none.clone(), on_way("", "Pending"), false, begin("gold")),
        (
            json!("lost"),
            none.clone(),
            on_way("gold", "InProgress"),
            false,
            Plan::Pending { target: "lost".into(), unwritten: true },
        ),
        (none.clone(), none.clone(), on_way("", "Pending"), false, Plan::Nothing(Idle::GivenUp)),
        (none.clone(), none.clone(), on_way("gold", "Odd"), true, Plan::Nothing(Idle::GivenUp)),
    ] {
        let row = format!("{asked} {current} {under_way} {uncertain}");
        let claim = claim(
            asked,
            json!({"currentVolumeAttributesClassName": current, "modifyVolumeStatus": under_way}),
        );
        assert_eq!(plan(&claim, &volume(), "d", uncertain, |class| class != "lost"), expected, "{row}");
    }
}

/// sidecars.md 1.3 "Modify": whose claim and volume.
#[test]
fn when_it_is_not_ours() {
    let wants = || claim(json!("gold"), json!({}));
    let planned = |claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver| {
        plan(claim, volume, driver, false, |_| true)
    };
    let mut pending = wants();
    pending.status.phase = ClaimPhase::Pending;
    assert_eq!(planned(&pending, &volume(), "d"), Plan::Nothing(Idle::NotBound));
    assert_eq!(planned(&wants(), &volume(), "e"), Plan::Nothing(Idle::NotOurs));
    let mut foreign = volume();
    foreign.spec.claim_ref = None;
    assert_eq!(planned(&wants(), &foreign, "d"), Plan::Nothing(Idle::NotItsVolume));
}

/// sidecars.md 1.3 "Modify": cancelled, and said once.
#[test]
fn giving_up() {
    let infeasible = json!({"targetVolumeAttributesClassName": "gold", "status": "Infeasible"});
    let conditions = json!([{"type": "ModifyingVolume", "status": "True"}, {"type": "ModifyVolumeError"}]);
    let claim = claim(json!(null), json!({"modifyVolumeStatus": infeasible, "conditions": conditions}));
    assert_eq!(plan(&claim, &volume(), "d", false, |_| true), Plan::Cancel);
    assert_eq!(
        cancelled(&claim).body(),
        &json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"$patch": "delete", "type": "ModifyingVolume"}]}})
    );
}

/// sidecars.md 1.3 "Modify": the same failure is written once.
#[test]
fn what_is_said_already() {
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
    for (status, message, failure, code, error, said) in [
        ("InProgress", failed, Failure::Final, "Internal", "no", true),
        ("InProgress", failed, Failure::Final, "Unknown", "no", false),
        ("InProgress", failed, Failure::Final, "Internal", "never", false),
        ("InProgress", failed, Failure::Infeasible, "Internal", "no", false),
        ("InProgress", failed, Failure::StillRunning, "Internal", "no", false),
        ("InProgress", running, Failure::StillRunning, "Internal", "no", true),
        ("Infeasible", failed, Failure::Infeasible, "Internal", "no", true),
        ("Infeasible", failed, Failure::Final, "Internal", "no", false),
    ] {
        assert_eq!(says(&with(status, message), failure, code, error), said, "{status} {failure:?} {code}");
    }
    assert!(!says(&claim(json!("gold"), json!({})), Failure::Final, "Internal", "no"));
}

fn condition(kind: &str, reason: Value, message: &str, since: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since})
}

/// sidecars.md 1.3 "Modify": what is written before the call and after a failure.
#[test]
fn writes_on_the_way() {
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
        pending(&claim).body(),
        &json!({"metadata": metadata, "status": {"modifyVolumeStatus": {"status": "Pending"}}})
    );
    let message = "Modifying volume to \"gold\" is in progress.";
    assert_eq!(
        begin(&claim, "gold", Time(9000)).body(),
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
            failed(&claim, failure, code, "no", Time(9000)).body(),
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
fn writes_at_the_end() {
    assert_eq!(
        in_force(&volume(), "gold"),
        Patch::Merge(json!({"metadata": {"uid": "v"}, "spec": {"volumeAttributesClassName": "gold"}}))
    );
    let conditions =
        json!([{"type": "ModifyingVolume", "status": "True"}, {"type": "Resizing", "status": "True"}]);
    assert_eq!(
        completed(&claim(json!("gold"), json!({"conditions": conditions})), "gold").body(),
        &json!({"metadata": {"uid": "u"}, "status": {
            "modifyVolumeStatus": null,
            "currentVolumeAttributesClassName": "gold",
            "conditions": [{"$patch": "delete", "type": "ModifyingVolume"}],
        }})
    );
}

/// sidecars.md 1.3 "Modify": secrets.
#[test]
fn secrets() {
    let mut volume = volume();
    let named = |name: &str| Some(SecretRef { name: name.into(), namespace: "n".into() });
    assert_eq!(secret(&volume), named("expand"));
    volume.metadata.annotations.insert(annotation::MODIFY_SECRET_NAME, "modify");
    assert_eq!(secret(&volume), named("expand"), "half a name is none");
    volume.metadata.annotations.insert(annotation::MODIFY_SECRET_NAMESPACE, "n");
    assert_eq!(secret(&volume), named("modify"));
    volume.spec.csi = None;
    volume.metadata.annotations = crate::Map::default();
    assert_eq!(secret(&volume), None);
}
