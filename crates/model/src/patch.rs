//! Patches change single fields, so that objects are never written back as a whole. Each patch includes the object's
//! UID, so that it cannot change a recreated object with the same name.
//!
//! If the object has changed, the server responds with 409 (another resource version) or 422 (another UID, or changed
//! finalizers). In both cases nothing was written: read the object and decide again.

use serde_json::{Map, Value, json};

use crate::claim::Condition;
use crate::{Meta, PersistentVolumeClaim, Time};

/// A patch of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// JSON patch: operations that are applied all or none (RFC 6902).
    Json(Value),
    /// JSON merge patch: the fields to change; lists are replaced (RFC 7386).
    Merge(Value),
    /// Strategic merge patch: like a merge patch, but lists are merged by key; only for built-in kinds.
    Strategic(Value),
}

impl Patch {
    /// The content type of the request.
    pub const fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
        }
    }

    /// The body of the request.
    pub const fn body(&self) -> &Value {
        match self {
            Self::Json(body) | Self::Merge(body) | Self::Strategic(body) => body,
        }
    }
}

/// Adds a finalizer; `None` if the object has it. The patch does not contain other finalizers: a list from a stale view
/// would restore removed ones, and the server rejects new finalizers on an object in deletion.
pub fn add_finalizer(meta: &Meta, finalizer: &str) -> Option<Patch> {
    add_finalizers(meta, &[finalizer])
}

/// Adds the finalizers that the object lacks; `None` if it has all of them.
pub fn add_finalizers(meta: &Meta, finalizers: &[&str]) -> Option<Patch> {
    let missing: Vec<&str> =
        finalizers.iter().copied().filter(|finalizer| !meta.has_finalizer(finalizer)).collect();
    if missing.is_empty() {
        return None;
    }
    let mut operations = vec![test_uid(meta)];
    if meta.finalizers.is_empty() {
        // There is no list to append to. If another client has created one since, the patch fails and is retried.
        operations.push(json!({"op": "test", "path": "/metadata/finalizers", "value": null}));
        operations.push(json!({"op": "add", "path": "/metadata/finalizers", "value": missing}));
    } else {
        let add = |finalizer| json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer});
        operations.extend(missing.into_iter().map(add));
    }
    Some(Patch::Json(Value::Array(operations)))
}

/// Removes a finalizer; `None` if the object lacks it. If the list has changed since, the patch fails and is retried.
pub fn remove_finalizer(meta: &Meta, finalizer: &str) -> Option<Patch> {
    remove_finalizers(meta, &[finalizer])
}

/// Removes those of the given finalizers that the object has; `None` if it has none of them.
pub fn remove_finalizers(meta: &Meta, finalizers: &[&str]) -> Option<Patch> {
    let mut operations = vec![test_uid(meta)];
    let present = meta.finalizers.iter().enumerate();
    // From the end, so that the other indexes stay valid: two writers may have added a finalizer twice.
    for (index, finalizer) in present.rev().filter(|(_, present)| finalizers.contains(&present.as_str())) {
        let path = format!("/metadata/finalizers/{index}");
        operations.push(json!({"op": "test", "path": path, "value": finalizer}));
        operations.push(json!({"op": "remove", "path": path}));
    }
    (operations.len() > 1).then_some(Patch::Json(Value::Array(operations)))
}

fn test_uid(meta: &Meta) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})
}

/// Sets annotations; `None` removes one.
pub fn annotate(meta: &Meta, annotations: &[(&str, Option<&str>)]) -> Patch {
    let mut body = json!({"metadata": {"uid": meta.uid}});
    body["metadata"]["annotations"] = annotation_map(annotations);
    Patch::Merge(body)
}

/// A map of annotations for a patch; `null` removes one.
pub(crate) fn annotation_map(annotations: &[(&str, Option<&str>)]) -> Value {
    annotations.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect::<Map<_, _>>().into()
}

/// The precondition of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The resource version is unchanged: the patch depends on what was read.
    Version,
    /// Only the UID is unchanged: the patch is correct for any version.
    Identity,
}

/// A patch of the status and, if given, of annotations.
pub(crate) fn status(
    meta: &Meta,
    guard: Guard,
    annotations: &[(&str, Option<&str>)],
    status: Value,
) -> Patch {
    let mut metadata = json!({"uid": meta.uid});
    if guard == Guard::Version {
        metadata["resourceVersion"] = json!(meta.resource_version);
    }
    if !annotations.is_empty() {
        metadata["annotations"] = annotation_map(annotations);
    }
    Patch::Strategic(json!({"metadata": metadata, "status": status}))
}

