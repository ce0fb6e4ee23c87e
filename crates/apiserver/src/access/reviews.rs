//! TokenReview and the access reviews, evaluated with the same rules as requests.
//!
//! Each function takes the posted review, which conforms to its schema, and returns it with its status.

use serde_json::{Map, Value, json};
use wharf_model::Time;

use super::authorize::check;
use super::token::ISSUER;
use super::{Access, Attributes, Authenticated, Objects, TokenError, User, items, roles, text};
use crate::status::{Cause, StatusError};

const AUTHORIZATION: &str = "authorization.k8s.io";

impl Access {
    /// `tokenreviews`.
    pub fn token_review(
        &self,
        review: Value,
        objects: &dyn Objects,
        now: Time,
    ) -> Result<Value, StatusError> {
        let token = text(&review, "/spec/token");
        if token.is_empty() {
            return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
        }
        let mut audiences: Vec<String> =
            items(&review, "/spec/audiences").filter_map(Value::as_str).map(str::to_owned).collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.into());
        }
        let status = match self.authenticate_token(token, &audiences, objects, now) {
            Ok(Authenticated { user, audiences }) => {
                json!({"authenticated": true, "user": user.to_json(), "audiences": audiences})
            }
            Err(TokenError::Invalid) => json!({"user": {}, "error": TokenError::Invalid.to_string()}),
            Err(error) => json!({"user": {}, "error": format!("[{}, {error}]", TokenError::Invalid)}),
        };
        Ok(with_status(review, status))
    }
}

/// `selfsubjectreviews`: the user's own attributes.
pub fn self_subject_review(review: Value, user: &User) -> Value {
    with_status(review, json!({"userInfo": user.to_json()}))
}

/// `subjectaccessreviews`: whether a user is allowed a request.
pub fn subject_access_review(review: Value, objects: &dyn Objects) -> Result<Value, StatusError> {
    let mut causes = attribute_causes(&review);
    causes.extend(subject_cause(&review));
    reject_invalid(causes, "SubjectAccessReview", &review)?;
    let status = access_status(&review, &subject_of(&review), objects);
    Ok(with_status(review, status))
}

/// `localsubjectaccessreviews`: whether a user is allowed a request in this namespace.
pub fn local_subject_access_review(
    review: Value,
    namespace: &str,
    objects: &dyn Objects,
) -> Result<Value, StatusError> {
    if text(&review, "/metadata/namespace") != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(StatusError::bad_request(message));
    }
    let mut causes = attribute_causes(&review);
    causes.extend(subject_cause(&review));
    let requested_namespace =
        review.pointer("/spec/resourceAttributes/namespace").and_then(Value::as_str).unwrap_or_default();
    if review.pointer("/spec/resourceAttributes").is_some() && requested_namespace != namespace {
        let field = "spec.resourceAttributes.namespace";
        causes.push(Cause::invalid(field, &requested_namespace.into(), "must match metadata.namespace"));
    }
    if let Some(attributes) = review.pointer("/spec/nonResourceAttributes") {
        let field = "spec.nonResourceAttributes";
        causes.push(Cause::invalid(field, attributes, "disallowed on this kind of request"));
    }
    reject_invalid(causes, "LocalSubjectAccessReview", &review)?;
    let status = access_status(&review, &subject_of(&review), objects);
    Ok(with_status(review, status))
}

/// `selfsubjectaccessreviews`: whether the user itself is allowed a request.
pub fn self_subject_access_review(
    review: Value,
    user: &User,
    objects: &dyn Objects,
) -> Result<Value, StatusError> {
    reject_invalid(attribute_causes(&review), "SelfSubjectAccessReview", &review)?;
    let status = access_status(&review, user, objects);
    Ok(with_status(review, status))
}

/// `selfsubjectrulesreviews`: the user's rules. The permissions of a node agent depend on its pods and are not listed.
pub fn self_subject_rules_review(review: Value, user: &User) -> Result<Value, StatusError> {
    if text(&review, "/spec/namespace").is_empty() {
        return Err(StatusError::bad_request("no namespace on request"));
    }
    let rules: Vec<&roles::Rule> = roles::rules_for(user).collect();
    let (paths, resources): (Vec<&roles::Rule>, Vec<&roles::Rule>) =
        rules.into_iter().partition(|rule| !rule.paths.is_empty());
    let resources = resources
        .iter()
        .map(|rule| json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources}));
    let paths = paths.iter().map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
    let mut status = json!({
        "resourceRules": resources.collect::<Vec<_>>(), "nonResourceRules": paths.collect::<Vec<_>>(),
        "incomplete": user.node_name().is_some(),
    });
    if user.node_name().is_some() {
        status["evaluationError"] = "node authorizer does not support user rule resolution".into();
    }
    Ok(with_status(review, status))
}

