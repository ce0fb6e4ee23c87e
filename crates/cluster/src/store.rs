//! The cache that controllers read: the newest known version of every object of one kind, with indexes and change
//! notifications.
//!
//! Guarantees: reads never block and never use the network. Our own writes are visible as soon as their response is.
//! An interrupted watch leaves the last known state in place. A store is updated as long as the
//! [`Cluster`](crate::Cluster) that it was created from exists.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use wharf_model::{Key, Kind, View};

use changes::SubscriberQueue;
pub use changes::{StoreEvent, Subscription};
pub(crate) use filter::Filter;
pub(crate) use table::Table;

use crate::lease::Relist;
use crate::{WatchOptions, selector};

mod changes;
mod filter;
mod named;
mod table;

/// How long a new leader waits for the next page of a list, and for all of them.
const MAX_STANDSTILL: Duration = Duration::from_secs(10);
const MAX_LIST_TIME: Duration = Duration::from_secs(60);
const LIST_POLL: Duration = Duration::from_millis(20);

/// An index with a fixed definition, which components share; see [`indexes`](crate::indexes).
pub struct Index<K> {
    name: &'static str,
    of: fn(&K) -> Vec<String>,
}

impl<K> Index<K> {
    pub(crate) const fn new(name: &'static str, of: fn(&K) -> Vec<String>) -> Self {
        Self { name, of }
    }
}

/// A change of one object; `old` and `new` are never both `None`.
#[derive(Debug)]
pub struct Change<K> {
    /// The object's key.
    pub key: Key,
    /// The object before the change; `None` if it is new.
    pub old: Option<Arc<K>>,
    /// The object after the change; `None` if it was deleted.
    pub new: Option<Arc<K>>,
}

/// The synchronization state of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// The first list is not complete.
    Listing,
    /// Complete, and kept up to date by the watch.
    Synced,
    /// The API server does not serve this kind; the list is retried every 30 s. The store is empty.
    NotServed,
    /// Listing or watching this kind is forbidden; it is retried. The store keeps its contents.
    Forbidden,
}

/// A shared cache of one kind, or of a selection of its objects; cheap to clone.
pub struct Store<K> {
    shared: Arc<Shared<K>>,
    /// The selection; `None` is all that the watch delivers.
    filter: Option<Arc<Filter<K>>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), filter: self.filter.clone() }
    }
}

struct Shared<K> {
    inner: Mutex<Inner<K>>,
    /// Wakes tasks that wait for another state, in the order in which they started to wait.
    state_changed: Notify,
    /// Wakes the watch, which lists all objects again.
    list_wanted: Notify,
    options: WatchOptions,
}

struct Inner<K> {
    table: Table<K>,
    subscribers: Vec<Weak<SubscriberQueue<K>>>,
    revision: u64,
    reach: SyncState,
    list_wanted: bool,
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for subscriber in inner.subscribers.iter().filter_map(Weak::upgrade) {
            subscriber.close();
        }
    }
}

impl<K: Kind> Store<K> {
    pub(crate) fn new(options: WatchOptions) -> Self {
        let table = Table::new(options.view);
        let reach = SyncState::Listing;
        let inner = Inner { table, subscribers: Vec::new(), revision: 0, reach, list_wanted: false };
        let (inner, state_changed, list_wanted) = (Mutex::new(inner), Notify::new(), Notify::new());
        let shared = Shared { inner, state_changed, list_wanted, options };
        Self { shared: Arc::new(shared), filter: None }
    }

    /// A handle that shows only the selected objects. The watch and the indexes stay those of the whole store.
    pub(crate) fn filtered(&self, filter: Filter<K>) -> Self {
        Self { shared: Arc::clone(&self.shared), filter: Some(Arc::new(filter)) }
    }

    pub(crate) fn view(&self) -> View {
        self.shared.options.view
    }

