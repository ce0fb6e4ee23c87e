//! Wakeups of bindings: a binding sleeps until a watch reports a change of an object it waits for.

use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use wharf_model::Key;

/// An object to wait for. A change of a volume wakes the waiters of its claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchedObject {
    Pod(Key),
    Claim(Key),
    Node(String),
}

type Waiters = BTreeMap<WatchedObject, Vec<Arc<Notify>>>;

/// All registered waiters; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakeups(Arc<Mutex<Waiters>>);

impl Wakeups {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Registers for changes of these objects, until the returned value is dropped.
    pub(super) fn register(&self, objects: Vec<WatchedObject>) -> Wakeup {
        let notify = Arc::new(Notify::new());
        let mut waiters = self.lock();
        for object in &objects {
            waiters.entry(object.clone()).or_default().push(Arc::clone(&notify));
        }
        drop(waiters);
        Wakeup { wakeups: self.clone(), objects, notify }
    }

    /// Wakes all waiters of this object.
    pub(super) fn wake(&self, object: &WatchedObject) {
        for notify in self.lock().get(object).into_iter().flatten() {
            notify.notify_one();
        }
    }

    /// Wakes everyone: it is unknown what has changed.
    pub(super) fn wake_all(&self) {
        for notify in self.lock().values().flatten() {
            notify.notify_one();
        }
    }
}

/// A registration.
pub(super) struct Wakeup {
    wakeups: Wakeups,
    objects: Vec<WatchedObject>,
    notify: Arc<Notify>,
}

impl Wakeup {
    /// Waits for the next change; a change since the last wait counts.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        let mut waiters = self.wakeups.lock();
        for object in &self.objects {
            let Entry::Occupied(mut entry) = waiters.entry(object.clone()) else { continue };
            entry.get_mut().retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn registered_waiters_are_woken_and_unregistered_on_drop() {
        let wakeups = Wakeups::default();
        let claim = |name: &str| WatchedObject::Claim(Key::namespaced("ns", name));
        let wakeup = wakeups.register(vec![claim("a"), WatchedObject::Node("n".into())]);
        let other = wakeups.register(vec![claim("a")]);
        let woken = async |wakeup: &Wakeup| timeout(Duration::from_secs(1), wakeup.woken()).await.is_ok();
        assert!(!woken(&wakeup).await);
        // A wakeup before the wait is not lost.
        wakeups.wake(&claim("a"));
        assert!(woken(&wakeup).await && woken(&other).await);
        wakeups.wake(&WatchedObject::Node("n".into()));
        assert!(woken(&wakeup).await && !woken(&other).await);
        wakeups.wake(&claim("b"));
        assert!(!woken(&wakeup).await);
        wakeups.wake_all();
        assert!(woken(&wakeup).await && woken(&other).await);
        drop(wakeup);
        drop(other);
        assert!(wakeups.lock().is_empty());
    }
}
