//! The state machine of a watch: a state, an input, the next state. No network, no clock.
//!
//! Guarantees: the store keeps its contents until newer information arrives. A relist removes only objects that are
//! not in the complete list. A line that does not tell which object has changed is followed by a relist. A kind that is no longer served empties its store only after repeated attempts, because a
//! restarting API server may briefly not serve its CRDs.

use std::collections::HashSet;

use wharf_model::{Key, Kind};

use super::decode::{self, Event, Undecodable};
use super::lines::{Line, MAX_LINE};
use crate::error::ApiError;
use crate::store::{Store, SyncState};
use crate::{Metrics, is_newer_version};

/// The number of consecutive attempts that must find the kind not served before its store is emptied.
const CONFIRMATIONS: u32 = 3;
/// Undecodable objects beyond this number are counted but not logged.
const MAX_LOGGED: usize = 1024;

/// The state of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Requests a page of the list. Next: itself for the next page, `Watching` after the last, `Missing` if the kind
    /// is not served. `unpaged` requests all objects at once, because pages of this list have expired before.
    Listing { next: Option<String>, unpaged: bool, failures: u32 },
    /// Requests the events after `version`. Next: itself when the stream ends, `Listing` when the server no longer
    /// retains the version.
    Watching { version: String, failures: u32 },
    /// The kind was not served in the last `attempts` attempts. Lists again like `Listing`.
    Missing { attempts: u32 },
}

/// The input of a step.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The response to a list.
    Page(&'a [u8]),
    /// The server accepted the watch.
    Opened,
    /// A line of the watch stream.
    Line(Line),
    /// The stream ended. `useful` if it delivered events or lasted long enough; otherwise the end counts as a failure.
    Ended { useful: bool },
    /// The request failed.
    Failed(ApiError),
}

impl State {
    pub(crate) fn start() -> Self {
        Self::Listing { next: None, unpaged: false, failures: 0 }
    }
}

/// Reports errors of a watch. Metrics count every error; the log has each undecodable object and each interruption
/// once.
pub(crate) struct Reporter {
    pub(crate) metrics: Metrics,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    undecodable: HashSet<Option<Key>>,
    failing: bool,
}

impl Reporter {
    pub(crate) fn new(metrics: Metrics, kind: &'static str, plural: &'static str) -> Self {
        Self { metrics, kind, plural, undecodable: HashSet::new(), failing: false }
    }

    fn undecodable(&mut self, Undecodable { key, error, .. }: &Undecodable) {
        self.metrics.undecodable(self.plural);
        if self.undecodable.len() < MAX_LOGGED && self.undecodable.insert(key.clone()) {
            let key = key.as_ref().map_or_else(|| "?".to_owned(), Key::to_string);
            tracing::warn!(kind = self.kind, %key, %error, "failed to decode object; serving its last decoded version");
        }
    }

    fn failed(&mut self, error: &ApiError) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(kind = self.kind, %error, "watch interrupted; serving from cache");
        }
    }

    fn recovered(&mut self) {
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!(kind = self.kind, "watch resumed");
        }
    }
}

/// Computes the next state and updates the store. The caller continues to read an open stream while the state is `Watching` without failures, and sends a
/// new request otherwise.
pub(crate) fn step<K: Kind>(
    state: State,
    input: Input<'_>,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    match (state, input) {
        (state @ State::Watching { .. }, Input::Opened) => {
            store.set_sync_state(SyncState::Synced);
            report.recovered();
            // Keep the failure count: a server may accept watches and end them at once. Only a line or the duration of
            // the stream resets it.
            state
        }
        (State::Watching { version, failures }, Input::Line(line)) => {
            watch_line(version, failures, line, store, report)
        }
        (State::Watching { version, failures }, Input::Ended { useful }) => {
            State::Watching { version, failures: if useful { 0 } else { failures + 1 } }
        }
        (State::Watching { version, failures }, Input::Failed(error)) => {
            report.failed(&error);
            match error {
                ApiError::Gone(_) | ApiError::NotServed(_) => relist(failures),
                ApiError::Forbidden(_) => {
                    store.set_sync_state(SyncState::Forbidden);
                    State::Watching { version, failures: failures + 1 }
                }
                _ => State::Watching { version, failures: failures + 1 },
            }
        }
        (State::Listing { unpaged, failures, .. }, Input::Page(bytes)) => {
            list_page(unpaged, failures, bytes, store, report)
        }
        (State::Missing { .. }, Input::Page(bytes)) => list_page(false, 0, bytes, store, report),
        (State::Listing { next, unpaged, failures }, Input::Failed(error)) => {
            list_failed(next, unpaged, failures, &error, store, report)
        }
        (State::Missing { attempts }, Input::Failed(ApiError::NotServed(_))) => {
            if attempts + 1 >= CONFIRMATIONS {
                store.update(|table| table.clear());
            }
            State::Missing { attempts: attempts.saturating_add(1) }
        }
        (State::Missing { .. }, Input::Failed(error)) => list_failed(None, false, 0, &error, store, report),
        // Inputs of a stream that is no longer read are ignored.
        (state @ (State::Listing { .. } | State::Missing { .. }), _) => state,
        (state @ State::Watching { .. }, Input::Page(_)) => state,
    }
}

