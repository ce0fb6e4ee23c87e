use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;
use wharf_model::{Time, VolumeAttributesClass};

use super::*;
use crate::resizer::state::{ExpansionState, Failure, ModificationState};
use crate::resizer::view::{Classes, ResizerCapabilities};

const NOW: Monotonic = Monotonic(100_000);
const LATER: Monotonic = Monotonic(200_000);
const BOTH: ResizerCapabilities = ResizerCapabilities { expand: Some(ExpandOn::Controller), modify: true };

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

/// The same, requesting a class.
fn modified(class: &str, status: Value) -> PersistentVolumeClaim {
    let mut claim = claim("5Gi", status);
    claim.spec.volume_attributes_class_name = Some(class.to_owned());
    claim
}

fn modify_status(target: &str, status: &str) -> Value {
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

/// Decides. The classes `gold` and `tin` exist.
fn step_as(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    state: &ResizeState,
    adjust: impl Fn(&mut View<'_>),
) -> ResizeStep {
    let (gold, tin) = (class("gold"), class("tin"));
    let classes = Classes { known: true, requested: Some(&gold), target: Some(&tin) };
    let mut view = View {
        claim: Some(claim),
        volume: Some(volume),
        driver: "d",
        capabilities: BOTH,
        is_local: true,
        pod_use: PodUse::Unknown,
        classes,
        state,
    };
    adjust(&mut view);
    decide(&view, NOW)
}

fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume, state: &ResizeState) -> ResizeStep {
    step_as(claim, volume, state, |_| {})
}

fn expanding(expansion: ExpansionState) -> ResizeState {
    ResizeState { expansion, ..ResizeState::default() }
}

fn modifying(modification: ModificationState) -> ResizeState {
    ResizeState { modification, ..ResizeState::default() }
}

fn failure(class: ErrorClass, code: Code) -> Failure {
    Failure { class: Some(class), code, message: "no".into() }
}

fn failed(
    request: &str,
    requested: &str,
    pod_use: PodUse,
    failure: Failure,
) -> Option<FailedCall<ExpandRequest>> {
    let request = ExpandRequest { requested: size(request), size: size(requested), pod_use };
    Some(FailedCall { request, failure, failures: 1, retry_at: LATER, reported: false })
}

fn refused(requested: &str, target: &str, failure: Failure) -> Option<FailedCall<ModifyRequest>> {
    let request = ModifyRequest { requested: Some(requested.to_owned()), target: target.to_owned() };
    Some(FailedCall { request, failure, failures: 1, retry_at: LATER, reported: false })
}

fn waiting(expansion: WaitReason, modification: WaitReason) -> ResizeStep {
    ResizeStep::Wait(Waiting { expansion, modification })
}

const CLASS_UP_TO_DATE: WaitReason = WaitReason::NoModification(modify::IdleReason::UpToDate);
const LARGE_ENOUGH: WaitReason = WaitReason::NoExpansion(resize::IdleReason::LargeEnough);

/// sidecars.md 1.3 "Trigger".
#[test]
fn only_claims_of_this_driver_and_node_are_resized() {
    let state = ResizeState::default();
    let expanding_claim = claim("10Gi", json!({}));
    assert_eq!(
        step_as(&expanding_claim, &volume("5Gi"), &state, |view| view.claim = None),
        ResizeStep::DropState
    );
    let no_volume = step_as(&expanding_claim, &volume("5Gi"), &state, |view| view.volume = None);
    assert_eq!(no_volume, waiting(WaitReason::NoVolume, WaitReason::NoVolume));
    let foreign = step_as(&expanding_claim, &volume("5Gi"), &state, |view| view.driver = "e");
    let not_ours = waiting(
        WaitReason::NoExpansion(resize::IdleReason::OtherDriver),
        WaitReason::NoModification(modify::IdleReason::OtherDriver),
    );
    assert_eq!(foreign, not_ours);
    let other_node = step_as(&expanding_claim, &volume("5Gi"), &state, |view| view.is_local = false);
    assert_eq!(other_node, waiting(WaitReason::OtherNode, WaitReason::OtherNode));

    let mut without_source = volume("5Gi");
    without_source.spec.csi = None;
    assert_eq!(step(&expanding_claim, &without_source, &state), not_ours);
    let mut annotated = expanding_claim.clone();
    annotated.metadata.annotations.insert(annotation::STORAGE_RESIZER, "d");
    assert_eq!(step(&annotated, &without_source, &state), not_ours);
    assert_eq!(
        step(&annotated, &volume("5Gi"), &state),
        ResizeStep::BeginExpansion { size: size("10Gi"), fresh: true }
    );

    let mut deleting = expanding_claim;
    deleting.metadata.deletion_timestamp = Some(Time(1));
    assert_eq!(
        step(&deleting, &volume("5Gi"), &state),
        ResizeStep::BeginExpansion { size: size("10Gi"), fresh: true }
    );
    let satisfied = claim("5Gi", json!({}));
    assert_eq!(step(&satisfied, &volume("5Gi"), &state), waiting(LARGE_ENOUGH, CLASS_UP_TO_DATE));
}

/// sidecars.md 1.3 "Start": a driver is called only for what it supports.
#[test]
fn unsupported_operations_wait() {
    let state = ResizeState::default();
    let mut wants = claim("10Gi", json!({}));
    wants.spec.volume_attributes_class_name = Some("gold".into());
    let with =
        |capabilities| step_as(&wants, &volume("5Gi"), &state, |view| view.capabilities = capabilities);
    let expand = Some(ExpandOn::Node);
    assert_eq!(
        with(ResizerCapabilities { expand, modify: false }),
        ResizeStep::BeginExpansion { size: size("10Gi"), fresh: true }
    );
    assert_eq!(
        with(ResizerCapabilities { expand: None, modify: true }),
        ResizeStep::BeginModification { target: "gold".into() }
    );
    let started = expanding(ExpansionState { in_progress: Some(size("10Gi")), ..ExpansionState::default() });
    let satisfied = claim("5Gi", json!({}));
    let assert_waits = |capabilities, reasons: (WaitReason, WaitReason)| {
        let step = step_as(&satisfied, &volume("5Gi"), &started, |view| view.capabilities = capabilities);
        assert_eq!(step, waiting(reasons.0, reasons.1));
    };
    assert_waits(ResizerCapabilities { expand, modify: false }, (LARGE_ENOUGH, WaitReason::Unsupported));
    assert_waits(
        ResizerCapabilities { expand: None, modify: true },
        (WaitReason::Unsupported, CLASS_UP_TO_DATE),
    );
}

/// sidecars.md 1.3 "State machine (RecoverVolumeExpansionFailure GA)": the size, with this process's state. The full
/// table is next to the plan in `model`.
#[test]
fn expansion_size_depends_on_status_and_state() {
    let in_status = |size: &str, status: &str| json!({"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": status}});
    let failed_finally = expanding(ExpansionState { failed_finally: true, ..ExpansionState::default() });
    let nothing = ResizeState::default();
    for (status, has, state, requested, fresh) in [
        // After a restart the result of a call in progress is unknown.
        (in_status("20Gi", "ControllerResizeInProgress"), "5Gi", &nothing, "20Gi", false),
        (in_status("20Gi", "ControllerResizeInProgress"), "5Gi", &failed_finally, "10Gi", true),
        (in_status("20Gi", "ControllerResizeInfeasible"), "5Gi", &nothing, "10Gi", true),
        (in_status("10Gi", "ControllerResizeInfeasible"), "5Gi", &nothing, "10Gi", false),
        (in_status("20Gi", "NodeResizeInfeasible"), "20Gi", &nothing, "20Gi", false),
    ] {
        let expected = ResizeStep::BeginExpansion { size: size(requested), fresh };
        assert_eq!(step(&claim("10Gi", status.clone()), &volume(has), state), expected, "{status}");
    }
    let pending = claim("10Gi", in_status("10Gi", "NodeResizePending"));
    let waits_for_node = WaitReason::NoExpansion(resize::IdleReason::WaitingForNode);
    assert_eq!(step(&pending, &volume("10Gi"), &nothing), waiting(waits_for_node, CLASS_UP_TO_DATE));
}

