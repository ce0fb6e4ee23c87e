//! A small API server with contents, and two stores that are behind it: each is told in order and as late as chance
//! wants, a process's own writes at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::VolumeSnapshotContent;
use wharf_model::patch::Patch;

use super::name_of;
use crate::attacher::simulate::world::patched;

#[derive(Default)]
pub(super) struct World {
    /// The truth.
    pub(super) objects: BTreeMap<String, Value>,
    version: u64,
    /// What is on its way to each process; `true`: it is gone.
    untold: [VecDeque<(Value, bool)>; 2],
    /// What each process sees.
    pub(super) seen: [BTreeMap<String, Arc<VolumeSnapshotContent>>; 2],
    /// Ended by a process's own write: its watch does not bring them back.
    buried: [BTreeSet<String>; 2],
    /// Every content that there ever was: names are not used twice.
    pub(super) known: BTreeSet<String>,
    retained: BTreeSet<String>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_gone(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    object.pointer("/metadata/deletionTimestamp").is_some() && finalizers.is_none_or(Vec::is_empty)
}

impl World {
    /// Puts an object as it now is, or ends it.
    pub(super) fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = text(&object, "/metadata/name").to_owned();
        self.known.insert(name.clone());
        // The server leaves out what is empty.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| *value != json!([]) && *value != json!({}));
        }
        let gone = is_gone(&object);
        for untold in &mut self.untold {
            untold.push_back((object.clone(), gone));
        }
        if gone {
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

    /// Somebody else's finalizer goes.
    pub(super) fn let_go(&mut self, name: &str, finalizer: &str) {
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

    /// Names of snapshots that the driver may keep.
    pub(super) fn retained(&self) -> BTreeSet<String> {
        self.retained.clone()
    }

    /// Reads an object, which the process sees; says whether it is there.
    pub(super) fn read(&mut self, who: usize, name: &str) -> bool {
        match self.objects.get(name).cloned() {
            Some(object) => self.see(who, &object, false),
            // The watch would tell.
            None => {
                self.buried[who].insert(format!("uid-{name}"));
                self.seen[who].remove(name);
            }
        }
        self.objects.contains_key(name)
    }

    /// Whether a write would be taken.
    pub(super) fn fits(&self, name: &str, patch: &Patch) -> bool {
        self.objects.get(name).is_some_and(|object| patched(object, patch).is_some())
    }

    /// A write; says whether the object is there. If it does not fit, the object is read, which the process sees too.
    pub(super) fn patch(&mut self, who: Option<usize>, name: &str, patch: &Patch) -> bool {
        let Some(object) = self.objects.get(name) else { return false };
        let now = match patched(object, patch) {
            Some(changed) => self.put(changed),
            None => object.clone(),
        };
        let Some(who) = who else { return true };
        let gone = is_gone(&now);
        if gone {
            self.buried[who].insert(text(&now, "/metadata/uid").to_owned());
        }
        self.see(who, &now, gone);
        true
    }

    /// The watch of a process tells one thing.
    pub(super) fn tell(&mut self, who: usize) {
        let Some((object, gone)) = self.untold[who].pop_front() else { return };
        if !self.buried[who].contains(text(&object, "/metadata/uid")) {
            self.see(who, &object, gone);
        }
    }

    /// Whether nothing is on its way.
    pub(super) fn is_told(&self) -> bool {
        self.untold.iter().all(VecDeque::is_empty)
    }

    /// A process begins anew, with all there is.
    pub(super) fn relist(&mut self, who: usize) {
        self.untold[who].clear();
        self.seen[who].clear();
        for object in self.objects.values().cloned().collect::<Vec<_>>() {
            self.see(who, &object, false);
        }
    }

    fn see(&mut self, who: usize, object: &Value, gone: bool) {
        let name = text(object, "/metadata/name").to_owned();
        let version = |version: &str| version.parse::<u64>().unwrap();
        let new = version(text(object, "/metadata/resourceVersion"));
        let seen = &mut self.seen[who];
        if seen.get(&name).is_some_and(|seen| version(&seen.metadata.resource_version) >= new) {
            return;
        }
        if gone {
            seen.remove(&name);
        } else {
            seen.insert(name, Arc::new(serde_json::from_value(object.clone()).unwrap()));
        }
    }
}
