//! The log of requests, for tests to count and compare.

use std::collections::VecDeque;

use serde::Serialize;

use crate::time::Millis;

/// Maximum number of logged requests; older ones are dropped.
const MAX_ENTRIES: usize = 100_000;

/// A logged request, with or without a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoggedRequest {
    /// When it was received.
    pub at: Millis,
    /// In upper case.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// As received, without the question mark.
    pub query: String,
    /// The `type` of the requested action.
    pub action: Option<String>,
    /// The response's status; none if the connection was reset.
    pub status: Option<u16>,
    /// Whether a fault determined the response.
    pub faulted: bool,
    /// The droplet whose metadata service received it; none for the API.
    pub droplet: Option<u64>,
}

/// The newest requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<LoggedRequest>,
}

impl Log {
    pub(crate) fn push(&mut self, entry: LoggedRequest) {
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub(crate) fn all(&self) -> Vec<LoggedRequest> {
        self.entries.iter().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