/// sidecars.md 1.3 "Writes": the order, and that our own writes are not repeated.
#[test]
fn expansion_steps_are_ordered() {
    let expanding_claim = claim("10Gi", json!({}));
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let claim_in_progress = claim("10Gi", in_progress.clone());
    let wanted = size("10Gi");
    let nothing = ResizeState::default();
    assert_eq!(
        step(&expanding_claim, &volume("5Gi"), &nothing),
        ResizeStep::BeginExpansion { size: wanted, fresh: true }
    );
    // Started by another process: recorded again before the call.
    assert_eq!(
        step(&claim_in_progress, &volume("5Gi"), &nothing),
        ResizeStep::BeginExpansion { size: wanted, fresh: false }
    );
    let state = |expanded| {
        expanding(ExpansionState { in_progress: Some(wanted), expanded, ..ExpansionState::default() })
    };
    assert_eq!(step(&claim_in_progress, &volume("5Gi"), &state(None)), ResizeStep::Expand { size: wanted });
    let mut infeasible = claim_in_progress.clone();
    infeasible.status.allocated_resource_statuses.storage =
        Some(wharf_model::claim::ResizeStatus::ControllerResizeInfeasible);
    assert_eq!(
        step(&infeasible, &volume("5Gi"), &state(None)),
        ResizeStep::BeginExpansion { size: wanted, fresh: false }
    );

    // The driver allocated a little more.
    let got = size("11Gi");
    let mut annotated = volume("11Gi");
    annotated.metadata.annotations.insert(annotation::PRE_RESIZE_CAPACITY, "5Gi");
    let expanded = |node_expansion_required| {
        state(Some(Expanded { requested: wanted, size: got, node_expansion_required }))
    };
    for (node_expansion_required, volume, expected) in [
        (true, &volume("5Gi"), ResizeStep::UpdateVolumeSize { size: got, node_expansion_required: true }),
        (true, &volume("11Gi"), ResizeStep::UpdateVolumeSize { size: got, node_expansion_required: true }),
        (true, &annotated, ResizeStep::MarkNodeExpansionPending),
        (false, &volume("5Gi"), ResizeStep::UpdateVolumeSize { size: got, node_expansion_required: false }),
        (false, &volume("11Gi"), ResizeStep::FinishExpansion { size: got }),
    ] {
        assert_eq!(step(&claim_in_progress, volume, &expanded(node_expansion_required)), expected);
    }
    // The result of another request does not count.
    let other =
        state(Some(Expanded { requested: size("7Gi"), size: size("7Gi"), node_expansion_required: false }));
    assert_eq!(step(&claim_in_progress, &volume("5Gi"), &other), ResizeStep::Expand { size: wanted });

    // The claim has the new size.
    let done = claim("10Gi", json!({"capacity": {"storage": "11Gi"}}));
    assert_eq!(step(&done, &annotated, &nothing), ResizeStep::RemovePreResizeCapacity);
    assert_eq!(step_as(&done, &annotated, &nothing, |view| view.driver = "e"), {
        let idle = WaitReason::NoModification(modify::IdleReason::OtherDriver);
        waiting(LARGE_ENOUGH, idle)
    });
    assert_eq!(step(&done, &volume("11Gi"), &nothing), waiting(LARGE_ENOUGH, CLASS_UP_TO_DATE));
}

