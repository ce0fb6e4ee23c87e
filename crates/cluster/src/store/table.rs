//! The contents of a store, without locks, clocks or I/O.
//!
//! Three sources update it: lists, the watch, and the responses to our own writes. Guarantees: in whatever order they
//! arrive, an older version never replaces a newer one, and a deleted object does not come back.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wharf_model::{Key, Kind, View};

use super::Change;
use super::named::{Name, Named};
use crate::version::{compare_versions, is_newer_version};

/// Computes the index values under which an object is found.
pub(crate) type Indexer<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

struct Index<K> {
    name: &'static str,
    of: Indexer<K>,
    entries: BTreeMap<String, Keys>,
}

/// The keys of the objects under one index value. Most often there is one, and a set for each would use most of the
/// memory.
enum Keys {
    One(Key),
    Many(BTreeSet<Key>),
}

/// An object that our own DELETE removed, before the watch has delivered the deletion.
struct Tombstone {
    uid: String,
    /// The list during which it was deleted: earlier pages may still contain it.
    list: u64,
}

pub(crate) struct Table<K> {
    view: View,
    objects: BTreeSet<Named<K>>,
    indexes: Vec<Index<K>>,
    tombstones: HashMap<Key, Tombstone>,
    /// The watch has delivered everything up to this version.
    watched_version: Option<String>,
    /// The number of lists started.
    lists: u64,
    /// The last list that is complete.
    complete_list: u64,
    /// The number of pages received.
    pages: u64,
    /// Keys in the current list.
    listed: BTreeSet<Key>,
    /// Objects whose newest version could not be decoded; `None` if not even the name could be read.
    undecodable: BTreeSet<Option<Key>>,
    /// Those in the current list.
    listed_undecodable: BTreeSet<Option<Key>>,
}

