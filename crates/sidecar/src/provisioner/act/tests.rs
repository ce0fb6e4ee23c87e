//! Tests of the effects of a step: the state that the next step sees, and whether the volume is retried.

use serde_json::json;

use super::*;
use crate::context::LocalNode;
use crate::provisioner::testing::{VOLUME, claim, class, config, context, created, intent};

async fn actor(respond: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Actor {
    let context = context(move |method, path, body| match (path.ends_with("/leases"), method) {
        (true, "GET") => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
        (true, _) if body["metadata"]["annotations"].get("intent.wharf.dev/0").is_some() => {
            (201, json!({"metadata": {"uid": "u"}}))
        }
        _ => respond(method, path, body),
    });
    Actor {
        journal: Journal::open(&context).await,
        config: Arc::new(config()),
        states: ProvisionStates::default(),
        metrics: context.metrics.get_or_register(ProvisionerMetrics::register),
        capacity: CapacityHandle::default(),
        suspects: RecordedSuspects::default(),
        context,
    }
}

fn refused(status: u16, reason: &str) -> (u16, Value) {
    (status, json!({"kind": "Status", "reason": reason, "message": "no", "details": {"name": "x"}}))
}

/// sidecars.md 1.1 "Save PV": a rejected PersistentVolume is not retried, other errors are.
#[tokio::test]
async fn save_stops_when_pv_is_rejected_and_retries_other_errors() {
    for (status, reason, rejected) in [
        (422, "Invalid", true),
        (413, "RequestEntityTooLarge", true),
        (403, "Forbidden", false),
        (500, "InternalError", false),
        (429, "TooManyRequests", false),
    ] {
        let actor = actor(move |_, _, _| refused(status, reason)).await;
        actor.states.apply(VOLUME, Transition::Created(Arc::new(created())));
        let saved = actor.save(Some(&claim(json!({}))), &Arc::new(intent()), &json!({}), false).await;
        let state = actor.states.get(VOLUME);
        assert_eq!(state.save_error.is_some(), rejected, "{reason}");
        assert!(state.created().is_some(), "{reason}: the created volume still has to be deleted");
        let expected = if rejected { StepOutcome::Continue } else { StepOutcome::RETRY };
        assert_eq!(saved, expected, "{reason}");
    }
}

/// If the claim was deleted or changed and the watch has not reported it yet, the next attempt waits for the backoff.
#[tokio::test]
async fn competing_for_changed_claim_backs_off() {
    for response in [refused(404, "NotFound"), (200, json!({"metadata": {"resourceVersion": "8"}}))] {
        let mut actor = actor(move |_, _, _| {
            let mut response = response.clone();
            if response.0 == 404 {
                response.1["details"]["name"] = json!("data");
            }
            response
        })
        .await;
        let node = LocalNode { name: "node-a".into(), topology: Default::default() };
        actor.config = Arc::new(ProvisionerConfig { node: Some(node), ..config() });
        let claim = claim(json!({}));
        let mut inputs = Inputs::default();
        inputs.class = Some(Arc::new(class(json!({}))));
        let outcome = actor.compete(&EventTarget::for_claim(VOLUME, &claim), &claim, &inputs).await;
        assert_eq!(outcome, StepOutcome::RETRY);
    }
}

/// What may exist is recorded before it is forgotten. A list that cannot be written blocks nothing.
#[tokio::test]
async fn uncertain_intent_is_dropped_only_after_suspect_was_recorded() {
    for (response, dropped) in [
        ((201, json!({})), true),
        (refused(409, "AlreadyExists"), true),
        (refused(403, "Forbidden"), true),
        (refused(503, "ServiceUnavailable"), false),
    ] {
        let reason = response.1["reason"].clone();
        let actor = actor(move |_, _, _| response.clone()).await;
        actor.journal.write(intent()).await.unwrap();
        let intent = Arc::new(intent());
        let step = ProvisionStep::DropIntent { intent, retry: false, suspect: true };
        let outcome = actor.act(VOLUME, &Inputs::default(), step).await;
        assert_eq!(outcome, if dropped { StepOutcome::Continue } else { StepOutcome::RETRY }, "{reason}");
        assert_eq!(actor.journal.get(VOLUME).is_none(), dropped, "{reason}");
        let counted = actor.context.metrics.encode().contains("wharf_suspected_orphans_total{");
        // The same name was counted when it was suspected first.
        assert_eq!(counted, dropped && reason != "AlreadyExists", "{reason}");
    }
}

/// A claim that starts again may get exactly the suspected volume: then it is no orphan. Anything less than the same
/// request, and the handle that it returned, proves nothing.
#[tokio::test]
async fn lease_of_suspect_is_deleted_once_its_call_returned_the_volume_of_the_pv() {
    let (new, before) = ((201, json!({"metadata": {"uid": "l1"}})), refused(409, "AlreadyExists"));
    let node = LocalNode { name: "node-a".into(), topology: Default::default() };
    for (leases, same_request, known, node, deleted) in [
        (vec![new.clone()], true, true, None, 1),
        (vec![new.clone()], false, true, None, 0),
        (vec![new.clone()], true, false, None, 0),
        (vec![new.clone()], true, true, Some(node), 0),
        // An earlier process recorded it, for another request perhaps.
        (vec![before.clone()], true, true, None, 0),
        (vec![new, before], true, true, None, 0),
    ] {
        let case = format!("{leases:?} {same_request} {known} {node:?}");
        let (count, responses) = (leases.len(), Mutex::new(leases));
        let deletions = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&deletions);
        let mut actor = actor(move |method, path, body| {
            if method == "DELETE" && path.contains("/wharf-suspect-") {
                seen.lock().unwrap().push(body["preconditions"]["uid"].clone());
            }
            match method {
                "POST" if path.ends_with("/leases") => responses.lock().unwrap().remove(0),
                _ => (200, json!({"kind": "Status", "status": "Success", "metadata": {}})),
            }
        })
        .await;
        actor.config = Arc::new(ProvisionerConfig { node, ..config() });
        for _ in 0..count {
            actor.drop_intent(None, &intent(), false, true).await;
        }
        let mut again = intent();
        if !same_request {
            again.request.parameters.insert("pool".into(), "other".into());
        }
        if known {
            actor.states.apply(VOLUME, Transition::Created(Arc::new(created())));
        }
        for _ in 0..2 {
            let step = ProvisionStep::FinishIntent { intent: Arc::new(again.clone()), handle_owner: None };
            assert_eq!(actor.act(VOLUME, &Inputs::default(), step).await, StepOutcome::Continue, "{case}");
        }
        assert_eq!(*deletions.lock().unwrap(), vec![json!("l1"); deleted], "{case}");
    }
}

