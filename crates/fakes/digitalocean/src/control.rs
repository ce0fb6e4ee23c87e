//! The control API, `/fake/v1`, with which tests in other processes read and change the fake. It needs no token, is not
//! rate-limited or logged, and is exempt from faults.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cloud::Cloud;
use crate::faults::Fault;
use crate::request::Request;
use crate::response::{ApiResponse, Outcome};
use crate::settings::FakeSettings;

/// Path prefix of the control API.
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

pub(crate) fn response(cloud: &Cloud, request: &Request) -> ApiResponse {
    match route(cloud, request) {
        Ok(response) | Err(response) => response,
    }
}

fn route(cloud: &Cloud, request: &Request) -> Outcome {
    let parts = request.parts();
    let parts: Vec<&str> = parts.iter().skip(2).map(String::as_str).collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["requests"]) => Ok(ApiResponse::ok(json!({ "requests": cloud.lock().log.all() }))),
        ("DELETE", ["requests"]) => {
            cloud.lock().log.clear();
            Ok(ApiResponse::no_content())
        }
        ("GET", ["faults"]) => {
            let inner = cloud.lock();
            let faults = inner.faults.list().iter();
            let faults: Vec<Value> =
                faults.map(|(id, fault, seen)| json!({ "id": id, "fault": fault, "seen": seen })).collect();
            Ok(ApiResponse::ok(json!({ "faults": faults })))
        }
        ("POST", ["faults"]) => {
            let fault: Fault = request.json()?;
            Ok(ApiResponse::new(201, json!({ "id": cloud.lock().faults.add(fault) })))
        }
        ("DELETE", ["faults"]) => {
            cloud.lock().faults.clear();
            Ok(ApiResponse::no_content())
        }
        ("DELETE", ["faults", id]) => match id.parse().is_ok_and(|id| cloud.lock().faults.remove(id)) {
            true => Ok(ApiResponse::no_content()),
            false => Err(ApiResponse::not_found()),
        },
        ("GET", ["settings"]) => Ok(ApiResponse::ok(json!(cloud.lock().settings))),
        ("PATCH", ["settings"]) => {
            let patch: serde_json::Map<String, Value> = request.json()?;
            let settings = patched(&cloud.lock().settings, patch)?;
            cloud.change(|inner| inner.settings = settings.clone());
            Ok(ApiResponse::ok(json!(settings)))
        }
        ("GET", ["state"]) => {
            cloud.change(|_| {});
            Ok(ApiResponse::ok(json!(cloud.lock().state)))
        }
        ("POST", ["tokens"]) => {
            match request.json()? {
                Token::Allow(token) => cloud.lock().tokens.allow(&token),
                Token::Revoke(token) => cloud.lock().tokens.revoke(&token),
            }
            Ok(ApiResponse::no_content())
        }
        ("POST", ["clock"]) => {
            let Advance { advance_ms } = request.json()?;
            cloud.clock.advance(std::time::Duration::from_millis(advance_ms));
            cloud.change(|_| {});
            Ok(ApiResponse::no_content())
        }
        ("POST", ["actions", id]) => {
            let fails = matches!(request.json()?, End::Errored);
            let id: u64 = id.parse().map_err(|_| ApiResponse::not_found())?;
            let now = cloud.clock.now();
            let ended = cloud.change(|inner| {
                if let Some(action) = inner.state.actions.get_mut(&id) {
                    action.fails = fails;
                }
                inner.state.finish(id, now)
            });
            if ended { Ok(ApiResponse::no_content()) } else { Err(ApiResponse::not_found()) }
        }
        _ => Err(ApiResponse::not_found()),
    }
}

/// The settings with `patch` applied.
fn patched(
    settings: &FakeSettings,
    patch: serde_json::Map<String, Value>,
) -> Result<FakeSettings, ApiResponse> {
    let invalid = |error: serde_json::Error| ApiResponse::error(400, &format!("Invalid settings: {error}."));
    let mut whole = serde_json::to_value(settings).map_err(invalid)?;
    if let Some(fields) = whole.as_object_mut() {
        fields.extend(patch);
    }
    serde_json::from_value(whole).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{HalfAttached, HalfAttachedShape};

    #[test]
    fn patch_keeps_other_settings_and_refuses_unknown_ones() {
        let settings = FakeSettings { volume_limit: 3, ..FakeSettings::default() };
        let patch = json!({ "action_delay_ms": 7, "half_attached": { "shape": "short", "for_ms": 5 } });
        let Value::Object(patch) = patch else { unreachable!() };
        let half = HalfAttached { shape: HalfAttachedShape::Short, for_ms: 5 };
        let expected = FakeSettings { action_delay_ms: 7, half_attached: Some(half), ..settings.clone() };
        assert_eq!(patched(&settings, patch).unwrap(), expected);
        let Value::Object(patch) = json!({ "nonsense": 7 }) else { unreachable!() };
        assert_eq!(patched(&settings, patch).unwrap_err().status, 400);
    }
}
