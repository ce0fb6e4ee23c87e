//! VolumeGroupSnapshot, its content and its class.

use super::custom::{self, Check, Rules};
use super::snapshot::{AGE, MADE};
use super::{Column, Kind, NAME, Subresource};

/// How group snapshots are taken.
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
        Column::text("Driver", "The driver whose volumes it is for."),
        Column::text("DeletionPolicy", "What becomes of a content when its group snapshot goes."),
        AGE,
    ],
    row: |class, now| custom::row(class, CLASS.columns, &["/driver", "/deletionPolicy", MADE], now),
    ..custom::PLAIN
};

/// A group snapshot, as its driver has it.
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
        Column::new("ReadyToUse", "boolean", "Whether one can restore from all of its members."),
        Column::text("DeletionPolicy", "What becomes of it when its group snapshot goes."),
        Column::text("Driver", "The driver that has it."),
        Column::text("VolumeGroupSnapshotClass", "The class it was taken by."),
        Column::text("VolumeGroupSnapshotNamespace", "The namespace of the group snapshot it is for."),
        Column::text("VolumeGroupSnapshot", "The group snapshot it is for."),
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
            MADE,
        ];
        custom::row(content, CONTENT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

/// A group snapshot, as its user asks for it.
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
        Column::new("ReadyToUse", "boolean", "Whether one can restore from all of its members."),
        Column::text("VolumeGroupSnapshotClass", "The class it is taken by."),
        Column::text("VolumeGroupSnapshotContent", "The content it is bound to."),
        Column::new("CreationTime", "date", "When the driver cut it."),
        AGE,
    ],
    row: |snapshot, now| {
        let pointers = [
            "/status/readyToUse",
            "/spec/volumeGroupSnapshotClassName",
            "/status/boundVolumeGroupSnapshotContentName",
            "/status/creationTime",
            MADE,
        ];
        custom::row(snapshot, SNAPSHOT.columns, &pointers, now)
    },
    ..custom::WITH_STATUS
};

const GROUP: &str = "groupsnapshot.storage.k8s.io";

pub(super) static CLASS_RULES: Rules = Rules {
    required: &[("", &["deletionPolicy", "driver"])],
    words: &[("/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/deletionPolicy", "string", Check::Same, "deletionPolicy is immutable once set"),
        ("/driver", "string", Check::Same, "driver is immutable once set"),
        ("/parameters", "object", Check::Same, "parameters are immutable once set"),
    ],
};

pub(super) static CONTENT_RULES: Rules = Rules {
    required: &[
        ("", &["spec"]),
        ("/spec", &["deletionPolicy", "driver", "source", "volumeGroupSnapshotRef"]),
        ("/spec/source/groupSnapshotHandles", &["volumeGroupSnapshotHandle", "volumeSnapshotHandles"]),
    ],
    words: &[("/spec/deletionPolicy", &["Delete", "Retain"])],
    rules: &[
        ("/spec/driver", "string", Check::Same, "driver is immutable once set"),
        (
            "/spec/source",
            "object",
            Check::One("volumeHandles", "groupSnapshotHandles"),
            "exactly one of volumeHandles and groupSnapshotHandles must be set",
        ),
        ("/spec/source", "object", Check::StaysSet("volumeHandles"), "volumeHandles is required once set"),
        (
            "/spec/source",
            "object",
            Check::StaysSet("groupSnapshotHandles"),
            "groupSnapshotHandles is required once set",
        ),
        ("/spec/source/groupSnapshotHandles", "object", Check::Same, "groupSnapshotHandles is immutable"),
        ("/spec/source/volumeHandles", "array", Check::Same, "volumeHandles is immutable"),
        (
            "/spec/volumeGroupSnapshotClassName",
            "string",
            Check::Same,
            "volumeGroupSnapshotClassName is immutable once set",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::All(&["name", "namespace"]),
            "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::SameFields(&["name", "namespace"]),
            "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable",
        ),
        (
            "/spec/volumeGroupSnapshotRef",
            "object",
            Check::StaysSame("uid"),
            "volumeGroupSnapshotRef.uid is immutable once set",
        ),
        (
            "/status/volumeGroupSnapshotHandle",
            "string",
            Check::Same,
            "volumeGroupSnapshotHandle is immutable once set",
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
            Check::One("selector", "volumeGroupSnapshotContentName"),
            "exactly one of selector and volumeGroupSnapshotContentName must be set",
        ),
        ("/spec/source", "object", Check::StaysSet("selector"), "selector is required once set"),
        (
            "/spec/source",
            "object",
            Check::StaysSet("volumeGroupSnapshotContentName"),
            "volumeGroupSnapshotContentName is required once set",
        ),
        ("/spec/source/selector", "object", Check::Same, "selector is immutable"),
        (
            "/spec/source/volumeGroupSnapshotContentName",
            "string",
            Check::Same,
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
            Check::Same,
            "boundVolumeGroupSnapshotContentName is immutable once set",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_change, lines, with};

    fn content() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandles": ["h"]},
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "ns", "uid": "u"},
        }})
    }

    #[test]
    fn classes_stay() {
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
            assert_eq!(invalid_change(&CLASS, &class, &patch), [expected]);
        }
    }

    #[test]
    fn contents() {
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
            assert_eq!(invalid_change(&CONTENT, &content(), &patch), [expected]);
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
    fn snapshots() {
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
