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
        Next::Find(_) => "find",
        Next::Look(_) => "look",
        Next::LookAtDroplet(_) => "droplet",
        Next::Pause(_) => "pause",
        Next::Done(_) => "done",
        Next::Fail(_) => "fail",
    }
}

#[test]
fn after_the_api_was_asked_to_begin() {
    let accepted = |status| Ok(action(1, "attach_volume", status));
    // the answer, whether we have searched before, what comes next
    let table = [
        (accepted(ActionStatus::InProgress), false, "await"),
        (accepted(ActionStatus::Unknown), false, "await"),
        (accepted(ActionStatus::Completed), false, "look"),
        (accepted(ActionStatus::Errored), false, "fail"),
        (Err(pending()), false, "find"),
        (Err(pending()), true, "pause"),
        (Err(refusal(422, "This volume is already attached")), false, "look"),
        (Err(refusal(422, "Attachment not found")), false, "look"),
        (Err(refusal(422, "cannot attach more volumes to the Droplet")), false, "look"),
        (Err(refusal(422, "something new")), false, "look"),
        (Err(refusal(404, "The resource you requested could not be found.")), false, "look"),
        (Err(refusal(500, "server error")), false, "find"),
        (Err(refusal(502, "bad gateway")), true, "find"),
        (Err(refusal(401, "Unable to authenticate you.")), false, "fail"),
        (Err(refusal(403, "forbidden")), false, "fail"),
        (Err(refusal(403, "capacity limit exceeded")), false, "fail"),
        (Err(refusal(429, "API Rate limit exceeded.")), false, "fail"),
        (Err(refusal(400, "bad")), false, "fail"),
    ];
    for (answer, searched, next) in table {
        let shown = format!("{answer:?} {searched}");
        assert_eq!(kind_of(&after_start(ATTACH, answer, searched)), next, "{shown}");
    }
}

/// The volume's own attach may be under way: only its actions tell.
#[test]
fn a_detach_that_is_refused_looks_for_what_is_under_way() {
    for (status, words) in [
        (422, "Attachment not found"),
        (422, "something new"),
        (404, "The resource you requested could not be found."),
    ] {
        for searched in [false, true] {
            let refused = Doubt::Refused(refusal(status, words));
            let next = after_start(DETACH, Err(refusal(status, words)), searched);
            assert_eq!(next, Next::Find(refused.clone()), "{words}");
            let attaching = [action(5, "attach_volume", ActionStatus::InProgress)];
            assert_eq!(kind_of(&after_find(DETACH, Some(&attaching), refused.clone())), "pause", "{words}");
            let attached = [action(5, "attach_volume", ActionStatus::Completed)];
            assert_eq!(after_find(DETACH, Some(&attached), refused.clone()), Next::Look(refused), "{words}");
        }
    }
    assert_eq!(kind_of(&after_start(DETACH, Err(pending()), true)), "pause");
}

#[test]
fn a_running_action_is_taken_up() {
    use ActionStatus::{Completed, Errored, InProgress};
    let attaching = action(5, "attach_volume", InProgress);
    let detaching = action(6, "detach_volume", InProgress);
    let resizing = action(7, "resize_volume", InProgress);
    let ended = [action(1, "attach_volume", Completed), action(2, "detach_volume", Errored)];
    let doubt = || Doubt::Refused(pending());
    for (goal, running, next) in [
        (ATTACH, Some(&attaching), Next::Await(5)),
        (DETACH, Some(&detaching), Next::Await(6)),
        (RESIZE, Some(&resizing), Next::Await(7)),
        (ATTACH, None, Next::Look(doubt())),
        (DETACH, None, Next::Look(doubt())),
    ] {
        let actions: Vec<Action> = ended.iter().chain(running).cloned().collect();
        assert_eq!(after_find(goal, Some(&actions), doubt()), next);
    }
    for (goal, running) in [(ATTACH, &detaching), (DETACH, &attaching), (RESIZE, &attaching)] {
        assert_eq!(kind_of(&after_find(goal, Some(std::slice::from_ref(running)), doubt())), "pause");
    }
    assert_eq!(after_find(DETACH, None, doubt()), Next::Done(None));
    assert_eq!(after_find(ATTACH, None, doubt()), Next::Fail(Failure::NoVolume));
    assert_eq!(after_find(RESIZE, None, doubt()), Next::Fail(Failure::NoVolume));
}

