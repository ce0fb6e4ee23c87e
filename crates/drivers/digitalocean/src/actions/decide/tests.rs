use super::*;
use crate::api::Region;
use crate::client::{CallName, classify};

const ATTACH: Goal = Goal::Attached(7);
const DETACH: Goal = Goal::Detached(7);
const RESIZE: Goal = Goal::Size(20);

fn refusal(status: u16, message: &str) -> ApiError {
    let call = CallName { method: http::Method::POST, path: "/v2/volumes/v/actions".into() };
    classify(&call, status, None, None, format!(r#"{{"id":"x","message":"{message}"}}"#).as_bytes())
}

fn pending() -> ApiError {
    refusal(422, "Droplet already has a pending event.")
}

fn action(id: u64, kind: &str, status: ActionStatus) -> Action {
    Action { id, status, kind: kind.into() }
}

fn volume(droplets: &[u64], size: u64) -> Volume {
    Volume {
        id: "v".into(),
        name: "pvc-1".into(),
        region: Region { slug: "nyc3".into() },
        droplet_ids: droplets.to_vec(),
        size_gigabytes: size,
        description: String::new(),
        created_at: String::new(),
        filesystem_type: String::new(),
        tags: vec![],
    }
}

fn droplet(volumes: usize) -> Droplet {
    Droplet {
        id: 7,
        name: String::new(),
        status: "active".into(),
        region: Region { slug: "nyc3".into() },
        volume_ids: vec!["v".into(); volumes],
    }
}

fn kind_of(next: &Next) -> &'static str {
    match next {
        Next::Start => "start",
        Next::Await(_) => "await",
        Next::FindRunning(_) => "find running",
        Next::GetVolume(_) => "get volume",
        Next::GetDroplet(_) => "get droplet",
        Next::Pause(_) => "pause",
        Next::Done(_) => "done",
        Next::Fail(_) => "fail",
    }
}

#[test]
fn start_response_determines_the_next_step() {
    let accepted = |status| Ok(action(1, "attach_volume", status));
    // response, whether we searched before, next step
    let table = [
        (accepted(ActionStatus::InProgress), false, "await"),
        (accepted(ActionStatus::Unknown), false, "await"),
        (accepted(ActionStatus::Completed), false, "get volume"),
        (accepted(ActionStatus::Errored), false, "fail"),
        (Err(pending()), false, "find running"),
        (Err(pending()), true, "pause"),
        (Err(refusal(422, "This volume is already attached")), false, "get volume"),
        (Err(refusal(422, "Attachment not found")), false, "get volume"),
        (Err(refusal(422, "cannot attach more volumes to the Droplet")), false, "get volume"),
        (Err(refusal(422, "something new")), false, "get volume"),
        (Err(refusal(404, "The resource you requested could not be found.")), false, "get volume"),
        (Err(refusal(500, "server error")), false, "find running"),
        (Err(refusal(502, "bad gateway")), true, "find running"),
        (Err(refusal(401, "Unable to authenticate you.")), false, "fail"),
        (Err(refusal(403, "forbidden")), false, "fail"),
        (Err(refusal(403, "capacity limit exceeded")), false, "fail"),
        (Err(refusal(429, "API Rate limit exceeded.")), false, "fail"),
        (Err(refusal(400, "bad")), false, "fail"),
    ];
    for (response, searched, next) in table {
        let shown = format!("{response:?} {searched}");
        assert_eq!(kind_of(&after_start(ATTACH, response, searched)), next, "{shown}");
    }
}

/// An attach of the volume may be running, which only the volume's list of actions shows.
#[test]
fn refused_detach_searches_for_running_actions() {
    for (status, message) in [
        (422, "Attachment not found"),
        (422, "something new"),
        (404, "The resource you requested could not be found."),
    ] {
        for searched in [false, true] {
            let refused = CheckReason::Refused(refusal(status, message));
            let next = after_start(DETACH, Err(refusal(status, message)), searched);
            assert_eq!(next, Next::FindRunning(refused.clone()), "{message}");
            let attaching = [action(5, "attach_volume", ActionStatus::InProgress)];
            assert_eq!(
                kind_of(&after_find_running(DETACH, Some(&attaching), refused.clone())),
                "pause",
                "{message}"
            );
            let attached = [action(5, "attach_volume", ActionStatus::Completed)];
            assert_eq!(
                after_find_running(DETACH, Some(&attached), refused.clone()),
                Next::GetVolume(refused),
                "{message}"
            );
        }
    }
    assert_eq!(kind_of(&after_start(DETACH, Err(pending()), true)), "pause");
}

#[test]
fn running_action_is_resumed() {
    use ActionStatus::{Completed, Errored, InProgress};
    let attaching = action(5, "attach_volume", InProgress);
    let detaching = action(6, "detach_volume", InProgress);
    let resizing = action(7, "resize_volume", InProgress);
    let ended = [action(1, "attach_volume", Completed), action(2, "detach_volume", Errored)];
    let check = || CheckReason::Refused(pending());
    for (goal, running, next) in [
        (ATTACH, Some(&attaching), Next::Await(5)),
        (DETACH, Some(&detaching), Next::Await(6)),
        (RESIZE, Some(&resizing), Next::Await(7)),
        (ATTACH, None, Next::GetVolume(check())),
        (DETACH, None, Next::GetVolume(check())),
    ] {
        let actions: Vec<Action> = ended.iter().chain(running).cloned().collect();
        assert_eq!(after_find_running(goal, Some(&actions), check()), next);
    }
    for (goal, running) in [(ATTACH, &detaching), (DETACH, &attaching), (RESIZE, &attaching)] {
        assert_eq!(kind_of(&after_find_running(goal, Some(std::slice::from_ref(running)), check())), "pause");
    }
    assert_eq!(after_find_running(DETACH, None, check()), Next::Done(None));
    assert_eq!(after_find_running(ATTACH, None, check()), Next::Fail(Failure::NoVolume));
    assert_eq!(after_find_running(RESIZE, None, check()), Next::Fail(Failure::NoVolume));
}

#[test]
fn errored_action_fails_at_once() {
    for goal in [ATTACH, DETACH, RESIZE] {
        assert_eq!(after_wait(goal, 9, Outcome::Errored, true), Next::Fail(Failure::Errored(9)));
        assert_eq!(after_wait(goal, 9, Outcome::Vanished, true), Next::GetVolume(CheckReason::Vanished));
    }
    assert_eq!(after_wait(DETACH, 9, Outcome::Completed, true), Next::Done(None));
    // A detach started by another call may have been from another droplet.
    assert_eq!(after_wait(DETACH, 9, Outcome::Completed, false), Next::GetVolume(CheckReason::Completed));
    assert_eq!(after_wait(ATTACH, 9, Outcome::Completed, true), Next::GetVolume(CheckReason::Completed));
}

#[test]
fn volume_state_determines_the_next_step() {
    let no_response = || CheckReason::NoResponse(refusal(500, "server error"));
    let missing = || CheckReason::Refused(refusal(404, "could not be found"));
    let already = || CheckReason::Refused(refusal(422, "This volume is already attached"));
    let not_attached = || CheckReason::Refused(refusal(422, "Attachment not found"));
    let too_many = || CheckReason::Refused(refusal(422, "cannot attach more volumes to the Droplet"));
    let other = || CheckReason::Refused(refusal(422, "something new"));
    // goal, (attached droplets, size), reason for the check, next step
    let table = [
        (ATTACH, Some((vec![7], 1)), already(), "done"),
        (ATTACH, Some((vec![7], 1)), no_response(), "done"),
        (ATTACH, Some((vec![7], 1)), too_many(), "done"),
        (ATTACH, Some((vec![8], 1)), already(), "fail"),
        (ATTACH, Some((vec![8], 1)), CheckReason::Completed, "fail"),
        (ATTACH, Some((vec![], 1)), already(), "pause"),
        (ATTACH, Some((vec![], 1)), CheckReason::Completed, "pause"),
        (ATTACH, Some((vec![], 1)), CheckReason::Vanished, "pause"),
        (ATTACH, Some((vec![], 1)), no_response(), "pause"),
        (ATTACH, Some((vec![], 1)), CheckReason::Refused(pending()), "pause"),
        (ATTACH, Some((vec![], 1)), missing(), "get droplet"),
        (ATTACH, Some((vec![], 1)), too_many(), "get droplet"),
        (ATTACH, Some((vec![], 1)), other(), "fail"),
        (ATTACH, None, missing(), "fail"),
        (DETACH, Some((vec![], 1)), not_attached(), "done"),
        (DETACH, Some((vec![8], 1)), not_attached(), "done"),
        (DETACH, Some((vec![7], 1)), not_attached(), "pause"),
        // An attach may still be pending.
        (DETACH, Some((vec![], 1)), CheckReason::Refused(pending()), "pause"),
        (DETACH, Some((vec![8], 1)), CheckReason::Refused(pending()), "pause"),
        (DETACH, Some((vec![], 1)), no_response(), "done"),
        (DETACH, Some((vec![7], 1)), no_response(), "pause"),
        (DETACH, Some((vec![7], 1)), missing(), "get droplet"),
        (DETACH, None, missing(), "done"),
        (RESIZE, Some((vec![7], 20)), other(), "done"),
        (RESIZE, Some((vec![7], 21)), no_response(), "done"),
        (RESIZE, Some((vec![7], 19)), other(), "fail"),
        (RESIZE, Some((vec![7], 19)), missing(), "fail"),
        (RESIZE, Some((vec![7], 19)), CheckReason::Completed, "pause"),
        (RESIZE, None, missing(), "fail"),
    ];
    for (goal, observed, check, next) in table {
        let shown = format!("{goal} {observed:?} {check:?}");
        let observed = observed.map(|(droplets, size)| volume(&droplets, size));
        assert_eq!(kind_of(&after_get_volume(goal, observed, check)), next, "{shown}");
    }
    assert_eq!(
        after_get_volume(ATTACH, Some(volume(&[8], 1)), already()),
        Next::Fail(Failure::AttachedElsewhere(8))
    );
}

#[test]
fn missing_droplet_completes_detach_and_fails_attach() {
    let missing = refusal(404, "could not be found");
    let too_many = refusal(422, "cannot attach more volumes to the Droplet");
    assert_eq!(after_get_droplet(DETACH, None, missing.clone()), Next::Done(None));
    assert_eq!(after_get_droplet(ATTACH, None, missing.clone()), Next::Fail(Failure::NoDroplet));
    let both_exist = Next::Fail(Failure::Api(missing.clone()));
    assert_eq!(after_get_droplet(ATTACH, Some(&droplet(0)), missing.clone()), both_exist);
    assert_eq!(after_get_droplet(DETACH, Some(&droplet(1)), missing), both_exist);
    for (count, attached) in [(7, Some(7)), (0, None)] {
        let Next::Fail(Failure::TooManyVolumes { attached: reported, .. }) =
            after_get_droplet(ATTACH, Some(&droplet(count)), too_many.clone())
        else {
            panic!("no failure")
        };
        assert_eq!(reported, attached);
    }
}
