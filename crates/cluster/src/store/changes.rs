//! Subscriptions to a store's changes, bounded: who does not keep up is told to look at everything again instead
//! of holding old objects in memory.
//!
//! Ends of objects are kept longer: who looks at everything that is there does not see what is gone, and somebody
//! may wait for just that. A list after a break can bring thousands of them at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use super::Change;

/// So many changes wait for a subscriber; one more and they become a single [`Notice::Resync`].
pub(crate) const PENDING: usize = 1024;
/// So many ends of objects wait besides; one more and all of them are left out.
pub(crate) const ENDS: usize = 64 * PENDING;

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
    line: Mutex<Line<K>>,
    wake: Notify,
}

struct Line<K> {
    notices: VecDeque<Notice<K>>,
    /// How many of them are ends of objects.
    ends: usize,
    closed: bool,
}

impl<K> Notice<K> {
    fn is_end(&self) -> bool {
        matches!(self, Self::Change(Change { new: None, .. }))
    }
}

impl<K> Line<K> {
    fn push(&mut self, notice: Notice<K>) {
        let is_end = notice.is_end();
        if self.ends + usize::from(is_end) > ENDS {
            self.notices.clear();
            self.ends = 0;
            return self.notices.push_back(Notice::Resync);
        }
        if !is_end && self.notices.len() - self.ends >= PENDING {
            self.notices.retain(Notice::is_end);
            return self.notices.push_back(Notice::Resync);
        }
        self.ends += usize::from(is_end);
        self.notices.push_back(notice);
    }

    fn pop(&mut self) -> Option<Notice<K>> {
        let notice = self.notices.pop_front()?;
        self.ends -= usize::from(notice.is_end());
        Some(notice)
    }
}

impl<K> Pending<K> {
    fn lock(&self) -> MutexGuard<'_, Line<K>> {
        self.line.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn push(&self, change: Change<K>) {
        self.lock().push(Notice::Change(change));
        self.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }
}

impl<K> Changes<K> {
    pub(crate) fn new() -> (Self, Weak<Pending<K>>) {
        let line = Line { notices: VecDeque::from([Notice::Resync]), ends: 0, closed: false };
        let shared = Arc::new(Pending { line: Mutex::new(line), wake: Notify::new() });
        let weak = Arc::downgrade(&shared);
        (Self { shared }, weak)
    }

    /// The next one; `None` when the store is no more. Safe to drop while it waits.
    pub async fn next(&mut self) -> Option<Notice<K>> {
        loop {
            {
                let mut line = self.shared.lock();
                match line.pop() {
                    Some(notice) => return Some(notice),
                    None if line.closed => return None,
                    None => {}
                }
            }
            self.shared.wake.notified().await;
        }
    }
}