/// sidecars.md 1.3 "Errors".
#[test]
fn failed_expansion_is_reported_and_backs_off() {
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let expanding_claim = |request: &str| claim(request, in_progress.clone());
    let state = |class, code, reported, failed_finally| {
        let mut failed = failed("10Gi", "10Gi", PodUse::Unknown, failure(class, code));
        failed.as_mut().unwrap().reported = reported;
        let in_progress = Some(size("10Gi"));
        let started = ExpansionState { in_progress, failed_finally, ..ExpansionState::default() };
        expanding(ExpansionState { failed, ..started })
    };
    let paused = waiting(WaitReason::Backoff(LATER), CLASS_UP_TO_DATE);
    use ErrorClass::{Final, Infeasible, StillRunning};
    for (request, state, expected) in [
        // Only final errors are reported.
        ("10Gi", state(StillRunning, Code::Unavailable, false, false), paused.clone()),
        ("10Gi", state(Final, Code::Internal, false, true), ResizeStep::ReportExpansion),
        ("10Gi", state(Final, Code::Internal, true, true), paused.clone()),
        ("10Gi", state(Infeasible, Code::OutOfRange, false, true), ResizeStep::ReportExpansion),
        ("10Gi", state(Infeasible, Code::OutOfRange, true, true), paused.clone()),
        // Another size need not wait, but a call that may still run is completed first.
        (
            "8Gi",
            state(Final, Code::Internal, true, true),
            ResizeStep::BeginExpansion { size: size("8Gi"), fresh: true },
        ),
        (
            "8Gi",
            state(StillRunning, Code::Unavailable, false, false),
            ResizeStep::Expand { size: size("10Gi") },
        ),
    ] {
        assert_eq!(step(&expanding_claim(request), &volume("5Gi"), &state), expected, "{request} {state:?}");
    }

    // An error that the claim already has is not written again.
    let mut already_reported = expanding_claim("10Gi");
    let text = "failed to expand pvc with rpc error: code = Internal desc = no";
    already_reported.status.conditions =
        serde_json::from_value(json!([{"type": "ControllerResizeError", "status": "True", "message": text}]))
            .unwrap();
    assert_eq!(step(&already_reported, &volume("5Gi"), &state(Final, Code::Internal, false, true)), paused);

    // A call that was never sent is not reported, only retried.
    let mut not_called = state(Final, Code::Unknown, false, false);
    not_called.expansion.failed.as_mut().unwrap().failure.class = None;
    assert_eq!(step(&expanding_claim("10Gi"), &volume("5Gi"), &not_called), paused);
    not_called.expansion.failed.as_mut().unwrap().retry_at = NOW;
    assert_eq!(
        step(&expanding_claim("10Gi"), &volume("5Gi"), &not_called),
        ResizeStep::Expand { size: size("10Gi") }
    );
}

