//! Subscriptions to a store's changes, bounded: who does not keep up is told to look at everything again instead
//! of holding old objects in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use super::Change;

/// So many changes wait for a subscriber; one more and they become a single [`Notice::Resync`].
pub(crate) const PENDING: usize = 1024;

/// What a subscriber is told.
#[derive(Debug)]
pub enum Notice<K> {
    /// One object changed.
    Change(Change<K>),
    /// Look at everything: the subscription has just begun, or changes were left out.
    Resync,
}

/// A subscription. It begins with a [`Notice::Resync`], so that what was there before is not missed.
pub struct Changes<K> {
    shared: Arc<Pending<K>>,
}

pub(crate) struct Pending<K> {
    notices: Mutex<(VecDeque<Notice<K>>, bool)>,
    wake: Notify,
}

impl<K> Pending<K> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Notice<K>>, bool)> {
        self.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn push(&self, change: Change<K>) {
        let (notices, _) = &mut *self.lock();
        if notices.len() >= PENDING {
            notices.clear();
            notices.push_back(Notice::Resync);
        } else {
            notices.push_back(Notice::Change(change));
        }
        self.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        self.lock().1 = true;
        self.wake.notify_one();
    }
}

impl<K> Changes<K> {
    pub(crate) fn new() -> (Self, Weak<Pending<K>>) {
        let notices = Mutex::new((VecDeque::from([Notice::Resync]), false));
        let shared = Arc::new(Pending { notices, wake: Notify::new() });
        let weak = Arc::downgrade(&shared);
        (Self { shared }, weak)
    }

    /// The next one; `None` when the store is no more. Safe to drop while it waits.
    pub async fn next(&mut self) -> Option<Notice<K>> {
        loop {
            {
                let (notices, closed) = &mut *self.shared.lock();
                match notices.pop_front() {
                    Some(notice) => return Some(notice),
                    None if *closed => return None,
                    None => {}
                }
            }
            self.shared.wake.notified().await;
        }
    }
}