impl<K: Kind> Table<K> {
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            objects: BTreeSet::new(),
            indexes: Vec::new(),
            tombstones: HashMap::new(),
            watched_version: None,
            lists: 0,
            complete_list: 0,
            pages: 0,
            listed: BTreeSet::new(),
            undecodable: BTreeSet::new(),
            listed_undecodable: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key as &dyn Name).map(|Named(object)| object)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.iter().map(|Named(object)| object)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Adds an index and fills it. An existing index of this name is kept: stores are shared.
    pub(crate) fn index(&mut self, name: &'static str, of: Indexer<K>) {
        if self.indexes.iter().any(|index| index.name == name) {
            return;
        }
        let mut index = Index { name, of, entries: BTreeMap::new() };
        for Named(object) in &self.objects {
            index.insert(&object.key(), (index.of)(object));
        }
        self.indexes.push(index);
    }

    /// Iterates over the objects under an index value.
    pub(crate) fn find_by_index(&self, name: &str, value: &str) -> impl Iterator<Item = &Arc<K>> {
        let index = self.indexes.iter().find(|index| index.name == name);
        let (one, many) = match index.and_then(|index| index.entries.get(value)) {
            None => (None, None),
            Some(Keys::One(key)) => (Some(key), None),
            Some(Keys::Many(keys)) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten()).filter_map(|key| self.get(key))
    }

    /// A list starts. Existing objects are kept until it ends.
    pub(crate) fn begin_list(&mut self) {
        self.lists += 1;
        self.listed.clear();
        self.listed_undecodable.clear();
    }

    /// The number of lists that have begun, the last of them that is complete, and the number of pages received.
    pub(crate) fn list_progress(&self) -> (u64, u64, u64) {
        (self.lists, self.complete_list, self.pages)
    }

    /// A page of the current list was received.
    pub(crate) fn page_received(&mut self) {
        self.pages += 1;
    }

    /// Adds an object of the current list.
    pub(crate) fn list_item(&mut self, object: K) -> Option<Change<K>> {
        let key = object.key();
        if !object.is_cached(self.view) {
            // If it was cached before, it is removed when the list ends.
            return None;
        }
        self.listed.insert(key.clone());
        if let Some(tombstone) = self.tombstones.get(&key)
            && tombstone.uid == object.meta().uid
        {
            if tombstone.list == self.lists {
                // The list may predate our DELETE; the watch that follows it delivers the deletion.
                return None;
            }
            self.tombstones.remove(&key);
        }
        self.put(key, object)
    }

    /// An object of the current list could not be decoded: its cached version is kept.
    pub(crate) fn list_undecodable(&mut self, key: Option<Key>) {
        self.listed.extend(key.clone());
        self.listed_undecodable.insert(key);
    }

    /// A watch event whose object could not be decoded: its cached version is kept.
    pub(crate) fn watched_undecodable(&mut self, key: Option<Key>) {
        self.undecodable.insert(key);
    }

    /// Objects whose newest version could not be decoded: they may exist, and their cached version may be outdated.
    pub(crate) fn undecodable(&self) -> impl Iterator<Item = &Option<Key>> {
        self.undecodable.iter()
    }

    /// The version up to which the watch has delivered everything.
    pub(crate) fn reached_version(&self) -> Option<&str> {
        self.watched_version.as_deref()
    }

    /// Whether the watch has delivered everything up to a version.
    pub(crate) fn has_reached(&self, version: &str) -> bool {
        let order = self.watched_version.as_deref().and_then(|watched| compare_versions(watched, version));
        order.is_some_and(std::cmp::Ordering::is_ge)
    }

    /// The list is complete as of `version`: objects that are not in it are removed, unless they are newer.
    pub(crate) fn end_list(&mut self, version: &str) -> Vec<Change<K>> {
        let gone: Vec<Key> = self
            .objects
            .iter()
            .filter(|Named(object)| {
                compare_versions(&object.meta().resource_version, version)
                    != Some(std::cmp::Ordering::Greater)
            })
            .map(|Named(object)| object.key())
            .filter(|key| !self.listed.contains(key))
            .collect();
        let (lists, listed) = (self.lists, std::mem::take(&mut self.listed));
        self.tombstones.retain(|key, tombstone| tombstone.list == lists && listed.contains(key));
        self.watched_version = Some(version.to_owned());
        self.complete_list = self.lists;
        self.undecodable = std::mem::take(&mut self.listed_undecodable);
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The kind is not served: removes all objects.
    pub(crate) fn clear(&mut self) -> Vec<Change<K>> {
        self.watched_version = None;
        self.tombstones.clear();
        self.undecodable.clear();
        let keys: Vec<Key> = self.all().map(|object| object.key()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// A watch event: added or modified.
    pub(crate) fn watched(&mut self, object: K) -> Option<Change<K>> {
        self.observe_version(&object.meta().resource_version);
        let key = object.key();
        if let Some(tombstone) = self.tombstones.get(&key) {
            if tombstone.uid == object.meta().uid {
                return None;
            }
            // Another object of that name. The watch is ordered, so the deletion has been passed.
            self.tombstones.remove(&key);
        }
        self.put(key, object)
    }

    /// A watch event: deleted. `version` is that of the deletion.
    pub(crate) fn watched_deletion(&mut self, key: &Key, uid: &str, version: &str) -> Option<Change<K>> {
        self.observe_version(version);
        self.decoded(key);
        if self.tombstones.get(key).is_some_and(|tombstone| tombstone.uid == uid) {
            self.tombstones.remove(key);
        }
        let present = self.get(key)?;
        // The response to our create of a successor may arrive before the watch delivers the predecessor's deletion.
        if present.meta().uid == uid { self.remove(key) } else { None }
    }

    /// The watch has delivered everything up to this version.
    pub(crate) fn observe_version(&mut self, version: &str) {
        if !version.is_empty()
            && self.watched_version.as_deref().is_none_or(|watched| is_newer_version(version, watched))
        {
            self.watched_version = Some(version.to_owned());
        }
    }

    /// The response to one of our own requests. A version that the watch has passed is ignored: the object may have
    /// been deleted since, and the watch would not deliver that again.
    pub(crate) fn absorb(&mut self, object: K) -> Option<Change<K>> {
        let meta = object.meta();
        let key = meta.key();
        let ahead = match &self.watched_version {
            None => true,
            Some(watched) => match compare_versions(&meta.resource_version, watched) {
                Some(ordering) => ordering == std::cmp::Ordering::Greater,
                None => self.get(&key).is_some_and(|present| present.meta().uid == meta.uid),
            },
        };
        if !ahead || self.tombstones.get(&key).is_some_and(|tombstone| tombstone.uid == meta.uid) {
            return None;
        }
        self.put(key, object)
    }

    /// Our own DELETE succeeded: the object of this UID is gone.
    pub(crate) fn mark_deleted(&mut self, key: &Key, uid: &str) -> Option<Change<K>> {
        if self.get(key)?.meta().uid != uid {
            return None;
        }
        self.tombstones.insert(key.clone(), Tombstone { uid: uid.to_owned(), list: self.lists });
        self.remove(key)
    }

    /// The newest version of an object was decoded, or the object is gone.
    fn decoded(&mut self, key: &Key) {
        if !self.undecodable.is_empty() {
            self.undecodable.remove(&Some(key.clone()));
        }
    }

    fn put(&mut self, key: Key, object: K) -> Option<Change<K>> {
        let old = self.get(&key);
        if old.is_some_and(|old| {
            !is_newer_version(&object.meta().resource_version, &old.meta().resource_version)
        }) {
            return None;
        }
        self.decoded(&key);
        if !object.is_cached(self.view) {
            return self.remove(&key);
        }
        let new = Arc::new(object);
        // Before any change of the table: if an index function panics, the object is not half stored.
        let values: Vec<Vec<String>> = self.indexes.iter().map(|index| (index.of)(&new)).collect();
        let old = self.objects.replace(Named(Arc::clone(&new))).map(|Named(old)| old);
        for (index, values) in self.indexes.iter_mut().zip(values) {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.insert(&key, values);
        }
        Some(Change { key, old, new: Some(new) })
    }

    fn remove(&mut self, key: &Key) -> Option<Change<K>> {
        let Named(old) = self.objects.take(key as &dyn Name)?;
        for index in &mut self.indexes {
            index.remove(key, &old);
        }
        Some(Change { key: key.clone(), old: Some(old), new: None })
    }
}

impl<K> Index<K> {
    fn insert(&mut self, key: &Key, values: Vec<String>) {
        for value in values {
            match self.entries.entry(value) {
                Entry::Vacant(entry) => {
                    entry.insert(Keys::One(key.clone()));
                }
                Entry::Occupied(mut entry) => entry.get_mut().insert(key),
            }
        }
    }

    fn remove(&mut self, key: &Key, object: &K) {
        for value in (self.of)(object) {
            let empty = match self.entries.get_mut(&value) {
                None => false,
                Some(Keys::One(present)) => present == key,
                Some(Keys::Many(keys)) => {
                    keys.remove(key);
                    keys.is_empty()
                }
            };
            if empty {
                self.entries.remove(&value);
            }
        }
    }
}

impl Keys {
    fn insert(&mut self, key: &Key) {
        match self {
            Self::One(present) if present == key => {}
            Self::One(present) => *self = Self::Many([present.clone(), key.clone()].into()),
            Self::Many(keys) => {
                keys.insert(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
