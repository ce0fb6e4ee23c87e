//! The contents of a store, without locks, clocks or I/O.
//!
//! Three sources write here: lists, the watch, and the answers to our own writes. Promise: whatever their order,
//! an older version never replaces a newer one, and an object that is gone does not come back.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wharf_model::{Key, Kind};

use super::Change;
use super::named::{Name, Named};
use crate::version::{compare_versions, newer_than};

/// The keys under which an object is found in an index.
pub(crate) type Indexer<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

struct Index<K> {
    name: &'static str,
    of: Indexer<K>,
    entries: BTreeMap<String, Keys>,
}

/// The objects under one value of an index. Most often it is one, and a set for each would be most of the memory.
enum Keys {
    One(Key),
    Many(BTreeSet<Key>),
}

/// An object that our own DELETE ended, while the watch has not told yet.
struct Burial {
    uid: String,
    /// The list during which it was buried: what was listed before may still show it.
    list: u64,
}

pub(crate) struct Table<K> {
    objects: BTreeSet<Named<K>>,
    indexes: Vec<Index<K>>,
    buried: HashMap<Key, Burial>,
    /// Up to this version the watch has told everything.
    told: Option<String>,
    /// How many lists have begun.
    lists: u64,
    /// Keys met by the running list.
    listed: BTreeSet<Key>,
}

impl<K: Kind> Table<K> {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeSet::new(),
            indexes: Vec::new(),
            buried: HashMap::new(),
            told: None,
            lists: 0,
            listed: BTreeSet::new(),
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

    /// Adds an index and fills it. A name that is there already keeps its first meaning: stores are shared.
    pub(crate) fn index(&mut self, name: &'static str, of: Indexer<K>) {
        if self.indexes.iter().any(|index| index.name == name) {
            return;
        }
        let mut index = Index { name, of, entries: BTreeMap::new() };
        for Named(object) in &self.objects {
            index.insert(&object.key(), object);
        }
        self.indexes.push(index);
    }

    pub(crate) fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.found(name, value).cloned().collect()
    }

    /// The objects found under a value, one by one.
    pub(crate) fn found(&self, name: &str, value: &str) -> impl Iterator<Item = &Arc<K>> {
        let index = self.indexes.iter().find(|index| index.name == name);
        let (one, many) = match index.and_then(|index| index.entries.get(value)) {
            None => (None, None),
            Some(Keys::One(key)) => (Some(key), None),
            Some(Keys::Many(keys)) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten()).filter_map(|key| self.get(key))
    }

    /// A list begins; what is there stays until it ends.
    pub(crate) fn list_begins(&mut self) {
        self.lists += 1;
        self.listed.clear();
    }

    /// One object of the running list.
    pub(crate) fn list_item(&mut self, object: K) -> Option<Change<K>> {
        let key = object.key();
        if !object.is_kept() {
            // If it was kept before, it is gone when the list ends.
            return None;
        }
        self.listed.insert(key.clone());
        if let Some(burial) = self.buried.get(&key)
            && burial.uid == object.meta().uid
        {
            if burial.list == self.lists {
                // The list may have been taken before our DELETE; the watch that follows it will tell.
                return None;
            }
            self.buried.remove(&key);
        }
        self.put(key, object)
    }

    /// An object of the running list that could not be decoded: what we have of it is better than nothing.
    pub(crate) fn list_unreadable(&mut self, key: Key) {
        self.listed.insert(key);
    }

    /// The list is complete as of `version`: what it did not show is gone, unless it is newer than the list.
    pub(crate) fn list_ends(&mut self, version: &str) -> Vec<Change<K>> {
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
        self.buried.retain(|key, burial| burial.list == lists && listed.contains(key));
        self.told = Some(version.to_owned());
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The kind is not served: there is nothing.
    pub(crate) fn clear(&mut self) -> Vec<Change<K>> {
        self.told = None;
        self.buried.clear();
        let keys: Vec<Key> = self.all().map(|object| object.key()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The watch says: added or modified.
    pub(crate) fn watched(&mut self, object: K) -> Option<Change<K>> {
        self.told(&object.meta().resource_version);
        let key = object.key();
        if let Some(burial) = self.buried.get(&key) {
            if burial.uid == object.meta().uid {
                return None;
            }
            // Another object of that name; the watch keeps order, so the buried one is past.
            self.buried.remove(&key);
        }
        self.put(key, object)
    }

    /// The watch says: deleted. `version` is that of the deletion.
    pub(crate) fn watched_deletion(&mut self, key: &Key, uid: &str, version: &str) -> Option<Change<K>> {
        self.told(version);
        if self.buried.get(key).is_some_and(|burial| burial.uid == uid) {
            self.buried.remove(key);
        }
        let present = self.get(key)?;
        // Our own create of a successor may have entered before the watch told of the predecessor's end.
        if present.meta().uid == uid { self.remove(key) } else { None }
    }

    /// The watch has told everything up to this version.
    pub(crate) fn told(&mut self, version: &str) {
        if !version.is_empty() && self.told.as_deref().is_none_or(|told| newer_than(version, told)) {
            self.told = Some(version.to_owned());
        }
    }

    /// The answer to one of our own requests. What the watch is already past is ignored: the object may have
    /// been deleted since, and would never be told of again.
    pub(crate) fn absorb(&mut self, object: K) -> Option<Change<K>> {
        let meta = object.meta();
        let key = meta.key();
        let ahead = match &self.told {
            None => true,
            Some(told) => match compare_versions(&meta.resource_version, told) {
                Some(ordering) => ordering == std::cmp::Ordering::Greater,
                None => self.get(&key).is_some_and(|present| present.meta().uid == meta.uid),
            },
        };
        if !ahead || self.buried.get(&key).is_some_and(|burial| burial.uid == meta.uid) {
            return None;
        }
        self.put(key, object)
    }

    /// Our own DELETE was answered: the object of this uid is gone.
    pub(crate) fn bury(&mut self, key: &Key, uid: &str) -> Option<Change<K>> {
        if self.get(key)?.meta().uid != uid {
            return None;
        }
        self.buried.insert(key.clone(), Burial { uid: uid.to_owned(), list: self.lists });
        self.remove(key)
    }

    fn put(&mut self, key: Key, object: K) -> Option<Change<K>> {
        let old = self.get(&key);
        if old.is_some_and(|old| !newer_than(&object.meta().resource_version, &old.meta().resource_version)) {
            return None;
        }
        if !object.is_kept() {
            return self.remove(&key);
        }
        let new = Arc::new(object);
        let old = self.objects.replace(Named(Arc::clone(&new))).map(|Named(old)| old);
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.insert(&key, &new);
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
    fn insert(&mut self, key: &Key, object: &K) {
        for value in (self.of)(object) {
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
