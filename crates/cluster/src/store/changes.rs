//! Bounded subscriptions to a store's changes: a subscriber that falls behind gets a resync of all objects instead of
//! holding old ones in memory.
//!
//! Deletions are held longer: a resync does not show deleted objects, and a controller may wait for exactly that. A
//! relist after an interruption can deliver thousands of them at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use wharf_model::Kind;

use super::{Change, Filter};

/// Changes that may wait for a subscriber; one more and a single `StoreEvent::Resync` replaces them.
pub(crate) const MAX_PENDING: usize = 1024;
/// Deletions that may wait in addition; one more and the resync replaces them, too.
pub(crate) const MAX_DELETIONS: usize = 64 * MAX_PENDING;

/// A notification for a subscriber.
#[derive(Debug)]
pub enum StoreEvent<K> {
    /// One object changed.
    Change(Change<K>),
    /// Process all objects: the subscription has just started, or changes were dropped.
    Resync,
}

/// A subscription to a store's changes. It starts with a `StoreEvent::Resync`, so that existing objects are not missed.
pub struct Subscription<K> {
    shared: Arc<SubscriberQueue<K>>,
}

pub(crate) struct SubscriberQueue<K> {
    /// The objects that the subscriber sees; `None` is all.
    filter: Option<Arc<Filter<K>>>,
    pending: Mutex<PendingEvents<K>>,
    wake: Notify,
}

struct PendingEvents<K> {
    events: VecDeque<StoreEvent<K>>,
    /// How many of `events` are deletions.
    deletions: usize,
    closed: bool,
}

impl<K> StoreEvent<K> {
    fn is_deletion(&self) -> bool {
        matches!(self, Self::Change(Change { new: None, .. }))
    }
}

impl<K> PendingEvents<K> {
    fn push(&mut self, event: StoreEvent<K>) {
        let is_deletion = event.is_deletion();
        if self.deletions + usize::from(is_deletion) > MAX_DELETIONS {
            self.events.clear();
            self.deletions = 0;
            return self.events.push_back(StoreEvent::Resync);
        }
        if !is_deletion && self.events.len() - self.deletions >= MAX_PENDING {
            self.events.retain(StoreEvent::is_deletion);
            return self.events.push_back(StoreEvent::Resync);
        }
        self.deletions += usize::from(is_deletion);
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<StoreEvent<K>> {
        let event = self.events.pop_front()?;
        self.deletions -= usize::from(event.is_deletion());
        Some(event)
    }
}

impl<K> SubscriberQueue<K> {
    fn lock(&self) -> MutexGuard<'_, PendingEvents<K>> {
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a change, as far as the subscriber sees it: an object that is no longer selected counts as deleted.
    pub(crate) fn push(&self, change: Change<K>)
    where
        K: Kind,
    {
        let change = match &self.filter {
            None => change,
            Some(filter) => {
                let selected = |object: &Arc<K>| filter.matches(object);
                let (old, new) = (change.old.filter(selected), change.new.filter(selected));
                if old.is_none() && new.is_none() {
                    return;
                }
                Change { key: change.key, old, new }
            }
        };
        self.lock().push(StoreEvent::Change(change));
        self.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }
}

impl<K> Subscription<K> {
    pub(crate) fn new(filter: Option<Arc<Filter<K>>>) -> (Self, Weak<SubscriberQueue<K>>) {
        let pending =
            PendingEvents { events: VecDeque::from([StoreEvent::Resync]), deletions: 0, closed: false };
        let shared = Arc::new(SubscriberQueue { filter, pending: Mutex::new(pending), wake: Notify::new() });
        let weak = Arc::downgrade(&shared);
        (Self { shared }, weak)
    }

    /// The next notification; `None` when the store has been dropped. Cancel-safe.
    pub async fn next(&mut self) -> Option<StoreEvent<K>> {
        loop {
            {
                let mut pending = self.shared.lock();
                match pending.pop() {
                    Some(event) => return Some(event),
                    None if pending.closed => return None,
                    None => {}
                }
            }
            self.shared.wake.notified().await;
        }
    }
}
