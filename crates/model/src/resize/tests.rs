use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const REAL: ResizeInputs = ResizeInputs { controller_expands: true, failed_finally: false };

fn claim(status: Value) -> PersistentVolumeClaim {
    let mut status = status;
    status["phase"] = json!("Bound");
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {"resources": {"requests": {"storage": "10Gi"}}, "volumeName": "pv1"},
        "status": status,
    }))
    .unwrap()
}

fn volume(size: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": "pv1", "uid": "v"},
        "spec": {
            "capacity": {"storage": size}, "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
        },
    }))
    .unwrap()
}

fn expand(size: &str, fresh: bool) -> Plan {
    Plan::Expand { size: size.parse().unwrap(), fresh }
}

/// sidecars.md 1.3 "State machine". The claim has 5Gi and requests 10Gi; each row is the volume's size, the allocated
/// size, the status, and the expected plan. kubernetes.md 1.4 "Target size".
#[test]
fn plan_follows_the_state_machine() {
    let nothing = Plan::Idle(IdleReason::WaitingForNode);
    let trivial = ResizeInputs { controller_expands: false, failed_finally: false };
    let ended = ResizeInputs { controller_expands: true, failed_finally: true };
    for (has, allocated, status, known, expected) in [
        // The volume is smaller than requested.
        ("5Gi", "", "", REAL, expand("10Gi", true)),
        ("5Gi", "10Gi", "", REAL, expand("10Gi", false)),
        ("5Gi", "8Gi", "", REAL, expand("10Gi", true)),
        ("5Gi", "20Gi", "ControllerResizeInProgress", REAL, expand("20Gi", false)),
        ("5Gi", "20Gi", "ControllerResizeInProgress", ended, expand("10Gi", true)),
        ("5Gi", "", "ControllerResizeInProgress", REAL, expand("10Gi", true)),
        ("5Gi", "20Gi", "ControllerResizeInfeasible", REAL, expand("10Gi", true)),
        ("5Gi", "10Gi", "ControllerResizeInfeasible", REAL, expand("10Gi", false)),
        ("5Gi", "8Gi", "NodeResizePending", REAL, expand("8Gi", false)),
        ("8Gi", "8Gi", "NodeResizePending", REAL, nothing),
        ("8Gi", "8Gi", "NodeResizeInProgress", REAL, nothing),
        ("8Gi", "", "NodeResizePending", REAL, expand("10Gi", true)),
        ("8Gi", "8Gi", "NodeResizeInfeasible", REAL, expand("8Gi", false)),
        ("8Gi", "", "NodeResizeInfeasible", REAL, expand("10Gi", true)),
        ("8Gi", "8Gi", "SomethingNew", REAL, expand("10Gi", true)),
        // The volume is large enough.
        ("10Gi", "10Gi", "NodeResizePending", REAL, nothing),
        ("10Gi", "10Gi", "NodeResizeInProgress", REAL, nothing),
        ("20Gi", "20Gi", "NodeResizeInfeasible", REAL, expand("20Gi", false)),
        ("20Gi", "20Gi", "NodeResizeInfeasible", trivial, expand("10Gi", true)),
        ("20Gi", "", "NodeResizeInfeasible", REAL, expand("10Gi", true)),
        ("20Gi", "20Gi", "ControllerResizeInProgress", REAL, expand("20Gi", false)),
        ("20Gi", "20Gi", "ControllerResizeInProgress", ended, expand("20Gi", false)),
        ("20Gi", "", "ControllerResizeInProgress", REAL, expand("10Gi", true)),
        ("20Gi", "20Gi", "ControllerResizeInfeasible", REAL, expand("20Gi", false)),
        ("10Gi", "20Gi", "", REAL, expand("20Gi", false)),
        ("10Gi", "", "", REAL, expand("10Gi", true)),
    ] {
        let mut written = json!({"capacity": {"storage": "5Gi"}});
        if !allocated.is_empty() {
            written["allocatedResources"] = json!({"storage": allocated});
        }
        if !status.is_empty() {
            written["allocatedResourceStatuses"] = json!({"storage": status});
        }
        let row = (has, allocated, status, known);
        assert_eq!(plan(&claim(written), &volume(has), "d", known), expected, "{row:?}");
    }
}

/// sidecars.md 1.3 "State machine": an old API server that knows only conditions.
#[test]
fn pending_file_system_resize_waits_for_the_node() {
    for (status, expected) in
        [("True", Plan::Idle(IdleReason::WaitingForNode)), ("False", expand("10Gi", true))]
    {
        let pending = json!({
            "capacity": {"storage": "5Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": status}],
        });
        assert_eq!(plan(&claim(pending), &volume("10Gi"), "d", REAL), expected);
    }
}

