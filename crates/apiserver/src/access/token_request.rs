//! `serviceaccounts/token`: issues a token for a service account with audiences, an expiration and an optional bound
//! object.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_model::Time;

use super::token::{Bound, Claims, ISSUER, Reference};
use super::{Access, Objects, SERVICE_ACCOUNT_PREFIX, items, text};
use crate::rest::random;
use crate::status::{Cause, Resource, StatusError};

const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3600;

impl Access {
    /// Handles a `TokenRequest` that conforms to its schema.
    pub fn token_request(
        &self,
        namespace: &str,
        account: &str,
        mut request: Value,
        objects: &dyn Objects,
        now: Time,
    ) -> Result<Value, StatusError> {
        let invalid = |name: &str, cause| {
            StatusError::invalid("authentication.k8s.io", "TokenRequest", name, vec![cause])
        };
        for (field, expected, what) in [("name", account, "name"), ("namespace", namespace, "namespace")] {
            let given = text(&request["metadata"], &format!("/{field}"));
            if !given.is_empty() && given != expected {
                let detail = format!("must match the service account {what} if specified");
                return Err(invalid(
                    account,
                    Cause::invalid(&format!("metadata.{field}"), &given.into(), &detail),
                ));
            }
        }
        let resource = Resource { group: "", plural: "serviceaccounts" };
        let object = objects.get("", "serviceaccounts", namespace, account);
        let object = object.ok_or_else(|| StatusError::not_found(resource, account))?;

        let mut audiences: Vec<String> =
            items(&request, "/spec/audiences").filter_map(Value::as_str).map(str::to_owned).collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.into());
        }
        let seconds =
            request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
        let problem = match seconds {
            ..MIN_SECONDS => Some("may not specify a duration less than 10 minutes"),
            MIN_SECONDS..=MAX_SECONDS => None,
            _ => Some("may not specify a duration larger than 2^32 seconds"),
        };
        if let Some(detail) = problem {
            return Err(invalid("", Cause::invalid("spec.expirationSeconds", &seconds.into(), detail)));
        }

        let serviceaccount = Reference { name: account.into(), uid: text(&object, "/metadata/uid").into() };
        let mut bound =
            Bound { namespace: namespace.into(), node: None, pod: None, secret: None, serviceaccount };
        if let Some(reference) =
            request.pointer("/spec/boundObjectRef").filter(|reference| !reference.is_null())
        {
            bind(&mut bound, reference, objects)?;
        }
        // Rounded down to whole seconds: the response never names a later time than the token.
        let issued = now.0.div_euclid(1000);
        let claims = Claims {
            aud: audiences.clone(),
            exp: issued + seconds,
            iat: issued,
            iss: ISSUER.into(),
            jti: random::uid(),
            kubernetes: bound,
            nbf: issued,
            sub: format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{account}"),
        };
        let token = self.signer.sign(&claims).map_err(|_| signing_failed())?;

        let expires = now.plus(Duration::from_secs(seconds.unsigned_abs()));
        request["kind"] = "TokenRequest".into();
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["metadata"]["name"] = account.into();
        request["metadata"]["namespace"] = namespace.into();
        request["metadata"]["creationTimestamp"] = now.to_string().into();
        request["spec"]["audiences"] = audiences.into();
        request["spec"]["expirationSeconds"] = seconds.into();
        request["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
        Ok(request)
    }
}

