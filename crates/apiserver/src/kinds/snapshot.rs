//! VolumeSnapshot, its content and its class.

use super::custom::{self, Check, Rules};
use super::{Column, Kind, NAME, Subresource};

/// How snapshots are taken.
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
        Column::text("Driver", "The driver whose volumes it is for."),
        Column::text("DeletionPolicy", "What becomes of a content when its snapshot goes."),
        AGE,
    ],
    row: |class, now| custom::row(class, CLASS.columns, &["/driver", "/deletionPolicy", MADE], now),
    ..custom::PLAIN
};

/// A snapshot, as its driver has it.
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
        Column::new("ReadyToUse", "boolean", "Whether one can restore from it."),
        Column::new("RestoreSize", "integer", "The smallest volume that can be restored from it, in bytes."),
        Column::text("DeletionPolicy", "What becomes of it when its snapshot goes."),
        Column::text("Driver", "The driver that has it."),
        Column::text("VolumeSnapshotClass", "The class it was taken by."),
        Column::text("VolumeSnapshot", "The snapshot it is for."),
        Column::text("VolumeSnapshotNamespace", "That snapshot's namespace."),
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
            MADE,
        ];
        custom::row(content, CONTENT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

/// A snapshot, as its user asks for it.
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
        Column::new("ReadyToUse", "boolean", "Whether one can restore from it."),
        Column::text("SourcePVC", "The claim it is taken of."),
        Column::text("SourceSnapshotContent", "The content that was there before it."),
        Column::text("RestoreSize", "The smallest volume that can be restored from it."),
        Column::text("SnapshotClass", "The class it is taken by."),
        Column::text("SnapshotContent", "The content it is bound to."),
        Column::new("CreationTime", "date", "When the driver cut it."),
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
            MADE,
        ];
        custom::row(snapshot, SNAPSHOT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

const GROUP: &str = "snapshot.storage.k8s.io";
pub(super) const MADE: &str = "/metadata/creationTimestamp";

/// As upstream describes a column that its definition does not.
pub(super) const AGE: Column = Column::new(
    "Age",
    "date",
    "Custom resource definition column (in JSONPath format): .metadata.creationTimestamp",
);

pub(super) static CLASS_RULES: Rules = Rules {
    required: &[("", &["deletionPolicy", "driver"])],
    words: &[("/deletionPolicy", &["Delete", "Retain"])],
    rules: &[],
};

pub(super) static CONTENT_RULES: Rules = Rules {
    required: &[("", &["spec"]), ("/spec", &["deletionPolicy", "driver", "source", "volumeSnapshotRef"])],
    words: &[("/spec/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/spec", "object", Check::StaysSet("sourceVolumeMode"), "sourceVolumeMode is required once set"),
        (
            "/spec/source",
            "object",
            Check::One("volumeHandle", "snapshotHandle"),
            "exactly one of volumeHandle and snapshotHandle must be set",
        ),
        ("/spec/source", "object", Check::StaysSet("volumeHandle"), "volumeHandle is required once set"),
        ("/spec/source", "object", Check::StaysSet("snapshotHandle"), "snapshotHandle is required once set"),
        ("/spec/source/snapshotHandle", "string", Check::Same, "snapshotHandle is immutable"),
        ("/spec/source/volumeHandle", "string", Check::Same, "volumeHandle is immutable"),
        ("/spec/sourceVolumeMode", "string", Check::Same, "sourceVolumeMode is immutable"),
        (
            "/spec/volumeSnapshotRef",
            "object",
            Check::All(&["name", "namespace"]),
            "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
        ),
    ],
};

pub(super) static SNAPSHOT_RULES: Rules = Rules {
    required: &[("", &["spec"]), ("/spec", &["source"])],
    words: &[],
    rules: &[
        (
            "/spec/source",
            "object",
            Check::One("persistentVolumeClaimName", "volumeSnapshotContentName"),
            "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set",
        ),
        (
            "/spec/source",
            "object",
            Check::StaysSet("persistentVolumeClaimName"),
            "persistentVolumeClaimName is required once set",
        ),
        (
            "/spec/source",
            "object",
            Check::StaysSet("volumeSnapshotContentName"),
            "volumeSnapshotContentName is required once set",
        ),
        (
            "/spec/source/persistentVolumeClaimName",
            "string",
            Check::Same,
            "persistentVolumeClaimName is immutable",
        ),
        (
            "/spec/source/volumeSnapshotContentName",
            "string",
            Check::Same,
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
    use crate::kinds::testing::{invalid, invalid_change, with};

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
    fn new_snapshots() {
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
    fn changes_of_a_snapshot() {
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
            assert_eq!(invalid_change(&SNAPSHOT, &snapshot(), &patch), expected, "{patch}");
        }
        let stored = with(&snapshot(), &json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}}));
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        assert!(
            invalid_change(&SNAPSHOT, &stored, &labels).is_empty(),
            "what was bad and does not change is left"
        );
    }

    #[test]
    fn contents() {
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
            invalid_change(&CONTENT, &content(), &json!({"spec": {"sourceVolumeMode": null}})),
            ["spec: Invalid value: \"object\": sourceVolumeMode is required once set"]
        );
    }

    #[test]
    fn rows() {
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
