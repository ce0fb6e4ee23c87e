//! The driver's sidecar and its driver, as the controller meets them.

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::world::{Kind, is_deleting, text};
use super::{Simulation, of};
use crate::attacher::simulate::world::patched;

impl Simulation {
    /// The driver's sidecar, one step for one content.
    pub(super) fn snapshotter(&mut self) {
        let contents = self.world.objects.keys();
        let contents = contents.filter(|key| matches!(key.0, Kind::Content | Kind::GroupContent));
        let keys: Vec<(Kind, String)> = contents.cloned().collect();
        if keys.is_empty() {
            return;
        }
        let (kind, name) = &keys[self.chance.below(keys.len() as u64) as usize];
        if *kind == Kind::GroupContent {
            return self.group_snapshotter(name);
        }
        let Some(content) = self.world.get(Kind::Content, name).cloned() else { return };
        let annotated = |annotation: &str| content["metadata"]["annotations"].get(annotation).is_some();
        let dynamic = content["spec"]["source"].get("volumeHandle").is_some();
        let is_bound = !text(&content, "/spec/volumeSnapshotRef/uid").is_empty();
        if is_deleting(&content) {
            if annotated(names::BEING_CREATED) {
                // The driver ends what it was asked for.
                self.world.edit(Kind::Content, name, |content| {
                    is_created(content);
                    content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": true});
                });
            } else if annotated(names::BEING_DELETED) || !is_bound {
                // With Delete the driver deletes it, with Retain it is the administrator's from here on.
                self.physical.remove(name);
                let meta = of::<VolumeSnapshotContent>(&content).metadata;
                if let Some(patch) = patch::remove_finalizer(&meta, names::CONTENT_PROTECTION) {
                    self.world.edit(Kind::Content, name, |content| {
                        *content = patched(content, &patch).unwrap();
                    });
                }
            }
            return;
        }
        // The group's was cut, and its members with it.
        if annotated(names::GROUP_HANDLE) {
            return;
        }
        match content.pointer("/status/readyToUse") {
            None if dynamic && !annotated(names::BEING_CREATED) => {
                // The driver may cut it from now on.
                self.physical.insert(name.clone());
                self.world.edit(Kind::Content, name, |content| {
                    content["metadata"]["annotations"][names::BEING_CREATED] = json!("yes");
                });
            }
            None => self.world.edit(Kind::Content, name, |content| {
                is_created(content);
                content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": !dynamic});
            }),
            Some(Value::Bool(false)) => {
                self.world.edit(Kind::Content, name, |content| content["status"]["readyToUse"] = json!(true));
            }
            Some(_) => {}
        }
    }

    /// The same for a group's content.
    fn group_snapshotter(&mut self, name: &str) {
        let Some(content) = self.world.get(Kind::GroupContent, name).cloned() else { return };
        let annotated = |annotation: &str| content["metadata"]["annotations"].get(annotation).is_some();
        let cut = |content: &mut Value| {
            if let Some(annotations) =
                content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
            {
                annotations.remove(names::GROUP_BEING_CREATED);
            }
            let handles = content["spec"]["source"]["volumeHandles"].as_array().cloned().unwrap_or_default();
            let members = handles.iter().map(|handle| {
                json!({"volumeHandle": handle, "snapshotHandle": "h", "creationTime": 1, "readyToUse": true})
            });
            content["status"] = json!({
                "volumeGroupSnapshotHandle": format!("gh-{}", text(content, "/spec/volumeGroupSnapshotRef/name")),
                "creationTime": "2026-01-01T00:00:00Z", "readyToUse": false,
                "volumeSnapshotInfoList": members.collect::<Vec<_>>(),
            });
        };
        match content.pointer("/status/readyToUse") {
            None if annotated(names::GROUP_BEING_CREATED) => self.world.edit(Kind::GroupContent, name, cut),
            _ if is_deleting(&content) => {
                if annotated(names::GROUP_BEING_DELETED) {
                    self.physical.remove(name);
                    let meta = of::<VolumeGroupSnapshotContent>(&content).metadata;
                    if let Some(patch) = patch::remove_finalizer(&meta, names::GROUP_CONTENT_PROTECTION) {
                        self.world.edit(Kind::GroupContent, name, |content| {
                            *content = patched(content, &patch).unwrap();
                        });
                    }
                }
            }
            None => {
                // Mark and finalizer are one write; the driver may cut it from now on.
                self.physical.insert(name.to_owned());
                self.world.edit(Kind::GroupContent, name, |content| {
                    content["metadata"]["annotations"][names::GROUP_BEING_CREATED] = json!("yes");
                    content["metadata"]["finalizers"] = json!([names::GROUP_CONTENT_PROTECTION]);
                });
            }
            Some(Value::Bool(false)) => {
                self.world
                    .edit(Kind::GroupContent, name, |content| content["status"]["readyToUse"] = json!(true));
            }
            Some(_) => {}
        }
    }
}

/// The driver has answered.
fn is_created(content: &mut Value) {
    if let Some(annotations) = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(names::BEING_CREATED);
    }
}