/// Binds the token to the current object.
fn bind(bound: &mut Bound, reference: &Value, objects: &dyn Objects) -> Result<(), StatusError> {
    let (version, kind, name) =
        (text(reference, "/apiVersion"), text(reference, "/kind"), text(reference, "/name"));
    let find = |plural: &'static str, namespace: &str| {
        let object = objects.get("", plural, namespace, name);
        object.ok_or_else(|| StatusError::not_found(Resource { group: "", plural }, name))
    };
    let object = match (version, kind) {
        ("v1", "Pod") => {
            let pod = find("pods", &bound.namespace)?;
            let account = &bound.serviceaccount.name;
            if text(&pod, "/spec/serviceAccountName") != account {
                return Err(StatusError::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            let node = text(&pod, "/spec/nodeName");
            if !node.is_empty() {
                let uid =
                    objects.get("", "nodes", "", node).map(|node| text(&node, "/metadata/uid").to_owned());
                bound.node = Some(Reference { name: node.into(), uid: uid.unwrap_or_default() });
            }
            bound.pod = Some(Reference::to(&pod));
            pod
        }
        ("v1", "Secret") => {
            let secret = find("secrets", &bound.namespace)?;
            bound.secret = Some(Reference::to(&secret));
            secret
        }
        ("v1", "Node") => {
            let node = find("nodes", "")?;
            bound.node = Some(Reference::to(&node));
            node
        }
        _ => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let type_name = format!("{group}/{version}, Kind={kind}");
            return Err(StatusError::bad_request(format!("cannot bind token to object of type {type_name}")));
        }
    };
    let (requested, uid) = (text(reference, "/uid"), text(&object, "/metadata/uid"));
    if !requested.is_empty() && requested != uid {
        let reason = format!(
            "the UID in the bound object reference ({requested}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(StatusError::conflict(Resource { group: "", plural: kind }, name, &reason));
    }
    Ok(())
}

fn signing_failed() -> StatusError {
    StatusError::new(500, "InternalError", "failed to generate token: the token could not be signed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::FakeObjects;
    use crate::access::{Authenticated, TokenError};

    const NOW: Time = Time(1_800_000_000_500);

    fn objects_fixture() -> FakeObjects {
        let object = |name: &str, uid: &str| json!({"metadata": {"name": name, "uid": uid}});
        let mut pod = object("p", "pod-1");
        pod["spec"] = json!({"serviceAccountName": "app", "nodeName": "n1"});
        let mut other = object("q", "pod-2");
        other["spec"] = json!({"serviceAccountName": "other"});
        FakeObjects::default()
            .with("/serviceaccounts/ns/app", object("app", "sa-1"))
            .with("/pods/ns/p", pod)
            .with("/pods/ns/q", other)
            .with("/secrets/ns/s", object("s", "secret-1"))
            .with("/nodes//n1", object("n1", "node-1"))
    }

    fn bound_to(kind: &str, name: &str, uid: &str) -> Value {
        json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}}})
    }

    #[test]
    fn issued_token_authenticates_its_service_account() {
        let access = Access::generate().unwrap();
        let mut request = bound_to("Pod", "p", "pod-1");
        request["spec"]["audiences"] = json!(["vault"]);
        request["spec"]["expirationSeconds"] = 600.into();
        let response = access.token_request("ns", "app", request, &objects_fixture(), NOW).unwrap();
        assert_eq!(
            response["metadata"],
            json!({"name": "app", "namespace": "ns", "creationTimestamp": "2027-01-15T08:00:00Z"})
        );
        assert_eq!(response["status"]["expirationTimestamp"], "2027-01-15T08:10:00Z");
        let token = response["status"]["token"].as_str().unwrap();
        let authenticate = |audience: &str, objects_fixture: &FakeObjects, now| {
            access.authenticate_token(token, &[audience.into()], objects_fixture, now)
        };

        let Authenticated { user, audiences } = authenticate("vault", &objects_fixture(), NOW).unwrap();
        assert_eq!(
            (user.name.as_str(), audiences),
            ("system:serviceaccount:ns:app", vec!["vault".to_owned()])
        );
        assert_eq!(user.extra["authentication.kubernetes.io/node-uid"], ["node-1"]);
        assert!(
            matches!(authenticate(ISSUER, &objects_fixture(), NOW), Err(TokenError::Audience { .. })),
            "not for the API"
        );
        let later = NOW.plus(Duration::from_secs(600));
        assert_eq!(authenticate("vault", &objects_fixture(), later), Err(TokenError::Expired));
        let mut gone = objects_fixture();
        gone.0.remove("/pods/ns/p");
        assert!(
            matches!(authenticate("vault", &gone, NOW), Err(TokenError::Invalidated(_))),
            "the pod is deleted"
        );
    }

    #[test]
    fn request_is_defaulted() {
        let access = Access::generate().unwrap();
        for (request, extra) in [
            (json!({}), "credential-id"),
            (bound_to("Node", "n1", ""), "node-name"),
            (bound_to("Secret", "s", "secret-1"), "credential-id"),
        ] {
            let response = access.token_request("ns", "app", request, &objects_fixture(), NOW).unwrap();
            assert_eq!(response["spec"]["audiences"], json!([ISSUER]));
            assert_eq!(response["spec"]["expirationSeconds"], 3600);
            let token = response["status"]["token"].as_str().unwrap();
            let authenticated =
                access.authenticate_token(token, &[ISSUER.into()], &objects_fixture(), NOW).unwrap();
            assert!(
                authenticated.user.extra.contains_key(&format!("authentication.kubernetes.io/{extra}")),
                "{extra}"
            );
        }
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let seconds = |seconds: i64| json!({"spec": {"expirationSeconds": seconds}});
        let cases = [
            ("none", json!({}), 404, r#"serviceaccounts "none" not found"#),
            (
                "app",
                json!({"metadata": {"name": "other"}}),
                422,
                r#"TokenRequest.authentication.k8s.io "app" is invalid: metadata.name: Invalid value: "other": must match the service account name if specified"#,
            ),
            (
                "app",
                json!({"metadata": {"namespace": "other"}}),
                422,
                r#"TokenRequest.authentication.k8s.io "app" is invalid: metadata.namespace: Invalid value: "other": must match the service account namespace if specified"#,
            ),
            (
                "app",
                seconds(599),
                422,
                r#"TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"#,
            ),
            (
                "app",
                seconds(MAX_SECONDS + 1),
                422,
                r#"TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"#,
            ),
            ("app", bound_to("Pod", "none", ""), 404, r#"pods "none" not found"#),
            (
                "app",
                bound_to("Pod", "q", ""),
                400,
                r#"cannot bind token for serviceaccount "app" to pod running with different serviceaccount name."#,
            ),
            (
                "app",
                bound_to("Pod", "p", "pod-0"),
                409,
                r#"Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (pod-0) does not match the UID in record. The object might have been deleted and then recreated"#,
            ),
            (
                "app",
                bound_to("ConfigMap", "c", ""),
                400,
                "cannot bind token to object of type /v1, Kind=ConfigMap",
            ),
        ];
        let access = Access::generate().unwrap();
        for (account, request, code, message) in cases {
            let status_error =
                access.token_request("ns", account, request, &objects_fixture(), NOW).unwrap_err();
            assert_eq!((status_error.code, status_error.message.as_str()), (code, message));
        }
    }
}
