use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;
use wharf_model::VolumeAttributesClass;

use super::*;
use crate::resizer::memory::{Expansion, Failure, Modification};
use crate::resizer::view::{Can, Classes};

const NOW: Time = Time(100_000);
const LATER: Time = Time(200_000);
const BOTH: Can = Can { expand: Some(Where::Controller), modify: true };

/// A claim that has 5Gi.
fn claim(request: &str, status: Value) -> PersistentVolumeClaim {
    let mut whole = json!({"phase": "Bound", "capacity": {"storage": "5Gi"}});
    for (field, value) in status.as_object().unwrap() {
        whole[field] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {"resources": {"requests": {"storage": request}}, "volumeName": "pv1"},
        "status": whole,
    }))
    .unwrap()
}

/// The same, asking for a class.
fn modified(class: &str, status: Value) -> PersistentVolumeClaim {
    let mut claim = claim("5Gi", status);
    claim.spec.volume_attributes_class_name = Some(class.to_owned());
    claim
}

fn on_way(target: &str, status: &str) -> Value {
    json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": target, "status": status}})
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

fn size(size: &str) -> Quantity {
    size.parse().unwrap()
}

fn class(name: &str) -> VolumeAttributesClass {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// Decides; the classes `gold` and `tin` exist.
fn step_as(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    memory: &Memory,
    adjust: impl Fn(&mut View<'_>),
) -> Step {
    let (gold, tin) = (class("gold"), class("tin"));
    let classes = Classes { known: true, asked: Some(&gold), target: Some(&tin) };
    let mut view = View {
        claim: Some(claim),
        volume: Some(volume),
        driver: "d",
        can: BOTH,
        reached: true,
        users: Users::Unknown,
        classes,
        memory,
    };
    adjust(&mut view);
    decide(&view, NOW)
}

fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume, memory: &Memory) -> Step {
    step_as(claim, volume, memory, |_| {})
}

fn expanding(expansion: Expansion) -> Memory {
    Memory { expansion, ..Memory::default() }
}

fn modifying(modification: Modification) -> Memory {
    Memory { modification, ..Memory::default() }
}

fn failure(class: ErrorClass, code: Code) -> Failure {
    Failure { class: Some(class), code, message: "no".into() }
}

fn failed(request: &str, asked: &str, users: Users, failure: Failure) -> Option<Failed<SizeQuestion>> {
    let question = SizeQuestion { request: size(request), size: size(asked), users };
    Some(Failed { question, failure, failures: 1, at: Time(0), again: LATER, reported: false })
}

fn refused(asked: &str, target: &str, failure: Failure) -> Option<Failed<ClassQuestion>> {
    let question = ClassQuestion { asked: Some(asked.to_owned()), target: target.to_owned() };
    Some(Failed { question, failure, failures: 1, at: Time(0), again: LATER, reported: false })
}

fn waiting(expansion: Reason, modification: Reason) -> Step {
    Step::Wait(Waiting { expansion, modification })
}

const IN_FORCE: Reason = Reason::NoModification(modify::Idle::InForce);
const LARGE_ENOUGH: Reason = Reason::NoExpansion(resize::Idle::LargeEnough);

/// sidecars.md 1.3 "Trigger".
#[test]
fn whose_claims() {
    let memory = Memory::default();
    let asks = claim("10Gi", json!({}));
    assert_eq!(step_as(&asks, &volume("5Gi"), &memory, |view| view.claim = None), Step::Forget);
    let no_volume = step_as(&asks, &volume("5Gi"), &memory, |view| view.volume = None);
    assert_eq!(no_volume, waiting(Reason::NoVolume, Reason::NoVolume));
    let foreign = step_as(&asks, &volume("5Gi"), &memory, |view| view.driver = "e");
    let not_ours =
        waiting(Reason::NoExpansion(resize::Idle::NotOurs), Reason::NoModification(modify::Idle::NotOurs));
    assert_eq!(foreign, not_ours);
    let elsewhere = step_as(&asks, &volume("5Gi"), &memory, |view| view.reached = false);
    assert_eq!(elsewhere, waiting(Reason::ElsewhereReached, Reason::ElsewhereReached));

    let mut in_tree = volume("5Gi");
    in_tree.spec.csi = None;
    assert_eq!(step(&asks, &in_tree, &memory), not_ours);
    let mut handed = asks.clone();
    handed.metadata.annotations.insert(annotation::STORAGE_RESIZER, "d");
    assert_eq!(
        step(&handed, &in_tree, &memory),
        waiting(Reason::InTree, Reason::NoModification(modify::Idle::NotOurs))
    );
    assert_eq!(
        step(&handed, &volume("5Gi"), &memory),
        Step::BeginExpansion { size: size("10Gi"), fresh: true }
    );

    let mut deleting = asks;
    deleting.metadata.deletion_timestamp = Some(Time(1));
    assert_eq!(
        step(&deleting, &volume("5Gi"), &memory),
        Step::BeginExpansion { size: size("10Gi"), fresh: true }
    );
    let content = claim("5Gi", json!({}));
    assert_eq!(step(&content, &volume("5Gi"), &memory), waiting(LARGE_ENOUGH, IN_FORCE));
}

/// sidecars.md 1.3 "Start": a driver that cannot is not asked.
#[test]
fn what_the_driver_can() {
    let memory = Memory::default();
    let mut wants = claim("10Gi", json!({}));
    wants.spec.volume_attributes_class_name = Some("gold".into());
    let with = |can| step_as(&wants, &volume("5Gi"), &memory, |view| view.can = can);
    let expand = Some(Where::Node);
    assert_eq!(with(Can { expand, modify: false }), Step::BeginExpansion { size: size("10Gi"), fresh: true });
    assert_eq!(with(Can { expand: None, modify: true }), Step::BeginModification { target: "gold".into() });
    let begun = expanding(Expansion { begun: Some(size("10Gi")), ..Expansion::default() });
    let content = claim("5Gi", json!({}));
    let cannot = |can, reasons: (Reason, Reason)| {
        let step = step_as(&content, &volume("5Gi"), &begun, |view| view.can = can);
        assert_eq!(step, waiting(reasons.0, reasons.1));
    };
    cannot(Can { expand, modify: false }, (LARGE_ENOUGH, Reason::Unable));
    cannot(Can { expand: None, modify: true }, (Reason::Unable, IN_FORCE));
}

/// sidecars.md 1.3 "State machine (RecoverVolumeExpansionFailure GA)": which size, with what this process knows;
/// the whole table is beside the plan in `model`.
#[test]
fn which_size() {
    let begun = |size: &str, status: &str| json!({"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": status}});
    let ended = expanding(Expansion { ended: true, ..Expansion::default() });
    let nothing = Memory::default();
    for (status, has, memory, asked, fresh) in [
        // After a restart everything in progress is uncertain.
        (begun("20Gi", "ControllerResizeInProgress"), "5Gi", &nothing, "20Gi", false),
        (begun("20Gi", "ControllerResizeInProgress"), "5Gi", &ended, "10Gi", true),
        (begun("20Gi", "ControllerResizeInfeasible"), "5Gi", &nothing, "10Gi", true),
        (begun("10Gi", "ControllerResizeInfeasible"), "5Gi", &nothing, "10Gi", false),
        (begun("20Gi", "NodeResizeInfeasible"), "20Gi", &nothing, "20Gi", false),
    ] {
        let expected = Step::BeginExpansion { size: size(asked), fresh };
        assert_eq!(step(&claim("10Gi", status.clone()), &volume(has), memory), expected, "{status}");
    }
    let pending = claim("10Gi", begun("10Gi", "NodeResizePending"));
    let nodes = Reason::NoExpansion(resize::Idle::NodesTurn);
    assert_eq!(step(&pending, &volume("10Gi"), &nothing), waiting(nodes, IN_FORCE));
}

/// sidecars.md 1.3 "Writes": the order, and that what was written by us is not written again.
#[test]
fn the_order_of_an_expansion() {
    let asks = claim("10Gi", json!({}));
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let begun = claim("10Gi", in_progress.clone());
    let wanted = size("10Gi");
    let nothing = Memory::default();
    assert_eq!(step(&asks, &volume("5Gi"), &nothing), Step::BeginExpansion { size: wanted, fresh: true });
    // Begun by somebody else: the server has to agree.
    assert_eq!(step(&begun, &volume("5Gi"), &nothing), Step::BeginExpansion { size: wanted, fresh: false });
    let memory = |expanded| expanding(Expansion { begun: Some(wanted), expanded, ..Expansion::default() });
    assert_eq!(step(&begun, &volume("5Gi"), &memory(None)), Step::Expand { size: wanted });
    let mut infeasible = begun.clone();
    infeasible.status.allocated_resource_statuses.storage =
        Some(wharf_model::claim::ResizeStatus::ControllerResizeInfeasible);
    assert_eq!(
        step(&infeasible, &volume("5Gi"), &memory(None)),
        Step::BeginExpansion { size: wanted, fresh: false }
    );

    // The driver gave a little more.
    let got = size("11Gi");
    let mut noted = volume("11Gi");
    noted.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "5Gi");
    let expanded = |on_node| memory(Some(Expanded { asked: wanted, size: got, on_node }));
    for (on_node, volume, expected) in [
        (true, &volume("5Gi"), Step::Grow { size: got, on_node: true }),
        (true, &volume("11Gi"), Step::Grow { size: got, on_node: true }),
        (true, &noted, Step::HandToNode),
        (false, &volume("5Gi"), Step::Grow { size: got, on_node: false }),
        (false, &volume("11Gi"), Step::FinishExpansion { size: got }),
    ] {
        assert_eq!(step(&begun, volume, &expanded(on_node)), expected);
    }
    // An answer to another question is none.
    let other = memory(Some(Expanded { asked: size("7Gi"), size: size("7Gi"), on_node: false }));
    assert_eq!(step(&begun, &volume("5Gi"), &other), Step::Expand { size: wanted });

    // The claim has caught up.
    let done = claim("10Gi", json!({"capacity": {"storage": "11Gi"}}));
    assert_eq!(step(&done, &noted, &nothing), Step::Tidy);
    assert_eq!(step_as(&done, &noted, &nothing, |view| view.driver = "e"), {
        let idle = Reason::NoModification(modify::Idle::NotOurs);
        waiting(LARGE_ENOUGH, idle)
    });
    assert_eq!(step(&done, &volume("11Gi"), &nothing), waiting(LARGE_ENOUGH, IN_FORCE));
}

