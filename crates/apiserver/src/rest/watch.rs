//! Watches: what happens to the objects that were asked for, as it happens.
//!
//! [`tell`] is the rule: what a watcher with a selection is told of a write. The stream is a cursor of the store and
//! nothing else: it holds no events back, so a client that does not read costs nothing, and one that reads too
//! slowly is told that its place is gone.

mod stream;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::{Answer, Look};
use super::negotiate::Shape;
use super::options::{Start, WatchPlan};
use super::query::Query;
use super::route::Target;
use super::select::Selection;
use super::{Api, encode, random};
use crate::kinds::Kind;
use crate::status::Refusal;
use crate::store::{ListError, Revision};
use crate::table;
use stream::Stream;

/// How long a watch lasts if the client does not say: as upstream, between this and twice this.
const LASTS: Duration = Duration::from_secs(1800);
/// How often a bookmark comes while nothing else does.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// What a watcher is told of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Added,
    Modified,
    /// The object is gone.
    Deleted,
    /// The object is there, but no longer selected: what it was when it was.
    Left,
}

/// Whether the object was selected before the write, and is now; none if there was, or is, none.
pub(crate) fn tell(before: Option<bool>, now: Option<bool>) -> Option<Told> {
    match (before, now) {
        (Some(true), Some(true)) => Some(Told::Modified),
        (_, Some(true)) => Some(Told::Added),
        (Some(true), Some(false)) => Some(Told::Left),
        (Some(true), None) => Some(Told::Deleted),
        (Some(false) | None, Some(false) | None) => None,
    }
}

impl Told {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted | Self::Left => "DELETED",
        }
    }
}

impl Api {
    /// Begins a watch.
    pub(crate) fn watch(
        &self,
        target: &Target,
        query: &Query,
        plan: &WatchPlan,
        look: Look,
    ) -> Result<Answer, Refusal> {
        let kind = target.kind;
        let selection = Selection::parse(kind, query)?;
        let Ok(turn) = self.watches().try_acquire_owned() else {
            return Err(Refusal::too_many("there are too many watches: try again later"));
        };
        let prefix = encode::prefix(kind, &target.namespace);
        let (from, initial, marked) = match plan.start {
            Start::Behind(revision) => (revision, Vec::new(), false),
            Start::Now => (self.store().revision(), Vec::new(), false),
            Start::State { not_older, marked } => {
                self.has_reached(not_older)?;
                let page = self.store().list(&prefix, None, None, 0);
                let page = page.map_err(|error| Refusal::expired(error.to_string()))?;
                (page.revision, page.entries, marked)
            }
        };
        let watch = match self.store().watch(&prefix, from) {
            Ok(watch) => watch,
            Err(error) => return Ok(Answer::Whole(stream::one(&error_line(&too_old(from, error))))),
        };
        let lasts = plan.timeout.unwrap_or_else(|| LASTS.mul_f64(1.0 + random::fraction()));
        let lines = Lines { kind, selection, look, columns: true };
        let stream =
            Stream::new(watch, lines, from, initial, plan.bookmarks, marked, Instant::now() + lasts, turn);
        Ok(Answer::Whole(stream.response()))
    }
}

fn too_old(from: Revision, error: ListError) -> Refusal {
    match error {
        ListError::Compacted { oldest } => {
            Refusal::expired(format!("too old resource version: {from} ({oldest})"))
        }
        // No client can know it from here: it comes from another store, and has to list anew.
        ListError::Future { current } => Refusal::expired(format!(
            "resource version {from} is not of this store, which is at {current}: list again"
        )),
    }
}

fn error_line(refusal: &Refusal) -> Vec<u8> {
    let mut line = json!({"type": "ERROR", "object": refusal.to_json()}).to_string().into_bytes();
    line.push(b'\n');
    line
}

/// How events look.
pub(crate) struct Lines {
    kind: &'static Kind,
    selection: Selection,
    look: Look,
    /// A table's columns are in the first event only.
    columns: bool,
}

impl Lines {
    /// Adds what the watcher is told of a write, if anything.
    fn event(&mut self, event: &crate::store::Event, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let now = (!event.deleted).then_some(&event.value);
        if !self.selection.can_match(&event.key) {
            return Ok(());
        }
        let (told, object) = if self.selection.is_all() {
            (tell(event.previous.as_ref().map(|_| true), now.map(|_| true)), None)
        } else {
            let selected = |stored: &bytes::Bytes| -> Result<bool, Refusal> {
                Ok(self.selection.matches(&encode::decode(self.kind, stored)?))
            };
            let before = event.previous.as_ref().map(selected).transpose()?;
            let told = tell(before, now.map(selected).transpose()?);
            let left = event.previous.as_ref().filter(|_| told == Some(Told::Left));
            (told, left.map(|before| encode::at_version(before, event.revision)))
        };
        match told {
            Some(told) => self.line(told.as_str(), object.as_ref().unwrap_or(&event.value), out),
            None => Ok(()),
        }
    }

    /// Adds an object that is there from the beginning, if it is selected.
    fn initial(&mut self, stored: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        if self.selection.is_all() || self.selection.matches(&encode::decode(self.kind, stored)?) {
            self.line("ADDED", stored, out)?;
        }
        Ok(())
    }

    fn line(&mut self, told: &str, stored: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(told.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        match self.look.shape {
            Shape::Object | Shape::Discovery => encode::write(self.kind, stored, out)?,
            Shape::Table(include) => {
                let object = encode::decode(self.kind, stored)?;
                let columns = std::mem::take(&mut self.columns);
                let table =
                    table::table_of_one(self.kind, &object, include, columns, wharf_model::chance::now());
                out.extend_from_slice(table.to_string().as_bytes());
            }
            Shape::Partial => {
                let object = table::partial(&encode::decode(self.kind, stored)?);
                out.extend_from_slice(object.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Adds a bookmark: all up to here was told. `end` if it is that of the objects that were there from the beginning.
    fn bookmark(&self, revision: Revision, end: bool, out: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object: Value = match self.look.shape {
            Shape::Object | Shape::Discovery => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Shape::Partial => table::partial(&json!({"metadata": metadata})),
            Shape::Table(include) => table::table(
                self.kind,
                &[],
                json!({"resourceVersion": revision.to_string()}),
                include,
                false,
                wharf_model::chance::now(),
            ),
        };
        out.extend_from_slice(json!({"type": "BOOKMARK", "object": object}).to_string().as_bytes());
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests;
