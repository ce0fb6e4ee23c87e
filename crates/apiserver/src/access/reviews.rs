//! Questions about access: whose a token is, and who may do what. Answered by the same rules that decide requests.
//!
//! Each takes the review as it was posted and conformed, and gives it back with its status.

use serde_json::{Map, Value, json};
use wharf_model::Time;

use super::authorize::judge;
use super::token::ISSUER;
use super::{Access, Attributes, Authenticated, Objects, TokenError, User, items, roles, text};
use crate::status::{Cause, Refusal};

const AUTHORIZATION: &str = "authorization.k8s.io";

impl Access {
    /// `tokenreviews`.
    pub fn token_review(&self, review: Value, objects: &dyn Objects, now: Time) -> Result<Value, Refusal> {
        let token = text(&review, "/spec/token");
        if token.is_empty() {
            return Err(Refusal::bad_request("token is required for TokenReview in authentication"));
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
            Err(TokenError::Foreign) => json!({"user": {}, "error": TokenError::Foreign.to_string()}),
            Err(error) => json!({"user": {}, "error": format!("[{}, {error}]", TokenError::Foreign)}),
        };
        Ok(answered(review, status))
    }
}

/// `selfsubjectreviews`: who am I.
pub fn self_subject_review(review: Value, user: &User) -> Value {
    answered(review, json!({"userInfo": user.to_json()}))
}

/// `subjectaccessreviews`: may they.
pub fn subject_access_review(review: Value, objects: &dyn Objects) -> Result<Value, Refusal> {
    let mut causes = about(&review);
    causes.extend(subject(&review));
    refuse(causes, "SubjectAccessReview", &review)?;
    let status = decided(&review, &subject_of(&review), objects);
    Ok(answered(review, status))
}

/// `localsubjectaccessreviews`: may they, in this namespace.
pub fn local_subject_access_review(
    review: Value,
    namespace: &str,
    objects: &dyn Objects,
) -> Result<Value, Refusal> {
    if text(&review, "/metadata/namespace") != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(Refusal::bad_request(message));
    }
    let mut causes = about(&review);
    causes.extend(subject(&review));
    let within =
        review.pointer("/spec/resourceAttributes/namespace").and_then(Value::as_str).unwrap_or_default();
    if review.pointer("/spec/resourceAttributes").is_some() && within != namespace {
        let field = "spec.resourceAttributes.namespace";
        causes.push(Cause::invalid(field, &within.into(), "must match metadata.namespace"));
    }
    if let Some(attributes) = review.pointer("/spec/nonResourceAttributes") {
        let field = "spec.nonResourceAttributes";
        causes.push(Cause::invalid(field, attributes, "disallowed on this kind of request"));
    }
    refuse(causes, "LocalSubjectAccessReview", &review)?;
    let status = decided(&review, &subject_of(&review), objects);
    Ok(answered(review, status))
}

/// `selfsubjectaccessreviews`: may I.
pub fn self_subject_access_review(
    review: Value,
    user: &User,
    objects: &dyn Objects,
) -> Result<Value, Refusal> {
    refuse(about(&review), "SelfSubjectAccessReview", &review)?;
    let status = decided(&review, user, objects);
    Ok(answered(review, status))
}

/// `selfsubjectrulesreviews`: what may I. What a node's agent may depends on its pods, and is not told.
pub fn self_subject_rules_review(review: Value, user: &User) -> Result<Value, Refusal> {
    if text(&review, "/spec/namespace").is_empty() {
        return Err(Refusal::bad_request("no namespace on request"));
    }
    let rules: Vec<&roles::Rule> = roles::of(user).collect();
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
    Ok(answered(review, status))
}

fn answered(mut review: Value, status: Value) -> Value {
    if let Some(review) = review.as_object_mut() {
        review.entry("metadata").or_insert_with(|| Map::new().into());
        review.insert("status".into(), status);
    }
    review
}

/// What is wrong with what the review is about.
fn about(review: &Value) -> Vec<Cause> {
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

fn subject(review: &Value) -> Option<Cause> {
    let nobody = text(review, "/spec/user").is_empty() && items(review, "/spec/groups").next().is_none();
    nobody.then(|| Cause::invalid("spec.user", &"".into(), "at least one of user or group must be specified"))
}

fn refuse(causes: Vec<Cause>, kind: &str, review: &Value) -> Result<(), Refusal> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid(AUTHORIZATION, kind, text(review, "/metadata/name"), causes))
}

