//! The last attempt for each object and its result, served as `/debug/attempts` to show why a volume is not ready.
//! Never contains secrets.
//!
//! Bounded: the oldest entries are dropped first. Failures and successes have separate limits, so successes never
//! evict failures.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wharf_model::Time;

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
    by_object: HashMap<(&'static str, String), Attempt>,
    failures: BTreeMap<u64, (&'static str, String)>,
    successes: BTreeMap<u64, (&'static str, String)>,
    last: u64,
}

struct Attempt {
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

    /// All attempts as JSON: failures before successes, the newest first.
    pub fn to_json(&self) -> Value {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = inner.failures.values().rev().chain(inner.successes.values().rev());
        let list: Vec<Value> = newest
            .filter_map(|key| {
                let attempt = inner.by_object.get(key)?;
                Some(json!({
                    "role": key.0, "object": key.1, "time": attempt.at.to_string(), "step": attempt.step,
                    "error": attempt.error, "failures": attempt.failures,
                }))
            })
            .collect();
        Value::Array(list)
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
        self.by_object.insert(key, Attempt { number, at, step, error, failures });
    }

    fn remove(&mut self, key: &(&'static str, String)) -> Option<Attempt> {
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
        let list = attempts.to_json();
        assert_eq!(list.as_array().map(Vec::len), Some(2));
        assert_eq!(
            (&list[0]["object"], &list[0]["error"], &list[0]["failures"]),
            (&"a".into(), &"still no".into(), &2.into())
        );
        assert_eq!(
            (&list[1]["object"], &list[1]["error"], &list[1]["failures"]),
            (&"b".into(), &Value::Null, &0.into())
        );
        attempts.record("attacher", "a", "publish", None);
        attempts.remove("attacher", "b");
        assert_eq!(attempts.to_json()[0]["failures"], 0);
        assert_eq!(attempts.to_json().as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn number_of_attempts_is_bounded() {
        let attempts = Attempts::default();
        for i in 0..MAX_FAILURES + 10 {
            attempts.record("attacher", &i.to_string(), "publish", Some("no".into()));
            attempts.record("resizer", &i.to_string(), "expand", None);
        }
        assert_eq!(attempts.to_json().as_array().map(Vec::len), Some(MAX_FAILURES + MAX_SUCCESSES));
        assert_eq!(attempts.inner.lock().unwrap().by_object.len(), MAX_FAILURES + MAX_SUCCESSES);
    }
}
