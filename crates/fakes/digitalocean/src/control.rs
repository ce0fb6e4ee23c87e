//! The control path, `/fake/v1`, beside the API: what a test in another process reads and sets. It needs no token,
//! is not counted, not logged, and no fault hits it.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Outcome};
use crate::cloud::Cloud;
use crate::faults::Fault;
use crate::knobs::Knobs;
use crate::request::Request;

/// Where it begins.
pub(crate) const ROOT: &str = "/fake/v1";

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Token {
    Allow(String),
    Revoke(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    advance_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
enum End {
    Completed,
    Errored,
}

pub(crate) fn answer(cloud: &Cloud, request: &Request) -> Answer {
    match route(cloud, request) {
        Ok(answer) | Err(answer) => answer,
    }
}

fn route(cloud: &Cloud, request: &Request) -> Outcome {
    let parts = request.parts();
    let parts: Vec<&str> = parts.iter().skip(2).map(String::as_str).collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["requests"]) => Ok(Answer::ok(json!({ "requests": cloud.lock().log.all() }))),
        ("DELETE", ["requests"]) => {
            cloud.lock().log.clear();
            Ok(Answer::nothing())
        }
        ("GET", ["faults"]) => {
            let inside = cloud.lock();
            let faults = inside.faults.list().iter();
            let faults: Vec<Value> =
                faults.map(|(id, fault, seen)| json!({ "id": id, "fault": fault, "seen": seen })).collect();
            Ok(Answer::ok(json!({ "faults": faults })))
        }
        ("POST", ["faults"]) => {
            let fault: Fault = request.json()?;
            Ok(Answer::new(201, json!({ "id": cloud.lock().faults.add(fault) })))
        }
        ("DELETE", ["faults"]) => {
            cloud.lock().faults.clear();
            Ok(Answer::nothing())
        }
        ("DELETE", ["faults", id]) => match id.parse().is_ok_and(|id| cloud.lock().faults.remove(id)) {
            true => Ok(Answer::nothing()),
            false => Err(Answer::not_found()),
        },
        ("GET", ["knobs"]) => Ok(Answer::ok(json!(cloud.lock().knobs))),
        ("PATCH", ["knobs"]) => {
            let patch: serde_json::Map<String, Value> = request.json()?;
            let knobs = patched(&cloud.lock().knobs, patch)?;
            cloud.change(|inside| inside.knobs = knobs.clone());
            Ok(Answer::ok(json!(knobs)))
        }
        ("GET", ["state"]) => {
            cloud.change(|_| {});
            Ok(Answer::ok(json!(cloud.lock().state)))
        }
        ("POST", ["tokens"]) => {
            match request.json()? {
                Token::Allow(token) => cloud.lock().tokens.allow(&token),
                Token::Revoke(token) => cloud.lock().tokens.revoke(&token),
            }
            Ok(Answer::nothing())
        }
        ("POST", ["clock"]) => {
            let Advance { advance_ms } = request.json()?;
            cloud.clock.advance(std::time::Duration::from_millis(advance_ms));
            cloud.change(|_| {});
            Ok(Answer::nothing())
        }
        ("POST", ["actions", id]) => {
            let fails = matches!(request.json()?, End::Errored);
            let id: u64 = id.parse().map_err(|_| Answer::not_found())?;
            let now = cloud.clock.now();
            let ended = cloud.change(|inside| {
                if let Some(action) = inside.state.actions.get_mut(&id) {
                    action.fails = fails;
                }
                inside.state.finish(id, now)
            });
            if ended { Ok(Answer::nothing()) } else { Err(Answer::not_found()) }
        }
        _ => Err(Answer::not_found()),
    }
}

/// The knobs with some of them changed.
fn patched(knobs: &Knobs, patch: serde_json::Map<String, Value>) -> Result<Knobs, Answer> {
    let wrong = |error: serde_json::Error| Answer::error(400, &format!("These are not knobs: {error}."));
    let mut whole = serde_json::to_value(knobs).map_err(wrong)?;
    if let Some(fields) = whole.as_object_mut() {
        fields.extend(patch);
    }
    serde_json::from_value(whole).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::{Half, HalfAttached};

    #[test]
    fn knobs_keep_what_is_not_named() {
        let knobs = Knobs { volume_limit: 3, ..Knobs::default() };
        let patch = json!({ "action_delay_ms": 7, "half_attached": { "shape": "short", "for_ms": 5 } });
        let Value::Object(patch) = patch else { unreachable!() };
        let half = HalfAttached { shape: Half::Short, for_ms: 5 };
        let expected = Knobs { action_delay_ms: 7, half_attached: Some(half), ..knobs.clone() };
        assert_eq!(patched(&knobs, patch).unwrap(), expected);
        let Value::Object(patch) = json!({ "nonsense": 7 }) else { unreachable!() };
        assert_eq!(patched(&knobs, patch).unwrap_err().status, 400);
    }
}
