//! A small API server, and a cache that lags behind it. Events of each kind are delivered in order and after a
//! random delay; our own writes appear at once.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use wharf_model::patch::Patch;
use wharf_model::testing::{SeededRng, apply_patch};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Snapshot,
    Content,
    Claim,
    Group,
    GroupContent,
}

pub(super) const KINDS: [Kind; 5] =
    [Kind::Snapshot, Kind::Content, Kind::Claim, Kind::Group, Kind::GroupContent];

pub(super) type Objects = BTreeMap<(Kind, String), Value>;

#[derive(Default)]
pub(super) struct World {
    /// The objects in the API server.
    pub(super) objects: Objects,
    /// The cache.
    pub(super) cached: Objects,
    /// What the watch has delivered, without our own writes.
    delivered: Objects,
    pending_events: BTreeMap<Kind, VecDeque<(String, Option<Value>, u64)>>,
    version: u64,
}

pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

pub(super) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.is_some_and(|list| list.iter().any(|present| present == finalizer))
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

impl World {
    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    /// Stores a new version of an object, or removes it.
    pub(super) fn put(&mut self, kind: Kind, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = text(&object, "/metadata/name").to_owned();
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let deleted = is_deleting(&object) && finalizers.is_none_or(Vec::is_empty);
        let now = (!deleted).then_some(object);
        self.pending_events.entry(kind).or_default().push_back((name.clone(), now.clone(), self.version));
        match now {
            Some(object) => drop(self.objects.insert((kind, name), object)),
            None => drop(self.objects.remove(&(kind, name))),
        }
    }

    pub(super) fn edit(&mut self, kind: Kind, name: &str, edit: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.get(kind, name).cloned() {
            edit(&mut object);
            self.put(kind, object);
        }
    }

    pub(super) fn delete(&mut self, kind: Kind, name: &str) {
        if self.get(kind, name).is_some_and(|object| !is_deleting(object)) {
            self.edit(kind, name, |object| {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        }
    }

    /// Our own write; `false` if the server rejects it. The cache receives the result.
    pub(super) fn patch(&mut self, kind: Kind, name: &str, patch: &Patch) -> bool {
        let wanted = match patch {
            Patch::Merge(body) => body.pointer("/metadata/resourceVersion").cloned(),
            _ => None,
        };
        let Some(object) = self.get(kind, name) else {
            self.read(kind, name);
            return false;
        };
        let fits = wanted.is_none_or(|wanted| object["metadata"]["resourceVersion"] == wanted);
        let changed = fits.then(|| apply_patch(object, patch)).flatten();
        let fits = changed.is_some();
        if let Some(changed) = changed {
            self.put(kind, changed);
        }
        self.read(kind, name);
        fits
    }

    /// Reads an object into the cache.
    pub(super) fn read(&mut self, kind: Kind, name: &str) {
        let key = (kind, name.to_owned());
        match self.objects.get(&key) {
            Some(object) => drop(self.cached.insert(key, object.clone())),
            None => drop(self.cached.remove(&key)),
        }
    }

    /// Delivers one watch event of a random kind.
    pub(super) fn deliver_event(&mut self, chance: &mut SeededRng) {
        let kind = KINDS[chance.below(KINDS.len() as u64) as usize];
        let Some((name, object, at)) = self.pending_events.get_mut(&kind).and_then(VecDeque::pop_front)
        else {
            return;
        };
        let key = (kind, name);
        match &object {
            Some(object) => drop(self.delivered.insert(key.clone(), object.clone())),
            None => drop(self.delivered.remove(&key)),
        }
        // What was read since is newer.
        let known = self.cached.get(&key).map_or(0, version);
        if known < at && (known > 0 || self.objects.contains_key(&key) || object.is_none()) {
            match object {
                Some(object) => drop(self.cached.insert(key, object)),
                None => drop(self.cached.remove(&key)),
            }
        }
    }

    /// Another process starts with what the watch has delivered so far.
    pub(super) fn restart_from_delivered(&mut self) {
        self.cached = self.delivered.clone();
    }

    pub(super) fn remaining(&self) -> String {
        self.objects.values().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}
