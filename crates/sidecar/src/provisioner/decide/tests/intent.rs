//! What follows after an intent was written: repeated calls, outcomes, and the volume that was created.

use super::*;

/// sidecars.md 1.1 "Error classes (CreateVolume)": the call of an intent is repeated unchanged until there is a final
/// response, regardless of changes to the claim, the class and the node.
#[test]
fn unfinished_intent_repeats_same_call() {
    let create = ProvisionStep::CreateVolume(Arc::new(intent()));
    assert_eq!(Scene::with_outcome(None).step(), create);
    for scene in [
        Scene { claim: None, class: None, ..Scene::with_outcome(None) },
        Scene { claim: Some(claim(json!({"spec": {"volumeName": "pv"}}))), ..Scene::with_outcome(None) },
        Scene { class: Some(class(json!({"provisioner": "x"}))), ..Scene::with_outcome(None) },
        Scene { claim: Some(claim(on_node("gone"))), ..Scene::with_outcome(None) }.with_nodes(&[]),
    ] {
        assert_eq!(scene.step(), create);
    }
    // The call is skipped only if it was never sent and the claim is gone.
    let create_unsent = |claim| Scene {
        claim,
        state: ProvisionState { create_unsent: true, ..ProvisionState::default() },
        ..Scene::with_outcome(None)
    };
    assert_eq!(create_unsent(Some(claim(json!({})))).step(), create);
    assert_eq!(
        create_unsent(None).step(),
        ProvisionStep::DropIntent { intent: Arc::new(intent()), retry: false }
    );
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": the state after each class of error.
#[test]
fn create_error_class_determines_state() {
    let after = |class, exhausted| {
        let mut state = ProvisionState::default();
        state.apply(Transition::IntentWritten, NOW);
        state.apply(Transition::CreateSent, NOW);
        state.apply(
            Transition::CreateFailed { class, exhausted, inconclusive: false, class_uid: "class-1".into() },
            NOW,
        );
        state
    };
    let infeasible = CreateOutcome::Infeasible { class_uid: "class-1".into(), since: NOW };
    for (class, exhausted, outcome) in [
        (ErrorClass::StillRunning, false, None),
        (ErrorClass::Final, false, Some(CreateOutcome::Refused)),
        (ErrorClass::Final, true, Some(CreateOutcome::Exhausted)),
        (ErrorClass::Infeasible, false, Some(infeasible)),
    ] {
        let calls_settled = class != ErrorClass::StillRunning;
        assert_eq!(
            after(class, exhausted),
            ProvisionState { outcome, calls_settled, ..ProvisionState::default() }
        );
    }
    // The intent is from an earlier process, which may have created the volume.
    for (inconclusive, outcome) in [(true, None), (false, Some(CreateOutcome::Refused))] {
        let mut found = ProvisionState::default();
        let class_uid = "class-1".into();
        found.apply(
            Transition::CreateFailed { class: ErrorClass::Final, exhausted: false, inconclusive, class_uid },
            NOW,
        );
        assert_eq!(found, ProvisionState { outcome, ..ProvisionState::default() }, "{inconclusive}");
    }
}

/// A volume that an earlier process may have created is not abandoned just because the driver now reports that its
/// capacity is exhausted. But an exhausted backend must not block the claim forever.
#[test]
fn exhausted_is_final_after_repeated_responses() {
    let failed = |exhausted| Transition::CreateFailed {
        class: if exhausted { ErrorClass::Final } else { ErrorClass::StillRunning },
        exhausted,
        inconclusive: false,
        class_uid: "class-1".into(),
    };
    let mut found = ProvisionState::default();
    for attempt in 1..EXHAUSTED_LIMIT {
        found.apply(failed(true), NOW);
        assert_eq!(found.outcome, None, "attempt {attempt}");
    }
    found.apply(failed(false), NOW);
    for attempt in 1..EXHAUSTED_LIMIT {
        found.apply(failed(true), NOW);
        assert_eq!(found.outcome, None, "attempt {attempt} after another error");
    }
    found.apply(failed(true), NOW);
    assert_eq!(found.outcome, Some(CreateOutcome::Exhausted));
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": a final response ends the intent, and determines whether the claim
/// is retried.
#[test]
fn final_outcome_drops_intent() {
    let give_up = |retry| ProvisionStep::DropIntent { intent: Arc::new(intent()), retry };
    let infeasible = || CreateOutcome::Infeasible { class_uid: "class-1".into(), since: NOW };
    let on_a = || Some(claim(on_node("node-a")));
    for (outcome, claimed, topology, retry) in [
        (CreateOutcome::Refused, Some(claim(json!({}))), false, true),
        (CreateOutcome::Refused, None, false, false),
        (CreateOutcome::CleanedUp, Some(claim(json!({}))), false, true),
        (CreateOutcome::CleanedUp, None, false, false),
        (CreateOutcome::Exhausted, on_a(), true, false),
        (CreateOutcome::Exhausted, on_a(), false, true),
        (CreateOutcome::Exhausted, Some(claim(json!({}))), true, true),
        (CreateOutcome::Exhausted, None, true, false),
        (infeasible(), Some(claim(json!({}))), false, false),
    ] {
        let mut scene = Scene { claim: claimed, ..Scene::with_outcome(Some(outcome)) };
        scene.config.capabilities.topology = topology;
        assert_eq!(scene.step(), give_up(retry), "{:?} {topology}", scene.state.outcome);
    }
}

/// sidecars.md 1.1 "Reschedule"
#[test]
fn exhausted_selected_node_is_unselected() {
    let mut state = ProvisionState { outcome: Some(CreateOutcome::Exhausted), ..ProvisionState::default() };
    state.apply(Transition::IntentDropped, NOW);
    let scene = |patch| Scene { claim: Some(claim(patch)), state: state.clone(), ..Scene::default() };
    let zones = [("node-a", "a")];
    let rescheduled = scene(on_node("node-a")).with_nodes(&zones);
    assert_eq!(rescheduled.step(), ProvisionStep::UnselectNode(Unselect::Exhausted));
    // Without a selected node or topology there is no alternative: retry.
    assert_eq!(scene(json!({})).with_nodes(&zones).written().claim.uid, "u1");
    assert_eq!(scene(on_node("node-a")).written().claim.uid, "u1");
    state.apply(Transition::NodeUnselected, NOW);
    assert_eq!(state, ProvisionState::default());
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": infeasible requests are retried after the maximum backoff, or at
/// once with another class.
#[test]
fn infeasible_request_waits_for_retry_max_or_other_class() {
    let max = Duration::from_secs(300);
    let mut state = ProvisionState::default();
    let class_uid = "class-1".into();
    state.apply(
        Transition::CreateFailed {
            class: ErrorClass::Infeasible,
            exhausted: false,
            inconclusive: false,
            class_uid,
        },
        NOW,
    );
    state.apply(Transition::IntentDropped, NOW);
    let scene = Scene { state, ..Scene::default() };
    let at = |now| decide(&scene.view(), now);
    let wait = |pause| ProvisionStep::Wait { reason: Reason::Infeasible, pause, competing: false };
    assert_eq!(at(NOW), wait(max));
    assert_eq!(at(NOW.plus(max - Duration::from_secs(1))), wait(Duration::from_secs(1)));
    assert!(matches!(at(NOW.plus(max)), ProvisionStep::WriteIntent(_)));
    let other = Scene { class: Some(class(json!({"metadata": {"uid": "class-2"}}))), ..scene };
    assert!(matches!(other.step(), ProvisionStep::WriteIntent(_)));
}

/// sidecars.md 1.1 "Save PV": the PersistentVolume is saved even if the claim is gone, because the volume must not
/// leak.
#[test]
fn created_volume_is_saved_and_retained_if_old_and_unclaimed() {
    let scene = |claim, written: Time| {
        let mut intent = intent();
        intent.written = written.0;
        let state = ProvisionState { outcome: created_outcome(created()), ..ProvisionState::default() };
        Scene { claim, intent: Some(Arc::new(intent)), state, ..Scene::default() }
    };
    let saved = |scene: &Scene| match scene.step() {
        ProvisionStep::SavePv { object, retain, .. } => {
            (object["spec"]["persistentVolumeReclaimPolicy"].as_str().unwrap().to_owned(), retain)
        }
        step => panic!("{step:?}"),
    };
    let day = 86_400_000;
    let (delete, retain) = (("Delete".to_owned(), false), ("Retain".to_owned(), true));
    assert_eq!(saved(&scene(Some(claim(json!({}))), NOW)), delete);
    assert_eq!(saved(&scene(None, NOW)), delete);
    assert_eq!(saved(&scene(None, Time(NOW.0 - day))), delete);
    assert_eq!(saved(&scene(None, Time(NOW.0 - day - 1))), retain);
    assert_eq!(saved(&scene(Some(claim(json!({}))), Time(0))), delete);
}

/// sidecars.md 1.1 "capacity checks"
#[test]
fn invalid_or_rejected_volume_is_deleted() {
    let small = CreatedVolume { capacity_bytes: GI - 1, ..created() };
    let scene = Scene::with_outcome(created_outcome(small));
    let mut refused = Scene::with_outcome(created_outcome(created()));
    refused.state.apply(Transition::SaveRejected("no".into()), NOW);
    let problem = InvalidVolume::Rejected("no".into());
    let undone = ProvisionStep::DeleteCreated {
        intent: Arc::new(intent()),
        handle: "h1".into(),
        problem,
        other_pv_uid: None,
    };
    assert_eq!(refused.step(), undone);
    // The volume is also deleted if the claim is gone.
    refused.claim = None;
    assert_eq!(refused.step(), undone);
    refused.state.apply(Transition::Created(Arc::new(created())), NOW);
    assert!(
        matches!(refused.step(), ProvisionStep::SavePv { .. }),
        "a new response of the driver is tried again"
    );
    let problem = InvalidVolume::TooSmall { created: GI - 1, requested: GI };
    let undo = |intent, problem, other_pv_uid| ProvisionStep::DeleteCreated {
        intent,
        handle: "h1".into(),
        problem,
        other_pv_uid,
    };
    assert_eq!(scene.step(), undo(Arc::new(intent()), problem, None));

    let mut copy = intent();
    copy.request.source = Some(ContentSource::Snapshot("s".into()));
    let copy = Arc::new(copy);
    let mut scene =
        Scene { intent: Some(Arc::clone(&copy)), ..Scene::with_outcome(created_outcome(created())) };
    assert_eq!(scene.step(), undo(Arc::clone(&copy), InvalidVolume::NoSource, None));

    // The volume is not deleted if a PersistentVolume refers to its handle.
    scene.handle_owner = Some("static".into());
    assert_eq!(
        scene.step(),
        ProvisionStep::FinishIntent { intent: copy, handle_owner: Some("static".into()) }
    );
}

/// sidecars.md 1.1 "Save PV": the PersistentVolume exists, so the intent is finished, even one from before a crash.
#[test]
fn existing_pv_finishes_intent() {
    let settle = ProvisionStep::FinishIntent { intent: Arc::new(intent()), handle_owner: None };
    for state in [
        ProvisionState::default(),
        ProvisionState { outcome: created_outcome(created()), ..ProvisionState::default() },
        ProvisionState { create_unsent: true, ..ProvisionState::default() },
        ProvisionState { outcome: Some(CreateOutcome::Refused), ..ProvisionState::default() },
    ] {
        let scene = Scene { pv: Some(volume(json!({}))), state, ..Scene::with_outcome(None) };
        assert_eq!(scene.step(), settle);
    }
}

/// sidecars.md 1.1 "Save PV": a PersistentVolume of the same name that belongs to another claim, driver or volume is
/// not used, and the created volume must not leak.
#[test]
fn foreign_pv_with_same_name_undoes_intent() {
    let taken = || InvalidVolume::NameTaken { name: VOLUME.into() };
    let intent = Arc::new(intent());
    let scene = |patch, state: ProvisionState| Scene {
        pv: Some(volume(patch)),
        intent: Some(Arc::clone(&intent)),
        state,
        ..Scene::default()
    };
    let with = |outcome| ProvisionState { outcome, ..ProvisionState::default() };
    for patch in [
        json!({"spec": {"claimRef": {"uid": "u9"}}}),
        json!({"spec": {"csi": {"driver": "x"}}}),
        json!({"spec": {"csi": {"volumeHandle": "h9"}}}),
    ] {
        let undo = ProvisionStep::DeleteCreated {
            intent: Arc::clone(&intent),
            handle: "h1".into(),
            problem: taken(),
            other_pv_uid: Some("pv-1".into()),
        };
        assert_eq!(scene(patch, with(created_outcome(created()))).step(), undo);
    }
    let other = json!({"spec": {"claimRef": {"uid": "u9"}}});
    let held =
        Scene { handle_owner: Some("pv9".into()), ..scene(other.clone(), with(created_outcome(created()))) };
    assert_eq!(
        held.step(),
        ProvisionStep::FinishIntent { intent: Arc::clone(&intent), handle_owner: Some("pv9".into()) }
    );
    // Without an outcome the call is repeated.
    assert_eq!(
        scene(other.clone(), ProvisionState::default()).step(),
        ProvisionStep::CreateVolume(Arc::clone(&intent))
    );
    let give_up = ProvisionStep::DropIntent { intent: Arc::clone(&intent), retry: false };
    for state in [
        with(Some(CreateOutcome::CleanedUp)),
        with(Some(CreateOutcome::Refused)),
        with(Some(CreateOutcome::Exhausted)),
        ProvisionState { create_unsent: true, ..ProvisionState::default() },
    ] {
        assert_eq!(scene(other.clone(), state).step(), give_up);
    }
    // Without an intent, the claim is refused with an error.
    let step = Scene { intent: None, ..scene(other, ProvisionState::default()) };
    assert_eq!(step.refusal(), Refusal::NameTaken(taken()));
}

/// sidecars.md 1.1 "Delete": once the PersistentVolume exists, the reclaim rules apply.
#[test]
fn existing_pv_follows_reclaim_rules() {
    let scene = |volume| Scene { pv: Some(volume), ..Scene::default() };
    let step = |scene: &Scene| match scene.step() {
        ProvisionStep::Reclaim(step) => step,
        step => panic!("{step:?}"),
    };
    // Just created, not bound yet.
    assert_eq!(
        step(&scene(volume(json!({"status": {"phase": "Pending"}})))),
        ReclaimStep::Idle(IdleReason::InUse)
    );
    assert_eq!(step(&scene(volume(json!({})))), ReclaimStep::Idle(IdleReason::InUse));
    let unguarded = json!({"metadata": {"finalizers": []}});
    assert_eq!(step(&scene(volume(unguarded))), ReclaimStep::AddFinalizer);
    let released = volume(json!({"status": {"phase": "Released"}}));
    let mut gone = Scene { claim: None, ..scene(released) };
    let delete = ReclaimStep::DeleteVolume { handle: "h1".into(), secret: None };
    assert_eq!(step(&gone), delete);
    gone.state.apply(Transition::VolumeDeleted { uid: "pv-1".into() }, NOW);
    assert_eq!(step(&gone), ReclaimStep::DeleteObject);
    // A released PersistentVolume of another claim that has the name of this claim's volume is deleted first.
    let others = volume(json!({"spec": {"claimRef": {"uid": "u9"}}, "status": {"phase": "Released"}}));
    assert_eq!(step(&scene(others)), delete);
}

#[test]
fn idle_reasons_are_sentences() {
    for reason in [
        Reason::NoClaim,
        Reason::NoClass("fast".into()),
        Reason::ClassOfOtherProvisioner { class: "fast".into(), provisioner: "x".into() },
        Reason::NotThisNode("the claim belongs to another node"),
        Reason::Infeasible,
    ] {
        assert!(reason.to_string().split(' ').count() > 3, "{reason}");
    }
}
