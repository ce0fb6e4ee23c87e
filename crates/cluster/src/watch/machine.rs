//! The life of a watch as a machine: a state, an input, the next state. No network, no clock.
//!
//! Promise: the store keeps what it has until something better is known. A relist removes only what a complete
//! list did not show; a kind that vanishes empties its store only after repeated looks, because a restarting API
//! server may not know its CRDs for a moment.

use std::collections::HashSet;

use wharf_model::{Key, Kind};

use super::decode::{self, Event, Unreadable};
use super::lines::{Line, MAX_LINE};
use crate::error::ApiError;
use crate::store::{Reach, Store};
use crate::{Metrics, newer_than};

/// So many looks must find nothing served before a filled store is emptied.
const LOOKS: u32 = 3;
/// More objects than this that cannot be decoded are counted but no longer logged one by one.
const LOGGED: usize = 1024;

/// Where a watch stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Asks for a page. Goes to itself for the next page, to `Watching` after the last, to `Missing` if the kind
    /// is not served. `whole` asks without a limit: pages of this list have expired before.
    Listing { next: Option<String>, whole: bool, failures: u32 },
    /// Asks for what happened after `version`. Goes to itself when the stream ends, to `Listing` when the
    /// version is no longer kept.
    Watching { version: String, failures: u32 },
    /// The kind was not served at the last so many looks. Looks again like `Listing`.
    Missing { looks: u32 },
}

/// What came.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The answer to a list.
    Page(&'a [u8]),
    /// The server accepted the watch.
    Opened,
    /// A line of it.
    Line(Line),
    /// It ended; `served` if it lasted long enough to be of use.
    Ended { served: bool },
    /// The request failed.
    Failed(ApiError),
}

impl State {
    pub(crate) fn start() -> Self {
        Self::Listing { next: None, whole: false, failures: 0 }
    }
}

/// What has been said already, so that it is said once.
pub(crate) struct Reporter {
    pub(crate) metrics: Metrics,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    unreadable: HashSet<Option<Key>>,
    failing: bool,
}

impl Reporter {
    pub(crate) fn new(metrics: Metrics, kind: &'static str, plural: &'static str) -> Self {
        Self { metrics, kind, plural, unreadable: HashSet::new(), failing: false }
    }

    fn unreadable(&mut self, Unreadable { key, error, .. }: &Unreadable) {
        self.metrics.undecodable(self.plural);
        if self.unreadable.len() < LOGGED && self.unreadable.insert(key.clone()) {
            let object = key.as_ref().map_or_else(|| "?".to_owned(), Key::to_string);
            tracing::warn!(kind = self.kind, %object, %error, "cannot decode this object; its last readable version stays in use");
        }
    }

    fn failed(&mut self, error: &ApiError) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(kind = self.kind, %error, "watch is interrupted; the last known state stays in use");
        }
    }

    fn well(&mut self) {
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!(kind = self.kind, "watch goes on");
        }
    }
}

/// One step. The caller reads on from an open stream while a line leaves it `Watching` without failures, and asks
/// anew otherwise.
pub(crate) fn step<K: Kind>(
    state: State,
    input: Input<'_>,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    match (state, input) {
        (state @ State::Watching { .. }, Input::Opened) => {
            store.set_reach(Reach::Served);
            report.well();
            // Failures stay until a line comes or the stream has lasted: accepting alone proves nothing.
            state
        }
        (State::Watching { version, failures }, Input::Line(line)) => {
            watch_line(version, failures, line, store, report)
        }
        (State::Watching { version, failures }, Input::Ended { served }) => {
            State::Watching { version, failures: if served { 0 } else { failures + 1 } }
        }
        (State::Watching { version, failures }, Input::Failed(error)) => {
            report.failed(&error);
            match error {
                ApiError::Gone(_) | ApiError::NotServed(_) => relist(failures),
                ApiError::Forbidden(_) => {
                    store.set_reach(Reach::Forbidden);
                    State::Watching { version, failures: failures + 1 }
                }
                _ => State::Watching { version, failures: failures + 1 },
            }
        }
        (State::Listing { whole, failures, .. }, Input::Page(bytes)) => {
            list_page(whole, failures, bytes, store, report)
        }
        (State::Missing { .. }, Input::Page(bytes)) => list_page(false, 0, bytes, store, report),
        (State::Listing { next, whole, failures }, Input::Failed(error)) => {
            list_failed(next, whole, failures, &error, store, report)
        }
        (State::Missing { looks }, Input::Failed(ApiError::NotServed(_))) => {
            if looks + 1 >= LOOKS {
                store.update(|table| table.clear());
            }
            State::Missing { looks: looks.saturating_add(1) }
        }
        (State::Missing { .. }, Input::Failed(error)) => list_failed(None, false, 0, &error, store, report),
        // Inputs of a stream that is no longer read; nothing to learn from them.
        (state @ (State::Listing { .. } | State::Missing { .. }), _) => state,
        (state @ State::Watching { .. }, Input::Page(_)) => state,
    }
}

