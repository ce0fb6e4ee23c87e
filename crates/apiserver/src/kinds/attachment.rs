//! VolumeAttachment: the request to attach a volume to a node, and its state.

use serde_json::{Value, json};

use super::{AGE, BASE, Column, Kind, NAME, Subresource, age, csi_node, go, json, meta, names, volume};
use crate::status::Cause;

pub(super) static ATTACHMENT: Kind = Kind {
    group: "storage.k8s.io",
    kind: "VolumeAttachment",
    plural: "volumeattachments",
    singular: "volumeattachment",
    subresources: &[Subresource::status("storage.k8s.io", "VolumeAttachment")],
    unconditional_update: false,
    default: |attachment| {
        json::set_default(json::object_mut(attachment, "spec"), "source", json!({}));
        let status = json::object_mut(attachment, "status");
        json::set_default(status, "attached", false);
        for error in ["attachError", "detachError"] {
            if let Some(Value::Object(error)) = status.get_mut(error) {
                error.entry("time").or_insert(Value::Null);
            }
        }
    },
    on_create: |attachment, _| attachment["status"] = json!({"attached": false}),
    on_update: |attachment, old, _| json::restore(attachment, old, "status"),
    on_status: |attachment, old, _| {
        json::restore(attachment, old, "spec");
        if let (Some(metadata), Some(old)) = (attachment.get_mut("metadata"), old.get("metadata")) {
            for field in ["deletionTimestamp", "labels", "annotations", "finalizers", "ownerReferences"] {
                json::restore(metadata, old, field);
            }
        }
        // Upstream's feature gate MutableCSINodeAllocatableCount is disabled by default.
        for error in ["attachError", "detachError"] {
            if !json::has(old, &format!("/status/{error}/errorCode"))
                && let Some(error) = attachment.pointer_mut(&format!("/status/{error}"))
            {
                json::remove(error, "errorCode");
            }
        }
    },
    validate: |attachment| {
        let mut causes = validate(attachment);
        causes.extend(csi_node::driver_name(json::text(attachment, "/spec/attacher"), "spec.attacher"));
        if json::has(attachment, VOLUME_NAME) {
            let name = json::text(attachment, VOLUME_NAME);
            causes.extend(meta::invalid_causes(
                "spec.source.persistentVolumeName",
                name,
                names::subdomain(name, false),
            ));
        }
        causes
    },
    validate_update,
    validate_status: validate_update,
    columns: &[
        NAME,
        Column { format: "name", ..Column::text("Attacher", "The CSI driver that attaches the volume.") },
        Column::text("PV", "The PersistentVolume to attach."),
        Column::text("Node", "The node to attach the volume to."),
        Column::new("Attached", "boolean", "Whether the volume is attached."),
        AGE,
    ],
    row: |attachment, now| {
        vec![
            json::text(attachment, "/metadata/name").into(),
            json::text(attachment, "/spec/attacher").into(),
            json::text(attachment, VOLUME_NAME).into(),
            json::text(attachment, "/spec/nodeName").into(),
            json::flag(attachment, "/status/attached").into(),
            age(attachment, now).into(),
        ]
    },
    ..BASE
};

const VOLUME_NAME: &str = "/spec/source/persistentVolumeName";
const MAX_METADATA_BYTES: usize = 256 << 10;
const MAX_MESSAGE_BYTES: usize = 1024;

fn validate(attachment: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(attachment, false, names::subdomain);
    if json::text(attachment, "/spec/attacher").is_empty() {
        causes.push(Cause::required("spec.attacher", ""));
    }
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let inline = attachment.pointer("/spec/source/inlineVolumeSpec");
    match (inline, json::has(attachment, VOLUME_NAME)) {
        (None, false) => causes.push(Cause::required("spec.source", one)),
        (Some(_), true) => causes.push(Cause::forbidden("spec.source", one)),
        (None, true) if json::text(attachment, VOLUME_NAME).is_empty() => {
            let detail = "must specify non empty persistentVolumeName";
            causes.push(Cause::required("spec.source.persistentVolumeName", detail));
        }
        (None, true) => (),
        (Some(spec), false) => {
            causes.extend(volume::spec::validate(spec, "spec.source.inlineVolumeSpec", true, false));
        }
    }
    let node = json::text(attachment, "/spec/nodeName");
    causes.extend(meta::invalid_causes("spec.nodeName", node, names::subdomain(node, false)));
    let metadata = json::entries(attachment, "/status/attachmentMetadata");
    let bytes: usize =
        metadata.map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len()).sum();
    if bytes > MAX_METADATA_BYTES {
        causes.push(Cause::too_long("status.attachmentMetadata", MAX_METADATA_BYTES));
    }
    for error in ["attachError", "detachError"] {
        if json::text(attachment, &format!("/status/{error}/message")).len() > MAX_MESSAGE_BYTES {
            // Upstream reports the other limit.
            causes.push(Cause::too_long(&format!("status.{error}.message"), MAX_METADATA_BYTES));
        }
        if let Some(code @ ..0) = json::number(attachment, &format!("/status/{error}/errorCode")) {
            let detail = "must be between 0 and 2147483647, inclusive";
            causes.push(Cause::invalid(&format!("status.{error}.errorCode"), &code.into(), detail));
        }
    }
    causes
}