fn subject_of(review: &Value) -> User {
    let spec = &review["spec"];
    let words = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: text(spec, "/user").into(),
        uid: text(spec, "/uid").into(),
        groups: words(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.to_lowercase(), words(values))).collect(),
    }
}

fn decided(review: &Value, user: &User, objects: &dyn Objects) -> Value {
    let spec = &review["spec"];
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let asked = if resource.is_object() {
        let of = |field: &str| resource[field].as_str().unwrap_or_default();
        Attributes {
            verb: of("verb"),
            group: of("group"),
            version: of("version"),
            resource: of("resource"),
            subresource: of("subresource"),
            namespace: of("namespace"),
            name: of("name"),
            fields: text(resource, "/fieldSelector/rawSelector"),
            path: "",
        }
    } else {
        Attributes { verb: text(path, "/verb"), path: text(path, "/path"), ..Attributes::default() }
    };
    match judge(user, &asked, objects) {
        Ok(()) => json!({"allowed": true}),
        Err(reason) if reason.is_empty() => json!({"allowed": false}),
        Err(reason) => json!({"allowed": false, "reason": reason}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::Fixed;
    use crate::access::{NODES, Signer};

    const NOW: Time = Time(1_800_000_000_000);

    #[test]
    fn tokens() {
        let access = Access::new(Signer::generate().unwrap(), Some("admin-token"));
        let world = Fixed::default()
            .with("/serviceaccounts/ns/app", json!({"metadata": {"name": "app", "uid": "sa-1"}}));
        let request = access
            .token_request("ns", "app", json!({"spec": {"audiences": ["vault"]}}), &world, NOW)
            .unwrap();
        let token = request["status"]["token"].as_str().unwrap();
        let asked = |token: &str, audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
        let review =
            |asked: Value, world: &Fixed| access.token_review(asked, world, NOW).unwrap()["status"].clone();

        let status = review(asked(token, json!(["vault", "x"])), &world);
        assert_eq!(status["authenticated"], true);
        assert_eq!(status["user"]["username"], "system:serviceaccount:ns:app");
        assert_eq!(status["audiences"], json!(["vault"]));
        assert_eq!(review(asked("admin-token", json!([])), &world)["user"]["username"], "wharf:admin");

        let error = |token: &str, world: &Fixed| review(asked(token, json!(["vault"])), world);
        assert_eq!(error("x", &world), json!({"user": {}, "error": "invalid bearer token"}));
        let gone = error(token, &Fixed::default());
        assert_eq!(
            gone,
            json!({"user": {}, "error": r#"[invalid bearer token, serviceaccounts "app" not found]"#})
        );
        let api = review(asked(token, json!([])), &world);
        assert_eq!(
            api["error"],
            format!(
                r#"[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["{ISSUER}"]]"#
            )
        );
        let empty = access.token_review(json!({"spec": {}}), &world, NOW).unwrap_err();
        assert_eq!(
            (empty.code, empty.message.as_str()),
            (400, "token is required for TokenReview in authentication")
        );
    }

    #[test]
    fn may_they() {
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
            let answer = subject_access_review(review.clone(), &Fixed::default()).unwrap();
            assert_eq!(answer["status"], status, "{review}");
            assert_eq!(answer["metadata"], json!({}));
        }
    }

    #[test]
    fn may_i_and_what_and_who() {
        let list = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "secrets"}}});
        let answer = |user: &User| {
            self_subject_access_review(list.clone(), user, &Fixed::default()).unwrap()["status"].clone()
        };
        assert_eq!(answer(&User::admin()), json!({"allowed": true}));
        assert_eq!(answer(&User::sidecar()), json!({"allowed": false}));

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
    fn reviews_that_make_no_sense() {
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
            let refusal = subject_access_review(json!({"spec": spec}), &Fixed::default()).unwrap_err();
            let expected = format!("SubjectAccessReview.authorization.k8s.io \"\" is invalid: {message}");
            assert_eq!((refusal.code, refusal.message), (422, expected));
        }
    }

    #[test]
    fn in_this_namespace_alone() {
        let review = |namespace: &str, within: &str| {
            let attributes = json!({"verb": "get", "resource": "pods", "namespace": within});
            let review = json!({
                "metadata": {"namespace": namespace},
                "spec": {"user": "jane", "groups": ["system:masters"], "resourceAttributes": attributes},
            });
            local_subject_access_review(review, "ns", &Fixed::default())
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
