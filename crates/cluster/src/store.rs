//! What controllers read: the newest known version of every object of one kind, its indexes and its changes.
//!
//! Promise: reads never wait and never touch the network; our own writes are visible as soon as their answer is;
//! a broken watch leaves the last known state in place. A store is kept up to date for as long as the
//! [`Cluster`](crate::Cluster) it came from lives.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use serde_json::Value;
use tokio::sync::Notify;
use wharf_model::{Key, Kind};

use changes::Pending;
pub use changes::{Changes, Notice};
pub(crate) use table::Table;

use crate::{WatchOptions, selector};

mod changes;
mod named;
mod table;

/// One object's change; never both `None`.
#[derive(Debug)]
pub struct Change<K> {
    /// Which object.
    pub key: Key,
    /// Its version before; `None` if it is new.
    pub old: Option<Arc<K>>,
    /// Its version now; `None` if it is gone.
    pub new: Option<Arc<K>>,
}

/// How far a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The first list is not complete.
    Listing,
    /// Complete, and kept up to date.
    Served,
    /// The API server does not serve this kind; it is asked again every 30 s. The store is empty.
    NotServed,
    /// We may not list or watch this kind; it is tried again. The store holds what it held before.
    Forbidden,
}

/// A shared view of one kind; cheap to clone.
pub struct Store<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<K> {
    inside: Mutex<Inside<K>>,
    /// Wakes who waits for another reach, in the order in which they came.
    reached: Notify,
    options: WatchOptions,
}

struct Inside<K> {
    table: Table<K>,
    subscribers: Vec<Weak<Pending<K>>>,
    revision: u64,
    reach: Reach,
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        let inside = self.inside.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for subscriber in inside.subscribers.iter().filter_map(Weak::upgrade) {
            subscriber.close();
        }
    }
}

impl<K: Kind> Store<K> {
    pub(crate) fn new(options: WatchOptions) -> Self {
        let inside =
            Inside { table: Table::new(), subscribers: Vec::new(), revision: 0, reach: Reach::Listing };
        Self { shared: Arc::new(Shared { inside: Mutex::new(inside), reached: Notify::new(), options }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inside<K>> {
        // A panic in an index function leaves whole objects behind; going on is better than a second panic.
        self.shared.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The object, as last known.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.lock().table.get(key).cloned()
    }

    /// All objects, ordered by key.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.lock().table.all().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index: `of` gives the values under which an object is found. A name in use keeps its first
    /// meaning, since stores are shared. `of` must be pure and quick, it runs under the store's lock.
    pub fn index(&self, name: &'static str, of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        self.lock().table.index(name, Box::new(of));
    }

    /// The objects found under a value; none if there is no such index.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.lock().table.by_index(name, value)
    }

    /// The first of them, by key, where one will do: the others are not even looked at.
    pub fn first_by_index(&self, name: &str, value: &str) -> Option<Arc<K>> {
        self.lock().table.found(name, value).next().cloned()
    }

    /// Grows with every change: what was computed from the store is right for as long as this is the same.
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// From now on, every change.
    pub fn changes(&self) -> Changes<K> {
        let (changes, pending) = Changes::new();
        let mut inside = self.lock();
        inside.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        inside.subscribers.push(pending);
        changes
    }

    /// Waits for the first complete list, or for the knowledge that the kind is not served.
    pub async fn synced(&self) {
        self.until(|reach| matches!(reach, Reach::Served | Reach::NotServed)).await;
    }

    /// Waits for the first outcome, whatever it is; for kinds one can do without.
    pub async fn settled(&self) -> Reach {
        self.until(|reach| reach != Reach::Listing).await
    }

    async fn until(&self, is: impl Fn(Reach) -> bool) -> Reach {
        loop {
            // Before the look, so that what comes after it wakes us.
            let reached = self.shared.reached.notified();
            let reach = self.reach();
            if is(reach) {
                return reach;
            }
            reached.await;
        }
    }

    /// How far the store has come.
    pub fn reach(&self) -> Reach {
        self.lock().reach
    }

    /// Whether the API server serves this kind and we have seen all of it.
    pub fn served(&self) -> bool {
        self.reach() == Reach::Served
    }

    pub(crate) fn set_reach(&self, reach: Reach) {
        if std::mem::replace(&mut self.lock().reach, reach) != reach {
            self.shared.reached.notify_waiters();
        }
    }

    /// Changes the table and tells subscribers, in one order for all.
    pub(crate) fn update<R: IntoIterator<Item = Change<K>>>(&self, change: impl FnOnce(&mut Table<K>) -> R) {
        let mut inside = self.lock();
        let changes = change(&mut inside.table);
        let subscribers: Vec<_> = inside.subscribers.iter().filter_map(Weak::upgrade).collect();
        for Change { key, old, new } in changes {
            inside.revision += 1;
            for subscriber in &subscribers {
                subscriber.push(Change { key: key.clone(), old: old.clone(), new: new.clone() });
            }
        }
    }
}

/// A store that takes the answers to our own requests, whatever its kind.
pub(crate) trait Absorb: Send + Sync {
    /// Whether it takes only some of its kind, by their labels or fields.
    fn selects(&self) -> bool;
    /// Takes an object; `value` is the same as `raw`, and looked at only if the store selects.
    fn absorb(&self, raw: &[u8], value: &Value);
    fn bury(&self, key: &Key, uid: &str);
}

impl<K: Kind> Absorb for Store<K> {
    fn selects(&self) -> bool {
        let WatchOptions { label_selector, field_selector, .. } = &self.shared.options;
        label_selector.is_some() || field_selector.is_some()
    }

    fn absorb(&self, raw: &[u8], value: &Value) {
        let WatchOptions { namespace, label_selector, field_selector } = &self.shared.options;
        if !selector::matches(value, label_selector.as_deref(), field_selector.as_deref()) {
            return;
        }
        // What we cannot decode the watch will count and log.
        let Ok(object) = serde_json::from_slice::<K>(raw) else { return };
        if namespace.is_some() && *namespace != object.meta().namespace {
            return;
        }
        self.update(|table| table.absorb(object));
    }

    fn bury(&self, key: &Key, uid: &str) {
        self.update(|table| table.bury(key, uid));
    }
}

#[cfg(test)]
mod tests;
