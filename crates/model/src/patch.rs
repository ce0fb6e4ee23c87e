//! Patches: how objects are changed without ever being written back. Each names the object's identity, so that
//! another one of the same name is never changed in its stead.
//!
//! What the server answers when the object is not as it was seen: 409 to another version, 422 to another identity
//! and to a list of finalizers that has changed. Either way nothing was written: look again and decide anew.

use serde_json::{Map, Value, json};

use crate::claim::Condition;
use crate::{Meta, PersistentVolumeClaim, Time};

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// Operations, all or none (RFC 6902).
    Json(Value),
    /// The fields to change; lists are replaced (RFC 7386).
    Merge(Value),
    /// The same, but lists of named things are merged; only for Kubernetes' own kinds.
    Strategic(Value),
}

impl Patch {
    /// The content type to send it with.
    pub const fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
        }
    }

    /// What to send.
    pub const fn body(&self) -> &Value {
        match self {
            Self::Json(body) | Self::Merge(body) | Self::Strategic(body) => body,
        }
    }
}

/// Adds a finalizer; `None` if it is there. Others' finalizers are not mentioned: a list from a stale view would
/// bring back what they have removed, and an object that is being deleted takes no new ones.
pub fn add_finalizer(meta: &Meta, finalizer: &str) -> Option<Patch> {
    add_finalizers(meta, &[finalizer])
}

/// Adds those of the finalizers that are not there; `None` if all are.
pub fn add_finalizers(meta: &Meta, finalizers: &[&str]) -> Option<Patch> {
    let missing: Vec<&str> =
        finalizers.iter().copied().filter(|finalizer| !meta.has_finalizer(finalizer)).collect();
    if missing.is_empty() {
        return None;
    }
    let mut operations = vec![same_object(meta)];
    if meta.finalizers.is_empty() {
        // There is no list to append to. Somebody may have begun one since: then this fails and is tried again.
        operations.push(json!({"op": "test", "path": "/metadata/finalizers", "value": null}));
        operations.push(json!({"op": "add", "path": "/metadata/finalizers", "value": missing}));
    } else {
        let add = |finalizer| json!({"op": "add", "path": "/metadata/finalizers/-", "value": finalizer});
        operations.extend(missing.into_iter().map(add));
    }
    Some(Patch::Json(Value::Array(operations)))
}

/// Removes a finalizer; `None` if it is not there. If the list has changed since, this fails and is tried again.
pub fn remove_finalizer(meta: &Meta, finalizer: &str) -> Option<Patch> {
    remove_finalizers(meta, &[finalizer])
}

/// Removes those of the finalizers that are there; `None` if none is.
pub fn remove_finalizers(meta: &Meta, finalizers: &[&str]) -> Option<Patch> {
    let mut operations = vec![same_object(meta)];
    let present = meta.finalizers.iter().enumerate();
    // From the back, so that the places of the others hold: two writers may have added it twice.
    for (index, finalizer) in present.rev().filter(|(_, present)| finalizers.contains(&present.as_str())) {
        let path = format!("/metadata/finalizers/{index}");
        operations.push(json!({"op": "test", "path": path, "value": finalizer}));
        operations.push(json!({"op": "remove", "path": path}));
    }
    (operations.len() > 1).then_some(Patch::Json(Value::Array(operations)))
}

fn same_object(meta: &Meta) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})
}

/// Sets annotations, or with `None` removes them.
pub fn annotate(meta: &Meta, annotations: &[(&str, Option<&str>)]) -> Patch {
    let mut body = json!({"metadata": {"uid": meta.uid}});
    body["metadata"]["annotations"] = annotation_map(annotations);
    Patch::Merge(body)
}

/// A map of annotations; `null` removes.
pub(crate) fn annotation_map(annotations: &[(&str, Option<&str>)]) -> Value {
    annotations.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect::<Map<_, _>>().into()
}

/// Whether a change holds only for the version that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Only for that version: a decision was taken on what it says.
    Version,
    /// For any version: what is written is true in any case.
    Identity,
}

/// A change of status, and of metadata with it.
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

/// Conditions in a strategic patch: some are set, some removed, those not named are left alone.
pub(crate) fn conditions(set: &[Condition], remove: &[&str]) -> Value {
    // Merging keeps fields that are not mentioned: an old reason or message has to be removed by name.
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

/// Those of the conditions that the claim has: a patch that removes absent ones would be noise.
pub(crate) fn present(claim: &PersistentVolumeClaim, kinds: &[&'static str]) -> Vec<&'static str> {
    kinds.iter().copied().filter(|kind| claim.status.condition(kind).is_some()).collect()
}

/// A condition that holds from then on.
pub(crate) fn holds(kind: &str, reason: &str, message: &str, since: Time) -> Condition {
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
    fn a_finalizer_is_added_without_naming_others() {
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
    fn a_finalizer_is_removed_from_where_it_was_seen() {
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
    fn annotations_are_set_and_removed() {
        assert_eq!(
            annotate(&meta(&[]), &[("a", Some("1")), ("b", None)]),
            Patch::Merge(json!({"metadata": {"uid": "u", "annotations": {"a": "1", "b": null}}}))
        );
    }

    #[test]
    fn a_status_holds_for_its_version_or_for_any() {
        let of = |guard| status(&meta(&[]), guard, &[], json!({"x": 1}));
        let expected = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"x": 1}});
        assert_eq!(of(Guard::Version), Patch::Strategic(expected));
        let expected = json!({"metadata": {"uid": "u"}, "status": {"x": 1}});
        assert_eq!(of(Guard::Identity), Patch::Strategic(expected));
    }

    #[test]
    fn conditions_are_merged_by_name() {
        assert_eq!(
            conditions(&[holds("A", "", "m", Time(1000))], &["B"]),
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
    fn content_types() {
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
