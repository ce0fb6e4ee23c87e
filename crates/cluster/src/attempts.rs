//! The last attempt for each object and its result, served as `/debug/attempts` to show why a volume is not ready.
//! Never contains secrets.
//!
//! Bounded: the oldest entries are dropped first. Failures and successes have separate limits, so successes never
//! evict failures.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use wharf_model::{Attempt, Time};

use crate::now;

const MAX_FAILURES: usize = 4096;
const MAX_SUCCESSES: usize = 256;

/// The attempts. Clones share them.
#[derive(Clone, Default)]
pub struct Attempts {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    by_object: HashMap<(&'static str, String), Recorded>,
    failures: BTreeMap<u64, (&'static str, String)>,
    successes: BTreeMap<u64, (&'static str, String)>,
    last: u64,
}

struct Recorded {
    number: u64,
    at: Time,
    step: String,
    error: Option<String>,
    /// Consecutive failures.
    failures: u32,
}

impl Attempts {
    /// Records the result of a role's step on an object. `error` is `None` for a success.
    pub fn record(&self, role: &'static str, object: &str, step: impl Into<String>, error: Option<String>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.note((role, object.to_owned()), now(), step.into(), error);
    }

    /// Removes the entry of an object that no longer exists.
    pub fn remove(&self, role: &'static str, object: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.remove(&(role, object.to_owned()));
    }

    /// All attempts: failures before successes, the newest first.
    pub fn list(&self) -> Vec<Attempt> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = inner.failures.values().rev().chain(inner.successes.values().rev());
        newest
            .filter_map(|key| {
                let recorded = inner.by_object.get(key)?;
                Some(Attempt {
                    role: key.0.to_owned(),
                    object: key.1.clone(),
                    time: Some(recorded.at),
                    step: recorded.step.clone(),
                    error: recorded.error.clone(),
                    failures: recorded.failures,
                })
            })
            .collect()
    }
}

impl Inner {
    fn note(&mut self, key: (&'static str, String), at: Time, step: String, error: Option<String>) {
        let before = self.remove(&key);
        let failures = match error {
            Some(_) => before.map_or(0, |before| before.failures) + 1,
            None => 0,
        };
        self.last += 1;
        let number = self.last;
        let (order, limit) = match error {
            Some(_) => (&mut self.failures, MAX_FAILURES),
            None => (&mut self.successes, MAX_SUCCESSES),
        };
        order.insert(number, key.clone());
        let oldest = if order.len() > limit { order.pop_first().map(|(_, key)| key) } else { None };
        if let Some(oldest) = oldest {
            self.by_object.remove(&oldest);
        }
        self.by_object.insert(key, Recorded { number, at, step, error, failures });
    }

    fn remove(&mut self, key: &(&'static str, String)) -> Option<Recorded> {
        let attempt = self.by_object.remove(key)?;
        self.failures.remove(&attempt.number);
        self.successes.remove(&attempt.number);
        Some(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_last_attempt_of_each_object_failures_first() {
        let attempts = Attempts::default();
        attempts.record("attacher", "a", "publish", Some("no".into()));
        attempts.record("attacher", "a", "publish", Some("still no".into()));
        attempts.record("attacher", "b", "publish", None);
        let list = || {
            let list = attempts.list().into_iter();
            list.map(|attempt| (attempt.object, attempt.error, attempt.failures)).collect::<Vec<_>>()
        };
        assert_eq!(list(), [("a".into(), Some("still no".into()), 2), ("b".into(), None, 0)]);
        attempts.record("attacher", "a", "publish", None);
        attempts.remove("attacher", "b");
        assert_eq!(list(), [("a".into(), None, 0)]);
    }

    #[test]
    fn number_of_attempts_is_bounded() {
        let attempts = Attempts::default();
        for i in 0..MAX_FAILURES + 10 {
            attempts.record("attacher", &i.to_string(), "publish", Some("no".into()));
            attempts.record("resizer", &i.to_string(), "expand", None);
        }
        assert_eq!(attempts.list().len(), MAX_FAILURES + MAX_SUCCESSES);
        assert_eq!(attempts.inner.lock().unwrap().by_object.len(), MAX_FAILURES + MAX_SUCCESSES);
    }
}