fn relist(failures: u32) -> State {
    State::Listing { next: None, whole: false, failures: failures + 1 }
}

fn watch_line<K: Kind>(
    version: String,
    failures: u32,
    line: Line,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let event = match line {
        Line::Whole(line) => decode::event(&line),
        Line::TooLong => Event::Unreadable(Unreadable {
            key: None,
            version: String::new(),
            error: format!("it is larger than {MAX_LINE} bytes"),
        }),
    };
    let told: String = match event {
        Event::Put(object) => {
            let told = object_version(&object);
            store.update(|table| table.watched(object));
            told
        }
        Event::Deleted { key, uid, version } => {
            store.update(|table| table.watched_deletion(&key, &uid, &version));
            version
        }
        Event::Bookmark { version } => {
            store.update(|table| {
                table.told(&version);
                None
            });
            version
        }
        Event::Unreadable(unreadable) => {
            report.unreadable(&unreadable);
            unreadable.version
        }
        Event::Error(status) if status.code == 410 || status.reason == "Expired" => return relist(failures),
        Event::Error(status) => {
            tracing::debug!(kind = report.kind, code = status.code, message = %status.message, "watch ended by the server");
            return State::Watching { version, failures: failures + 1 };
        }
    };
    let version = if !told.is_empty() && newer_than(&told, &version) { told } else { version };
    State::Watching { version, failures: 0 }
}

fn object_version<K: Kind>(object: &K) -> String {
    object.meta().resource_version.clone()
}

fn list_page<K: Kind>(
    whole: bool,
    failures: u32,
    bytes: &[u8],
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let page = match decode::page::<K>(bytes) {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(kind = report.kind, %error, "the answer to a list is no list");
            return State::Listing { next: None, whole, failures: failures + 1 };
        }
    };
    for item in page.items {
        match item {
            Ok(object) => store.update(|table| table.list_item(object)),
            Err(unreadable) => {
                report.unreadable(&unreadable);
                if let Some(key) = unreadable.key {
                    store.update(|table| {
                        table.list_unreadable(key);
                        None
                    });
                }
            }
        }
    }
    match page.next {
        Some(next) => State::Listing { next: Some(next), whole, failures: 0 },
        None => {
            store.update(|table| table.list_ends(&page.version));
            store.set_reach(Reach::Served);
            report.well();
            State::Watching { version: page.version, failures }
        }
    }
}

fn list_failed<K: Kind>(
    next: Option<String>,
    whole: bool,
    failures: u32,
    error: &ApiError,
    store: &Store<K>,
    report: &mut Reporter,
) -> State {
    let failures = failures + 1;
    match error {
        ApiError::NotServed(_) => {
            tracing::warn!(kind = report.kind, "not served by this cluster; looking again every 30 s");
            store.set_reach(Reach::NotServed);
            State::Missing { looks: 1 }
        }
        // The snapshot behind the pages is no longer kept, or another server took over that does not know our
        // place in it: take all at once.
        ApiError::Gone(_) | ApiError::Invalid(_) if next.is_some() => {
            State::Listing { next: None, whole: true, failures }
        }
        ApiError::Forbidden(_) => {
            report.failed(error);
            store.set_reach(Reach::Forbidden);
            State::Listing { next: None, whole, failures }
        }
        // All at once may be more than one answer can hold: the next attempt is in pages again.
        _ => {
            report.failed(error);
            State::Listing { next, whole: false, failures }
        }
    }
}

#[cfg(test)]
mod tests;
