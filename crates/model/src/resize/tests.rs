use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const REAL: Known = Known { in_controller: true, ended: false };

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

/// sidecars.md 1.3 "State machine". The claim has 5Gi and asks for 10Gi; each line is the volume's size, the allocated
/// size, the status, and what follows. kubernetes.md 1.4 "Target size".
#[test]
fn the_state_machine() {
    let nothing = Plan::Nothing(Idle::NodesTurn);
    let trivial = Known { in_controller: false, ended: false };
    let ended = Known { in_controller: true, ended: true };
    for (has, allocated, status, known, expected) in [
        // The volume is smaller than asked for.
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
        // The volume has what is asked for.
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
fn a_pending_file_system_is_the_nodes() {
    for (status, expected) in [("True", Plan::Nothing(Idle::NodesTurn)), ("False", expand("10Gi", true))] {
        let pending = json!({
            "capacity": {"storage": "5Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": status}],
        });
        assert_eq!(plan(&claim(pending), &volume("10Gi"), "d", REAL), expected);
    }
}

/// sidecars.md 1.3 "Trigger".
#[test]
fn when_there_is_nothing_to_do() {
    let wants = || claim(json!({"capacity": {"storage": "5Gi"}}));
    let idle = |claim: &PersistentVolumeClaim, volume: &PersistentVolume| plan(claim, volume, "d", REAL);

    let mut pending = wants();
    pending.status.phase = ClaimPhase::Pending;
    assert_eq!(idle(&pending, &volume("5Gi")), Plan::Nothing(Idle::NotBound));
    let mut unnamed = wants();
    unnamed.spec.volume_name.clear();
    assert_eq!(idle(&unnamed, &volume("5Gi")), Plan::Nothing(Idle::NotBound));
    let content = claim(json!({"capacity": {"storage": "10Gi"}}));
    assert_eq!(idle(&content, &volume("5Gi")), Plan::Nothing(Idle::LargeEnough));
    assert_eq!(plan(&wants(), &volume("5Gi"), "e", REAL), Plan::Nothing(Idle::NotOurs));
    let mut foreign = volume("5Gi");
    foreign.spec.claim_ref = None;
    assert_eq!(idle(&wants(), &foreign), Plan::Nothing(Idle::NotItsVolume));

    // A claim that is being deleted is finished all the same.
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

/// sidecars.md 1.3 "Writes", the first: a new size clears what was known of the old one, the same size keeps it;
/// sidecars.md 1.3 "Conditions": others' stay in any case.
#[test]
fn beginning() {
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
        strategic(begin(&claim, size, true, Time(1000))),
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
        claim.status.allocated_resource_statuses.storage = Some(ResizeStatus::of(status));
        let mut expected = json!({"metadata": metadata, "status": {
            "conditions": [condition("Resizing", json!(null))],
            "allocatedResources": {"storage": "10Gi"},
        }});
        if written {
            expected["status"]["allocatedResourceStatuses"] =
                json!({"storage": "ControllerResizeInProgress"});
        }
        assert_eq!(strategic(begin(&claim, size, false, Time(1000))), expected, "{status}");
    }
}

/// sidecars.md 1.3 "Writes", the third: the volume.
#[test]
fn the_volumes_new_size() {
    let claim = claim(json!({"capacity": {"storage": "5Gi"}}));
    let size = Quantity::from_bytes(10 << 30);
    let plain = json!({"metadata": {"uid": "v"}, "spec": {"capacity": {"storage": "10Gi"}}});
    let noted = json!({
        "metadata": {"uid": "v", "annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "5Gi"}},
        "spec": {"capacity": {"storage": "10Gi"}},
    });
    assert_eq!(grown(&volume("5Gi"), &claim, size, false), Patch::Merge(plain.clone()));
    assert_eq!(grown(&volume("5Gi"), &claim, size, true), Patch::Merge(noted));
    let mut again = volume("8Gi");
    again.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "4Gi");
    assert_eq!(grown(&again, &claim, size, true), Patch::Merge(plain));
}

/// sidecars.md 1.3 "Writes": 4a and 4b.
#[test]
fn the_end_on_the_controller() {
    let claim = claim(json!({"conditions": [
        {"type": "Resizing", "status": "True"}, {"type": "NodeResizeError", "status": "True"}, {"type": "Other"},
    ]}));
    assert_eq!(
        strategic(pending_on_node(&claim, Time(1000))),
        json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {
            "conditions": [condition("FileSystemResizePending", json!(NODE_PENDING))],
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        }})
    );
    assert_eq!(
        strategic(finished(&claim, Quantity::from_bytes(10 << 30))),
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

/// sidecars.md 1.3 "Errors": what a final and an infeasible error leave in the status.
#[test]
fn failures() {
    let claim = claim(json!({}));
    let conditions = json!([condition("ControllerResizeError", json!("failed to expand pvc with no room"))]);
    assert_eq!(
        strategic(failed(&claim, "no room", false, Time(1000))),
        json!({"metadata": {"uid": "u"}, "status": {"conditions": conditions}})
    );
    assert_eq!(
        strategic(failed(&claim, "no room", true, Time(1000))),
        json!({"metadata": {"uid": "u"}, "status": {
            "conditions": conditions,
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        }})
    );
}

/// sidecars.md 1.3 "Errors": the same refusal is written once.
#[test]
fn what_is_said_already() {
    let message = "failed to expand pvc with no room";
    let with = |status: &str, message: &str| {
        claim(json!({
            "allocatedResourceStatuses": {"storage": status},
            "conditions": [{"type": "ControllerResizeError", "status": "True", "message": message}],
        }))
    };
    assert!(says(&with("ControllerResizeInProgress", message), "no room", false));
    assert!(!says(&with("ControllerResizeInProgress", message), "no room", true));
    assert!(says(&with("ControllerResizeInfeasible", message), "no room", true));
    assert!(!says(&with("ControllerResizeInfeasible", "else"), "no room", true));
    assert!(!says(&claim(json!({})), "no room", false));
}

/// sidecars.md 1.3 "Writes": the annotation goes when the claim catches up.
#[test]
fn catching_up() {
    let mut volume = volume("10Gi");
    let has = |size: &str| claim(json!({"capacity": {"storage": size}}));
    assert_eq!(caught_up(&has("10Gi"), &volume), None);
    volume.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "5Gi");
    assert_eq!(caught_up(&has("5Gi"), &volume), None);
    let removed = json!({"metadata": {"uid": "v", "annotations": {annotation::PRE_RESIZE_CAPACITY: null}}});
    assert_eq!(caught_up(&has("10Gi"), &volume), Some(Patch::Merge(removed)));
}

