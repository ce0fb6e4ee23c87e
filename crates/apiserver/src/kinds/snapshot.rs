//! VolumeSnapshot, its content and its class.

use super::custom::{self, Check, Rules};
use super::{Column, Kind, NAME, Subresource};

/// VolumeSnapshotClass: the parameters of snapshots.
pub(super) static CLASS: Kind = Kind {
    group: GROUP,
    kind: "VolumeSnapshotClass",
    plural: "volumesnapshotclasses",
    singular: "volumesnapshotclass",
    short_names: &["vsclass", "vsclasses"],
    validate: |class| CLASS_RULES.validate(class, false),
    validate_update: |class, old| CLASS_RULES.validate_update(class, old),
    columns: &[
        NAME,
        Column::text("Driver", "The CSI driver that the class is for."),
        Column::text("DeletionPolicy", "What happens to the content when its snapshot is deleted."),
        AGE,
    ],
    row: |class, now| {
        custom::row(class, CLASS.columns, &["/driver", "/deletionPolicy", CREATION_TIMESTAMP], now)
    },
    ..custom::WITHOUT_STATUS
};

/// VolumeSnapshotContent: a snapshot in the storage system.
pub(super) static CONTENT: Kind = Kind {
    group: GROUP,
    kind: "VolumeSnapshotContent",
    plural: "volumesnapshotcontents",
    singular: "volumesnapshotcontent",
    short_names: &["vsc", "vscs"],
    subresources: &[Subresource::status(GROUP, "VolumeSnapshotContent")],
    validate: |content| CONTENT_RULES.validate(content, false),
    validate_update: |content, old| CONTENT_RULES.validate_update(content, old),
    validate_status: |content, old| CONTENT_RULES.validate_update(content, old),
    columns: &[
        NAME,
        Column::new("ReadyToUse", "boolean", "Whether volumes can be restored from the snapshot."),
        Column::new(
            "RestoreSize",
            "integer",
            "The minimum size of a volume restored from the snapshot, in bytes.",
        ),
        Column::text("DeletionPolicy", "What happens to the content when its snapshot is deleted."),
        Column::text("Driver", "The CSI driver of the snapshot."),
        Column::text("VolumeSnapshotClass", "The class of the snapshot."),
        Column::text("VolumeSnapshot", "The snapshot that the content is bound to."),
        Column::text(
            "VolumeSnapshotNamespace",
            "The namespace of the snapshot that the content is bound to.",
        ),
        AGE,
    ],
    row: |content, now| {
        let pointers = [
            "/status/readyToUse",
            "/status/restoreSize",
            "/spec/deletionPolicy",
            "/spec/driver",
            "/spec/volumeSnapshotClassName",
            "/spec/volumeSnapshotRef/name",
            "/spec/volumeSnapshotRef/namespace",
            CREATION_TIMESTAMP,
        ];
        custom::row(content, CONTENT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

/// VolumeSnapshot: a user's request for a snapshot.
pub(super) static SNAPSHOT: Kind = Kind {
    group: GROUP,
    kind: "VolumeSnapshot",
    plural: "volumesnapshots",
    singular: "volumesnapshot",
    short_names: &["vs"],
    namespaced: true,
    subresources: &[Subresource::status(GROUP, "VolumeSnapshot")],
    validate: |snapshot| SNAPSHOT_RULES.validate(snapshot, true),
    validate_update: |snapshot, old| SNAPSHOT_RULES.validate_update(snapshot, old),
    validate_status: |snapshot, old| SNAPSHOT_RULES.validate_update(snapshot, old),
    columns: &[
        NAME,
        Column::new("ReadyToUse", "boolean", "Whether volumes can be restored from the snapshot."),
        Column::text("SourcePVC", "The claim that the snapshot is taken of."),
        Column::text("SourceSnapshotContent", "The pre-existing content that the snapshot is created from."),
        Column::text("RestoreSize", "The minimum size of a volume restored from the snapshot."),
        Column::text("SnapshotClass", "The class of the snapshot."),
        Column::text("SnapshotContent", "The content that the snapshot is bound to."),
        Column::new("CreationTime", "date", "The time when the driver took the snapshot."),
        AGE,
    ],
    row: |snapshot, now| {
        let pointers = [
            "/status/readyToUse",
            "/spec/source/persistentVolumeClaimName",
            "/spec/source/volumeSnapshotContentName",
            "/status/restoreSize",
            "/spec/volumeSnapshotClassName",
            "/status/boundVolumeSnapshotContentName",
            "/status/creationTime",
            CREATION_TIMESTAMP,
        ];
        custom::row(snapshot, SNAPSHOT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

const GROUP: &str = "snapshot.storage.k8s.io";
pub(super) const CREATION_TIMESTAMP: &str = "/metadata/creationTimestamp";

/// The age column, with the description that upstream generates for a column without one.
pub(super) const AGE: Column = Column::new(
    "Age",
    "date",
    "Custom resource definition column (in JSONPath format): .metadata.creationTimestamp",
);

pub(super) static CLASS_RULES: Rules = Rules {
    required: &[("", &["deletionPolicy", "driver"])],
    enums: &[("/deletionPolicy", &["Delete", "Retain"])],
    rules: &[],
};

pub(super) static CONTENT_RULES: Rules = Rules {
    required: &[("", &["spec"]), ("/spec", &["deletionPolicy", "driver", "source", "volumeSnapshotRef"])],
    enums: &[("/spec/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/spec", "object", Check::RemainsSet("sourceVolumeMode"), "sourceVolumeMode is required once set"),
        (
            "/spec/source",
            "object",
            Check::ExactlyOneOf("volumeHandle", "snapshotHandle"),
            "exactly one of volumeHandle and snapshotHandle must be set",
        ),
        ("/spec/source", "object", Check::RemainsSet("volumeHandle"), "volumeHandle is required once set"),
        (
            "/spec/source",
            "object",
            Check::RemainsSet("snapshotHandle"),
            "snapshotHandle is required once set",
        ),
        ("/spec/source/snapshotHandle", "string", Check::Unchanged, "snapshotHandle is immutable"),
        ("/spec/source/volumeHandle", "string", Check::Unchanged, "volumeHandle is immutable"),
        ("/spec/sourceVolumeMode", "string", Check::Unchanged, "sourceVolumeMode is immutable"),
        (
            "/spec/volumeSnapshotRef",
            "object",
            Check::AllSet(&["name", "namespace"]),
            "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
        ),
    ],
};

pub(super) static SNAPSHOT_RULES: Rules = Rules {
    required: &[("", &["spec"]), ("/spec", &["source"])],
    enums: &[],
    rules: &[
        (
            "/spec/source",
            "object",
            Check::ExactlyOneOf("persistentVolumeClaimName", "volumeSnapshotContentName"),
            "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set",
        ),
        (
            "/spec/source",
            "object",
            Check::RemainsSet("persistentVolumeClaimName"),
            "persistentVolumeClaimName is required once set",
        ),
        (
            "/spec/source",
            "object",
            Check::RemainsSet("volumeSnapshotContentName"),
            "volumeSnapshotContentName is required once set",
        ),
        (
            "/spec/source/persistentVolumeClaimName",
            "string",
            Check::Unchanged,
            "persistentVolumeClaimName is immutable",
        ),
        (
            "/spec/source/volumeSnapshotContentName",
            "string",
            Check::Unchanged,
            "volumeSnapshotContentName is immutable",
        ),
        (
            "/spec/volumeSnapshotClassName",
            "string",
            Check::NotEmpty,
            "volumeSnapshotClassName must not be the empty string when set",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, with};

    fn snapshot() -> Value {
        json!({
            "metadata": {"name": "s", "namespace": "ns"}, "spec": {"source": {"persistentVolumeClaimName": "c"}},
        })
    }

    fn content() -> Value {
        json!({"metadata": {"name": "snapcontent-1"}, "spec": {
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "h"}, "sourceVolumeMode": "Block",
            "volumeSnapshotRef": {"name": "s", "namespace": "ns"},
        }})
    }

    #[test]
    fn snapshot_create_is_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (json!({"metadata": {"finalizers": ["mine"]}}), vec![]),
            (
                json!({"spec": null}),
                vec![
                    "spec: Required value",
                    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
                 correct the existing errors to complete validation",
                ],
            ),
            (
                json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}}),
                vec![
                    "spec.source: Invalid value: \"object\": exactly one of volumeSnapshotContentName and \
                 persistentVolumeClaimName must be set",
                ],
            ),
            (
                json!({"spec": {"volumeSnapshotClassName": ""}}),
                vec![
                    "spec.volumeSnapshotClassName: Invalid value: \"string\": volumeSnapshotClassName must not be the empty \
                 string when set",
                ],
            ),
        ] {
            assert_eq!(invalid(&SNAPSHOT, &snapshot(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn snapshot_update_is_validated() {
        let to_content = json!({"spec": {"source": {
            "persistentVolumeClaimName": null, "volumeSnapshotContentName": "x",
        }}});
        for (patch, expected) in [
            (json!({"spec": {"volumeSnapshotClassName": "gold"}}), vec![]),
            (
                json!({"spec": {"source": {"persistentVolumeClaimName": "d"}}}),
                vec![
                    "spec.source.persistentVolumeClaimName: Invalid value: \"string\": persistentVolumeClaimName is \
                 immutable",
                ],
            ),
            (
                to_content,
                vec![
                    "spec.source: Invalid value: \"object\": persistentVolumeClaimName is required once set",
                ],
            ),
        ] {
            assert_eq!(invalid_update(&SNAPSHOT, &snapshot(), &patch), expected, "{patch}");
        }
        let stored = with(&snapshot(), &json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}}));
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        assert!(
            invalid_update(&SNAPSHOT, &stored, &labels).is_empty(),
            "unchanged invalid values are accepted"
        );
    }

    #[test]
    fn content_create_and_update_are_validated() {
        for (patch, expected) in [
            (json!({}), vec![]),
            (
                json!({"spec": {"deletionPolicy": "Burn"}}),
                vec![
                    "spec.deletionPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \"Retain\"",
                    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
                 correct the existing errors to complete validation",
                ],
            ),
            (
                json!({"spec": {"volumeSnapshotRef": {"name": null}}}),
                vec![
                    "spec.volumeSnapshotRef: Invalid value: \"object\": both spec.volumeSnapshotRef.name and \
                 spec.volumeSnapshotRef.namespace must be set",
                ],
            ),
        ] {
            assert_eq!(invalid(&CONTENT, &content(), &patch), expected, "{patch}");
        }
        assert_eq!(
            invalid_update(&CONTENT, &content(), &json!({"spec": {"sourceVolumeMode": null}})),
            ["spec: Invalid value: \"object\": sourceVolumeMode is required once set"]
        );
    }

    #[test]
    fn table_rows_match_upstream() {
        let ready = with(
            &snapshot(),
            &json!({
                "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
                "status": {"readyToUse": true, "restoreSize": "1Gi", "creationTime": "1970-01-01T00:00:03Z"},
            }),
        );
        assert_eq!(
            Value::from((SNAPSHOT.row)(&ready, Time(10_000))),
            json!(["s", true, "c", null, "1Gi", null, null, "7s", "10s"])
        );
        let content = with(&content(), &json!({"status": {"restoreSize": 5}}));
        assert_eq!(
            Value::from((CONTENT.row)(&content, Time(0))),
            json!(["snapcontent-1", null, 5, "Delete", "d", null, "s", "ns", null])
        );
    }
}
