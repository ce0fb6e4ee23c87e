//! An API server inside a simulation, and processes whose caches lag behind it.
//!
//! The server assigns resource versions, honours finalizers and rejects patches like a real one. The watch of each
//! process delivers the changes of a kind in order, and as late as the simulation decides. What a process reads or
//! writes itself is in its cache at once, and no late event replaces it with an older version.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{apply_patch, finalizers, text};
use crate::patch::Patch;

/// The time at which every object of a simulation is deleted. The rules only care whether there is one.
const DELETED_AT: &str = "2026-01-01T00:00:00Z";

/// Whether the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// Whether the object has the finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    finalizers(object).is_some_and(|list| list.iter().any(|present| present == finalizer))
}

/// Whether nothing keeps the object any more: the server removes it.
fn is_gone(object: &Value) -> bool {
    is_deleting(object) && finalizers(object).is_none_or(Vec::is_empty)
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

/// The result of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchResult {
    /// The object is changed.
    Applied,
    /// The object has changed since, or the patch is invalid. A caller with a cache has read the current version.
    Rejected,
    /// The object does not exist.
    NotFound,
}

/// An object in a cache.
#[derive(Debug, Clone)]
pub struct CachedObject {
    raw: Value,
    decoded: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl CachedObject {
    fn new(raw: Value) -> Self {
        Self { raw, decoded: OnceLock::new() }
    }

    /// The object in the role's own type; decoded once.
    ///
    /// # Panics
    ///
    /// If it is not of this type.
    pub fn decoded<T: DeserializeOwned + Send + Sync + 'static>(&self) -> Arc<T> {
        let decode = || -> Arc<dyn Any + Send + Sync> {
            Arc::new(T::deserialize(&self.raw).unwrap_or_else(|error| panic!("{error}: {}", self.raw)))
        };
        let decoded = Arc::clone(self.decoded.get_or_init(decode));
        decoded.downcast().unwrap_or_else(|_| panic!("decoded as two types: {}", self.raw))
    }
}

/// Objects by kind and name.
pub type Objects<K> = BTreeMap<(K, String), Value>;

/// What a watch will deliver.
#[derive(Debug)]
struct WatchEvent {
    object: Value,
    deleted: bool,
}

/// The cache of one process.
#[derive(Debug)]
struct Cache<K> {
    objects: BTreeMap<(K, String), CachedObject>,
    /// What the watch has delivered, without reads and writes of the process.
    delivered: Objects<K>,
    pending: BTreeMap<K, VecDeque<WatchEvent>>,
    /// UIDs of objects whose deletion the process observed in the response to its own write.
    deleted: BTreeSet<String>,
}

impl<K: Copy + Ord> Cache<K> {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            delivered: BTreeMap::new(),
            pending: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }

    /// Takes over a version of an object, unless a newer one is known.
    fn observe(&mut self, kind: K, object: &Value, deleted: bool) {
        if self.deleted.contains(text(object, "/metadata/uid")) {
            return;
        }
        let key = (kind, text(object, "/metadata/name").to_owned());
        if self.objects.get(&key).is_some_and(|cached| version(&cached.raw) >= version(object)) {
            return;
        }
        match deleted {
            true => drop(self.objects.remove(&key)),
            false => drop(self.objects.insert(key, CachedObject::new(object.clone()))),
        }
    }

    /// Takes over the response to a write of the process.
    fn observe_own_write(&mut self, kind: K, object: &Value) {
        let deleted = is_gone(object);
        self.observe(kind, object, deleted);
        if deleted {
            self.deleted.insert(text(object, "/metadata/uid").to_owned());
        }
    }
}

/// The API server of a simulation.
#[derive(Debug)]
pub struct SimulatedApi<K> {
    /// The current objects.
    pub objects: Objects<K>,
    version: u64,
    caches: Vec<Cache<K>>,
}

impl<K: Copy + Ord> SimulatedApi<K> {
    /// A server without objects, and the empty caches of this many processes.
    pub fn new(processes: usize) -> Self {
        Self { objects: BTreeMap::new(), version: 0, caches: (0..processes).map(|_| Cache::new()).collect() }
    }