/// sidecars.md 1.3 "Errors": in use.
#[test]
fn expansion_of_volume_in_use_waits_for_pods() {
    let in_progress = json!({
        "allocatedResources": {"storage": "10Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    });
    let state = |in_use_reported, pod_use, code| {
        let mut failed = failed("10Gi", "10Gi", pod_use, failure(ErrorClass::Final, code));
        failed.as_mut().unwrap().reported = true;
        let in_progress = Some(size("10Gi"));
        let started = ExpansionState { in_progress, failed_finally: true, ..ExpansionState::default() };
        expanding(ExpansionState { failed, in_use_reported, ..started })
    };
    let again = ResizeStep::Expand { size: size("10Gi") };
    let paused = waiting(WaitReason::Backoff(LATER), CLASS_UP_TO_DATE);
    let in_use = waiting(WaitReason::InUse, CLASS_UP_TO_DATE);
    let refusal = Code::FailedPrecondition;
    for (reported, before, code, pod_use, expected) in [
        // Pods are not watched yet: normal backoff.
        (false, PodUse::Unknown, refusal, PodUse::Unknown, paused.clone()),
        (false, PodUse::Unknown, refusal, PodUse::InUse, ResizeStep::ReportInUse),
        (true, PodUse::Unknown, refusal, PodUse::InUse, in_use.clone()),
        (true, PodUse::InUse, refusal, PodUse::InUse, in_use),
        // The last pod is gone: retry at once.
        (true, PodUse::InUse, refusal, PodUse::Unused, again.clone()),
        (false, PodUse::Unknown, refusal, PodUse::Unused, again),
        // The driver refused a volume that no pod uses: it may still be attached.
        (false, PodUse::Unused, refusal, PodUse::Unused, paused.clone()),
        // Other errors do not depend on pods.
        (false, PodUse::InUse, Code::Internal, PodUse::InUse, paused),
    ] {
        let state = state(reported, before, code);
        let step = step_as(&claim("10Gi", in_progress.clone()), &volume("5Gi"), &state, |view| {
            view.pod_use = pod_use
        });
        assert_eq!(step, expected, "{reported} {before:?} {code:?} {pod_use:?}");
    }
}

/// sidecars.md Departures 1.2, 1.3: one worker per claim. Expansion comes first, and neither waits for the other.
#[test]
fn expansion_goes_first_and_neither_blocks_the_other() {
    let mut wants = claim(
        "10Gi",
        json!({
            "allocatedResources": {"storage": "10Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        }),
    );
    wants.spec.volume_attributes_class_name = Some("gold".into());
    assert_eq!(
        step(&wants, &volume("5Gi"), &ResizeState::default()),
        ResizeStep::BeginExpansion { size: size("10Gi"), fresh: false }
    );
    let expansion = ExpansionState {
        failed: failed("10Gi", "10Gi", PodUse::Unknown, failure(ErrorClass::StillRunning, Code::Aborted)),
        ..ExpansionState::default()
    };
    let paused = expanding(expansion.clone());
    assert_eq!(
        step(&wants, &volume("5Gi"), &paused),
        ResizeStep::BeginModification { target: "gold".into() }
    );

    // Both back off: until the earlier time.
    let sooner = Monotonic(150_000);
    let mut failed = refused("gold", "gold", failure(ErrorClass::StillRunning, Code::Aborted));
    failed.as_mut().unwrap().retry_at = sooner;
    let both =
        ResizeState { expansion, modification: ModificationState { failed, ..ModificationState::default() } };
    let step = step(&wants, &volume("5Gi"), &both);
    assert_eq!(step, waiting(WaitReason::Backoff(LATER), WaitReason::Backoff(sooner)));
    let ResizeStep::Wait(waiting) = step else { panic!("expected Wait") };
    assert_eq!(waiting.until(), Some(sooner));
    let idle = Waiting { expansion: WaitReason::InUse, modification: WaitReason::Backoff(LATER) };
    assert_eq!(idle.until(), Some(LATER));
    assert_eq!(Waiting { expansion: WaitReason::InUse, modification: CLASS_UP_TO_DATE }.until(), None);
}

/// sidecars.md 1.3 "Modify (VAC GA)": from the request to success. The full table is next to the plan in `model`.
#[test]
fn modification_steps_are_ordered() {
    let target = || "gold".to_owned();
    let nothing = ResizeState::default();
    let started =
        modifying(ModificationState { in_progress: Some(target()), ..ModificationState::default() });
    let in_progress = modified("gold", modify_status("gold", "InProgress"));
    let volume = volume("5Gi");
    assert_eq!(
        step(&modified("gold", json!({})), &volume, &nothing),
        ResizeStep::BeginModification { target: target() }
    );
    assert_eq!(step(&in_progress, &volume, &nothing), ResizeStep::BeginModification { target: target() });
    assert_eq!(step(&in_progress, &volume, &started), ResizeStep::Modify { target: target() });
    assert_eq!(
        step(&modified("gold", modify_status("gold", "Infeasible")), &volume, &started),
        ResizeStep::BeginModification { target: target() }
    );

    // If the earlier call may still run, its target is completed first. If it has ended, the new request counts.
    let tin = modified("tin", modify_status("gold", "InProgress"));
    assert_eq!(step(&tin, &volume, &nothing), ResizeStep::BeginModification { target: target() });
    assert_eq!(step(&tin, &volume, &started), ResizeStep::Modify { target: target() });
    let mut ended = started.clone();
    ended.modification.call_ended = true;
    assert_eq!(step(&tin, &volume, &ended), ResizeStep::BeginModification { target: "tin".into() });

    // An applied class is recorded first, in the volume and then in the claim.
    let applied = modifying(ModificationState {
        call_ended: true,
        applied: Some(target()),
        ..ModificationState::default()
    });
    let mut recorded = volume.clone();
    recorded.spec.volume_attributes_class_name = Some(target());
    for claim in [&in_progress, &tin] {
        assert_eq!(step(claim, &volume, &applied), ResizeStep::RecordClass { target: target() });
        assert_eq!(step(claim, &recorded, &applied), ResizeStep::CompleteModification { target: target() });
    }
    // Unless the status was changed in between.
    assert_eq!(
        step(&modified("tin", json!({})), &recorded, &applied),
        ResizeStep::BeginModification { target: "tin".into() }
    );

    let mut cancelled = modified("", modify_status("gold", "Infeasible"));
    cancelled.status.conditions =
        serde_json::from_value(json!([{"type": "ModifyingVolume", "status": "True"}])).unwrap();
    assert_eq!(step(&cancelled, &volume, &nothing), ResizeStep::CancelModification);
}

/// sidecars.md 1.3 "Modify (VAC GA)": failures.
#[test]
fn failed_modification_is_reported_and_backs_off() {
    use ErrorClass::{Final, Infeasible, StillRunning};
    let state = |class, code, reported| {
        let mut failed = refused("gold", "gold", failure(class, code));
        failed.as_mut().unwrap().reported = reported;
        let (in_progress, call_ended) = (Some("gold".into()), class != StillRunning);
        modifying(ModificationState { in_progress, call_ended, failed, ..ModificationState::default() })
    };
    let paused = waiting(LARGE_ENOUGH, WaitReason::Backoff(LATER));
    let in_progress = modify_status("gold", "InProgress");
    let infeasible = modify_status("gold", "Infeasible");
    for (requested, status, state, expected) in [
        ("gold", &in_progress, state(StillRunning, Code::Aborted, false), ResizeStep::ReportModification),
        ("gold", &in_progress, state(Final, Code::Internal, false), ResizeStep::ReportModification),
        (
            "gold",
            &in_progress,
            state(Infeasible, Code::InvalidArgument, false),
            ResizeStep::ReportModification,
        ),
        ("gold", &in_progress, state(StillRunning, Code::Aborted, true), paused.clone()),
        ("gold", &in_progress, state(Final, Code::Internal, true), paused.clone()),
        ("gold", &infeasible, state(Infeasible, Code::InvalidArgument, true), paused.clone()),
        // No modification is in progress: nothing to report.
        ("gold", &json!({}), state(Final, Code::Internal, false), paused.clone()),
        (
            "tin",
            &infeasible,
            state(Infeasible, Code::InvalidArgument, true),
            ResizeStep::BeginModification { target: "tin".into() },
        ),
        (
            "tin",
            &in_progress,
            state(StillRunning, Code::Aborted, true),
            ResizeStep::Modify { target: "gold".into() },
        ),
    ] {
        let step = step(&modified(requested, status.clone()), &volume("5Gi"), &state);
        assert_eq!(step, expected, "{requested} {status} {state:?}");
    }
    let mut already_reported = modified("gold", in_progress);
    already_reported.status.conditions = serde_json::from_value(json!([
        {"type": "ModifyingVolume", "status": "True", "message": "Modifying volume to \"gold\" failed. Waiting for retry."},
        {"type": "ModifyVolumeError", "status": "True", "reason": "Internal", "message": "no"},
    ]))
    .unwrap();
    assert_eq!(step(&already_reported, &volume("5Gi"), &state(Final, Code::Internal, false)), paused);
    let mut not_called = state(Final, Code::Unknown, false);
    not_called.modification.failed.as_mut().unwrap().failure.class = None;
    assert_eq!(step(&already_reported, &volume("5Gi"), &not_called), paused);
}

/// sidecars.md 1.3 "Modify (VAC GA)": classes that do not exist.
#[test]
fn missing_class_is_reported_once() {
    let lost = || "lost".to_owned();
    let missing = waiting(LARGE_ENOUGH, WaitReason::ClassMissing(lost()));
    let reported =
        modifying(ModificationState { missing_class_reported: Some(lost()), ..ModificationState::default() });
    let nothing = ResizeState::default();
    for (requested, status, state, expected) in [
        ("lost", json!({}), &nothing, ResizeStep::MarkPending { target: lost() }),
        ("lost", modify_status("", "Pending"), &nothing, ResizeStep::ReportMissingClass { target: lost() }),
        ("lost", modify_status("", "Pending"), &reported, missing.clone()),
        (
            "gold",
            modify_status("lost", "InProgress"),
            &nothing,
            ResizeStep::ReportMissingClass { target: lost() },
        ),
        ("gold", modify_status("lost", "InProgress"), &reported, missing),
        (
            "gold",
            modify_status("", "Pending"),
            &reported,
            ResizeStep::BeginModification { target: "gold".into() },
        ),
    ] {
        assert_eq!(
            step(&modified(requested, status.clone()), &volume("5Gi"), state),
            expected,
            "{requested} {status}"
        );
    }
    // If the classes cannot be read, a missing one may exist.
    for (requested, status) in [("lost", json!({})), ("gold", modify_status("lost", "InProgress"))] {
        let step = step_as(&modified(requested, status), &volume("5Gi"), &nothing, |view| {
            view.classes.known = false
        });
        assert_eq!(step, waiting(LARGE_ENOUGH, WaitReason::ClassesUnknown));
    }
}

/// `explain` and the log print reasons.
#[test]
fn wait_reasons_are_readable() {
    let until = NOW.plus(Duration::from_secs(1));
    for (reason, text) in [
        (WaitReason::Backoff(until), "the last attempt failed; it is retried after the backoff"),
        (WaitReason::ClassMissing("gold".into()), "VolumeAttributesClass \"gold\" does not exist"),
        (LARGE_ENOUGH, "LargeEnough"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

/// sidecars.md 1.3 "Writes": the volume is updated even if its claim was deleted during the call. Observed with
/// upstream: a retained volume had its old size although the driver had expanded it.
#[test]
fn volume_is_updated_after_claim_is_deleted() {
    let expanded = |node_expansion_required| {
        let done = Expanded { requested: size("8Gi"), size: size("8Gi"), node_expansion_required };
        expanding(ExpansionState { expanded: Some(done), ..ExpansionState::default() })
    };
    let applied =
        modifying(ModificationState { applied: Some("gold".into()), ..ModificationState::default() });
    let mut golden = volume("5Gi");
    golden.spec.volume_attributes_class_name = Some("gold".into());
    for (state, volume, expected) in [
        (
            &expanded(false),
            &volume("5Gi"),
            Some(ResizeStep::UpdateVolumeSize { size: size("8Gi"), node_expansion_required: false }),
        ),
        (
            &expanded(true),
            &volume("5Gi"),
            Some(ResizeStep::UpdateVolumeSize { size: size("8Gi"), node_expansion_required: true }),
        ),
        (&expanded(true), &volume("8Gi"), None),
        (&expanded(true), &volume("9Gi"), None),
        (&applied, &volume("5Gi"), Some(ResizeStep::RecordClass { target: "gold".into() })),
        (&applied, &golden, None),
        (&ResizeState::default(), &volume("5Gi"), None),
    ] {
        assert_eq!(orphaned_volume_write(state, volume), expected, "{state:?} {volume:?}");
    }
}

/// sidecars.md 1.3 "Trigger": the annotation of the expand controller names the driver that replaces the plugin.
/// Upstream modifies CSI volumes only.
#[test]
fn in_tree_volume_is_expanded_if_claim_names_driver_but_not_modified() {
    const EBS: &str = "ebs.csi.aws.com";
    let in_tree: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv1", "uid": "v"},
        "spec": {
            "capacity": {"storage": "5Gi"}, "awsElasticBlockStore": {"volumeID": "vol-1"},
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
        },
    }))
    .unwrap();
    let state = ResizeState::default();
    let mut claim = claim("10Gi", json!({}));
    claim.spec.volume_attributes_class_name = Some("gold".into());
    let step =
        |claim: &PersistentVolumeClaim, driver| step_as(claim, &in_tree, &state, |view| view.driver = driver);
    let not_ours = waiting(
        WaitReason::NoExpansion(resize::IdleReason::OtherDriver),
        WaitReason::NoModification(modify::IdleReason::OtherDriver),
    );
    assert_eq!(step(&claim, EBS), not_ours);
    claim.metadata.annotations.insert(annotation::STORAGE_RESIZER, EBS);
    assert_eq!(step(&claim, EBS), ResizeStep::BeginExpansion { size: size("10Gi"), fresh: true });
    claim.metadata.annotations.insert(annotation::STORAGE_RESIZER, "d");
    assert_eq!(step(&claim, "d"), not_ours);
}