/// sidecars.md 1.3 "Errors".
#[test]
fn failed_expansions() {
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let asks = |request: &str| claim(request, in_progress.clone());
    let memory = |class, code, reported, ended| {
        let mut failed = failed("10Gi", "10Gi", Users::Unknown, failure(class, code));
        failed.as_mut().unwrap().reported = reported;
        expanding(Expansion { begun: Some(size("10Gi")), ended, failed, ..Expansion::default() })
    };
    let paused = waiting(Reason::Pause(LATER), IN_FORCE);
    use ErrorClass::{Final, Infeasible, StillRunning};
    for (request, memory, expected) in [
        // Only final answers are written.
        ("10Gi", memory(StillRunning, Code::Unavailable, false, false), paused.clone()),
        ("10Gi", memory(Final, Code::Internal, false, true), Step::ReportExpansion),
        ("10Gi", memory(Final, Code::Internal, true, true), paused.clone()),
        ("10Gi", memory(Infeasible, Code::OutOfRange, false, true), Step::ReportExpansion),
        ("10Gi", memory(Infeasible, Code::OutOfRange, true, true), paused.clone()),
        // Another wish need not wait, but what may be under way is ended first.
        (
            "8Gi",
            memory(Final, Code::Internal, true, true),
            Step::BeginExpansion { size: size("8Gi"), fresh: true },
        ),
        ("8Gi", memory(StillRunning, Code::Unavailable, false, false), Step::Expand { size: size("10Gi") }),
    ] {
        assert_eq!(step(&asks(request), &volume("5Gi"), &memory), expected, "{request} {memory:?}");
    }

    // What the claim says already is not written again.
    let mut said = asks("10Gi");
    let text = "failed to expand pvc with rpc error: code = Internal desc = no";
    said.status.conditions =
        serde_json::from_value(json!([{"type": "ControllerResizeError", "status": "True", "message": text}]))
            .unwrap();
    assert_eq!(step(&said, &volume("5Gi"), &memory(Final, Code::Internal, false, true)), paused);

    // What never reached the driver is not written, only tried again.
    let mut unasked = memory(Final, Code::Unknown, false, false);
    unasked.expansion.failed.as_mut().unwrap().failure.class = None;
    assert_eq!(step(&asks("10Gi"), &volume("5Gi"), &unasked), paused);
    unasked.expansion.failed.as_mut().unwrap().again = NOW;
    assert_eq!(step(&asks("10Gi"), &volume("5Gi"), &unasked), Step::Expand { size: size("10Gi") });
}