proptest! {
    /// The size is never made up: it is what was asked for or what was begun. And it never shrinks a volume that
    /// somebody may be expanding: while an expansion may be under way, its own size is the one.
    #[test]
    fn a_size_somebody_asked_for(has in 1i64..40, allocated in prop::option::of(1i64..40), status in 0usize..7, in_controller: bool, ended: bool) {
        let words = ["", "ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizePending",
            "NodeResizeInProgress", "NodeResizeInfeasible", "Odd"];
        let mut written = json!({"capacity": {"storage": "1"}});
        if let Some(allocated) = allocated {
            written["allocatedResources"] = json!({"storage": format!("{allocated}Gi")});
        }
        if status > 0 {
            written["allocatedResourceStatuses"] = json!({"storage": words[status]});
        }
        let known = Known { in_controller, ended };
        let allocated = allocated.map(|size| Quantity::from_bytes(size << 30));
        let asked = Quantity::from_bytes(10 << 30);
        if let Plan::Expand { size, fresh } = plan(&claim(written), &volume(&format!("{has}Gi")), "d", known) {
            prop_assert!(size == asked || Some(size) == allocated);
            prop_assert_eq!(fresh, Some(size) != allocated);
            if status == 1 && !ended {
                prop_assert_eq!(size, allocated.unwrap_or(asked));
            }
        }
    }
}
