//! Who waits for which object: bindings sleep until a watch tells of what they wait for.

use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use wharf_model::Key;

/// What one can wait for. Volumes are waited for under the claim they are for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Pod(Key),
    Claim(Key),
    Node(String),
}

type Sleepers = BTreeMap<Subject, Vec<Arc<Notify>>>;

/// All who wait; clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Bells(Arc<Mutex<Sleepers>>);

impl Bells {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on until the bell is dropped, changes of these wake its holder.
    pub(super) fn hang(&self, subjects: Vec<Subject>) -> Bell {
        let notify = Arc::new(Notify::new());
        let mut sleepers = self.lock();
        for subject in &subjects {
            sleepers.entry(subject.clone()).or_default().push(Arc::clone(&notify));
        }
        drop(sleepers);
        Bell { bells: self.clone(), subjects, notify }
    }

    /// Something has changed.
    pub(super) fn ring(&self, subject: &Subject) {
        for notify in self.lock().get(subject).into_iter().flatten() {
            notify.notify_one();
        }
    }

    /// Nobody knows what has changed.
    pub(super) fn ring_all(&self) {
        for notify in self.lock().values().flatten() {
            notify.notify_one();
        }
    }
}

/// One who waits.
pub(super) struct Bell {
    bells: Bells,
    subjects: Vec<Subject>,
    notify: Arc<Notify>,
}

impl Bell {
    /// Waits for the next change; one that came since the last wait counts.
    pub(super) async fn rung(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let mut sleepers = self.bells.lock();
        for subject in &self.subjects {
            let Entry::Occupied(mut entry) = sleepers.entry(subject.clone()) else { continue };
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
    async fn who_waits_is_woken_and_nobody_is_left_behind() {
        let bells = Bells::default();
        let claim = |name: &str| Subject::Claim(Key::namespaced("ns", name));
        let bell = bells.hang(vec![claim("a"), Subject::Node("n".into())]);
        let other = bells.hang(vec![claim("a")]);
        let woken = async |bell: &Bell| timeout(Duration::from_secs(1), bell.rung()).await.is_ok();
        assert!(!woken(&bell).await);
        // Rung before anybody waits: heard all the same.
        bells.ring(&claim("a"));
        assert!(woken(&bell).await && woken(&other).await);
        bells.ring(&Subject::Node("n".into()));
        assert!(woken(&bell).await && !woken(&other).await);
        bells.ring(&claim("b"));
        assert!(!woken(&bell).await);
        bells.ring_all();
        assert!(woken(&bell).await && woken(&other).await);
        drop(bell);
        drop(other);
        assert!(bells.lock().is_empty());
    }
}