/// sidecars.md 1.3 "Errors": in use.
#[test]
fn volumes_in_use() {
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let memory = |told_in_use, users, code| {
        let mut failed = failed("10Gi", "10Gi", users, failure(ErrorClass::Final, code));
        failed.as_mut().unwrap().reported = true;
        let begun = Some(size("10Gi"));
        expanding(Expansion { begun, ended: true, failed, told_in_use, ..Expansion::default() })
    };
    let again = Step::Expand { size: size("10Gi") };
    let paused = waiting(Reason::Pause(LATER), IN_FORCE);
    let in_use = waiting(Reason::InUse, IN_FORCE);
    let refusal = Code::FailedPrecondition;
    for (told, before, code, users, expected) in [
        // Pods are not known yet: as after any failure.
        (false, Users::Unknown, refusal, Users::Unknown, paused.clone()),
        (false, Users::Unknown, refusal, Users::Some, Step::TellInUse),
        (true, Users::Unknown, refusal, Users::Some, in_use.clone()),
        (true, Users::Some, refusal, Users::Some, in_use),
        // The last pod has gone: at once.
        (true, Users::Some, refusal, Users::None, again.clone()),
        (false, Users::Unknown, refusal, Users::None, again),
        // The driver refused a volume that no pod uses: perhaps it is still attached.
        (false, Users::None, refusal, Users::None, paused.clone()),
        // Other errors have nothing to do with pods.
        (false, Users::Some, Code::Internal, Users::Some, paused),
    ] {
        let memory = memory(told, before, code);
        let step =
            step_as(&claim("10Gi", in_progress.clone()), &volume("5Gi"), &memory, |view| view.users = users);
        assert_eq!(step, expected, "{told} {before:?} {code:?} {users:?}");
    }
}

