//! How snapshots, their contents, classes, groups and claims refer to each other. The snapshot controller, the
//! provisioner and `wharf explain` decide by these rules.

use super::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, names};
use crate::claim::{ClaimPhase, DataSource};
use crate::{
    Key, Kind as _, Meta, OwnerRef, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
};

fn non_empty(name: &&str) -> bool {
    !name.is_empty()
}

impl VolumeSnapshot {
    /// The group snapshot that owns it, in any version of the API.
    pub fn owning_group(&self) -> Option<&OwnerRef> {
        let is_group = |owner: &&OwnerRef| {
            owner.kind == VolumeGroupSnapshot::API.kind
                && owner
                    .api_version
                    .split_once('/')
                    .is_some_and(|(group, _)| group == VolumeGroupSnapshot::API.group)
        };
        self.metadata.owner_references.iter().find(is_group)
    }

    /// The group snapshot that it belongs to: its key and, if known, its UID.
    pub fn parent_group(&self) -> Option<(Key, Option<&str>)> {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let status = self.status.as_ref();
        let named = status.and_then(|status| status.volume_group_snapshot_name.as_deref()).filter(non_empty);
        match (self.owning_group(), named) {
            (Some(owner), _) => Some((Key::namespaced(namespace, &*owner.name), Some(&owner.uid))),
            (None, Some(name)) => Some((Key::namespaced(namespace, name), None)),
            (None, None) => None,
        }
    }

    /// The content that it is bound to.
    pub fn bound_content(&self) -> Option<&str> {
        self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref().filter(non_empty)
    }

    /// The existing content that the user named as the source of a pre-provisioned snapshot.
    pub fn pre_provisioned_content(&self) -> Option<&str> {
        self.spec.source.volume_snapshot_content_name.as_deref()
    }

    /// The name of the source claim.
    pub fn source_claim_name(&self) -> Option<&str> {
        self.spec.source.persistent_volume_claim_name.as_deref().filter(non_empty)
    }

    /// The name of its content, even before the two are bound.
    pub fn expected_content_name(&self) -> String {
        let Meta { name, uid, .. } = &self.metadata;
        match (self.pre_provisioned_content().or(self.bound_content()), self.owning_group()) {
            (Some(name), _) => name.to_owned(),
            // Snapshot and content of a member have the same suffix.
            (None, Some(_)) => name.replacen("snapshot-", "snapcontent-", 1),
            (None, None) => names::content_name(uid),
        }
    }

    /// Whether volumes can be restored from it.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }

    /// Whether the driver has created it.
    pub fn is_created(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.creation_time.is_some())
    }
}

impl VolumeSnapshotContent {
    /// Whether it references this snapshot by name and UID.
    pub fn is_bound_to(&self, snapshot: &Meta) -> bool {
        self.spec.volume_snapshot_ref.uid == snapshot.uid && self.references_name(snapshot)
    }

    /// Whether it is reserved for this snapshot: it references the name, and no UID yet.
    pub fn is_reserved_for(&self, snapshot: &Meta) -> bool {
        self.spec.volume_snapshot_ref.uid.is_empty() && self.references_name(snapshot)
    }

    fn references_name(&self, snapshot: &Meta) -> bool {
        let reference = &self.spec.volume_snapshot_ref;
        reference.name == snapshot.name && Some(&reference.namespace) == snapshot.namespace.as_ref()
    }
}

impl VolumeSnapshotClass {
    /// Whether it is a default class of its driver.
    pub fn is_default(&self) -> bool {
        self.metadata.annotation(names::IS_DEFAULT_CLASS) == Some("true")
    }
}

impl VolumeGroupSnapshotClass {
    /// Whether it is a default class of its driver.
    pub fn is_default(&self) -> bool {
        self.metadata.annotation(names::IS_DEFAULT_GROUP_CLASS) == Some("true")
    }
}

