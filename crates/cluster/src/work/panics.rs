//! Continues after a panic: restarts a component, and retries the changes of objects whose handler panicked. Both wait
//! for a backoff first.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use wharf_model::panics::{DebugKey, catch, catch_sync};
use wharf_model::{Key, Kind};

use super::{Gate, WorkOutcome};
use crate::{Backoff, Change, Store, StoreEvent};

/// A component that ran this long before its panic starts again with the shortest delay.
const STABLE: Duration = Duration::from_secs(600);

/// Runs a component to its end, and starts it again after each panic. For components that rebuild their state when they
/// start. It is not started again after the gate is stopped; then the result is `None`. `key` names its object in the
/// log.
pub async fn restart<T, F: Future<Output = T>>(
    component: &str,
    key: impl Display,
    gate: Option<&Gate>,
    mut run: impl FnMut() -> F,
) -> Option<T> {
    let backoff = Backoff::default();
    let mut failures = 0;
    loop {
        let started = Instant::now();
        if let Ok(done) = catch(component, &key, async { run().await }).await {
            return Some(done);
        }
        if started.elapsed() >= STABLE {
            failures = 0;
        }
        let delay = backoff.delay(failures);
        failures += 1;
        tracing::error!(component, %key, retry_in = ?delay, "restarting after a panic");
        let stopped = async {
            match gate {
                Some(gate) => gate.wait_stopped().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopped => return None,
            () = sleep(delay) => {}
        }
    }
}

/// Reconciles a key. After a panic, `forget` drops what is known about the key and the key is retried: a call may still
/// be running, so earlier results prove nothing. That is the state after a crash, which every step tolerates. The same
/// applies if the reconcile is dropped because the lease is lost.
pub async fn reconcile_or_forget(
    component: &str,
    key: impl fmt::Debug,
    reconcile: impl Future<Output = WorkOutcome>,
    forget: impl FnOnce(),
) -> WorkOutcome {
    let mut on_drop = ForgetOnDrop(Some(forget));
    let outcome = catch(component, DebugKey(key), reconcile).await;
    if outcome.is_ok() {
        on_drop.0 = None;
    }
    outcome.unwrap_or(WorkOutcome::Retry)
}

/// Forgets a key, unless its reconcile came to its end.
struct ForgetOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for ForgetOnDrop<F> {
    fn drop(&mut self) {
        if let Some(forget) = self.0.take() {
            forget();
        }
    }
}

/// Waits for the panic of a task and continues it here; never returns. For tasks without which a component would miss
/// changes and nothing would show it.
///
/// # Panics
///
/// If one of the tasks panics.
pub async fn propagate_panic(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    std::future::pending().await
}

/// Handles the changes of a store until the store is dropped. A resync is a change of each object, and `resynced`
/// afterwards. A change whose handler panics is retried with backoff; other changes are not affected.
pub async fn for_each_change<O: Kind>(
    component: &str,
    store: Store<O>,
    handle: impl Fn(&Change<O>),
    resynced: impl Fn(),
) {
    let mut changes = store.subscribe();
    let mut failed = FailedChanges { changes: BTreeMap::new(), failures: 0, due: None };
    loop {
        let notice = tokio::select! {
            biased;
            notice = changes.next() => notice,
            () = failed.wait_due() => {
                for change in failed.take() {
                    failed.handle(component, change, &handle);
                }
                failed.reset_if_empty();
                continue;
            }
        };
        match notice {
            None => return,
            Some(StoreEvent::Change(change)) => failed.handle(component, change, &handle),
            Some(StoreEvent::Resync) => {
                for object in store.all() {
                    let change = Change { key: object.key(), old: None, new: Some(object) };
                    failed.handle(component, change, &handle);
                }
                // It has no object whose retry could help: the next resync calls it again.
                let _ = catch_sync(component, "resync", &resynced);
            }
        }
    }
}

/// Changes whose handler panicked: at most one per object.
struct FailedChanges<O> {
    changes: BTreeMap<Key, Change<O>>,
    /// Panics since the last time that no change was left.
    failures: u32,
    due: Option<Instant>,
}

impl<O: Kind> FailedChanges<O> {
    fn handle(&mut self, component: &str, change: Change<O>, handle: impl Fn(&Change<O>)) {
        // The handler has not seen the object since before the failed change. If that change had no old object, the
        // current one stands for it: a deletion must not look as if there never was an object.
        let change = match self.changes.remove(&change.key) {
            Some(failed) => Change { old: failed.old.or(change.old), ..change },
            None => change,
        };
        if catch_sync(component, &change.key, || handle(&change)).is_ok() {
            return;
        }
        self.changes.insert(change.key.clone(), change);
        if self.due.is_none() {
            self.due = Some(Instant::now() + Backoff::default().delay(self.failures));
            self.failures = self.failures.saturating_add(1);
        }
    }

    async fn wait_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    fn take(&mut self) -> Vec<Change<O>> {
        self.due = None;
        std::mem::take(&mut self.changes).into_values().collect()
    }

    fn reset_if_empty(&mut self) {
        if self.changes.is_empty() {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn component_is_restarted_with_backoff_until_it_ends() {
        let (runs, started) = (Cell::new(0), Instant::now());
        let result = restart("restarted", "key", None, || async {
            runs.set(runs.get() + 1);
            assert!(runs.get() == 3, "planned panic");
            runs.get()
        });
        assert_eq!(result.await, Some(3));
        // One second and two, each shortened by up to a quarter.
        let took = started.elapsed();
        assert!(took > Duration::from_secs(2) && took <= Duration::from_secs(3), "{took:?}");
        assert_eq!(wharf_model::panics::counts().get("restarted"), Some(&2));
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_component_is_not_restarted() {
        let (runs, stop) = (Cell::new(0), CancellationToken::new());
        let gate = Gate::new(None, stop.clone());
        let result = restart("stopped", "key", Some(&gate), || async {
            runs.set(runs.get() + 1);
            stop.cancel();
            assert!(runs.get() > 1, "planned panic");
        });
        assert_eq!(result.await, None);
        assert_eq!(runs.get(), 1);
    }

    fn change(name: &str, old: Option<i64>, new: Option<i64>) -> Change<wharf_model::Lease> {
        let lease = |seconds: i64| {
            let lease =
                serde_json::json!({"metadata": {"name": name, "resourceVersion": seconds.to_string()}});
            std::sync::Arc::new(serde_json::from_value(lease).unwrap())
        };
        Change { key: Key::cluster(name), old: old.map(lease), new: new.map(lease) }
    }

    fn versions(change: &Change<wharf_model::Lease>) -> (String, Option<String>, Option<String>) {
        let version = |lease: &std::sync::Arc<wharf_model::Lease>| lease.metadata.resource_version.clone();
        (change.key.name.clone(), change.old.as_ref().map(version), change.new.as_ref().map(version))
    }

    #[tokio::test(start_paused = true)]
    async fn failed_change_is_retried_and_merged_with_later_ones() {
        let handled = RefCell::new(Vec::new());
        let broken = Cell::new(true);
        let handle = |change: &Change<_>| {
            assert!(!(broken.get() && change.key.name == "bad"), "planned panic");
            handled.borrow_mut().push(versions(change));
        };
        let mut failed = FailedChanges { changes: BTreeMap::new(), failures: 0, due: None };
        failed.handle("changes", change("bad", Some(1), Some(2)), handle);
        failed.handle("changes", change("good", None, Some(1)), handle);
        failed.handle("changes", change("bad", Some(2), None), handle);
        assert_eq!(*handled.borrow(), [("good".to_owned(), None, Some("1".to_owned()))]);
        failed.wait_due().await;
        broken.set(false);
        for change in failed.take() {
            failed.handle("changes", change, handle);
        }
        failed.reset_if_empty();
        assert_eq!(handled.borrow()[1..], [("bad".to_owned(), Some("1".to_owned()), None)]);
        assert!(failed.due.is_none() && failed.failures == 0);
    }

    /// A resync has no old objects. The deletion that follows must still name the object.
    #[tokio::test(start_paused = true)]
    async fn deletion_after_failed_creation_has_an_old_object() {
        let handled = RefCell::new(Vec::new());
        let broken = Cell::new(true);
        let handle = |change: &Change<_>| {
            assert!(!broken.get(), "planned panic");
            handled.borrow_mut().push(versions(change));
        };
        let mut failed = FailedChanges { changes: BTreeMap::new(), failures: 0, due: None };
        failed.handle("changes", change("a", None, Some(1)), handle);
        broken.set(false);
        failed.handle("changes", change("a", Some(1), None), handle);
        assert_eq!(*handled.borrow(), [("a".to_owned(), Some("1".to_owned()), None)]);
    }
}
