//! What was last tried for each object, and what came of it: for `/debug/attempts` and whoever asks why a volume
//! is not there yet. Never with secrets in it.
//!
//! Bounded: the oldest are forgotten first. What went well is forgotten before what did not.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wharf_cluster::now;
use wharf_model::Time;

const KEPT_FAILURES: usize = 4096;
const KEPT_SUCCESSES: usize = 256;

/// The attempts; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Attempts {
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
    /// How often it has failed in a row.
    failures: u32,
}

impl Attempts {
    /// A step of a role on an object has ended, with an error or well.
    pub(crate) fn note(
        &self,
        role: &'static str,
        object: &str,
        step: impl Into<String>,
        error: Option<String>,
    ) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.note((role, object.to_owned()), now(), step.into(), error);
    }

    /// The object is no more.
    pub(crate) fn forget(&self, role: &'static str, object: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.remove(&(role, object.to_owned()));
    }

    /// All of them, failures first, the newest first.
    pub(crate) fn page(&self) -> Value {
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
        let (order, kept) = match error {
            Some(_) => (&mut self.failures, KEPT_FAILURES),
            None => (&mut self.successes, KEPT_SUCCESSES),
        };
        order.insert(number, key.clone());
        let oldest = if order.len() > kept { order.pop_first().map(|(_, key)| key) } else { None };
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
    fn the_last_attempt_of_each_object_failures_first() {
        let attempts = Attempts::default();
        attempts.note("attacher", "a", "publish", Some("no".into()));
        attempts.note("attacher", "a", "publish", Some("still no".into()));
        attempts.note("attacher", "b", "publish", None);
        let page = attempts.page();
        assert_eq!(page.as_array().map(Vec::len), Some(2));
        assert_eq!(
            (&page[0]["object"], &page[0]["error"], &page[0]["failures"]),
            (&"a".into(), &"still no".into(), &2.into())
        );
        assert_eq!(
            (&page[1]["object"], &page[1]["error"], &page[1]["failures"]),
            (&"b".into(), &Value::Null, &0.into())
        );
        attempts.note("attacher", "a", "publish", None);
        attempts.forget("attacher", "b");
        assert_eq!(attempts.page()[0]["failures"], 0);
        assert_eq!(attempts.page().as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn they_are_bounded() {
        let attempts = Attempts::default();
        for i in 0..KEPT_FAILURES + 10 {
            attempts.note("attacher", &i.to_string(), "publish", Some("no".into()));
            attempts.note("resizer", &i.to_string(), "expand", None);
        }
        assert_eq!(attempts.page().as_array().map(Vec::len), Some(KEPT_FAILURES + KEPT_SUCCESSES));
        assert_eq!(attempts.inner.lock().unwrap().by_object.len(), KEPT_FAILURES + KEPT_SUCCESSES);
    }
}
