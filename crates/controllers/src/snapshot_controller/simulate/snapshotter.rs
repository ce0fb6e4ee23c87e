//! Simulates the driver and its snapshotter sidecar, as far as the snapshot controller observes them.

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::testing::{apply_patch, is_deleting, text};
use wharf_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

use super::{Kind, Simulation, parse};

impl Simulation {
    /// One step of the snapshotter for a random content.
    pub(super) fn snapshotter_step(&mut self) {
        let contents = self.world.objects.keys();
        let contents = contents.filter(|key| matches!(key.0, Kind::Content | Kind::GroupContent));
        let keys: Vec<(Kind, String)> = contents.cloned().collect();
        if keys.is_empty() {
            return;
        }
        let (kind, name) = &keys[self.chance.below(keys.len() as u64) as usize];
        if *kind == Kind::GroupContent {
            return self.group_snapshotter_step(name);
        }
        let Some(content) = self.world.get(Kind::Content, name).cloned() else { return };
        let annotated = |annotation: &str| content["metadata"]["annotations"].get(annotation).is_some();
        let dynamic = content["spec"]["source"].get("volumeHandle").is_some();
        let is_bound = !text(&content, "/spec/volumeSnapshotRef/uid").is_empty();
        if is_deleting(&content) {
            if annotated(names::BEING_CREATED) {
                // The driver completes the creation.
                self.world.edit(None, Kind::Content, name, |content| {
                    clear_being_created(content);
                    content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": true});
                });
            } else if annotated(names::BEING_DELETED) || !is_bound {
                // With Delete the driver deletes the snapshot; with Retain it is the administrator's
                // responsibility.
                self.driver_snapshots.remove(name);
                let meta = parse::<VolumeSnapshotContent>(&content).metadata;
                if let Some(patch) = patch::remove_finalizer(&meta, names::CONTENT_PROTECTION) {
                    self.world.edit(None, Kind::Content, name, |content| {
                        *content = apply_patch(content, &patch).unwrap();
                    });
                }
            }
            return;
        }
        // Members were created with their group.
        if annotated(names::GROUP_HANDLE) {
            return;
        }
        match content.pointer("/status/readyToUse") {
            None if dynamic && !annotated(names::BEING_CREATED) => {
                // From now on the driver may create the snapshot.
                self.driver_snapshots.insert(name.clone());
                self.world.edit(None, Kind::Content, name, |content| {
                    content["metadata"]["annotations"][names::BEING_CREATED] = json!("yes");
                });
            }
            None => self.world.edit(None, Kind::Content, name, |content| {
                clear_being_created(content);
                content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": !dynamic});
            }),
            Some(Value::Bool(false)) => {
                self.world
                    .edit(None, Kind::Content, name, |content| content["status"]["readyToUse"] = json!(true));
            }
            Some(_) => {}
        }
    }

    /// One step of the snapshotter for a group's content.
    fn group_snapshotter_step(&mut self, name: &str) {
        let Some(content) = self.world.get(Kind::GroupContent, name).cloned() else { return };
        let annotated = |annotation: &str| content["metadata"]["annotations"].get(annotation).is_some();
        let complete = |content: &mut Value| {
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
            None if annotated(names::GROUP_BEING_CREATED) => {
                self.world.edit(None, Kind::GroupContent, name, complete)
            }
            _ if is_deleting(&content) => {
                if annotated(names::GROUP_BEING_DELETED) {
                    self.driver_snapshots.remove(name);
                    let meta = parse::<VolumeGroupSnapshotContent>(&content).metadata;
                    if let Some(patch) = patch::remove_finalizer(&meta, names::GROUP_CONTENT_PROTECTION) {
                        self.world.edit(None, Kind::GroupContent, name, |content| {
                            *content = apply_patch(content, &patch).unwrap();
                        });
                    }
                }
            }
            None => {
                // Annotation and finalizer are one write. From now on the driver may create the group.
                self.driver_snapshots.insert(name.to_owned());
                self.world.edit(None, Kind::GroupContent, name, |content| {
                    content["metadata"]["annotations"][names::GROUP_BEING_CREATED] = json!("yes");
                    content["metadata"]["finalizers"] = json!([names::GROUP_CONTENT_PROTECTION]);
                });
            }
            Some(Value::Bool(false)) => {
                self.world.edit(None, Kind::GroupContent, name, |content| {
                    content["status"]["readyToUse"] = json!(true)
                });
            }
            Some(_) => {}
        }
    }
}

/// Removes the annotation that a creation may be in progress.
fn clear_being_created(content: &mut Value) {
    if let Some(annotations) = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(names::BEING_CREATED);
    }
}
