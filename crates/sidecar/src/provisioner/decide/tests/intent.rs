//! What follows after an intent was written: repeated calls, outcomes, and the volume that was created.

use super::*;

/// sidecars.md 1.1 "Error classes (CreateVolume)": the call of an intent is repeated unchanged until there is a final
/// response, regardless of changes to the claim, the class and the node.
#[test]
fn unfinished_intent_repeats_same_call() {
    let create = |wanted| ProvisionStep::CreateVolume { intent: Arc::new(intent()), wanted };
    assert_eq!(Fixture::with_outcome(None).step(), create(true));
    for fixture in [
        Fixture { claim: None, class: None, ..Fixture::with_outcome(None) },
        Fixture { claim: Some(claim(json!({"spec": {"volumeName": "pv"}}))), ..Fixture::with_outcome(None) },
        Fixture { class: Some(class(json!({"provisioner": "x"}))), ..Fixture::with_outcome(None) },
        Fixture {
            class: Some(class(json!({"metadata": {"uid": "class-2"}}))),
            ..Fixture::with_outcome(None)
        },
        Fixture { claim: Some(claim(on_node("gone"))), ..Fixture::with_outcome(None) }.with_nodes(&[]),
        Fixture { claim: Some(claim(on_node("node-a"))), ..Fixture::with_outcome(None) }
            .with_nodes(&[("node-a", "a")]),
    ] {
        assert_eq!(fixture.step(), create(false));
    }
    // The call is skipped only if it was never sent and the claim is gone.
    let create_unsent = |claim| Fixture {
        claim,
        state: ProvisionState { create_unsent: true, ..ProvisionState::default() },
        ..Fixture::with_outcome(None)
    };
    assert_eq!(create_unsent(Some(claim(json!({})))).step(), create(true));
    assert_eq!(create_unsent(None).step(), dropped(false, false));
}

/// A selected node that changed ends the repetition. Nodes that join or leave elsewhere do not.
#[test]
fn intent_is_wanted_while_its_place_is_needed() {
    let (a, b, c) = (("node-a", "a"), ("node-b", "b"), ("node-c", "c"));
    let wanted =
        |written_with: &[(&str, &str)], on: Option<&str>, now: &[(&str, &str)], now_on: Option<&str>| {
            let claimed = |node: Option<&str>| claim(node.map_or_else(|| json!({}), on_node));
            let before = Fixture { claim: Some(claimed(on)), ..Fixture::default() }.with_nodes(written_with);
            let intent = Some(Arc::new(before.written()));
            let fixture =
                Fixture { claim: Some(claimed(now_on)), intent, ..Fixture::default() }.with_nodes(now);
            match fixture.step() {
                ProvisionStep::CreateVolume { wanted, .. } => wanted,
                step => panic!("{step:?}"),
            }
        };
    for (written_with, on, now, now_on, expected) in [
        (&[a, b][..], Some("node-a"), &[a, b][..], Some("node-a"), true),
        (&[a, b], Some("node-a"), &[a, b, c], Some("node-a"), true),
        (&[a, b], Some("node-a"), &[a], Some("node-a"), true),
        (&[a, b], Some("node-a"), &[a, b], Some("node-b"), false),
        // The node is gone.
        (&[a, b], Some("node-a"), &[b], Some("node-a"), false),
        (&[a, b], None, &[a, b, c], None, true),
        (&[a, b], None, &[b, c], None, true),
        (&[a, b], None, &[c], None, false),
    ] {
        assert_eq!(wanted(written_with, on, now, now_on), expected, "{on:?} {now:?} {now_on:?}");
    }
}

fn dropped(retry: bool, suspect: bool) -> ProvisionStep {
    ProvisionStep::DropIntent { intent: Arc::new(intent()), retry, suspect }
}

fn failed(class: ErrorClass, inconclusive: bool, unwanted_at: Option<Monotonic>) -> Transition {
    let class_uid = "class-1".into();
    Transition::CreateFailed { class, exhausted: None, inconclusive, class_uid, unwanted_at }
}