fn with_status(mut review: Value, status: Value) -> Value {
    if let Some(review) = review.as_object_mut() {
        review.entry("metadata").or_insert_with(|| Map::new().into());
        review.insert("status".into(), status);
    }
    review
}

/// Validates what the review asks about.
fn attribute_causes(review: &Value) -> Vec<Cause> {
    let null = &Value::Null;
    let resource = review.pointer("/spec/resourceAttributes").filter(|value| !value.is_null());
    let path = review.pointer("/spec/nonResourceAttributes").filter(|value| !value.is_null());
    let mut causes = Vec::new();
    if let (Some(_), Some(path)) = (resource, path) {
        let detail = "cannot be specified in combination with resourceAttributes";
        causes.push(Cause::invalid("spec.nonResourceAttributes", path, detail));
    }
    if resource.is_none() && path.is_none() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.push(Cause::invalid("spec.resourceAttributes", null, detail));
    }
    let named = review.get("metadata").and_then(Value::as_object);
    let empty =
        named.is_none_or(|metadata| metadata.keys().all(|key| key == "namespace" || key == "managedFields"));
    if !empty {
        causes.push(Cause::invalid("metadata", &review["metadata"], "must be empty"));
    }
    causes
}

fn subject_cause(review: &Value) -> Option<Cause> {
    let no_subject = text(review, "/spec/user").is_empty() && items(review, "/spec/groups").next().is_none();
    no_subject
        .then(|| Cause::invalid("spec.user", &"".into(), "at least one of user or group must be specified"))
}

fn reject_invalid(causes: Vec<Cause>, kind: &str, review: &Value) -> Result<(), StatusError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(StatusError::invalid(AUTHORIZATION, kind, text(review, "/metadata/name"), causes))
}

fn subject_of(review: &Value) -> User {
    let spec = &review["spec"];
    let strings = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: text(spec, "/user").into(),
        uid: text(spec, "/uid").into(),
        groups: strings(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.to_lowercase(), strings(values))).collect(),
    }
}