/// sidecars.md 1.3 "Trigger".
#[test]
fn plan_is_idle_with_reason() {
    let wants = || claim(json!({"capacity": {"storage": "5Gi"}}));
    let idle = |claim: &PersistentVolumeClaim, volume: &PersistentVolume| plan(claim, volume, "d", REAL);

    let mut pending = wants();
    pending.status.phase = ClaimPhase::Pending;
    assert_eq!(idle(&pending, &volume("5Gi")), Plan::Idle(IdleReason::NotBound));
    let mut unnamed = wants();
    unnamed.spec.volume_name.clear();
    assert_eq!(idle(&unnamed, &volume("5Gi")), Plan::Idle(IdleReason::NotBound));
    let content = claim(json!({"capacity": {"storage": "10Gi"}}));
    assert_eq!(idle(&content, &volume("5Gi")), Plan::Idle(IdleReason::LargeEnough));
    assert_eq!(plan(&wants(), &volume("5Gi"), "e", REAL), Plan::Idle(IdleReason::OtherDriver));
    let mut foreign = volume("5Gi");
    foreign.spec.claim_ref = None;
    assert_eq!(idle(&wants(), &foreign), Plan::Idle(IdleReason::BoundToOtherClaim));

    // A claim in deletion is expanded even so.
    let mut deleting = wants();
    deleting.metadata.deletion_timestamp = Some(Time(1));
    assert_eq!(idle(&deleting, &volume("5Gi")), expand("10Gi", true));
}

fn strategic(patch: Patch) -> Value {
    match patch {
        Patch::Strategic(body) => body,
        other => panic!("not a strategic patch: {other:?}"),
    }
}

fn condition(kind: &str, message: Value) -> Value {
    json!({
        "type": kind, "status": "True", "reason": null, "message": message,
        "lastTransitionTime": "1970-01-01T00:00:01Z",
    })
}

