//! A small API server and a lagging store: the watch of each kind delivers in order with random delays, our own writes
//! appear at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};
use wharf_model::patch::Patch;
use wharf_model::testing::{SeededRng, apply_patch};

use super::{Attachments, Volumes, decoded};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Attachment,
    Volume,
}

/// A pending watch event: the object, and whether it was deleted.
struct WatchEvent {
    object: Value,
    deleted: bool,
}

#[derive(Default)]
pub(super) struct World {
    /// The server's objects.
    objects: BTreeMap<(Kind, String), Value>,
    version: u64,
    /// Events that the watch has not delivered yet.
    pending: BTreeMap<Kind, VecDeque<WatchEvent>>,
    /// UIDs of objects that our own writes deleted: late watch events must not restore them.
    deleted_by_us: BTreeSet<String>,
    /// The store.
    pub(super) attachments: Attachments,
    pub(super) volumes: Volumes,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn has_finalizers(object: &Value) -> bool {
    finalizers(object).is_some_and(|list| !list.is_empty())
}

fn finalizers(object: &Value) -> Option<&Vec<Value>> {
    object.pointer("/metadata/finalizers").and_then(Value::as_array)
}

impl World {
    pub(super) fn create(&mut self, kind: Kind, object: Value) {
        let name = text(&object, "/metadata/name").to_owned();
        self.store(kind, name, object);
    }

    /// Stores a new version of an object, or deletes it.
    fn store(&mut self, kind: Kind, name: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let deleted = is_deleting(&object) && !has_finalizers(&object);
        self.pending.entry(kind).or_default().push_back(WatchEvent { object: object.clone(), deleted });
        if deleted {
            self.objects.remove(&(kind, name));
        } else {
            self.objects.insert((kind, name), object.clone());
        }
        object
    }

    pub(super) fn delete(&mut self, kind: Kind, name: &str) {
        let Some(object) = self.objects.get(&(kind, name.to_owned())) else { return };
        if !is_deleting(object) {
            let mut object = object.clone();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.store(kind, name.to_owned(), object);
        }
    }

    /// Applies a patch of the attacher. If it conflicts, the object is read, which also updates the store.
    pub(super) fn patch(&mut self, kind: Kind, name: &str, patch: &Patch) {
        let Some(object) = self.objects.get(&(kind, name.to_owned())) else { return };
        let changed = match apply_patch(object, patch) {
            Some(changed) => self.store(kind, name.to_owned(), changed),
            None => object.clone(),
        };
        let deleted = is_deleting(&changed) && !has_finalizers(&changed);
        if deleted {
            self.deleted_by_us.insert(text(&changed, "/metadata/uid").to_owned());
        }
        self.store_in_cache(kind, &changed, deleted);
    }

    /// Delivers one watch event of a random kind.
    pub(super) fn deliver(&mut self, rng: &mut SeededRng) {
        let kind = if rng.one_in(2) { Kind::Attachment } else { Kind::Volume };
        let Some(WatchEvent { object, deleted }) = self.pending.get_mut(&kind).and_then(VecDeque::pop_front)
        else {
            return;
        };
        if !self.deleted_by_us.contains(text(&object, "/metadata/uid")) {
            self.store_in_cache(kind, &object, deleted);
        }
    }

    fn store_in_cache(&mut self, kind: Kind, object: &Value, deleted: bool) {
        let name = text(object, "/metadata/name").to_owned();
        let version = |version: &str| version.parse::<u64>().unwrap();
        let inputs = match kind {
            Kind::Attachment => self.attachments.get(&name).map(|inputs| &inputs.metadata.resource_version),
            Kind::Volume => self.volumes.get(&name).map(|inputs| &inputs.metadata.resource_version),
        };
        if inputs.is_some_and(|inputs| version(inputs) >= version(text(object, "/metadata/resourceVersion")))
        {
            return;
        }
        match (kind, deleted) {
            (Kind::Attachment, true) => drop(self.attachments.remove(&name)),
            (Kind::Volume, true) => drop(self.volumes.remove(&name)),
            (Kind::Attachment, false) => drop(self.attachments.insert(name, decoded(object))),
            (Kind::Volume, false) => drop(self.volumes.insert(name, decoded(object))),
        }
    }

    /// The volume's attachment that is not in deletion.
    pub(super) fn active_attachment(&self, volume: &str) -> Option<String> {
        let wanted = |(key, object): &(&(Kind, String), &Value)| {
            key.0 == Kind::Attachment && refers(object, volume) && !is_deleting(object)
        };
        self.objects.iter().find(wanted).map(|(key, _)| key.1.clone())
    }

    pub(super) fn is_referenced(&self, volume: &str) -> bool {
        self.objects.iter().any(|(key, object)| key.0 == Kind::Attachment && refers(object, volume))
    }

    pub(super) fn is_active_volume(&self, volume: &str) -> bool {
        self.objects.get(&(Kind::Volume, volume.to_owned())).is_some_and(|volume| !is_deleting(volume))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn remaining(&self) -> String {
        self.objects.values().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}

fn refers(attachment: &Value, volume: &str) -> bool {
    text(attachment, "/spec/source/persistentVolumeName") == volume
}