fn validate_update(attachment: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = validate(attachment);
    causes.extend(validate(attachment));
    if attachment.get("spec") != old.get("spec") {
        let spec = go::compact(&json::at(attachment, "/spec"), "VolumeAttachmentSpec");
        causes.push(meta::invalid_raw("spec", &spec, "field is immutable"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, lines, with};

    fn valid() -> Value {
        json!({
            "metadata": {"name": "csi-1"},
            "spec": {"attacher": "d.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        })
    }

    #[test]
    fn create_is_validated() {
        let inline = json!({
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}, "volumeMode": "Filesystem",
        });
        let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"spec": {"source": {"persistentVolumeName": null}}}), vec![
                format!("spec.source: Required value: {one}"),
            ]),
            (json!({"spec": {"source": {"inlineVolumeSpec": inline}}}), vec![
                format!("spec.source: Forbidden: {one}"),
            ]),
            (json!({"spec": {"source": {"persistentVolumeName": null, "inlineVolumeSpec": inline}}}), vec![]),
            (json!({"spec": {"source": {"persistentVolumeName": null, "inlineVolumeSpec": with(&inline, &json!({
                "capacity": {"storage": "1Gi"},
            }))}}}), vec![
                "spec.source.inlineVolumeSpec.capacity: Forbidden: may not be specified in the context of inline volumes"
                    .into(),
            ]),
            (json!({"status": {"attachError": {"message": "x".repeat(1025)}}}), vec![
                "status.attachError.message: Too long: may not be more than 262144 bytes".into(),
            ]),
        ] {
            assert_eq!(invalid(&ATTACHMENT, &valid(), &patch), expected, "{patch}");
        }
        let bare = invalid(&ATTACHMENT, &valid(), &json!({"spec": {"attacher": null}}));
        assert_eq!(bare[..2], ["spec.attacher: Required value", "spec.attacher: Required value"]);
    }

    #[test]
    fn spec_is_immutable() {
        assert!(
            invalid_update(&ATTACHMENT, &valid(), &json!({"metadata": {"finalizers": ["a/b"]}})).is_empty()
        );
        assert_eq!(
            invalid_update(&ATTACHMENT, &valid(), &json!({"spec": {"nodeName": "n2"}})),
            [
                "spec: Invalid value: {\"Attacher\":\"d.example.com\",\"Source\":{\"PersistentVolumeName\":\"pv1\",\
              \"InlineVolumeSpec\":null},\"NodeName\":\"n2\"}: field is immutable"
            ]
        );
    }

    #[test]
    fn status_update_changes_only_status() {
        let mut old = with(
            &valid(),
            &json!({"metadata": {"resourceVersion": "1", "uid": "u"}, "status": {"attached": true}}),
        );
        (ATTACHMENT.default)(&mut old);
        let mut fresh = old.clone();
        ATTACHMENT.prepare_create(&mut fresh, Time(0));
        assert_eq!(fresh["status"], json!({"attached": false}));
        let mut new = with(
            &old,
            &json!({
                "metadata": {"labels": {"a": "b"}, "finalizers": ["x/y"]}, "spec": {"nodeName": "n2"},
                "status": {"attached": false, "attachError": {"message": "m", "errorCode": 8}},
            }),
        );
        ATTACHMENT.prepare_status(&mut new, &old, Time(0));
        assert_eq!(new["metadata"], old["metadata"]);
        assert_eq!(new["spec"], old["spec"]);
        assert_eq!(new["status"], json!({"attached": false, "attachError": {"message": "m"}}));
        assert!(lines(ATTACHMENT.invalid_on_status(&new, &old)).is_empty());
    }

    #[test]
    fn table_rows_match_upstream() {
        let row = Value::from((ATTACHMENT.row)(&valid(), Time(0)));
        assert_eq!(row, json!(["csi-1", "d.example.com", "pv1", "n1", false, "<unknown>"]));
        assert_eq!(ATTACHMENT.columns[1].format, "name");
    }
}