impl PersistentVolumeClaim {
    /// The snapshots that it waits to be restored from, from either of its data source fields.
    pub fn restore_sources(&self) -> Vec<Key> {
        if matches!(self.status.phase, ClaimPhase::Bound | ClaimPhase::Lost) {
            return Vec::new();
        }
        let is_snapshot = |source: &&DataSource| {
            source.kind == VolumeSnapshot::API.kind
                && source.api_group.as_deref() == Some(VolumeSnapshot::API.group)
        };
        let key = |source: &DataSource| {
            let namespace = source.namespace.clone().or_else(|| self.metadata.namespace.clone());
            Key { namespace, name: source.name.clone() }
        };
        let sources = [&self.spec.data_source, &self.spec.data_source_ref].into_iter().flatten();
        let mut keys: Vec<Key> = sources.map(|source| &**source).filter(is_snapshot).map(key).collect();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(metadata: Value, source: Value, status: Value) -> VolumeSnapshot {
        let mut metadata = metadata;
        metadata["namespace"] = json!("shop");
        metadata["uid"] = json!("u");
        serde_json::from_value(json!({"metadata": metadata, "spec": {"source": source}, "status": status}))
            .unwrap()
    }

    /// sidecars.md 1.4 "Binding".
    #[test]
    fn content_name_follows_source_binding_or_uid() {
        let claim = || json!({"persistentVolumeClaimName": "data"});
        let owned = |version: &str| {
            json!({"name": "snapshot-ab", "ownerReferences": [{
                "apiVersion": format!("groupsnapshot.storage.k8s.io/{version}"),
                "kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu",
            }]})
        };
        for (snapshot, content, parent_is) in [
            (snapshot(json!({"name": "s"}), claim(), Value::Null), "snapcontent-u", None),
            (
                snapshot(json!({"name": "s"}), claim(), json!({"boundVolumeSnapshotContentName": "c"})),
                "c",
                None,
            ),
            (
                snapshot(json!({"name": "s"}), json!({"volumeSnapshotContentName": "pre"}), Value::Null),
                "pre",
                None,
            ),
            (snapshot(owned("v1"), claim(), Value::Null), "snapcontent-ab", Some(("g", Some("gu")))),
            (snapshot(owned("v1beta2"), claim(), Value::Null), "snapcontent-ab", Some(("g", Some("gu")))),
            (
                snapshot(json!({"name": "s"}), claim(), json!({"volumeGroupSnapshotName": "g"})),
                "snapcontent-u",
                Some(("g", None)),
            ),
        ] {
            assert_eq!(snapshot.expected_content_name(), content, "{snapshot:?}");
            let expected = parent_is.map(|(name, uid)| (Key::namespaced("shop", name), uid));
            assert_eq!(snapshot.parent_group(), expected, "{snapshot:?}");
        }
    }

    /// sidecars.md 1.4 "Binding".
    #[test]
    fn content_is_bound_by_name_and_uid_or_reserved_by_name() {
        let snapshot = snapshot(json!({"name": "s"}), json!({}), Value::Null);
        for (namespace, name, uid, bound, reserved) in [
            ("shop", "s", "u", true, false),
            ("shop", "s", "", false, true),
            ("shop", "s", "old", false, false),
            ("shop", "t", "u", false, false),
            ("shop", "t", "", false, false),
            ("other", "s", "u", false, false),
            ("other", "s", "", false, false),
        ] {
            let reference = json!({"namespace": namespace, "name": name, "uid": uid});
            let content: VolumeSnapshotContent =
                serde_json::from_value(json!({"spec": {"volumeSnapshotRef": reference}})).unwrap();
            let got = (content.is_bound_to(&snapshot.metadata), content.is_reserved_for(&snapshot.metadata));
            assert_eq!(got, (bound, reserved), "{namespace}/{name} {uid:?}");
        }
    }

    #[test]
    fn default_class_is_annotated() {
        let marked = |value: &str| {
            let class: VolumeSnapshotClass = serde_json::from_value(
                json!({"metadata": {"annotations": {names::IS_DEFAULT_CLASS: value}}}),
            )
            .unwrap();
            let group_class: VolumeGroupSnapshotClass = serde_json::from_value(
                json!({"metadata": {"annotations": {names::IS_DEFAULT_GROUP_CLASS: value}}}),
            )
            .unwrap();
            (class.is_default(), group_class.is_default())
        };
        assert_eq!((marked("true"), marked("false")), ((true, true), (false, false)));
    }

    #[test]
    fn only_waiting_claims_are_restored_from_snapshots() {
        let sources = |phase: &str, spec: Value| {
            let claim = json!({
                "metadata": {"name": "c", "namespace": "shop"}, "spec": spec, "status": {"phase": phase},
            });
            serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap().restore_sources()
        };
        let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let crossing = json!({
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s", "namespace": "vault",
        });
        let both = json!({"dataSource": source, "dataSourceRef": source});
        let here = vec![Key::namespaced("shop", "s")];
        for (phase, spec, expected) in [
            ("Pending", both.clone(), here.clone()),
            ("Pending", json!({"dataSource": source}), here),
            ("Pending", json!({"dataSourceRef": crossing}), vec![Key::namespaced("vault", "s")]),
            ("Pending", json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), vec![]),
            ("Bound", both.clone(), vec![]),
            ("Lost", both, vec![]),
        ] {
            assert_eq!(sources(phase, spec.clone()), expected, "{phase} {spec}");
        }
    }
}