    fn is_selected(&self, object: &K) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(object))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // A panic in an index function leaves complete objects behind; continuing is better than a second panic.
        self.shared.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The last known version of an object.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.lock().table.get(key).filter(|object| self.is_selected(object)).cloned()
    }

    /// All objects, ordered by key.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.lock().table.all().filter(|object| self.is_selected(object)).cloned().collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        match &self.filter {
            None => inner.table.len(),
            Some(filter) => inner.table.all().filter(|object| filter.matches(object)).count(),
        }
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index: `of` returns the values under which an object is found. If an index of this name exists, it is
    /// kept, since stores are shared. `of` must be pure and fast: it runs under the store's lock.
    pub fn add_index(&self, name: &'static str, of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        self.lock().table.index(name, Box::new(of));
    }

    /// Adds a shared index, unless the store has it. `find` needs it.
    pub fn share_index(&self, index: &Index<K>) {
        self.add_index(index.name, index.of);
    }

    /// The objects under a value of a shared index.
    pub fn find(&self, index: &Index<K>, value: &str) -> Vec<Arc<K>> {
        self.by_index(index.name, value)
    }

    /// The objects under an index value; empty if there is no such index.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let inner = self.lock();
        inner.table.find_by_index(name, value).filter(|object| self.is_selected(object)).cloned().collect()
    }

    /// The first object, by key, under an index value. Cheaper than [`Store::by_index`] if one is enough.
    pub fn first_by_index(&self, name: &str, value: &str) -> Option<Arc<K>> {
        let inner = self.lock();
        inner.table.find_by_index(name, value).find(|object| self.is_selected(object)).cloned()
    }

    /// Increases with every change: a result computed from the store is valid as long as the revision is the same.
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Whether the watch has delivered everything up to this version, so that an object that existed at that version and
    /// is not in the store is either gone or [undecodable](Self::undecodable). A server reports its version to a quiet
    /// watch about once a minute.
    pub fn has_reached(&self, version: &str) -> bool {
        self.lock().table.has_reached(version)
    }

    /// The version up to which the watch has delivered everything; `None` before the first complete list.
    pub fn reached_version(&self) -> Option<String> {
        self.lock().table.reached_version().map(str::to_owned)
    }

    /// The keys of objects whose newest version could not be decoded; `None` if not even the name could be read.
    pub fn undecodable(&self) -> Vec<Option<Key>> {
        self.lock().table.undecodable().cloned().collect()
    }

    /// Subscribes to all changes from now on.
    pub fn subscribe(&self) -> Subscription<K> {
        let (changes, pending) = Subscription::new(self.filter.clone());
        let mut inner = self.lock();
        inner.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        inner.subscribers.push(pending);
        changes
    }

    /// Waits for the first complete list, or until the kind is known not to be served.
    pub async fn wait_synced(&self) {
        self.wait_for_state(|reach| matches!(reach, SyncState::Synced | SyncState::NotServed)).await;
    }

    /// Waits for the first outcome, whatever it is; for optional kinds.
    pub async fn wait_settled(&self) -> SyncState {
        self.wait_for_state(|reach| reach != SyncState::Listing).await
    }

    async fn wait_for_state(&self, is: impl Fn(SyncState) -> bool) -> SyncState {
        loop {
            // Register before reading the state, so that a change after it wakes this task.
            let state_changed = self.shared.state_changed.notified();
            let reach = self.sync_state();
            if is(reach) {
                return reach;
            }
            state_changed.await;
        }
    }

    /// The store's synchronization state.
    pub fn sync_state(&self) -> SyncState {
        self.lock().reach
    }

    /// Whether the API server serves this kind and the store is complete.
    pub fn is_synced(&self) -> bool {
        self.sync_state() == SyncState::Synced
    }

    pub(crate) fn set_sync_state(&self, reach: SyncState) {
        if std::mem::replace(&mut self.lock().reach, reach) != reach {
            self.shared.state_changed.notify_waiters();
        }
    }

    /// Waits until the objects have to be listed again, once for each such request.
    pub(crate) async fn wait_list_wanted(&self) {
        loop {
            let wanted = self.shared.list_wanted.notified();
            if std::mem::take(&mut self.lock().list_wanted) {
                return;
            }
            wanted.await;
        }
    }

    /// Lists all objects again, if no list after the first `begun` ones has begun, and waits until one is complete. Gives up
    /// if the pages stop, or after a minute.
    async fn list_again(self, begun: u64) {
        let started = Instant::now();
        let (mut last_page, mut wanted) = ((0, started), false);
        loop {
            {
                let mut inner = self.lock();
                let (lists, complete, pages) = inner.table.list_progress();
                if complete > begun || matches!(inner.reach, SyncState::NotServed | SyncState::Forbidden) {
                    return;
                }
                if pages != last_page.0 {
                    last_page = (pages, Instant::now());
                }
                if lists <= begun && !std::mem::replace(&mut wanted, true) {
                    inner.list_wanted = true;
                    drop(inner);
                    self.shared.list_wanted.notify_waiters();
                }
            }
            if last_page.1.elapsed() >= MAX_STANDSTILL || started.elapsed() >= MAX_LIST_TIME {
                tracing::warn!(
                    kind = K::API.kind,
                    "objects were not listed after the lease was acquired; acting on the cache"
                );
                return;
            }
            sleep(LIST_POLL).await;
        }
    }

    /// Changes the table and notifies subscribers, all in the same order.
    pub(crate) fn update<R: IntoIterator<Item = Change<K>>>(&self, change: impl FnOnce(&mut Table<K>) -> R) {
        let mut inner = self.lock();
        let changes = change(&mut inner.table);
        let subscribers: Vec<_> = inner.subscribers.iter().filter_map(Weak::upgrade).collect();
        for Change { key, old, new } in changes {
            inner.revision += 1;
            for subscriber in &subscribers {
                subscriber.push(Change { key: key.clone(), old: old.clone(), new: new.clone() });
            }
        }
    }
}

impl<K: Kind> Relist for Store<K> {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }

    fn lists_begun(&self) -> u64 {
        self.lock().table.list_progress().0
    }

    fn list_after(&self, begun: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clone().list_again(begun))
    }
}

/// A store of any kind that is updated from the responses to our own requests.
pub(crate) trait Absorb: Send + Sync {
    /// Whether the store has a label or field selector.
    fn selects(&self) -> bool;
    /// Adds an object. `value` is the parsed `raw`, and read only if the store has a selector.
    fn absorb(&self, raw: &[u8], value: &Value);
    /// Removes an object that our own request deleted.
    fn mark_deleted(&self, key: &Key, uid: &str);
}

impl<K: Kind> Absorb for Store<K> {
    fn selects(&self) -> bool {
        let WatchOptions { label_selector, field_selector, .. } = &self.shared.options;
        label_selector.is_some() || field_selector.is_some()
    }

    fn absorb(&self, raw: &[u8], value: &Value) {
        let WatchOptions { namespace, label_selector, field_selector, view } = &self.shared.options;
        if !selector::matches(value, label_selector.as_deref(), field_selector.as_deref()) {
            return;
        }
        // The watch counts and logs objects that cannot be decoded.
        let mut raw = serde_json::Deserializer::from_slice(raw);
        let Ok(object) = K::decode(&mut raw, *view) else { return };
        if namespace.is_some() && *namespace != object.meta().namespace {
            return;
        }
        self.update(|table| table.absorb(object));
    }

    fn mark_deleted(&self, key: &Key, uid: &str) {
        self.update(|table| table.mark_deleted(key, uid));
    }
}

#[cfg(test)]
mod tests;