#[test]
fn an_errored_action_is_an_error_at_once() {
    for goal in [ATTACH, DETACH, RESIZE] {
        assert_eq!(after_wait(goal, 9, Outcome::Errored, true), Next::Fail(Failure::Errored(9)));
        assert_eq!(after_wait(goal, 9, Outcome::Vanished, true), Next::Look(Doubt::Vanished));
    }
    assert_eq!(after_wait(DETACH, 9, Outcome::Completed, true), Next::Done(None));
    // Somebody else's detach may have been from another droplet.
    assert_eq!(after_wait(DETACH, 9, Outcome::Completed, false), Next::Look(Doubt::Completed));
    assert_eq!(after_wait(ATTACH, 9, Outcome::Completed, true), Next::Look(Doubt::Completed));
}

#[test]
fn what_the_volume_shows_is_what_counts() {
    let unheard = || Doubt::Unheard(refusal(500, "server error"));
    let missing = || Doubt::Refused(refusal(404, "could not be found"));
    let already = || Doubt::Refused(refusal(422, "This volume is already attached"));
    let nowhere = || Doubt::Refused(refusal(422, "Attachment not found"));
    let too_many = || Doubt::Refused(refusal(422, "cannot attach more volumes to the Droplet"));
    let other = || Doubt::Refused(refusal(422, "something new"));
    // goal, where it is attached and how large it is, why we look, what comes next
    let table = [
        (ATTACH, Some((vec![7], 1)), already(), "done"),
        (ATTACH, Some((vec![7], 1)), unheard(), "done"),
        (ATTACH, Some((vec![7], 1)), too_many(), "done"),
        (ATTACH, Some((vec![8], 1)), already(), "fail"),
        (ATTACH, Some((vec![8], 1)), Doubt::Completed, "fail"),
        (ATTACH, Some((vec![], 1)), already(), "pause"),
        (ATTACH, Some((vec![], 1)), Doubt::Completed, "pause"),
        (ATTACH, Some((vec![], 1)), Doubt::Vanished, "pause"),
        (ATTACH, Some((vec![], 1)), unheard(), "pause"),
        (ATTACH, Some((vec![], 1)), Doubt::Refused(pending()), "pause"),
        (ATTACH, Some((vec![], 1)), missing(), "droplet"),
        (ATTACH, Some((vec![], 1)), too_many(), "droplet"),
        (ATTACH, Some((vec![], 1)), other(), "fail"),
        (ATTACH, None, missing(), "fail"),
        (DETACH, Some((vec![], 1)), nowhere(), "done"),
        (DETACH, Some((vec![8], 1)), nowhere(), "done"),
        (DETACH, Some((vec![7], 1)), nowhere(), "pause"),
        // Not attached yet, perhaps.
        (DETACH, Some((vec![], 1)), Doubt::Refused(pending()), "pause"),
        (DETACH, Some((vec![8], 1)), Doubt::Refused(pending()), "pause"),
        (DETACH, Some((vec![], 1)), unheard(), "done"),
        (DETACH, Some((vec![7], 1)), unheard(), "pause"),
        (DETACH, Some((vec![7], 1)), missing(), "droplet"),
        (DETACH, None, missing(), "done"),
        (RESIZE, Some((vec![7], 20)), other(), "done"),
        (RESIZE, Some((vec![7], 21)), unheard(), "done"),
        (RESIZE, Some((vec![7], 19)), other(), "fail"),
        (RESIZE, Some((vec![7], 19)), missing(), "fail"),
        (RESIZE, Some((vec![7], 19)), Doubt::Completed, "pause"),
        (RESIZE, None, missing(), "fail"),
    ];
    for (goal, seen, doubt, next) in table {
        let shown = format!("{goal} {seen:?} {doubt:?}");
        let seen = seen.map(|(droplets, size)| volume(&droplets, size));
        assert_eq!(kind_of(&after_look(goal, seen, doubt)), next, "{shown}");
    }
    assert_eq!(
        after_look(ATTACH, Some(volume(&[8], 1)), already()),
        Next::Fail(Failure::AttachedElsewhere(8))
    );
}

#[test]
fn a_droplet_that_is_gone_holds_nothing() {
    let missing = refusal(404, "could not be found");
    let too_many = refusal(422, "cannot attach more volumes to the Droplet");
    assert_eq!(after_droplet(DETACH, None, missing.clone()), Next::Done(None));
    assert_eq!(after_droplet(ATTACH, None, missing.clone()), Next::Fail(Failure::NoDroplet));
    let both_there = Next::Fail(Failure::Api(missing.clone()));
    assert_eq!(after_droplet(ATTACH, Some(&droplet(0)), missing.clone()), both_there);
    assert_eq!(after_droplet(DETACH, Some(&droplet(1)), missing), both_there);
    for (count, attached) in [(7, Some(7)), (0, None)] {
        let Next::Fail(Failure::TooManyVolumes { attached: learnt, .. }) =
            after_droplet(ATTACH, Some(&droplet(count)), too_many.clone())
        else {
            panic!("no failure")
        };
        assert_eq!(learnt, attached);
    }
}
