//! Catches the panic of one unit of work: one reconcile, one request, one change of an object. A panic then ends that
//! unit and nothing else.
//!
//! Guarantees: every caught panic is logged with its component, the key of its object and its message, and counted
//! ([`counts`]). The caller decides how to continue: it retries with backoff, or returns an error for the unit.
//!
//! State that the unit has changed before its panic stays changed. All locks are therefore used after a panic
//! (`PoisonError::into_inner`), and code under a lock leaves its data complete after each statement.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

mod faults;

/// The caught panics by component.
static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// A caught panic. It is already logged and counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {message}")]
pub struct Panic {
    message: String,
}

/// Runs one unit of work of a component, and catches its panic.
///
/// `key` names the object of the work in the log. It must not contain secrets.
pub fn catch<T>(
    component: &str,
    key: impl Display,
    work: impl Future<Output = T>,
) -> impl Future<Output = Result<T, Panic>> {
    // In a box: otherwise every caller would hold the whole future twice, before and after it is moved here.
    let mut work = Box::pin(work);
    let mut started = false;
    std::future::poll_fn(move |context| {
        let poll = || {
            if !std::mem::replace(&mut started, true) {
                faults::inject(component, &key);
            }
            work.as_mut().poll(context)
        };
        // After a panic the work is not polled again, only dropped.
        match std::panic::catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Err(payload) => Poll::Ready(Err(report(component, &key, &*payload))),
        }
    })
}

/// Like [`catch`], for work that does not wait.
pub fn catch_sync<T>(component: &str, key: impl Display, work: impl FnOnce() -> T) -> Result<T, Panic> {
    let work = || {
        faults::inject(component, &key);
        work()
    };
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| report(component, &key, &*payload))
}

/// The number of caught panics of each component, since the start of the process.
pub fn counts() -> BTreeMap<String, u64> {
    lock().clone()
}

fn report(component: &str, key: &impl Display, payload: &(dyn Any + Send)) -> Panic {
    let message = message(payload);
    *lock().entry(component.to_owned()).or_default() += 1;
    // The panic hook has printed where it happened.
    tracing::error!(component, %key, error = message, "caught panic");
    Panic { message }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

fn lock() -> MutexGuard<'static, BTreeMap<String, u64>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Displays a key by its `Debug` output, for keys without `Display`.
pub struct DebugKey<K>(pub K);

impl<K: fmt::Debug> Display for DebugKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::*;

    fn now<T>(work: impl Future<Output = T>) -> T {
        match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("the work waits"),
        }
    }

    #[test]
    fn result_of_work_is_returned() {
        assert_eq!(now(catch("result", "key", async { 1 })), Ok(1));
        assert_eq!(catch_sync("result", "key", || 2), Ok(2));
        assert_eq!(counts().get("result"), None);
    }

    #[test]
    fn panic_is_returned_with_its_message_and_counted() {
        let formatted = now(catch("counted", "key", async { panic!("number {}", 1) }));
        assert_eq!(formatted, Err::<(), _>(Panic { message: "number 1".to_owned() }));
        let literal: Result<(), _> = catch_sync("counted", "key", || panic!("literal"));
        assert_eq!(literal.unwrap_err().to_string(), "panicked: literal");
        let other: Result<(), _> = catch_sync("counted", "key", || std::panic::panic_any(1));
        assert_eq!(other.unwrap_err().to_string(), "panicked: no message");
        assert_eq!(counts().get("counted"), Some(&3));
    }

    #[test]
    fn work_drops_what_it_owns_when_it_panics() {
        let owned = Arc::new(());
        let inside = Arc::clone(&owned);
        let result: Result<(), _> = now(catch("dropped", "key", async move {
            let _inside = inside;
            panic!("while it owns something");
        }));
        assert!(result.is_err());
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}