/// A call whose result is unknown is repeated as long as a claim needs the result. Otherwise the repetition ends, what
/// may exist is recorded, and a claim that needs another volume starts again.
#[test]
fn uncertain_call_without_claim_ends_as_suspect() {
    let minute = |minute: i64| Monotonic(minute * 60_000);
    let after = |class, minutes: i64, wanted: bool| {
        let mut state = ProvisionState::default();
        state.apply(Transition::IntentWritten, AT.monotonic);
        state.apply(Transition::CreateSent, AT.monotonic);
        state.apply(failed(ErrorClass::StillRunning, true, None), AT.monotonic);
        for at in 0..=minutes {
            assert_eq!(state.outcome, None, "{class:?} {at}");
            state.apply(failed(class, true, (!wanted).then(|| minute(at))), AT.monotonic);
        }
        state
    };
    let vague = ErrorClass::Final;
    for (state, over) in [
        (after(vague, 9, false), false),
        (after(vague, 10, false), true),
        (after(vague, 600, true), false),
        (after(ErrorClass::StillRunning, 59, false), false),
        (after(ErrorClass::StillRunning, 60, false), true),
        (after(ErrorClass::StillRunning, 600, true), false),
    ] {
        assert_eq!(state.outcome, over.then_some(CreateOutcome::Unknown));
        for claim in [None, Some(claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})))] {
            let retry = claim.is_some();
            let fixture = Fixture { claim, state: state.clone(), ..Fixture::with_outcome(None) };
            let fixture = Fixture { state: state.clone(), ..fixture };
            let create = ProvisionStep::CreateVolume { intent: Arc::new(intent()), wanted: false };
            assert_eq!(fixture.step(), if over { dropped(retry, true) } else { create });
        }
    }
    // A claim that needs the result again is not abandoned.
    let mut again = after(vague, 9, false);
    again.apply(failed(vague, true, None), AT.monotonic);
    again.apply(failed(vague, true, Some(minute(20))), AT.monotonic);
    assert_eq!(again.outcome, None);
    // A conclusive answer leaves no suspect.
    let mut settled = after(vague, 5, false);
    settled.apply(failed(vague, false, Some(minute(6))), AT.monotonic);
    let fixture = Fixture { claim: None, state: settled, ..Fixture::with_outcome(None) };
    assert_eq!(Fixture { intent: Some(Arc::new(intent())), ..fixture }.step(), dropped(false, false));
    // The same if another PersistentVolume has the name.
    let other = volume(json!({"spec": {"claimRef": {"uid": "u9"}}}));
    let fixture = Fixture { pv: Some(other), state: after(vague, 10, false), ..Fixture::default() };
    assert_eq!(Fixture { intent: Some(Arc::new(intent())), ..fixture }.step(), dropped(false, true));
    // After the suspect was recorded, the claim starts again with what is there now.
    let mut state = after(vague, 10, false);
    state.apply(Transition::IntentDropped, AT.monotonic);
    assert_eq!(state, ProvisionState::default());
}

/// A volume may exist if an earlier call was uncertain; the claim is rescheduled all the same.
#[test]
fn exhausted_after_uncertain_call_leaves_suspect() {
    for (calls_settled, suspect) in [(true, false), (false, true)] {
        let mut fixture = Fixture::with_outcome(Some(CreateOutcome::Exhausted));
        fixture.state.calls_settled = calls_settled;
        assert_eq!(fixture.step(), dropped(true, suspect));
    }
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": the state after each class of error.
#[test]
fn create_error_class_determines_state() {
    let after = |class, exhausted: bool| {
        let mut state = ProvisionState::default();
        state.apply(Transition::IntentWritten, AT.monotonic);
        state.apply(Transition::CreateSent, AT.monotonic);
        state.apply(
            Transition::CreateFailed {
                class,
                exhausted: exhausted.then_some(Exhausted { at: Monotonic(0), can_move: false }),
                inconclusive: false,
                class_uid: "class-1".into(),
                unwanted_at: None,
            },
            AT.monotonic,
        );
        state
    };
    let infeasible = CreateOutcome::Infeasible { class_uid: "class-1".into(), since: AT.monotonic };
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
        found.apply(failed(ErrorClass::Final, inconclusive, None), AT.monotonic);
        assert_eq!(found, ProvisionState { outcome, ..ProvisionState::default() }, "{inconclusive}");
    }
}

