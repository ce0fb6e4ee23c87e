//! The log of requests, for tests to count and compare.

use std::collections::VecDeque;

use serde::Serialize;

use crate::time::Millis;

/// So many are kept, the newest.
const KEPT: usize = 100_000;

/// A request that was answered, or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Logged {
    /// When it came.
    pub at: Millis,
    /// In capitals.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// As it came, without the question mark.
    pub query: String,
    /// The `type` of the action that it asked for.
    pub action: Option<String>,
    /// The answer's status; none if the connection was reset.
    pub status: Option<u16>,
    /// Whether a fault decided the answer.
    pub faulted: bool,
    /// The droplet whose metadata service it was; none for the API.
    pub droplet: Option<u64>,
}

/// The newest requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Logged>,
}

impl Log {
    pub(crate) fn push(&mut self, entry: Logged) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub(crate) fn all(&self) -> Vec<Logged> {
        self.entries.iter().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