/// A secret that is missing may never exist; an API server that fails says nothing about the driver.
#[tokio::test]
async fn failure_of_api_server_does_not_count_as_call() {
    for (status, reason, counts) in
        [(404, "NotFound", true), (503, "ServiceUnavailable", false), (403, "Forbidden", false)]
    {
        let mut response = refused(status, reason);
        response.1["details"]["name"] = json!("s");
        let actor = actor(move |_, _, _| response.clone()).await;
        let mut intent = intent();
        intent.request.secret = Some(("n".into(), "s".into()));
        actor.states.apply(VOLUME, Transition::IntentWritten);
        actor.states.apply(VOLUME, Transition::CreateSent);
        let before = actor.states.get(VOLUME);
        let outcome = actor.create(None, &Arc::new(intent), false).await;
        assert_eq!(outcome, StepOutcome::RETRY, "{reason}");
        assert_eq!(actor.states.get(VOLUME) != before, counts, "{reason}");
    }
}

/// Provisioning would start again and reach the same state, so it must wait for the backoff.
#[tokio::test]
async fn handle_owned_by_other_pv_backs_off() {
    let actor = actor(|_, _, _| refused(500, "InternalError")).await;
    for (handle_owner, retries) in [(None, false), (Some("static".to_owned()), true)] {
        let step = ProvisionStep::FinishIntent { intent: Arc::new(intent()), handle_owner };
        let outcome = actor.act(VOLUME, &Inputs::default(), step).await;
        assert_eq!(outcome == StepOutcome::RETRY, retries);
    }
}

/// Deleting a namespace also deletes its secrets. The volumes of its claims must be deleted anyway.
#[tokio::test]
async fn missing_secret_does_not_block_deletion() {
    let secret = wharf_model::SecretRef { name: "s".into(), namespace: "n".into() };
    for (status, reason, proceeds) in [(404, "NotFound", true), (503, "ServiceUnavailable", false)] {
        let mut response = refused(status, reason);
        response.1["details"]["name"] = json!("s");
        let context = context(move |_, _, _| response.clone());
        let read = reclaim::secrets(&context, VOLUME, Some(&secret)).await;
        assert_eq!(read.ok().map(|secrets| secrets.len()), proceeds.then_some(0), "{reason}");
    }
}