/// A volume that an earlier process may have created is not abandoned just because the driver now reports that its
/// capacity is exhausted. But an exhausted backend must not block the claim forever.
#[test]
fn exhausted_is_final_after_repeated_responses() {
    let report = |seconds: i64, can_move| Transition::CreateFailed {
        class: ErrorClass::Final,
        exhausted: Some(Exhausted { at: Monotonic(seconds * 1000), can_move }),
        inconclusive: false,
        class_uid: "class-1".into(),
        unwanted_at: None,
    };
    let after = |reports: &[i64], can_move| {
        let mut found = ProvisionState::default();
        reports.iter().for_each(|&seconds| found.apply(report(seconds, can_move), AT.monotonic));
        found
    };
    for (reports, can_move, over) in [
        (&[0, 1, 3, 7, 30][..], true, false),
        (&[0, 1, 3, 7, 15, 31], true, true),
        // A change of the claim ends the backoff between two calls.
        (&[0; 6], true, false),
        (&[0, 0, 0, 0, 0, 29], true, false),
        (&[0, 0, 0, 0, 0, 29, 30], true, true),
        // The claim would repeat the same call.
        (&[0, 1, 3, 7, 15, 31, 1000], false, false),
    ] {
        let outcome = over.then_some(CreateOutcome::Exhausted);
        assert_eq!(after(reports, can_move).outcome, outcome, "{reports:?} {can_move}");
    }
    let mut found = after(&[0, 1, 3, 7, 15], true);
    found.apply(failed(ErrorClass::StillRunning, true, None), AT.monotonic);
    for seconds in [31, 32, 33, 34, 60] {
        found.apply(report(seconds, true), AT.monotonic);
        assert_eq!(found.outcome, None, "{seconds} s after another error");
    }
    found.apply(report(61, true), AT.monotonic);
    assert_eq!(found.outcome, Some(CreateOutcome::Exhausted));
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": a final response ends the intent, and determines whether the claim
/// is retried.
#[test]
fn final_outcome_drops_intent() {
    let give_up = |retry| dropped(retry, false);
    let infeasible = || CreateOutcome::Infeasible { class_uid: "class-1".into(), since: AT.monotonic };
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
        let mut fixture = Fixture { claim: claimed, ..Fixture::with_outcome(Some(outcome)) };
        fixture.state.calls_settled = true;
        fixture.config.capabilities.topology = topology;
        assert_eq!(fixture.step(), give_up(retry), "{:?} {topology}", fixture.state.outcome);
    }
}

