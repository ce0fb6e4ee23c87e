//! Service account tokens of a pod: when to request one, and the request.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use wharf_model::pod::TokenProjection;
use wharf_model::{Pod, Time};

/// Default lifetime in seconds.
const DEFAULT_LIFETIME: i64 = 3600;
/// A token is replaced after a day, whatever its lifetime.
const MAX_AGE: i64 = 24 * 3600;

/// Whether an existing token can be reused: less than 80 % of its lifetime has passed. An unreadable token is not
/// fresh.
pub(super) fn is_fresh(token: &str, now: Time) -> bool {
    let claims = token.split('.').nth(1).and_then(|claims| BASE64.decode(claims).ok());
    let claims: Value = claims.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let seconds = |claim: &str| claims.get(claim).and_then(Value::as_i64);
    let (Some(issued), Some(expires)) = (seconds("iat"), seconds("exp")) else { return false };
    let age = now.0.div_euclid(1000).saturating_sub(issued);
    let lifetime = expires.saturating_sub(issued);
    age < MAX_AGE && age.saturating_mul(5) < lifetime.saturating_mul(4)
}

/// A `TokenRequest` for a token bound to the pod.
pub(super) fn request(pod: &Pod, wanted: &TokenProjection) -> Value {
    let audiences: Vec<&str> =
        Some(wanted.audience.as_str()).filter(|text| !text.is_empty()).into_iter().collect();
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": wanted.expiration_seconds.unwrap_or(DEFAULT_LIFETIME),
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid,
            },
        },
    })
}

/// The pod's service account; every namespace has a `default` one.
pub(super) fn account(pod: &Pod) -> &str {
    if pod.spec.service_account_name.is_empty() { "default" } else { &pod.spec.service_account_name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubelet's rule: replaced after 80 % of its lifetime, and after a day in any case.
    #[test]
    fn token_is_fresh_for_most_of_its_lifetime() {
        // {"iat":1000,"exp":2000} and {"iat":0,"exp":1000000}
        let short = "h.eyJpYXQiOjEwMDAsImV4cCI6MjAwMH0.s";
        let long = "h.eyJpYXQiOjAsImV4cCI6MTAwMDAwMH0.s";
        for (token, seconds, fresh) in [
            (short, 1000, true),
            (short, 1799, true),
            (short, 1800, false),
            (long, 86_399, true),
            (long, 86_400, false),
            ("", 0, false),
            ("no.token", 0, false),
            ("a.e30.c", 0, false),
        ] {
            assert_eq!(is_fresh(token, Time(seconds * 1000)), fresh, "{token} {seconds}");
        }
    }

    #[test]
    fn token_request_is_bound_to_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        let request = request(&pod, &TokenProjection { audience: "me".into(), ..TokenProjection::default() });
        assert_eq!(
            request["spec"],
            json!({
                "audiences": ["me"], "expirationSeconds": 3600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            })
        );
        assert_eq!(account(&pod), "default");
    }
}