    /// An object.
    pub fn get(&self, kind: K, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    /// Stores a new version of an object, or removes it if it is deleted and has no finalizer. Returns its last
    /// version.
    pub fn put(&mut self, kind: K, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        // The server omits empty fields.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| *value != json!([]) && *value != json!({}));
        }
        let (key, deleted) = ((kind, text(&object, "/metadata/name").to_owned()), is_gone(&object));
        for cache in &mut self.caches {
            let event = WatchEvent { object: object.clone(), deleted };
            cache.pending.entry(kind).or_default().push_back(event);
        }
        match deleted {
            true => drop(self.objects.remove(&key)),
            false => drop(self.objects.insert(key, object.clone())),
        }
        object
    }

    /// Changes an object, if it exists; `process` is the one that gets the response, if any.
    pub fn edit(&mut self, process: Option<usize>, kind: K, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.get(kind, name).cloned() else { return };
        edit(&mut object);
        let last = self.put(kind, object);
        if let Some(process) = process {
            self.caches[process].observe_own_write(kind, &last);
        }
    }

    /// Deletes an object. Nothing happens if it does not exist or is being deleted.
    pub fn delete(&mut self, process: Option<usize>, kind: K, name: &str) {
        if self.get(kind, name).is_some_and(|object| !is_deleting(object)) {
            self.edit(process, kind, name, |object| {
                object["metadata"]["deletionTimestamp"] = json!(DELETED_AT);
            });
        }
    }

    /// Applies a patch.
    pub fn patch(&mut self, process: Option<usize>, kind: K, name: &str, patch: &Patch) -> PatchResult {
        let Some(object) = self.get(kind, name) else { return PatchResult::NotFound };
        let (last, result) = match apply_patch(object, patch) {
            Some(changed) => (self.put(kind, changed), PatchResult::Applied),
            None => (object.clone(), PatchResult::Rejected),
        };
        if let Some(process) = process {
            self.caches[process].observe_own_write(kind, &last);
        }
        result
    }

    /// A process reads an object, which updates its cache. Returns whether the object exists. If it does not, the cache
    /// stays as it is: the watch reports the deletion.
    pub fn read(&mut self, process: usize, kind: K, name: &str) -> bool {
        let Some(object) = self.objects.get(&(kind, name.to_owned())) else { return false };
        self.caches[process].observe(kind, object, false);
        true
    }

    /// What a process has in its cache.
    pub fn cached(&self, process: usize) -> &BTreeMap<(K, String), CachedObject> {
        &self.caches[process].objects
    }

