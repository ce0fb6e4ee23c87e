//! A small API server, and a store that is behind it: each kind is told in order and as late as chance wants, our
//! own writes at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};
use wharf_model::patch::Patch;

use super::{Attachments, Chance, Volumes, decoded};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Attachment,
    Volume,
}

/// What the watch has still to tell: the object, and whether it is gone.
struct News {
    object: Value,
    gone: bool,
}

#[derive(Default)]
pub(super) struct World {
    /// The truth.
    objects: BTreeMap<(Kind, String), Value>,
    version: u64,
    /// What is on its way.
    untold: BTreeMap<Kind, VecDeque<News>>,
    /// Ended by our own writes: the watch does not bring them back.
    buried: BTreeSet<String>,
    /// What is seen.
    pub(super) attachments: Attachments,
    pub(super) volumes: Volumes,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn is_held(object: &Value) -> bool {
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

    /// Puts an object as it now is, or ends it.
    fn store(&mut self, kind: Kind, name: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let gone = is_deleting(&object) && !is_held(&object);
        self.untold.entry(kind).or_default().push_back(News { object: object.clone(), gone });
        if gone {
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

    /// A write of ours. If it does not fit, the object is read, which the store sees too.
    pub(super) fn patch(&mut self, kind: Kind, name: &str, patch: &Patch) {
        let Some(object) = self.objects.get(&(kind, name.to_owned())) else { return };
        let changed = match patched(object, patch) {
            Some(changed) => self.store(kind, name.to_owned(), changed),
            None => object.clone(),
        };
        let gone = is_deleting(&changed) && !is_held(&changed);
        if gone {
            self.buried.insert(text(&changed, "/metadata/uid").to_owned());
        }
        self.see(kind, &changed, gone);
    }

    /// The watch tells one thing, of one kind.
    pub(super) fn tell(&mut self, chance: &mut Chance) {
        let kind = if chance.one_in(2) { Kind::Attachment } else { Kind::Volume };
        let Some(News { object, gone }) = self.untold.get_mut(&kind).and_then(VecDeque::pop_front) else {
            return;
        };
        if !self.buried.contains(text(&object, "/metadata/uid")) {
            self.see(kind, &object, gone);
        }
    }

    fn see(&mut self, kind: Kind, object: &Value, gone: bool) {
        let name = text(object, "/metadata/name").to_owned();
        let version = |version: &str| version.parse::<u64>().unwrap();
        let seen = match kind {
            Kind::Attachment => self.attachments.get(&name).map(|seen| &seen.metadata.resource_version),
            Kind::Volume => self.volumes.get(&name).map(|seen| &seen.metadata.resource_version),
        };
        if seen.is_some_and(|seen| version(seen) >= version(text(object, "/metadata/resourceVersion"))) {
            return;
        }
        match (kind, gone) {
            (Kind::Attachment, true) => drop(self.attachments.remove(&name)),
            (Kind::Volume, true) => drop(self.volumes.remove(&name)),
            (Kind::Attachment, false) => drop(self.attachments.insert(name, decoded(object))),
            (Kind::Volume, false) => drop(self.volumes.insert(name, decoded(object))),
        }
    }

    /// The attachment of a volume that is not going.
    pub(super) fn wanted(&self, volume: &str) -> Option<String> {
        let wanted = |(key, object): &(&(Kind, String), &Value)| {
            key.0 == Kind::Attachment && refers(object, volume) && !is_deleting(object)
        };
        self.objects.iter().find(wanted).map(|(key, _)| key.1.clone())
    }

    pub(super) fn is_referenced(&self, volume: &str) -> bool {
        self.objects.iter().any(|(key, object)| key.0 == Kind::Attachment && refers(object, volume))
    }

    pub(super) fn is_whole(&self, volume: &str) -> bool {
        self.objects.get(&(Kind::Volume, volume.to_owned())).is_some_and(|volume| !is_deleting(volume))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn left(&self) -> String {
        self.objects.values().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}

fn refers(attachment: &Value, volume: &str) -> bool {
    text(attachment, "/spec/source/persistentVolumeName") == volume
}

/// The object with the patch applied; `None` where the server would refuse.
pub(crate) fn patched(object: &Value, patch: &Patch) -> Option<Value> {
    let mut changed = object.clone();
    match patch {
        Patch::Json(operations) => {
            for operation in operations.as_array().unwrap() {
                apply(&mut changed, operation)?;
            }
        }
        Patch::Merge(body) => {
            let wanted = text(body, "/metadata/resourceVersion");
            if !wanted.is_empty() && wanted != text(object, "/metadata/resourceVersion") {
                return None;
            }
            merge(&mut changed, body);
        }
        Patch::Strategic(_) => panic!("not used here"),
    }
    let added =
        |list: &Vec<Value>| list.iter().any(|f| !finalizers(object).is_some_and(|old| old.contains(f)));
    let refused = is_deleting(object) && finalizers(&changed).is_some_and(added);
    let same = text(object, "/metadata/uid") == text(&changed, "/metadata/uid");
    (same && !refused).then_some(changed)
}

fn apply(object: &mut Value, operation: &Value) -> Option<()> {
    let path = text(operation, "/path");
    let (parent, last) = path.rsplit_once('/')?;
    let last = last.replace("~1", "/");
    let value = &operation["value"];
    match (text(operation, "/op"), object.pointer_mut(parent)?) {
        ("test", parent) => {
            let found = match parent {
                Value::Array(list) => list.get(last.parse::<usize>().ok()?).unwrap_or(&Value::Null),
                parent => parent.get(&last).unwrap_or(&Value::Null),
            };
            (found == value).then_some(())
        }
        ("add", Value::Array(list)) => {
            assert_eq!(last, "-");
            list.push(value.clone());
            Some(())
        }
        ("add", parent) => {
            parent[last] = value.clone();
            Some(())
        }
        ("remove", Value::Array(list)) => {
            let index = last.parse::<usize>().ok()?;
            (index < list.len()).then(|| drop(list.remove(index)))
        }
        other => panic!("not used here: {other:?}"),
    }
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}
