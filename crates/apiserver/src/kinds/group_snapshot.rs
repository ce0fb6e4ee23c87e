//! VolumeGroupSnapshot, its content and its class.

use super::custom::{self, Check, Rules};
use super::snapshot::{AGE, CREATION_TIMESTAMP};
use super::{Column, Kind, NAME, Subresource};

/// VolumeGroupSnapshotClass: the parameters of group snapshots.
pub(super) static CLASS: Kind = Kind {
    group: GROUP,
    kind: "VolumeGroupSnapshotClass",
    plural: "volumegroupsnapshotclasses",
    singular: "volumegroupsnapshotclass",
    short_names: &["vgsclass", "vgsclasses"],
    validate: |class| CLASS_RULES.validate(class, false),
    validate_update: |class, old| CLASS_RULES.validate_update(class, old),
    columns: &[
        NAME,
        Column::text("Driver", "The CSI driver that the class is for."),
        Column::text("DeletionPolicy", "What happens to the content when its group snapshot is deleted."),
        AGE,
    ],
    row: |class, now| {
        custom::row(class, CLASS.columns, &["/driver", "/deletionPolicy", CREATION_TIMESTAMP], now)
    },
    ..custom::WITHOUT_STATUS
};

/// VolumeGroupSnapshotContent: a group snapshot in the storage system.
pub(super) static CONTENT: Kind = Kind {
    group: GROUP,
    kind: "VolumeGroupSnapshotContent",
    plural: "volumegroupsnapshotcontents",
    singular: "volumegroupsnapshotcontent",
    short_names: &["vgsc", "vgscs"],
    subresources: &[Subresource::status(GROUP, "VolumeGroupSnapshotContent")],
    validate: |content| CONTENT_RULES.validate(content, false),
    validate_update: |content, old| CONTENT_RULES.validate_update(content, old),
    validate_status: |content, old| CONTENT_RULES.validate_update(content, old),
    columns: &[
        NAME,
        Column::new(
            "ReadyToUse",
            "boolean",
            "Whether volumes can be restored from all members of the group.",
        ),
        Column::text("DeletionPolicy", "What happens to the content when its group snapshot is deleted."),
        Column::text("Driver", "The CSI driver of the snapshot."),
        Column::text("VolumeGroupSnapshotClass", "The class of the snapshot."),
        Column::text(
            "VolumeGroupSnapshotNamespace",
            "The namespace of the group snapshot that the content is bound to.",
        ),
        Column::text("VolumeGroupSnapshot", "The group snapshot that the content is bound to."),
        AGE,
    ],
    row: |content, now| {
        let pointers = [
            "/status/readyToUse",
            "/spec/deletionPolicy",
            "/spec/driver",
            "/spec/volumeGroupSnapshotClassName",
            "/spec/volumeGroupSnapshotRef/namespace",
            "/spec/volumeGroupSnapshotRef/name",
            CREATION_TIMESTAMP,
        ];
        custom::row(content, CONTENT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

/// VolumeGroupSnapshot: a user's request for a group snapshot.
pub(super) static SNAPSHOT: Kind = Kind {
    group: GROUP,
    kind: "VolumeGroupSnapshot",
    plural: "volumegroupsnapshots",
    singular: "volumegroupsnapshot",
    short_names: &["vgs"],
    namespaced: true,
    subresources: &[Subresource::status(GROUP, "VolumeGroupSnapshot")],
    validate: |snapshot| SNAPSHOT_RULES.validate(snapshot, true),
    validate_update: |snapshot, old| SNAPSHOT_RULES.validate_update(snapshot, old),
    validate_status: |snapshot, old| SNAPSHOT_RULES.validate_update(snapshot, old),
    columns: &[
        NAME,
        Column::new(
            "ReadyToUse",
            "boolean",
            "Whether volumes can be restored from all members of the group.",
        ),
        Column::text("VolumeGroupSnapshotClass", "The class of the snapshot."),
        Column::text("VolumeGroupSnapshotContent", "The content that the snapshot is bound to."),
        Column::new("CreationTime", "date", "The time when the driver took the snapshot."),
        AGE,
    ],
    row: |snapshot, now| {
        let pointers = [
            "/status/readyToUse",
            "/spec/volumeGroupSnapshotClassName",
            "/status/boundVolumeGroupSnapshotContentName",
            "/status/creationTime",
            CREATION_TIMESTAMP,
        ];
        custom::row(snapshot, SNAPSHOT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

const GROUP: &str = "groupsnapshot.storage.k8s.io";

pub(super) static CLASS_RULES: Rules = Rules {
    required: &[("", &["deletionPolicy", "driver"])],
    enums: &[("/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/deletionPolicy", "string", Check::Unchanged, "deletionPolicy is immutable once set"),
        ("/driver", "string", Check::Unchanged, "driver is immutable once set"),
        ("/parameters", "object", Check::Unchanged, "parameters are immutable once set"),
    ],
};

pub(super) static CONTENT_RULES: Rules = Rules {
    required: &[
        ("", &["spec"]),
        ("/spec", &["deletionPolicy", "driver", "source", "volumeGroupSnapshotRef"]),
        ("/spec/source/groupSnapshotHandles", &["volumeGroupSnapshotHandle", "volumeSnapshotHandles"]),
    ],
    enums: &[("/spec/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/spec/driver", "string", Check::Unchanged, "driver is immutable once set"),
        (
            "/spec/source",
            "object",
            Check::ExactlyOneOf("volumeHandles", "groupSnapshotHandles"),
            "exactly one of volumeHandles and groupSnapshotHandles must be set",
        ),
        ("/spec/source", "object", Check::RemainsSet("volumeHandles"), "volumeHandles is required once set"),
        (
            "/spec/source",
            "object",
            Check::RemainsSet("groupSnapshotHandles"),
            "groupSnapshotHandles is required once set",
        ),
        (
            "/spec/source/groupSnapshotHandles",
            "object",
            Check::Unchanged,
            "groupSnapshotHandles is immutable",
        ),
        ("/spec/source/volumeHandles", "array", Check::Unchanged, "volumeHandles is immutable"),
        (
            "/spec/volumeGroupSnapshotClassName",
            "string",
            Check::Unchanged,
            "volumeGroupSnapshotClassName is immutable once set",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::AllSet(&["name", "namespace"]),
            "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::FieldsUnchanged(&["name", "namespace"]),
            "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::UnchangedOnceSet("uid"),
            "volumeGroupSnapshotRef.uid is immutable once set",
        ),
        (
            "/status/volumeGroupSnapshotHandle",
            "string",
            Check::Unchanged,
            "volumeGroupSnapshotHandle is immutable once set",
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
            Check::ExactlyOneOf("selector", "volumeGroupSnapshotContentName"),
            "exactly one of selector and volumeGroupSnapshotContentName must be set",
        ),
        ("/spec/source", "object", Check::RemainsSet("selector"), "selector is required once set"),
        (
            "/spec/source",
            "object",
            Check::RemainsSet("volumeGroupSnapshotContentName"),
            "volumeGroupSnapshotContentName is required once set",
        ),
        ("/spec/source/selector", "object", Check::Unchanged, "selector is immutable"),
        (
            "/spec/source/volumeGroupSnapshotContentName",
            "string",
            Check::Unchanged,
            "volumeGroupSnapshotContentName is immutable",
        ),
        (
            "/spec/volumeGroupSnapshotClassName",
            "string",
            Check::NotEmpty,
            "volumeGroupSnapshotClassName must not be the empty string when set",
        ),
        (
            "/status/boundVolumeGroupSnapshotContentName",
            "string",
            Check::Unchanged,
            "boundVolumeGroupSnapshotContentName is immutable once set",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update, lines, with};

    fn content() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandles": ["h"]},
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "ns", "uid": "u"},
        }})
    }

    #[test]
    fn class_is_immutable() {
        let class = json!({"metadata": {"name": "c"}, "driver": "d", "deletionPolicy": "Delete", "parameters": {"a": "b"}});
        assert!(invalid(&CLASS, &class, &json!({})).is_empty());
        for (patch, expected) in [
            (json!({"driver": "e"}), "driver: Invalid value: \"string\": driver is immutable once set"),
            (
                json!({"deletionPolicy": "Retain"}),
                "deletionPolicy: Invalid value: \"string\": deletionPolicy is immutable once set",
            ),
            (
                json!({"parameters": {"a": "c"}}),
                "parameters: Invalid value: \"object\": parameters are immutable once set",
            ),
        ] {
            assert_eq!(invalid_update(&CLASS, &class, &patch), [expected]);
        }
    }

    #[test]
    fn content_updates_are_validated() {
        assert!(invalid(&CONTENT, &content(), &json!({})).is_empty());
        for (patch, expected) in [
            (
                json!({"spec": {"volumeGroupSnapshotRef": {"uid": null}}}),
                "spec.volumeGroupSnapshotRef: Invalid value: \"object\": volumeGroupSnapshotRef.uid is immutable once set",
            ),
            (
                json!({"spec": {"volumeGroupSnapshotRef": {"name": "t"}}}),
                "spec.volumeGroupSnapshotRef: Invalid value: \"object\": volumeGroupSnapshotRef.name and \
                 volumeGroupSnapshotRef.namespace are immutable",
            ),
            (
                json!({"spec": {"source": {"volumeHandles": []}}}),
                "spec.source.volumeHandles: Invalid value: \"array\": volumeHandles is immutable",
            ),
        ] {
            assert_eq!(invalid_update(&CONTENT, &content(), &patch), [expected]);
        }
        let old = with(
            &content(),
            &json!({
                "metadata": {"resourceVersion": "1"}, "status": {"volumeGroupSnapshotHandle": "g"},
            }),
        );
        let mut new = with(&old, &json!({"status": {"volumeGroupSnapshotHandle": "h"}}));
        CONTENT.prepare_status(&mut new, &old, Time(0));
        assert_eq!(
            lines(CONTENT.invalid_on_status(&new, &old)),
            [
                "status.volumeGroupSnapshotHandle: Invalid value: \"string\": volumeGroupSnapshotHandle is immutable once set",
            ]
        );
    }

    #[test]
    fn snapshot_create_is_validated() {
        let snapshot = json!({
            "metadata": {"name": "s", "namespace": "ns"}, "spec": {"source": {"selector": {"matchLabels": {"a": "b"}}}},
        });
        assert!(invalid(&SNAPSHOT, &snapshot, &json!({})).is_empty());
        assert_eq!(
            invalid(&SNAPSHOT, &snapshot, &json!({"spec": {"source": {"selector": null}}})),
            [
                "spec.source: Invalid value: \"object\": exactly one of selector and volumeGroupSnapshotContentName must be \
              set"
            ]
        );
        assert_eq!(
            Value::from((SNAPSHOT.row)(&snapshot, Time(0))),
            json!(["s", null, null, null, null, null])
        );
    }
}