    /// One object of a process's cache.
    pub fn cached_object<T>(&self, process: usize, kind: K, name: &str) -> Option<Arc<T>>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.cached(process).get(&(kind, name.to_owned())).map(CachedObject::decoded)
    }

    /// All objects of a kind in a process's cache.
    pub fn cached_objects<T>(&self, process: usize, kind: K) -> Vec<Arc<T>>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let of_kind = self.cached(process).iter().filter(|(key, _)| key.0 == kind);
        of_kind.map(|(_, object)| object.decoded()).collect()
    }

    /// The watch delivers the next change of a kind to a process.
    pub fn deliver(&mut self, process: usize, kind: K) {
        let cache = &mut self.caches[process];
        let Some(WatchEvent { object, deleted }) = cache.pending.get_mut(&kind).and_then(VecDeque::pop_front)
        else {
            return;
        };
        cache.observe(kind, &object, deleted);
        let key = (kind, text(&object, "/metadata/name").to_owned());
        match deleted {
            true => drop(cache.delivered.remove(&key)),
            false => drop(cache.delivered.insert(key, object)),
        }
    }

    /// Whether the watches have delivered everything.
    pub fn all_delivered(&self) -> bool {
        self.caches.iter().flat_map(|cache| cache.pending.values()).all(VecDeque::is_empty)
    }

    /// Another process takes over whose watch has delivered as much as that of the old one: a standby. A process that starts
    /// lists instead, see [`relist`](Self::relist).
    pub fn restart(&mut self, process: usize) {
        let cache = &mut self.caches[process];
        let delivered = cache.delivered.iter();
        cache.objects = delivered.map(|(key, raw)| (key.clone(), CachedObject::new(raw.clone()))).collect();
        cache.deleted.clear();
    }

    /// A process restarts and lists all objects.
    pub fn relist(&mut self, process: usize) {
        let cache = &mut self.caches[process];
        cache.pending.clear();
        cache.delivered = self.objects.clone();
        self.restart(process);
    }

    /// All objects, for the message of a failed test.
    pub fn remaining(&self) -> String {
        self.objects.values().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::{add_finalizer, remove_finalizer};
    use crate::{PersistentVolume, VolumeAttachment};

    const KIND: u8 = 0;

    fn object(uid: &str) -> Value {
        json!({"metadata": {"name": "a", "uid": uid}, "spec": {}})
    }

    fn server() -> SimulatedApi<u8> {
        let mut api = SimulatedApi::new(2);
        api.put(KIND, object("u1"));
        api.deliver(0, KIND);
        api
    }

    fn cached(api: &SimulatedApi<u8>, process: usize) -> Option<Arc<PersistentVolume>> {
        api.cached_object(process, KIND, "a")
    }

    #[test]
    fn watches_deliver_in_order_and_independently() {
        let mut api = server();
        api.edit(None, KIND, "a", |object| object["spec"]["storageClassName"] = json!("fast"));
        assert_eq!(cached(&api, 0).unwrap().spec.storage_class_name, "");
        assert!(cached(&api, 1).is_none());
        api.deliver(0, KIND);
        assert_eq!(cached(&api, 0).unwrap().spec.storage_class_name, "fast");
        assert!(!api.all_delivered());
        api.deliver(1, KIND);
        assert_eq!(cached(&api, 1).unwrap().spec.storage_class_name, "");
        api.relist(1);
        assert_eq!(cached(&api, 1).unwrap().spec.storage_class_name, "fast");
        assert!(api.all_delivered());
    }

    #[test]
    fn own_writes_are_seen_at_once_and_stay() {
        let mut api = server();
        let added = add_finalizer(&cached(&api, 0).unwrap().metadata, "f").unwrap();
        assert_eq!(api.patch(Some(0), KIND, "a", &added), PatchResult::Applied);
        let meta = cached(&api, 0).unwrap().metadata.clone();
        assert!(meta.has_finalizer("f"));
        assert_eq!(api.patch(None, KIND, "a", &added), PatchResult::Rejected, "it is there already");
        api.delete(Some(0), KIND, "a");
        assert!(cached(&api, 0).unwrap().metadata.is_deleting());
        assert_eq!(
            api.patch(Some(0), KIND, "a", &remove_finalizer(&meta, "f").unwrap()),
            PatchResult::Applied
        );
        assert!(api.objects.is_empty() && cached(&api, 0).is_none());
        assert_eq!(api.patch(Some(0), KIND, "a", &added), PatchResult::NotFound);
        // Late events of the deleted object do not restore it; its successor is another object.
        (0..4).for_each(|_| api.deliver(0, KIND));
        assert!(cached(&api, 0).is_none());
        api.put(KIND, object("u2"));
        api.deliver(0, KIND);
        assert_eq!(cached(&api, 0).unwrap().metadata.uid, "u2");
    }

    #[test]
    fn rejected_patch_and_read_update_the_cache() {
        let mut api = server();
        let stale = cached(&api, 0).unwrap().metadata.clone();
        let mut patch = json!({"spec": {"storageClassName": "slow"}});
        patch["metadata"]["resourceVersion"] = json!(stale.resource_version);
        api.edit(None, KIND, "a", |object| object["spec"]["storageClassName"] = json!("fast"));
        assert_eq!(api.patch(Some(0), KIND, "a", &Patch::Merge(patch)), PatchResult::Rejected);
        assert_eq!(cached(&api, 0).unwrap().spec.storage_class_name, "fast");
        assert!(api.read(1, KIND, "a"));
        assert_eq!(cached(&api, 1).unwrap().spec.storage_class_name, "fast");
        // A new process has what the watch had delivered, not what the old one had read.
        api.restart(1);
        assert!(cached(&api, 1).is_none());
    }

    #[test]
    fn absent_object_stays_cached_until_the_watch_reports_it() {
        let mut api = server();
        api.delete(None, KIND, "a");
        assert!(!api.read(0, KIND, "a"));
        assert!(cached(&api, 0).is_some());
        api.deliver(0, KIND);
        assert!(cached(&api, 0).is_none());
    }

    #[test]
    #[should_panic(expected = "decoded as two types")]
    fn kinds_are_not_mixed_up() {
        let api = server();
        drop(cached(&api, 0));
        drop(api.cached_object::<VolumeAttachment>(0, KIND, "a"));
    }
}
