//! Patches for VolumeAttachments. Each contains only the changed fields and the object's UID.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use wharf_model::names::annotation::NODE_ID;
use wharf_model::patch::{Patch, add_finalizer};
use wharf_model::{Meta, VolumeAttachment};

use super::view::{AttachOperation, Failure};

/// The JSON pointer to the annotation `NODE_ID`.
const NODE_ID_POINTER: &str = "/metadata/annotations/csi.alpha.kubernetes.io~1node-id";

/// Adds the finalizer and the node ID in one write, before the driver is called. `None`: both are present.
pub(super) fn prepare(meta: &Meta, finalizer: &str, node_id: &str) -> Option<Patch> {
    let known = meta.annotation(NODE_ID) == Some(node_id);
    let mut operations = match add_finalizer(meta, finalizer) {
        Some(Patch::Json(Value::Array(operations))) => operations,
        _ if known => return None,
        _ => vec![json!({"op": "test", "path": "/metadata/uid", "value": meta.uid})],
    };
    if !known && meta.annotations.is_empty() {
        // There is no map to add to. If one was added concurrently, the test fails and the patch is retried.
        operations.push(json!({"op": "test", "path": "/metadata/annotations", "value": null}));
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {NODE_ID: node_id}}));
    } else if !known {
        operations.push(json!({"op": "add", "path": NODE_ID_POINTER, "value": node_id}));
    }
    Some(Patch::Json(Value::Array(operations)))
}

fn status(attachment: &VolumeAttachment, status: Value) -> Patch {
    Patch::Merge(json!({"metadata": {"uid": attachment.metadata.uid}, "status": status}))
}

/// Marks the attachment as attached, with this publish context.
pub(super) fn attached(attachment: &VolumeAttachment, context: &BTreeMap<String, String>) -> Patch {
    let metadata = if context.is_empty() {
        Value::Null
    } else {
        // A merge patch preserves keys that it does not mention: old ones have to be removed by name.
        let old = attachment.status.attachment_metadata.keys().map(|key| (key.to_owned(), Value::Null));
        let new = context.iter().map(|(key, value)| (key.clone(), json!(value)));
        Value::Object(old.chain(new).collect::<Map<_, _>>())
    };
    status(attachment, json!({"attached": true, "attachmentMetadata": metadata, "attachError": null}))
}

/// Marks the attachment as attached, for a driver that does not publish volumes.
pub(super) fn trivially_attached(attachment: &VolumeAttachment) -> Patch {
    attached(attachment, &BTreeMap::new())
}

/// Marks the attachment as detached.
pub(super) fn detached(attachment: &VolumeAttachment) -> Patch {
    status(attachment, json!({"attached": false, "attachmentMetadata": null, "detachError": null}))
}

/// Reports an attach or detach error.
pub(super) fn error(attachment: &VolumeAttachment, failure: &Failure) -> Patch {
    let Failure { message, time, code, .. } = failure;
    let time = time.to_string();
    match failure.operation {
        AttachOperation::Attach => {
            status(attachment, json!({"attachError": {"message": message, "time": time, "errorCode": code}}))
        }
        AttachOperation::Detach => {
            status(attachment, json!({"detachError": {"message": message, "time": time}}))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wharf_model::{Monotonic, Time};

    use super::*;

    fn attachment(annotations: &[(&str, &str)], finalizers: &[&str]) -> VolumeAttachment {
        serde_json::from_value(json!({
            "metadata": {
                "name": "a", "uid": "u", "finalizers": finalizers,
                "annotations": annotations.iter().copied().collect::<BTreeMap<_, _>>(),
            },
            "status": {"attached": true, "attachmentMetadata": {"old": "1", "kept": "2"}},
        }))
        .unwrap()
    }

    /// sidecars.md 1.2 "Attach order": finalizer and annotation in one patch.
    #[test]
    fn one_patch_adds_finalizer_and_node_id() {
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "u"});
        let finalizer = json!({"op": "add", "path": "/metadata/finalizers/-", "value": "f"});
        let node = json!({"op": "add", "path": NODE_ID_POINTER, "value": "n1"});
        for (annotations, finalizers, operations) in [
            (&[(NODE_ID, "n1")][..], &["f"][..], None),
            (&[(NODE_ID, "n1")], &["x"], Some(json!([uid, finalizer]))),
            (&[(NODE_ID, "n0")], &["f"], Some(json!([uid, node]))),
            (&[("x", "y")], &["x"], Some(json!([uid, finalizer, node]))),
            (
                &[],
                &[],
                Some(json!([
                    uid,
                    {"op": "test", "path": "/metadata/finalizers", "value": null},
                    {"op": "add", "path": "/metadata/finalizers", "value": ["f"]},
                    {"op": "test", "path": "/metadata/annotations", "value": null},
                    {"op": "add", "path": "/metadata/annotations", "value": {NODE_ID: "n1"}},
                ])),
            ),
        ] {
            let meta = attachment(annotations, finalizers).metadata;
            assert_eq!(
                prepare(&meta, "f", "n1"),
                operations.map(Patch::Json),
                "{annotations:?} {finalizers:?}"
            );
        }
    }

    /// sidecars.md 1.2 "Attach order", "Detach", "Errors".
    #[test]
    fn status_patches_match_upstream() {
        let attachment = attachment(&[], &[]);
        let of = |patch| match patch {
            Patch::Merge(body) => {
                assert_eq!(body["metadata"], json!({"uid": "u"}));
                body["status"].clone()
            }
            other => panic!("{other:?}"),
        };
        let context =
            BTreeMap::from([("kept".to_owned(), "3".to_owned()), ("new".to_owned(), "4".to_owned())]);
        assert_eq!(
            of(attached(&attachment, &context)),
            json!({
                "attached": true, "attachError": null,
                "attachmentMetadata": {"old": null, "kept": "3", "new": "4"},
            })
        );
        assert_eq!(
            of(trivially_attached(&attachment)),
            json!({"attached": true, "attachError": null, "attachmentMetadata": null})
        );
        assert_eq!(
            of(detached(&attachment)),
            json!({"attached": false, "detachError": null, "attachmentMetadata": null})
        );
        let failure = |operation, code| Failure {
            operation,
            message: "no".into(),
            code,
            time: Time(1_500),
            at: Monotonic(0),
            pause: Duration::ZERO,
            count: 1,
            reported: false,
        };
        let time = "1970-01-01T00:00:01Z";
        assert_eq!(
            of(error(&attachment, &failure(AttachOperation::Attach, Some(8)))),
            json!({"attachError": {"message": "no", "time": time, "errorCode": 8}})
        );
        assert_eq!(
            of(error(&attachment, &failure(AttachOperation::Attach, None))),
            json!({"attachError": {"message": "no", "time": time, "errorCode": null}})
        );
        assert_eq!(
            of(error(&attachment, &failure(AttachOperation::Detach, Some(8)))),
            json!({"detachError": {"message": "no", "time": time}})
        );
    }
}
