//! One operation at a time on one volume, snapshot or name.
//!
//! An operation that began runs to its end: it is a task of its own that owns its locks, and the RPC only
//! waits for it. So a caller that hangs up neither cancels the operation half-way nor lets a second one in
//! beside it; the second one is told ABORTED until the first has ended.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tonic::Status;

/// The key of a volume.
pub(crate) fn volume_key(id: &str) -> String {
    format!("volume/{id}")
}

/// The key of a volume's name, for as long as its id is not known.
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

/// The keys that operations hold now, one table for all services of a process; and the operations.
#[derive(Clone, Default)]
pub(crate) struct Locks {
    held: Arc<Mutex<BTreeSet<String>>>,
    operations: TaskTracker,
}

/// Keys held; dropping it lets go of them.
#[derive(Debug)]
pub(crate) struct Guard {
    held: Arc<Mutex<BTreeSet<String>>>,
    keys: Vec<String>,
}

impl Locks {
    /// Takes all the keys or none of them.
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

    /// Runs an operation to its end with the keys held, whether or not anybody waits for it that long.
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
            true => Err(Status::internal("the operation panicked: this is a bug in the driver, see its log")),
            false => Err(Status::unavailable("the driver is stopping; try again")),
        })
    }

    /// Waits until all operations have ended, at most so long; answers whether they have.
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

/// The set is whole after each statement that changes it, so a panic elsewhere does not spoil it.
fn lock(held: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn all_keys_or_none() {
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
    async fn a_caller_that_hangs_up_keeps_the_lock_until_the_operation_ends() {
        let locks = Locks::default();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let call = locks.run(["a".into()], async move {
            finished.await.map_err(|_| Status::internal("nobody finished it"))?;
            Ok(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err(), "the caller hangs up");
        assert_eq!(locks.try_lock(["a".into()]).unwrap_err().code(), Code::Aborted);
        assert!(!locks.drain(Duration::from_millis(1)).await, "it still runs");

        finish.send(()).unwrap();
        assert!(locks.drain(Duration::from_secs(10)).await);
        locks.try_lock(["a".into()]).unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_internal_and_lets_go() {
        let locks = Locks::default();
        let answer: Result<(), Status> = locks.run(["a".into()], async { panic!("on purpose") }).await;
        assert_eq!(answer.unwrap_err().code(), Code::Internal);
        locks.try_lock(["a".into()]).unwrap();
    }
}
