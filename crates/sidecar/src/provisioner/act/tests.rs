//! What the next view sees after a step, and when it is looked at again.

use serde_json::json;

use super::*;
use crate::context::OwnNode;
use crate::provisioner::testing::{VOLUME, claim, class, context, intent, made, own};

async fn actor(answers: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Actor {
    let context = context(move |method, path, body| match path.ends_with("/leases") {
        true => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
        false => answers(method, path, body),
    });
    Actor {
        journal: Journal::open(&context).await,
        own: Arc::new(own()),
        memories: Memories::default(),
        counts: context.metrics.family(Counts::register),
        capacity: CapacityHandle::default(),
        context,
    }
}

fn refused(status: u16, reason: &str) -> (u16, Value) {
    (status, json!({"kind": "Status", "reason": reason, "message": "no", "details": {"name": "x"}}))
}

/// sidecars.md 1.1 "Save PV": what can never be saved is not tried for ever, what may be is.
#[tokio::test]
async fn a_volume_that_the_server_will_never_take_is_of_no_use() {
    for (status, reason, never) in [
        (422, "Invalid", true),
        (413, "RequestEntityTooLarge", true),
        (403, "Forbidden", false),
        (500, "InternalError", false),
        (429, "TooManyRequests", false),
    ] {
        let actor = actor(move |_, _, _| refused(status, reason)).await;
        actor.memories.note(VOLUME, Happened::Made(Arc::new(made())));
        let saved = actor.save(Some(&claim(json!({}))), &Arc::new(intent()), &json!({}), false).await;
        let memory = actor.memories.get(VOLUME);
        assert_eq!(memory.unsaved.is_some(), never, "{reason}");
        assert!(memory.made().is_some(), "{reason}: it is still to be deleted");
        match saved {
            Progress::Again => assert!(never, "{reason}"),
            Progress::End(outcome) => assert_eq!((never, outcome), (false, Outcome::Retry), "{reason}"),
        }
    }
}

/// A claim that is gone while the watch is behind is not bid for over and over.
#[tokio::test]
async fn a_bid_for_what_has_changed_waits() {
    for answer in [refused(404, "NotFound"), (200, json!({"metadata": {"resourceVersion": "8"}}))] {
        let mut actor = actor(move |_, _, _| {
            let mut answer = answer.clone();
            if answer.0 == 404 {
                answer.1["details"]["name"] = json!("data");
            }
            answer
        })
        .await;
        let node = OwnNode { name: "node-a".into(), place: Default::default() };
        actor.own = Arc::new(Own { node: Some(node), ..own() });
        let claim = claim(json!({}));
        let mut seen = Seen::default();
        seen.class = Some(Arc::new(class(json!({}))));
        let Progress::End(outcome) = actor.bid(&Whom::waits(VOLUME, &claim), &claim, &seen).await else {
            panic!("looked at again at once");
        };
        assert_eq!(outcome, Outcome::Retry);
    }
}

/// The claim would begin anew and come to the same end: that must not go round and round.
#[tokio::test]
async fn what_another_volume_stands_for_is_not_asked_for_again_at_once() {
    let actor = actor(|_, _, _| refused(500, "InternalError")).await;
    for (held_by, waits) in [(None, false), (Some("static".to_owned()), true)] {
        let step = Step::Settle { intent: Arc::new(intent()), held_by };
        let progress = actor.act(VOLUME, &Seen::default(), step).await;
        assert_eq!(matches!(progress, Progress::End(Outcome::Retry)), waits);
    }
}

/// A namespace takes its secrets with it: what was made for its claims is deleted all the same.
#[tokio::test]
async fn a_secret_that_is_gone_keeps_nothing() {
    let secret = wharf_model::SecretRef { name: "s".into(), namespace: "n".into() };
    for (status, reason, goes) in [(404, "NotFound", true), (503, "ServiceUnavailable", false)] {
        let mut answer = refused(status, reason);
        answer.1["details"]["name"] = json!("s");
        let context = context(move |_, _, _| answer.clone());
        let read = reclaim::secrets(&context, VOLUME, Some(&secret)).await;
        assert_eq!(read.ok().map(|secrets| secrets.len()), goes.then_some(0), "{reason}");
    }
}
