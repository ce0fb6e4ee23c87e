//! A small API server with contents, and two caches that lag behind it. Each cache receives events in order and
//! after a random delay; a process's own writes appear at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::VolumeSnapshotContent;
use wharf_model::patch::Patch;
use wharf_model::testing::apply_patch;

use super::name_of;

#[derive(Default)]
pub(super) struct World {
    /// The objects in the API server.
    pub(super) objects: BTreeMap<String, Value>,
    version: u64,
    /// Events not yet delivered to each process; `true`: deletion.
    pending_events: [VecDeque<(Value, bool)>; 2],
    /// The cache of each process.
    pub(super) cached: [BTreeMap<String, Arc<VolumeSnapshotContent>>; 2],
    /// UIDs whose deletion a process observed by its own write: its watch does not bring them back.
    deleted_uids: [BTreeSet<String>; 2],
    /// All contents that ever existed: names are not reused.
    pub(super) known: BTreeSet<String>,
    retained: BTreeSet<String>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_deleted(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    object.pointer("/metadata/deletionTimestamp").is_some() && finalizers.is_none_or(Vec::is_empty)
}

impl World {
    /// Stores a new version of an object, or removes it.
    pub(super) fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = text(&object, "/metadata/name").to_owned();
        self.known.insert(name.clone());
        // The API server omits empty fields.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| *value != json!([]) && *value != json!({}));
        }
        let deleted = is_deleted(&object);
        for pending_events in &mut self.pending_events {
            pending_events.push_back((object.clone(), deleted));
        }
        if deleted {
            if text(&object, "/spec/deletionPolicy") == "Retain" {
                self.retained.insert(name_of(&name));
            }
            self.objects.remove(&name);
        } else {
            self.objects.insert(name, object.clone());
        }
        object
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.objects.get(name).cloned() else { return };
        change(&mut object);
        self.put(object);
    }

    pub(super) fn annotate(&mut self, name: &str, key: &str) {
        self.change(name, |object| object["metadata"]["annotations"][key] = json!("yes"));
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.change(name, |object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    }

    /// Another component removes its finalizer.
    pub(super) fn remove_finalizer(&mut self, name: &str, finalizer: &str) {
        self.change(name, |object| {
            if let Some(list) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
                list.retain(|present| present != finalizer);
            }
        });
    }

    pub(super) fn is_deleting(&self, name: &str) -> bool {
        self.objects.get(name).is_some_and(|object| object.pointer("/metadata/deletionTimestamp").is_some())
    }

    pub(super) fn has(&self, name: &str, annotation: &str) -> bool {
        let annotations = self.objects.get(name).and_then(|object| object.pointer("/metadata/annotations"));
        annotations.is_some_and(|annotations| annotations.get(annotation).is_some())
    }

    /// Names of snapshots that the driver may retain.
    pub(super) fn retained(&self) -> BTreeSet<String> {
        self.retained.clone()
    }

    /// Reads an object into the process's cache. Returns whether it exists.
    pub(super) fn read(&mut self, replica: usize, name: &str) -> bool {
        match self.objects.get(name).cloned() {
            Some(object) => self.observe(replica, &object, false),
            // The watch would report the deletion.
            None => {
                self.deleted_uids[replica].insert(format!("uid-{name}"));
                self.cached[replica].remove(name);
            }
        }
        self.objects.contains_key(name)
    }

    /// Whether a write would be accepted.
    pub(super) fn fits(&self, name: &str, patch: &Patch) -> bool {
        self.objects.get(name).is_some_and(|object| apply_patch(object, patch).is_some())
    }

    /// Applies a write. Returns whether the object exists. If the patch does not apply, the object is read into the
    /// cache instead.
    pub(super) fn patch(&mut self, replica: Option<usize>, name: &str, patch: &Patch) -> bool {
        let Some(object) = self.objects.get(name) else { return false };
        let now = match apply_patch(object, patch) {
            Some(changed) => self.put(changed),
            None => object.clone(),
        };
        let Some(replica) = replica else { return true };
        let deleted = is_deleted(&now);
        if deleted {
            self.deleted_uids[replica].insert(text(&now, "/metadata/uid").to_owned());
        }
        self.observe(replica, &now, deleted);
        true
    }

    /// Delivers one watch event to a process.
    pub(super) fn deliver_event(&mut self, replica: usize) {
        let Some((object, deleted)) = self.pending_events[replica].pop_front() else { return };
        if !self.deleted_uids[replica].contains(text(&object, "/metadata/uid")) {
            self.observe(replica, &object, deleted);
        }
    }

    /// Whether all events are delivered.
    pub(super) fn has_handles(&self) -> bool {
        self.pending_events.iter().all(VecDeque::is_empty)
    }

    /// A process restarts and lists all objects.
    pub(super) fn relist(&mut self, replica: usize) {
        self.pending_events[replica].clear();
        self.cached[replica].clear();
        for object in self.objects.values().cloned().collect::<Vec<_>>() {
            self.observe(replica, &object, false);
        }
    }

    fn observe(&mut self, replica: usize, object: &Value, deleted: bool) {
        let name = text(object, "/metadata/name").to_owned();
        let version = |version: &str| version.parse::<u64>().unwrap();
        let new = version(text(object, "/metadata/resourceVersion"));
        let cached = &mut self.cached[replica];
        if cached.get(&name).is_some_and(|cached| version(&cached.metadata.resource_version) >= new) {
            return;
        }
        if deleted {
            cached.remove(&name);
        } else {
            cached.insert(name, Arc::new(serde_json::from_value(object.clone()).unwrap()));
        }
    }
}