/// sidecars.md 1.1 "Reschedule"
#[test]
fn exhausted_selected_node_is_unselected() {
    let mut state = ProvisionState { outcome: Some(CreateOutcome::Exhausted), ..ProvisionState::default() };
    state.apply(Transition::IntentDropped, AT.monotonic);
    let fixture = |patch| Fixture { claim: Some(claim(patch)), state: state.clone(), ..Fixture::default() };
    let zones = [("node-a", "a")];
    let rescheduled = fixture(on_node("node-a")).with_nodes(&zones);
    assert_eq!(rescheduled.step(), ProvisionStep::UnselectNode(Unselect::Exhausted));
    // Without a selected node or topology there is no alternative: retry.
    assert_eq!(fixture(json!({})).with_nodes(&zones).written().claim.uid, "u1");
    assert_eq!(fixture(on_node("node-a")).written().claim.uid, "u1");
    state.apply(Transition::NodeUnselected, AT.monotonic);
    assert_eq!(state, ProvisionState::default());
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": infeasible requests are retried after the maximum backoff, or at
/// once with another class.
#[test]
fn infeasible_request_waits_for_retry_max_or_other_class() {
    let max = Duration::from_secs(300);
    let mut state = ProvisionState::default();
    state.apply(failed(ErrorClass::Infeasible, false, None), AT.monotonic);
    state.apply(Transition::IntentDropped, AT.monotonic);
    let fixture = Fixture { state, ..Fixture::default() };
    let at = |after| decide(&fixture.view(), Now { monotonic: AT.monotonic.plus(after), ..AT });
    let wait = |pause| ProvisionStep::Wait { reason: Reason::Infeasible, pause, competing: false };
    assert_eq!(at(Duration::ZERO), wait(max));
    assert_eq!(at(max - Duration::from_secs(1)), wait(Duration::from_secs(1)));
    assert!(matches!(at(max), ProvisionStep::WriteIntent(_)));
    let other = Fixture { class: Some(class(json!({"metadata": {"uid": "class-2"}}))), ..fixture };
    assert!(matches!(other.step(), ProvisionStep::WriteIntent(_)));
}

/// sidecars.md 1.1 "Save PV": the PersistentVolume is saved even if the claim is gone, because the volume must not
/// leak.
#[test]
fn created_volume_is_saved_and_retained_if_old_and_unclaimed() {
    let fixture = |claim, written: Time| {
        let mut intent = intent();
        intent.written = written.0;
        let state = ProvisionState { outcome: created_outcome(created()), ..ProvisionState::default() };
        Fixture { claim, intent: Some(Arc::new(intent)), state, ..Fixture::default() }
    };
    let saved = |fixture: &Fixture| match fixture.step() {
        ProvisionStep::SavePv { object, retain, .. } => {
            (object["spec"]["persistentVolumeReclaimPolicy"].as_str().unwrap().to_owned(), retain)
        }
        step => panic!("{step:?}"),
    };
    let day = 86_400_000;
    let (delete, retain) = (("Delete".to_owned(), false), ("Retain".to_owned(), true));
    assert_eq!(saved(&fixture(Some(claim(json!({}))), NOW)), delete);
    assert_eq!(saved(&fixture(None, NOW)), delete);
    assert_eq!(saved(&fixture(None, Time(NOW.0 - day))), delete);
    assert_eq!(saved(&fixture(None, Time(NOW.0 - day - 1))), retain);
    assert_eq!(saved(&fixture(Some(claim(json!({}))), Time(0))), delete);
}

/// sidecars.md 1.1 "capacity checks"
#[test]
fn invalid_or_rejected_volume_is_deleted() {
    let small = CreatedVolume { capacity_bytes: GI - 1, ..created() };
    let fixture = Fixture::with_outcome(created_outcome(small));
    let mut refused = Fixture::with_outcome(created_outcome(created()));
    refused.state.apply(Transition::SaveRejected("no".into()), AT.monotonic);
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
    refused.state.apply(Transition::Created(Arc::new(created())), AT.monotonic);
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
    assert_eq!(fixture.step(), undo(Arc::new(intent()), problem, None));

    let mut copy = intent();
    copy.request.source = Some(ContentSource::Snapshot("s".into()));
    let copy = Arc::new(copy);
    let mut fixture =
        Fixture { intent: Some(Arc::clone(&copy)), ..Fixture::with_outcome(created_outcome(created())) };
    assert_eq!(fixture.step(), undo(Arc::clone(&copy), InvalidVolume::NoSource, None));

    // The volume is not deleted if a PersistentVolume refers to its handle.
    fixture.handle_owner = Some("static".into());
    assert_eq!(
        fixture.step(),
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
        let fixture = Fixture { pv: Some(volume(json!({}))), state, ..Fixture::with_outcome(None) };
        assert_eq!(fixture.step(), settle);
    }
}

/// With node deployment, two nodes may have written an intent for one claim. The one whose PersistentVolume was not saved
/// asks its driver what it created, and deletes that.
#[test]
fn pv_of_another_node_undoes_intent_of_this_node() {
    let at = |zone: &str| {
        let expression = json!({"key": "zone", "operator": "In", "values": [zone]});
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
    };
    let node = |zone: &str| LocalNode {
        name: "node-a".into(),
        topology: [("zone".to_owned(), zone.to_owned())].into(),
    };
    let settle = ProvisionStep::FinishIntent { intent: Arc::new(intent()), handle_owner: None };
    let create = ProvisionStep::CreateVolume { intent: Arc::new(intent()), wanted: false };
    for (affinity, zone, created_is_known, expected) in [
        (at("a"), Some("a"), false, &settle),
        (at("b"), Some("a"), false, &create),
        (json!({}), Some("a"), false, &settle),
        (at("b"), None, false, &settle),
        // The same handle: it is the same volume.
        (at("b"), Some("a"), true, &settle),
    ] {
        let mut fixture = Fixture { pv: Some(volume(affinity.clone())), ..Fixture::with_outcome(None) };
        fixture.config.node = zone.map(node);
        fixture.state.outcome = created_is_known.then(|| created_outcome(created())).flatten();
        assert_eq!(fixture.step(), *expected, "{affinity} {zone:?} {created_is_known}");
    }
}

/// sidecars.md 1.1 "Save PV": a PersistentVolume of the same name that belongs to another claim, driver or volume is
/// not used, and the created volume must not leak.
#[test]
fn foreign_pv_with_same_name_undoes_intent() {
    let taken = || InvalidVolume::NameTaken { name: VOLUME.into() };
    let not_needed = || InvalidVolume::NotNeeded { name: VOLUME.into() };
    let intent = Arc::new(intent());
    let fixture = |patch, state: ProvisionState| Fixture {
        pv: Some(volume(patch)),
        intent: Some(Arc::clone(&intent)),
        state,
        ..Fixture::default()
    };
    let with = |outcome| ProvisionState { outcome, ..ProvisionState::default() };
    for (patch, problem) in [
        (json!({"spec": {"claimRef": {"uid": "u9"}}}), taken()),
        (json!({"spec": {"csi": {"driver": "x"}}}), not_needed()),
        (json!({"spec": {"csi": {"volumeHandle": "h9"}}}), not_needed()),
    ] {
        let undo = ProvisionStep::DeleteCreated {
            intent: Arc::clone(&intent),
            handle: "h1".into(),
            problem,
            other_pv_uid: Some("pv-1".into()),
        };
        assert_eq!(fixture(patch, with(created_outcome(created()))).step(), undo);
    }
    let other = json!({"spec": {"claimRef": {"uid": "u9"}}});
    let held = Fixture {
        handle_owner: Some("pv9".into()),
        ..fixture(other.clone(), with(created_outcome(created())))
    };
    assert_eq!(
        held.step(),
        ProvisionStep::FinishIntent { intent: Arc::clone(&intent), handle_owner: Some("pv9".into()) }
    );
    // Without an outcome the call is repeated.
    assert_eq!(
        fixture(other.clone(), ProvisionState::default()).step(),
        ProvisionStep::CreateVolume { intent: Arc::clone(&intent), wanted: false }
    );
    let give_up = dropped(false, false);
    for state in [
        with(Some(CreateOutcome::CleanedUp)),
        with(Some(CreateOutcome::Refused)),
        ProvisionState { calls_settled: true, ..with(Some(CreateOutcome::Exhausted)) },
        ProvisionState { create_unsent: true, ..ProvisionState::default() },
    ] {
        assert_eq!(fixture(other.clone(), state).step(), give_up);
    }
    // Without an intent, the claim is refused with an error.
    let step = Fixture { intent: None, ..fixture(other, ProvisionState::default()) };
    assert_eq!(step.refusal(), Refusal::NameTaken(taken()));
}

/// sidecars.md 1.1 "Delete": once the PersistentVolume exists, the reclaim rules apply.
#[test]
fn existing_pv_follows_reclaim_rules() {
    let fixture = |volume| Fixture { pv: Some(volume), ..Fixture::default() };
    let step = |fixture: &Fixture| match fixture.step() {
        ProvisionStep::Reclaim(step) => step,
        step => panic!("{step:?}"),
    };
    // Just created, not bound yet.
    assert_eq!(
        step(&fixture(volume(json!({"status": {"phase": "Pending"}})))),
        ReclaimStep::Idle(IdleReason::InUse)
    );
    assert_eq!(step(&fixture(volume(json!({})))), ReclaimStep::Idle(IdleReason::InUse));
    let unguarded = json!({"metadata": {"finalizers": []}});
    assert_eq!(step(&fixture(volume(unguarded))), ReclaimStep::AddFinalizer);
    let released = volume(json!({"status": {"phase": "Released"}}));
    let mut gone = Fixture { claim: None, ..fixture(released) };
    let delete = ReclaimStep::DeleteVolume { handle: "h1".into(), secret: None };
    assert_eq!(step(&gone), delete);
    gone.state.apply(Transition::VolumeDeleted { uid: "pv-1".into() }, AT.monotonic);
    assert_eq!(step(&gone), ReclaimStep::DeleteObject);
    // A released PersistentVolume of another claim that has the name of this claim's volume is deleted first.
    let others = volume(json!({"spec": {"claimRef": {"uid": "u9"}}, "status": {"phase": "Released"}}));
    assert_eq!(step(&fixture(others)), delete);
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