/// sidecars.md 1.3 "Writes", the first: a new size clears the conditions of the old one, the same size keeps them;
/// sidecars.md 1.3 "Conditions": those of others are kept in any case.
#[test]
fn start_is_recorded_in_status() {
    let mut claim = claim(json!({"conditions": [
        {"type": "ControllerResizeError", "status": "True"}, {"type": "ModifyingVolume", "status": "True"},
    ]}));
    claim.metadata.annotations.insert(annotation::NODE_EXPANSION_NOT_REQUIRED, "true");
    let metadata = json!({
        "uid": "u", "resourceVersion": "7",
        "annotations": {"volume.kubernetes.io/node-expansion-not-required": null},
    });
    let size = "10Gi".parse().unwrap();
    assert_eq!(
        strategic(mark_in_progress(&claim, size, true, Time(1000))),
        json!({"metadata": metadata, "status": {
            "conditions": [condition("Resizing", json!(null)), {"$patch": "delete", "type": "ControllerResizeError"}],
            "allocatedResources": {"storage": "10Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        }})
    );
    for (status, written) in [
        ("ControllerResizeInfeasible", true),
        ("ControllerResizeInProgress", true),
        ("NodeResizeInfeasible", false),
        ("NodeResizePending", false),
    ] {
        claim.status.allocated_resource_statuses.storage = Some(ResizeStatus::from_name(status));
        let mut expected = json!({"metadata": metadata, "status": {
            "conditions": [condition("Resizing", json!(null))],
            "allocatedResources": {"storage": "10Gi"},
        }});
        if written {
            expected["status"]["allocatedResourceStatuses"] =
                json!({"storage": "ControllerResizeInProgress"});
        }
        assert_eq!(strategic(mark_in_progress(&claim, size, false, Time(1000))), expected, "{status}");
    }
}

/// sidecars.md 1.3 "Writes", the third: the volume.
#[test]
fn new_size_is_recorded_on_the_volume() {
    let claim = claim(json!({"capacity": {"storage": "5Gi"}}));
    let size = Quantity::from_bytes(10 << 30);
    let plain = json!({"metadata": {"uid": "v"}, "spec": {"capacity": {"storage": "10Gi"}}});
    let noted = json!({
        "metadata": {"uid": "v", "annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "5Gi"}},
        "spec": {"capacity": {"storage": "10Gi"}},
    });
    assert_eq!(record_volume_size(&volume("5Gi"), &claim, size, false), Patch::Merge(plain.clone()));
    assert_eq!(record_volume_size(&volume("5Gi"), &claim, size, true), Patch::Merge(noted));
    let mut again = volume("8Gi");
    again.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "4Gi");
    assert_eq!(record_volume_size(&again, &claim, size, true), Patch::Merge(plain));
}

/// sidecars.md 1.3 "Writes": 4a and 4b.
#[test]
fn end_of_controller_expansion_is_recorded() {
    let claim = claim(json!({"conditions": [
        {"type": "Resizing", "status": "True"}, {"type": "NodeResizeError", "status": "True"}, {"type": "Other"},
    ]}));
    assert_eq!(
        strategic(mark_node_pending(&claim, Time(1000))),
        json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {
            "conditions": [condition("FileSystemResizePending", json!(NODE_PENDING))],
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        }})
    );
    assert_eq!(
        strategic(mark_finished(&claim, Quantity::from_bytes(10 << 30))),
        json!({
            "metadata": {
                "uid": "u", "resourceVersion": "7",
                "annotations": {"volume.kubernetes.io/node-expansion-not-required": "true"},
            },
            "status": {
                "capacity": {"storage": "10Gi"},
                "conditions": [
                    {"$patch": "delete", "type": "Resizing"}, {"$patch": "delete", "type": "NodeResizeError"},
                ],
                "allocatedResourceStatuses": {"storage": null},
            },
        })
    );
}

/// sidecars.md 1.3 "Errors": the status after a final and an infeasible error.
#[test]
fn failures_are_recorded_in_status() {
    let claim = claim(json!({}));
    let conditions = json!([condition("ControllerResizeError", json!("failed to expand pvc with no room"))]);
    assert_eq!(
        strategic(mark_failed(&claim, "no room", false, Time(1000))),
        json!({"metadata": {"uid": "u"}, "status": {"conditions": conditions}})
    );
    assert_eq!(
        strategic(mark_failed(&claim, "no room", true, Time(1000))),
        json!({"metadata": {"uid": "u"}, "status": {
            "conditions": conditions,
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        }})
    );
}

/// sidecars.md 1.3 "Errors": the same error is written once.
#[test]
fn recorded_failure_is_recognized() {
    let message = "failed to expand pvc with no room";
    let with = |status: &str, message: &str| {
        claim(json!({
            "allocatedResourceStatuses": {"storage": status},
            "conditions": [{"type": "ControllerResizeError", "status": "True", "message": message}],
        }))
    };
    assert!(already_reports(&with("ControllerResizeInProgress", message), "no room", false));
    assert!(!already_reports(&with("ControllerResizeInProgress", message), "no room", true));
    assert!(already_reports(&with("ControllerResizeInfeasible", message), "no room", true));
    assert!(!already_reports(&with("ControllerResizeInfeasible", "else"), "no room", true));
    assert!(!already_reports(&claim(json!({})), "no room", false));
}

/// sidecars.md 1.3 "Writes": the annotation is removed when the claim's capacity reaches the volume's.
#[test]
fn pre_resize_capacity_is_removed() {
    let mut volume = volume("10Gi");
    let has = |size: &str| claim(json!({"capacity": {"storage": size}}));
    assert_eq!(clear_pre_resize_capacity(&has("10Gi"), &volume), None);
    volume.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "5Gi");
    assert_eq!(clear_pre_resize_capacity(&has("5Gi"), &volume), None);
    let removed = json!({"metadata": {"uid": "v", "annotations": {annotation::PRE_RESIZE_CAPACITY: null}}});
    assert_eq!(clear_pre_resize_capacity(&has("10Gi"), &volume), Some(Patch::Merge(removed)));
}

proptest! {
    /// The target is the requested or the allocated size. While an expansion may be in progress, it is the latter.
    #[test]
    fn target_is_the_requested_or_allocated_size(has in 1i64..40, allocated in prop::option::of(1i64..40), status in 0usize..7, in_controller: bool, ended: bool) {
        let statuses = ["", "ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizePending",
            "NodeResizeInProgress", "NodeResizeInfeasible", "Odd"];
        let mut written = json!({"capacity": {"storage": "1"}});
        if let Some(allocated) = allocated {
            written["allocatedResources"] = json!({"storage": format!("{allocated}Gi")});
        }
        if status > 0 {
            written["allocatedResourceStatuses"] = json!({"storage": statuses[status]});
        }
        let known = ResizeInputs { controller_expands: in_controller, failed_finally: ended };
        let allocated = allocated.map(|size| Quantity::from_bytes(size << 30));
        let requested = Quantity::from_bytes(10 << 30);
        if let Plan::Expand { size, fresh } = plan(&claim(written), &volume(&format!("{has}Gi")), "d", known) {
            prop_assert!(size == requested || Some(size) == allocated);
            prop_assert_eq!(fresh, Some(size) != allocated);
            if status == 1 && !ended {
                prop_assert_eq!(size, allocated.unwrap_or(requested));
            }
        }
    }
}