/// sidecars.md 3, item 20: one actor, expansion first, and neither waits for the other.
#[test]
fn both_at_once() {
    let mut wants = claim(
        "10Gi",
        json!({
            "allocatedResources": {"storage": "10Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        }),
    );
    wants.spec.volume_attributes_class_name = Some("gold".into());
    assert_eq!(
        step(&wants, &volume("5Gi"), &Memory::default()),
        Step::BeginExpansion { size: size("10Gi"), fresh: false }
    );
    let expansion = Expansion {
        failed: failed("10Gi", "10Gi", Users::Unknown, failure(ErrorClass::StillRunning, Code::Aborted)),
        ..Expansion::default()
    };
    let paused = expanding(expansion.clone());
    assert_eq!(step(&wants, &volume("5Gi"), &paused), Step::BeginModification { target: "gold".into() });

    // Both pause: until the first of the two.
    let sooner = Time(150_000);
    let mut failed = refused("gold", "gold", failure(ErrorClass::StillRunning, Code::Aborted));
    failed.as_mut().unwrap().again = sooner;
    let both = Memory { expansion, modification: Modification { failed, ..Modification::default() } };
    let step = step(&wants, &volume("5Gi"), &both);
    assert_eq!(step, waiting(Reason::Pause(LATER), Reason::Pause(sooner)));
    let Step::Wait(waiting) = step else { panic!("does not wait") };
    assert_eq!(waiting.until(), Some(sooner));
    let idle = Waiting { expansion: Reason::InUse, modification: Reason::Pause(LATER) };
    assert_eq!(idle.until(), Some(LATER));
    assert_eq!(Waiting { expansion: Reason::InUse, modification: IN_FORCE }.until(), None);
}

/// sidecars.md 1.3 "Modify (VAC GA)": from a wish to success; the whole table is beside the plan in `model`.
#[test]
fn the_order_of_a_modification() {
    let target = || "gold".to_owned();
    let nothing = Memory::default();
    let begun = modifying(Modification { begun: Some(target()), ..Modification::default() });
    let in_progress = modified("gold", on_way("gold", "InProgress"));
    let volume = volume("5Gi");
    assert_eq!(
        step(&modified("gold", json!({})), &volume, &nothing),
        Step::BeginModification { target: target() }
    );
    assert_eq!(step(&in_progress, &volume, &nothing), Step::BeginModification { target: target() });
    assert_eq!(step(&in_progress, &volume, &begun), Step::Modify { target: target() });
    assert_eq!(
        step(&modified("gold", on_way("gold", "Infeasible")), &volume, &begun),
        Step::BeginModification { target: target() }
    );

    // Uncertain: the old target is ended first. Certain: the new wish counts.
    let tin = modified("tin", on_way("gold", "InProgress"));
    assert_eq!(step(&tin, &volume, &nothing), Step::BeginModification { target: target() });
    assert_eq!(step(&tin, &volume, &begun), Step::Modify { target: target() });
    let mut certain = begun.clone();
    certain.modification.certain = true;
    assert_eq!(step(&tin, &volume, &certain), Step::BeginModification { target: "tin".into() });

    // What is in force is written down first, in the volume and then in the claim.
    let applied =
        modifying(Modification { certain: true, applied: Some(target()), ..Modification::default() });
    let mut recorded = volume.clone();
    recorded.spec.volume_attributes_class_name = Some(target());
    for claim in [&in_progress, &tin] {
        assert_eq!(step(claim, &volume, &applied), Step::RecordClass { target: target() });
        assert_eq!(step(claim, &recorded, &applied), Step::CompleteModification { target: target() });
    }
    // Unless somebody has changed the status meanwhile.
    assert_eq!(
        step(&modified("tin", json!({})), &recorded, &applied),
        Step::BeginModification { target: "tin".into() }
    );

    let mut cancelled = modified("", on_way("gold", "Infeasible"));
    cancelled.status.conditions =
        serde_json::from_value(json!([{"type": "ModifyingVolume", "status": "True"}])).unwrap();
    assert_eq!(step(&cancelled, &volume, &nothing), Step::CancelModification);
}

/// sidecars.md 1.3 "Modify (VAC GA)": failures.
#[test]
fn failed_modifications() {
    use ErrorClass::{Final, Infeasible, StillRunning};
    let memory = |class, code, reported| {
        let mut failed = refused("gold", "gold", failure(class, code));
        failed.as_mut().unwrap().reported = reported;
        let certain = class != StillRunning;
        modifying(Modification { begun: Some("gold".into()), certain, failed, ..Modification::default() })
    };
    let paused = waiting(LARGE_ENOUGH, Reason::Pause(LATER));
    let in_progress = on_way("gold", "InProgress");
    let infeasible = on_way("gold", "Infeasible");
    for (asked, status, memory, expected) in [
        ("gold", &in_progress, memory(StillRunning, Code::Aborted, false), Step::ReportModification),
        ("gold", &in_progress, memory(Final, Code::Internal, false), Step::ReportModification),
        ("gold", &in_progress, memory(Infeasible, Code::InvalidArgument, false), Step::ReportModification),
        ("gold", &in_progress, memory(StillRunning, Code::Aborted, true), paused.clone()),
        ("gold", &in_progress, memory(Final, Code::Internal, true), paused.clone()),
        ("gold", &infeasible, memory(Infeasible, Code::InvalidArgument, true), paused.clone()),
        // Nothing to report on.
        ("gold", &json!({}), memory(Final, Code::Internal, false), paused.clone()),
        (
            "tin",
            &infeasible,
            memory(Infeasible, Code::InvalidArgument, true),
            Step::BeginModification { target: "tin".into() },
        ),
        (
            "tin",
            &in_progress,
            memory(StillRunning, Code::Aborted, true),
            Step::Modify { target: "gold".into() },
        ),
    ] {
        let step = step(&modified(asked, status.clone()), &volume("5Gi"), &memory);
        assert_eq!(step, expected, "{asked} {status} {memory:?}");
    }
    let mut said = modified("gold", in_progress);
    said.status.conditions = serde_json::from_value(json!([
        {"type": "ModifyingVolume", "status": "True", "message": "Modifying volume to \"gold\" failed. Waiting for retry."},
        {"type": "ModifyVolumeError", "status": "True", "reason": "Internal", "message": "no"},
    ]))
    .unwrap();
    assert_eq!(step(&said, &volume("5Gi"), &memory(Final, Code::Internal, false)), paused);
    let mut unasked = memory(Final, Code::Unknown, false);
    unasked.modification.failed.as_mut().unwrap().failure.class = None;
    assert_eq!(step(&said, &volume("5Gi"), &unasked), paused);
}

/// sidecars.md 1.3 "Modify (VAC GA)": classes that do not exist.
#[test]
fn missing_classes() {
    let lost = || "lost".to_owned();
    let missing = waiting(LARGE_ENOUGH, Reason::ClassMissing(lost()));
    let told = modifying(Modification { told_missing: Some(lost()), ..Modification::default() });
    let nothing = Memory::default();
    for (asked, status, memory, expected) in [
        ("lost", json!({}), &nothing, Step::MarkPending { target: lost() }),
        ("lost", on_way("", "Pending"), &nothing, Step::TellMissing { target: lost() }),
        ("lost", on_way("", "Pending"), &told, missing.clone()),
        ("gold", on_way("lost", "InProgress"), &nothing, Step::TellMissing { target: lost() }),
        ("gold", on_way("lost", "InProgress"), &told, missing),
        ("gold", on_way("", "Pending"), &told, Step::BeginModification { target: "gold".into() }),
    ] {
        assert_eq!(
            step(&modified(asked, status.clone()), &volume("5Gi"), memory),
            expected,
            "{asked} {status}"
        );
    }
    // Not to see a class does not mean that there is none.
    for (asked, status) in [("lost", json!({})), ("gold", on_way("lost", "InProgress"))] {
        let step =
            step_as(&modified(asked, status), &volume("5Gi"), &nothing, |view| view.classes.known = false);
        assert_eq!(step, waiting(LARGE_ENOUGH, Reason::ClassesUnknown));
    }
}

/// `explain` and the log print reasons.
#[test]
fn reasons_are_sentences() {
    let pause = NOW.plus(Duration::from_secs(1));
    for (reason, text) in [
        (Reason::Pause(pause), "again at 1970-01-01T00:01:41Z"),
        (Reason::ClassMissing("gold".into()), "VolumeAttributesClass \"gold\" does not exist"),
        (LARGE_ENOUGH, "LargeEnough"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

/// sidecars.md 1.3 "Writes": the volume is written also when its claim went while the driver was at it. Seen beside
/// upstream: a kept volume had its old size although the driver had expanded it.
#[test]
fn what_the_driver_did_outlives_the_claim() {
    let expanded = |on_node| {
        let done = Expanded { asked: size("8Gi"), size: size("8Gi"), on_node };
        expanding(Expansion { expanded: Some(done), ..Expansion::default() })
    };
    let applied = modifying(Modification { applied: Some("gold".into()), ..Modification::default() });
    let mut golden = volume("5Gi");
    golden.spec.volume_attributes_class_name = Some("gold".into());
    for (memory, volume, expected) in [
        (&expanded(false), &volume("5Gi"), Some(Step::Grow { size: size("8Gi"), on_node: false })),
        (&expanded(true), &volume("5Gi"), Some(Step::Grow { size: size("8Gi"), on_node: true })),
        (&expanded(true), &volume("8Gi"), None),
        (&expanded(true), &volume("9Gi"), None),
        (&applied, &volume("5Gi"), Some(Step::RecordClass { target: "gold".into() })),
        (&applied, &golden, None),
        (&Memory::default(), &volume("5Gi"), None),
    ] {
        assert_eq!(outliving(memory, volume), expected, "{memory:?} {volume:?}");
    }
}