fn access_status(review: &Value, user: &User, objects: &dyn Objects) -> Value {
    let spec = &review["spec"];
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let attrs = if resource.is_object() {
        let field = |field: &str| resource[field].as_str().unwrap_or_default();
        Attributes {
            verb: field("verb"),
            group: field("group"),
            version: field("version"),
            resource: field("resource"),
            subresource: field("subresource"),
            namespace: field("namespace"),
            name: field("name"),
            fields: text(resource, "/fieldSelector/rawSelector"),
            path: "",
        }
    } else {
        Attributes { verb: text(path, "/verb"), path: text(path, "/path"), ..Attributes::default() }
    };
    match check(user, &attrs, objects) {
        Ok(()) => json!({"allowed": true}),
        Err(reason) if reason.is_empty() => json!({"allowed": false}),
        Err(reason) => json!({"allowed": false, "reason": reason}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::FakeObjects;
    use crate::access::{NODES, Signer};

    const NOW: Time = Time(1_800_000_000_000);

    #[test]
    fn token_review_reports_user_or_error() {
        let access = Access::new(Signer::generate().unwrap(), Some("admin-token"));
        let objects = FakeObjects::default()
            .with("/serviceaccounts/ns/app", json!({"metadata": {"name": "app", "uid": "sa-1"}}));
        let request = access
            .token_request("ns", "app", json!({"spec": {"audiences": ["vault"]}}), &objects, NOW)
            .unwrap();
        let token = request["status"]["token"].as_str().unwrap();
        let attrs = |token: &str, audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
        let review = |attrs: Value, objects: &FakeObjects| {
            access.token_review(attrs, objects, NOW).unwrap()["status"].clone()
        };

        let status = review(attrs(token, json!(["vault", "x"])), &objects);
        assert_eq!(status["authenticated"], true);
        assert_eq!(status["user"]["username"], "system:serviceaccount:ns:app");
        assert_eq!(status["audiences"], json!(["vault"]));
        assert_eq!(review(attrs("admin-token", json!([])), &objects)["user"]["username"], "wharf:admin");

        let error = |token: &str, objects: &FakeObjects| review(attrs(token, json!(["vault"])), objects);
        assert_eq!(error("x", &objects), json!({"user": {}, "error": "invalid bearer token"}));
        let gone = error(token, &FakeObjects::default());
        assert_eq!(
            gone,
            json!({"user": {}, "error": r#"[invalid bearer token, serviceaccounts "app" not found]"#})
        );
        let api = review(attrs(token, json!([])), &objects);
        assert_eq!(
            api["error"],
            format!(
                r#"[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["{ISSUER}"]]"#
            )
        );
        let empty = access.token_review(json!({"spec": {}}), &objects, NOW).unwrap_err();
        assert_eq!(
            (empty.code, empty.message.as_str()),
            (400, "token is required for TokenReview in authentication")
        );
    }

    #[test]
    fn subject_access_review_follows_the_roles() {
        let resource = |user: &str, groups: Value, verb: &str, resource: &str, name: &str| {
            let attributes = json!({"verb": verb, "resource": resource, "namespace": "ns", "name": name});
            json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}})
        };
        let path = |groups: Value, path: &str| json!({"spec": {"user": "jane", "groups": groups, "nonResourceAttributes": {"verb": "get", "path": path}}});
        let related = "no relationship found between node 'n1' and this object";
        let cases = [
            (resource("jane", json!(["system:masters"]), "get", "pods", ""), json!({"allowed": true})),
            (resource("jane", json!([]), "get", "pods", ""), json!({"allowed": false})),
            (resource("", json!(["system:masters"]), "*", "*", ""), json!({"allowed": true})),
            (resource("", json!(["wharf:sidecar"]), "*", "*", ""), json!({"allowed": false})),
            (
                resource("system:node:n1", json!([NODES]), "get", "secrets", "s"),
                json!({"allowed": false, "reason": related}),
            ),
            (path(json!(["system:authenticated"]), "/api"), json!({"allowed": true})),
            (path(json!([]), "/api"), json!({"allowed": false})),
        ];
        for (review, status) in cases {
            let response = subject_access_review(review.clone(), &FakeObjects::default()).unwrap();
            assert_eq!(response["status"], status, "{review}");
            assert_eq!(response["metadata"], json!({}));
        }
    }

    #[test]
    fn self_reviews_describe_the_user() {
        let list = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "secrets"}}});
        let response = |user: &User| {
            self_subject_access_review(list.clone(), user, &FakeObjects::default()).unwrap()["status"].clone()
        };
        assert_eq!(response(&User::admin()), json!({"allowed": true}));
        assert_eq!(response(&User::sidecar()), json!({"allowed": false}));

        let rules = |user: &User| {
            self_subject_rules_review(json!({"spec": {"namespace": "ns"}}), user).unwrap()["status"].clone()
        };
        let all = rules(&User::admin());
        assert_eq!(all["resourceRules"][0], json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert_eq!(all["nonResourceRules"][0], json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
        assert_eq!(all["incomplete"], false);
        assert_eq!(rules(&User::node("n1"))["incomplete"], true);
        let none = self_subject_rules_review(json!({"spec": {}}), &User::admin()).unwrap_err();
        assert_eq!((none.code, none.message.as_str()), (400, "no namespace on request"));

        let me = self_subject_review(json!({}), &User::node("n1"));
        assert_eq!(me["status"]["userInfo"]["username"], "system:node:n1");
    }

    #[test]
    fn invalid_reviews_are_rejected() {
        let attributes = json!({"verb": "get", "resource": "pods", "namespace": "ns"});
        let path = json!({"verb": "get", "path": "/api"});
        let one = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let cases = [
            (json!({"user": "jane"}), format!("spec.resourceAttributes: Invalid value: null: {one}")),
            (
                json!({"user": "jane", "resourceAttributes": attributes, "nonResourceAttributes": path}),
                format!(
                    "spec.nonResourceAttributes: Invalid value: {path}: cannot be specified in combination with resourceAttributes"
                ),
            ),
            (
                json!({"resourceAttributes": attributes}),
                r#"spec.user: Invalid value: "": at least one of user or group must be specified"#.to_owned(),
            ),
        ];
        for (spec, message) in cases {
            let status_error =
                subject_access_review(json!({"spec": spec}), &FakeObjects::default()).unwrap_err();
            let expected = format!("SubjectAccessReview.authorization.k8s.io \"\" is invalid: {message}");
            assert_eq!((status_error.code, status_error.message), (422, expected));
        }
    }

    #[test]
    fn local_review_is_limited_to_its_namespace() {
        let review = |namespace: &str, requested_namespace: &str| {
            let attributes = json!({"verb": "get", "resource": "pods", "namespace": requested_namespace});
            let review = json!({
                "metadata": {"namespace": namespace},
                "spec": {"user": "jane", "groups": ["system:masters"], "resourceAttributes": attributes},
            });
            local_subject_access_review(review, "ns", &FakeObjects::default())
        };
        assert_eq!(review("ns", "ns").unwrap()["status"], json!({"allowed": true}));
        assert_eq!(review("other", "ns").unwrap_err().code, 400);
        assert_eq!(
            review("ns", "other").unwrap_err().message,
            "LocalSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: \
             Invalid value: \"other\": must match metadata.namespace"
        );
    }
}