/// Conditions in a strategic merge patch: some are set, some removed, others are unchanged.
pub(crate) fn conditions(set: &[Condition], remove: &[&str]) -> Value {
    // A merge keeps fields that are not mentioned: an old reason or message must be removed explicitly.
    let text = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
    let mut list: Vec<Value> = set
        .iter()
        .map(|condition| {
            json!({
                "type": condition.kind,
                "status": condition.status,
                "reason": text(&condition.reason),
                "message": text(&condition.message),
                "lastTransitionTime": condition.last_transition_time.map(|time| time.to_string()),
            })
        })
        .collect();
    list.extend(remove.iter().map(|kind| json!({"$patch": "delete", "type": kind})));
    Value::Array(list)
}

/// The given conditions that the claim has. A patch does not have to remove absent ones.
pub(crate) fn present_conditions(claim: &PersistentVolumeClaim, kinds: &[&'static str]) -> Vec<&'static str> {
    kinds.iter().copied().filter(|kind| claim.status.condition(kind).is_some()).collect()
}

/// A condition with status True.
pub(crate) fn condition_true(kind: &str, reason: &str, message: &str, since: Time) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Some(since),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(finalizers: &[&str]) -> Meta {
        Meta {
            uid: "u".into(),
            resource_version: "7".into(),
            finalizers: finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect(),
            ..Meta::default()
        }
    }

    /// sidecars.md 1.2 "Attach order": a finalizer is appended by JSON patch.
    #[test]
    fn adding_a_finalizer_does_not_touch_others() {
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "u"});
        assert_eq!(add_finalizer(&meta(&["a", "f"]), "f"), None);
        assert_eq!(
            add_finalizers(&meta(&["a"]), &["a", "f"]),
            Some(Patch::Json(json!([uid, {"op": "add", "path": "/metadata/finalizers/-", "value": "f"}])))
        );
        assert_eq!(
            add_finalizer(&meta(&[]), "f"),
            Some(Patch::Json(json!([
                uid,
                {"op": "test", "path": "/metadata/finalizers", "value": null},
                {"op": "add", "path": "/metadata/finalizers", "value": ["f"]},
            ])))
        );
    }

    /// sidecars.md 1.2 "PV finalizer removal".
    #[test]
    fn finalizer_is_removed_at_its_known_index() {
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "u"});
        assert_eq!(remove_finalizer(&meta(&["a"]), "f"), None);
        assert_eq!(
            remove_finalizer(&meta(&["f", "a", "f"]), "f"),
            Some(Patch::Json(json!([
                uid,
                {"op": "test", "path": "/metadata/finalizers/2", "value": "f"},
                {"op": "remove", "path": "/metadata/finalizers/2"},
                {"op": "test", "path": "/metadata/finalizers/0", "value": "f"},
                {"op": "remove", "path": "/metadata/finalizers/0"},
            ])))
        );
    }

    #[test]
    fn annotations_are_set_or_removed() {
        assert_eq!(
            annotate(&meta(&[]), &[("a", Some("1")), ("b", None)]),
            Patch::Merge(json!({"metadata": {"uid": "u", "annotations": {"a": "1", "b": null}}}))
        );
    }

    #[test]
    fn status_patch_has_its_precondition() {
        let of = |guard| status(&meta(&[]), guard, &[], json!({"x": 1}));
        let expected = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"x": 1}});
        assert_eq!(of(Guard::Version), Patch::Strategic(expected));
        let expected = json!({"metadata": {"uid": "u"}, "status": {"x": 1}});
        assert_eq!(of(Guard::Identity), Patch::Strategic(expected));
    }

    #[test]
    fn conditions_are_merged_by_type() {
        assert_eq!(
            conditions(&[condition_true("A", "", "m", Time(1000))], &["B"]),
            json!([
                {
                    "type": "A", "status": "True", "reason": null, "message": "m",
                    "lastTransitionTime": "1970-01-01T00:00:01Z",
                },
                {"$patch": "delete", "type": "B"},
            ])
        );
    }

    #[test]
    fn patch_types_have_their_content_type() {
        let types = [Patch::Json(json!([])), Patch::Merge(json!({})), Patch::Strategic(json!({}))]
            .map(|patch| patch.content_type());
        assert_eq!(
            types,
            [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json"
            ]
        );
    }
}
