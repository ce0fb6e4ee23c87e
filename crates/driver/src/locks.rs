//! One operation at a time per volume, snapshot or name.
//!
//! An operation runs to its end: it is a separate task that owns its locks, and the RPC only waits for it. So a caller that
//! disconnects neither cancels the operation nor lets a second one start. The second one fails with ABORTED until the first
//! has ended. Start at [`Locks::run`].

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tonic::Status;

/// The message of a call that panicked.
pub(crate) const PANICKED: &str = "the operation panicked: this is a bug in the driver, see its log";

/// The key of a volume.
pub(crate) fn volume_key(id: &str) -> String {
    format!("volume/{id}")
}

/// The key of a volume's name, while its id is not known.
pub(crate) fn volume_name_key(name: &str) -> String {
    format!("volume-name/{name}")
}

/// The key of a snapshot.
pub(crate) fn snapshot_key(id: &str) -> String {
    format!("snapshot/{id}")
}

/// The key of a snapshot's name.
pub(crate) fn snapshot_name_key(name: &str) -> String {
    format!("snapshot-name/{name}")
}

/// The key of a group snapshot.
pub(crate) fn group_key(id: &str) -> String {
    format!("group/{id}")
}

/// The key of a group snapshot's name.
pub(crate) fn group_name_key(name: &str) -> String {
    format!("group-name/{name}")
}

/// The keys held by running operations, and the operations; shared by all services of a driver.
#[derive(Clone, Default)]
pub(crate) struct Locks {
    held: Arc<Mutex<BTreeSet<String>>>,
    operations: TaskTracker,
}

/// Holds keys; dropping it releases them.
#[derive(Debug)]
pub(crate) struct Guard {
    held: Arc<Mutex<BTreeSet<String>>>,
    keys: Vec<String>,
}

impl Locks {
    /// Takes all the keys, or none.
    pub(crate) fn try_lock(&self, keys: impl IntoIterator<Item = String>) -> Result<Guard, Status> {
        let keys: BTreeSet<String> = keys.into_iter().collect();
        let mut held = lock(&self.held);
        if let Some(busy) = keys.iter().find(|key| held.contains(*key)) {
            return Err(Status::aborted(format!(
                "another operation on {busy} is still running; try again when it has ended"
            )));
        }
        held.extend(keys.iter().cloned());
        Ok(Guard { held: self.held.clone(), keys: keys.into_iter().collect() })
    }

    /// Runs an operation to its end while holding the keys, even if the caller stops waiting.
    ///
    /// If the operation panics, it fails with INTERNAL and the keys are released: a panic is like a crash of the driver,
    /// after which the next call finishes or undoes what was left. Keys that stayed locked would only force a restart.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = String>,
        operation: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let guard = self.try_lock(keys)?;
        let task = self.operations.spawn(async move {
            let _guard = guard;
            operation.await
        });
        task.await.unwrap_or_else(|error| match error.is_panic() {
            true => Err(Status::internal(PANICKED)),
            false => Err(Status::unavailable("the driver is stopping; try again")),
        })
    }

    /// Waits for all operations to end, for at most this time. Returns whether all have ended.
    pub(crate) async fn drain(&self, at_most: Duration) -> bool {
        self.operations.close();
        tokio::time::timeout(at_most, self.operations.wait()).await.is_ok()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        for key in &self.keys {
            held.remove(key);
        }
    }
}

/// The set is consistent after each statement that changes it, so a poisoned lock can be used.
fn lock(held: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn try_lock_takes_all_keys_or_none() {
        let locks = Locks::default();
        let first = locks.try_lock(["a".into(), "b".into()]).unwrap();
        assert_eq!(locks.try_lock(["b".into(), "c".into()]).unwrap_err().code(), Code::Aborted);
        let other = locks.try_lock(["c".into()]).unwrap();
        drop(first);
        locks.try_lock(["a".into(), "b".into(), "b".into()]).unwrap();
        assert!(locks.try_lock(["c".into()]).is_err());
        drop(other);
        assert!(lock(&locks.held).is_empty());
    }

    #[tokio::test]
    async fn lock_is_held_until_the_operation_ends_after_the_caller_disconnects() {
        let locks = Locks::default();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let call = locks.run(["a".into()], async move {
            finished.await.map_err(|_| Status::internal("sender dropped"))?;
            Ok(())
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(10), call).await.is_err(),
            "the caller disconnects"
        );
        assert_eq!(locks.try_lock(["a".into()]).unwrap_err().code(), Code::Aborted);
        assert!(!locks.drain(Duration::from_millis(1)).await, "it still runs");

        finish.send(()).unwrap();
        assert!(locks.drain(Duration::from_secs(10)).await);
        locks.try_lock(["a".into()]).unwrap();
    }

    #[tokio::test]
    async fn panic_is_internal_and_releases_the_keys() {
        let locks = Locks::default();
        let result: Result<(), Status> = locks.run(["a".into()], async { panic!("on purpose") }).await;
        assert_eq!(result.unwrap_err().code(), Code::Internal);
        locks.try_lock(["a".into()]).unwrap();
    }
}