fn relist(failures: u32) -> State {
    State::Listing { next: None, unpaged: false, failures: failures + 1 }
}

fn watch_line<K: Kind>(
    version: String,
    failures: u32,
    line: Line,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let event = match line {
        Line::Whole(line) => decode::event(&line, store.view()),
        Line::TooLong => Event::Undecodable(Undecodable {
            key: None,
            version: String::new(),
            error: format!("larger than {MAX_LINE} bytes"),
        }),
    };
    let observed: String = match event {
        Event::Put(object) => {
            let observed = object_version(&object);
            store.update(|table| table.watched(object));
            observed
        }
        Event::Deleted { key, uid, version } => {
            store.update(|table| table.watched_deletion(&key, &uid, &version));
            version
        }
        Event::Bookmark { version } => {
            store.update(|table| {
                table.observe_version(&version);
                None
            });
            version
        }
        Event::Undecodable(undecodable) => {
            report.undecodable(&undecodable);
            let is_unknown = undecodable.key.is_none();
            store.update(|table| {
                table.watched_undecodable(undecodable.key);
                None
            });
            if is_unknown {
                return relist(failures);
            }
            undecodable.version
        }
        Event::Error(status) if status.code == 410 || status.reason == "Expired" => return relist(failures),
        Event::Error(status) => {
            tracing::debug!(kind = report.kind, code = status.code, error = %status.message, "server ended watch");
            return State::Watching { version, failures: failures + 1 };
        }
    };
    let version =
        if !observed.is_empty() && is_newer_version(&observed, &version) { observed } else { version };
    State::Watching { version, failures: 0 }
}

fn object_version<K: Kind>(object: &K) -> String {
    object.meta().resource_version.clone()
}

fn list_page<K: Kind>(
    unpaged: bool,
    failures: u32,
    bytes: &[u8],
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let page = match decode::page::<K>(bytes, store.view()) {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(kind = report.kind, %error, "failed to decode list response");
            return State::Listing { next: None, unpaged, failures: failures + 1 };
        }
    };
    store.update(|table| {
        table.page_received();
        None
    });
    for item in page.items {
        match item {
            Ok(object) => store.update(|table| table.list_item(object)),
            Err(undecodable) => {
                report.undecodable(&undecodable);
                store.update(|table| {
                    table.list_undecodable(undecodable.key);
                    None
                });
            }
        }
    }
    match page.next {
        Some(next) => State::Listing { next: Some(next), unpaged, failures: 0 },
        None => {
            store.update(|table| table.end_list(&page.version));
            store.set_sync_state(SyncState::Synced);
            report.recovered();
            State::Watching { version: page.version, failures }
        }
    }
}

fn list_failed<K: Kind>(
    next: Option<String>,
    unpaged: bool,
    failures: u32,
    error: &ApiError,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let failures = failures + 1;
    match error {
        ApiError::NotServed(_) => {
            tracing::warn!(kind = report.kind, "kind not served by this cluster; retrying every 30 s");
            store.set_sync_state(SyncState::NotServed);
            State::Missing { attempts: 1 }
        }
        // The continue token has expired, or another server does not know it: list everything at once.
        ApiError::Gone(_) | ApiError::Invalid(_) if next.is_some() => {
            State::Listing { next: None, unpaged: true, failures }
        }
        ApiError::Forbidden(_) => {
            report.failed(error);
            store.set_sync_state(SyncState::Forbidden);
            State::Listing { next: None, unpaged, failures }
        }
        // A list of everything may exceed the size limit of a response: the next attempt is paged again.
        _ => {
            report.failed(error);
            State::Listing { next, unpaged: false, failures }
        }
    }
}

#[cfg(test)]
mod tests;
