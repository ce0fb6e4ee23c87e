//! The watch verb: streams the changes of the selected objects.
//!
//! [`watch_event_type`] is the rule: which event a watcher with a selection receives for a write. The stream is only a
//! cursor into the store's log. It buffers no events, so a client that does not read costs nothing, and a client that
//! reads too slowly gets an `Expired` error.

mod stream;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::negotiate::Shape;
use super::options::{Start, WatchPlan};
use super::query::Query;
use super::response::{ApiResponse, OutputFormat};
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, random};
use crate::kinds::Kind;
use crate::status::StatusError;
use crate::store::{ListError, Revision};
use crate::table;
use stream::WatchStream;

/// The duration of a watch without `timeoutSeconds`: as in upstream, between this and twice this.
const MIN_DURATION: Duration = Duration::from_secs(1800);
/// How often a bookmark is sent while there are no other events.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// The event that a watcher receives for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchEventType {
    Added,
    Modified,
    /// The object was deleted.
    Deleted,
    /// The object exists but is no longer selected. The event contains its last selected state.
    Deselected,
}

/// The event for a write, given whether the object was selected before and is selected now; none if it did not or does
/// not exist.
pub(crate) fn watch_event_type(before: Option<bool>, now: Option<bool>) -> Option<WatchEventType> {
    match (before, now) {
        (Some(true), Some(true)) => Some(WatchEventType::Modified),
        (_, Some(true)) => Some(WatchEventType::Added),
        (Some(true), Some(false)) => Some(WatchEventType::Deselected),
        (Some(true), None) => Some(WatchEventType::Deleted),
        (Some(false) | None, Some(false) | None) => None,
    }
}

impl WatchEventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted | Self::Deselected => "DELETED",
        }
    }
}

impl Api {
    /// Starts a watch.
    pub(crate) fn watch(
        &self,
        target: &Target,
        query: &Query,
        plan: &WatchPlan,
        format: OutputFormat,
    ) -> Result<ApiResponse, StatusError> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let Some(open) = self.watches().open(target, selection.name()) else {
            return Err(StatusError::too_many_requests("too many watches: try again later"));
        };
        let prefix = encode::prefix(kind, &target.namespace);
        let (from, initial, initial_bookmark) = match plan.start {
            Start::After(revision) => (revision, Vec::new(), false),
            Start::Now => (self.store().revision(), Vec::new(), false),
            Start::InitialState { not_older_than, initial_bookmark } => {
                self.has_reached(not_older_than)?;
                let page = self.store().list(&prefix, None, None, 0);
                let page = page.map_err(|error| StatusError::expired(error.to_string()))?;
                (page.revision, page.entries, initial_bookmark)
            }
        };
        let watch = match self.store().watch(&prefix, from) {
            Ok(watch) => watch,
            Err(error) => {
                return Ok(ApiResponse::Http(stream::single(&error_event(&watch_error(from, error)))));
            }
        };
        let duration = plan.timeout.unwrap_or_else(|| MIN_DURATION.mul_f64(1.0 + random::fraction()));
        let encoder = EventEncoder { kind, selection, format, columns: true };
        let stream = WatchStream::new(
            watch,
            encoder,
            from,
            initial,
            plan.bookmarks,
            initial_bookmark,
            Instant::now() + duration,
            open,
        );
        Ok(ApiResponse::Http(stream.response()))
    }
}

fn watch_error(from: Revision, error: ListError) -> StatusError {
    match error {
        ListError::Compacted { oldest } => {
            StatusError::expired(format!("too old resource version: {from} ({oldest})"))
        }
        // The client got this revision from another store and has to list again.
        ListError::Future { current } => StatusError::expired(format!(
            "resource version {from} is newer than this store, which is at {current}: list again"
        )),
    }
}

fn error_event(status_error: &StatusError) -> Vec<u8> {
    let mut line = json!({"type": "ERROR", "object": status_error.to_json()}).to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Encodes watch events in the requested format.
pub(crate) struct EventEncoder {
    kind: &'static Kind,
    selection: Selection,
    format: OutputFormat,
    /// Whether to send the table columns: only in the first event.
    columns: bool,
}

impl EventEncoder {
    /// Appends the event for a write, if the watcher receives one.
    fn event(&mut self, event: &crate::store::Event, out: &mut Vec<u8>) -> Result<(), StatusError> {
        let now = (!event.deleted).then_some(&event.value);
        if !self.selection.can_match(&event.key) {
            return Ok(());
        }
        let (event_type, object) = if self.selection.is_all() {
            (watch_event_type(event.previous.as_ref().map(|_| true), now.map(|_| true)), None)
        } else {
            let selected = |stored: &bytes::Bytes| -> Result<bool, StatusError> {
                Ok(self.selection.matches(&encode::decode(self.kind, stored)?))
            };
            let before = event.previous.as_ref().map(selected).transpose()?;
            let event_type = watch_event_type(before, now.map(selected).transpose()?);
            let deselected =
                event.previous.as_ref().filter(|_| event_type == Some(WatchEventType::Deselected));
            (event_type, deselected.map(|before| encode::at_version(before, event.revision)))
        };
        match event_type {
            Some(event_type) => {
                self.write_event(event_type.as_str(), object.as_ref().unwrap_or(&event.value), out)
            }
            None => Ok(()),
        }
    }

    /// Appends an initial object, if it is selected.
    fn initial(&mut self, stored: &[u8], out: &mut Vec<u8>) -> Result<(), StatusError> {
        if self.selection.is_all() || self.selection.matches(&encode::decode(self.kind, stored)?) {
            self.write_event("ADDED", stored, out)?;
        }
        Ok(())
    }

    fn write_event(&mut self, event_type: &str, stored: &[u8], out: &mut Vec<u8>) -> Result<(), StatusError> {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(event_type.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        match self.format.shape {
            Shape::Object | Shape::Discovery => encode::write(self.kind, stored, out)?,
            Shape::Table(include) => {
                let object = encode::decode(self.kind, stored)?;
                let columns = std::mem::take(&mut self.columns);
                let table = table::single_object_table(
                    self.kind,
                    &object,
                    include,
                    columns,
                    wharf_model::system::now(),
                );
                out.extend_from_slice(table.to_string().as_bytes());
            }
            Shape::Partial => {
                let object = table::partial_metadata(&encode::decode(self.kind, stored)?);
                out.extend_from_slice(object.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Appends a bookmark: everything up to this revision was sent. `end` marks the end of the initial objects.
    fn bookmark(&self, revision: Revision, end: bool, out: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object: Value = match self.format.shape {
            Shape::Object | Shape::Discovery => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Shape::Partial => table::partial_metadata(&json!({"metadata": metadata})),
            Shape::Table(include) => table::table(
                self.kind,
                &[],
                json!({"resourceVersion": revision.to_string()}),
                include,
                false,
                wharf_model::system::now(),
            ),
        };
        out.extend_from_slice(json!({"type": "BOOKMARK", "object": object}).to_string().as_bytes());
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests;
