//! Which of the writes that wait are good, and what they come to: against the objects as they are, and against
//! those before them in the same batch.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::state::{Expiry, Held, Record, State, Write, entry};
use super::{Body, Change, Entry, Event, Failure, Key, Revision, WriteError};

/// A batch while it is judged.
pub(super) struct Plan<'a> {
    state: &'a State,
    /// What the batch itself made of a key.
    touched: HashMap<Key, Option<Held>>,
    writes: Vec<Write>,
    revision: Revision,
}

impl<'a> Plan<'a> {
    pub(super) fn new(state: &'a State) -> Self {
        Self { state, touched: HashMap::new(), writes: Vec::new(), revision: state.revision() }
    }

    pub(super) fn into_writes(self) -> Vec<Write> {
        self.writes
    }

    /// Takes a change in, or says why not. The answer holds once the batch is durable.
    pub(super) fn judge(&mut self, key: Key, change: &Change) -> Result<Entry, WriteError> {
        let (key, found) = self.find(key);
        match (change, found) {
            (Change::Create(body), None) => self.put(key, None, body),
            (Change::Create(_), Some(held)) => {
                Err(WriteError::Exists(entry(&key, held.revision, &held.value)))
            }
            (Change::Update(..) | Change::Delete(..), None) => Err(WriteError::Missing),
            (Change::Update(on, _) | Change::Delete(on, _), Some(held)) if held.revision != *on => {
                Err(WriteError::Changed(entry(&key, held.revision, &held.value)))
            }
            (Change::Update(_, body), Some(held)) => self.put(key, Some(held), body),
            (Change::Delete(_, body), Some(held)) => {
                let value =
                    fill(&body.json, body.at..body.at, self.revision + 1).ok_or(Failure::NoPlace(body.at))?;
                Ok(self.remove(key, held, value))
            }
        }
    }

    /// Deletes an object whose time has come, unless a write of this batch gave it more, or did it already.
    pub(super) fn expire(&mut self, key: &Key, now: i64) {
        let (key, found) = self.find(key.clone());
        let Some(held) = found else { return };
        let Some(Expiry { when, place }) = held.expires else { return };
        if when > now {
            return;
        }
        let place = place as usize;
        let digits = place..place + held.revision.to_string().len();
        // It is quoted, for `put` saw to that; if ever not, it must go all the same, or it would be tried for ever.
        let value = fill(&held.value, digits, self.revision + 1).unwrap_or_else(|| held.value.clone());
        self.remove(key, held, value);
    }

    fn find(&self, key: Key) -> (Key, Option<Held>) {
        if let Some((key, touched)) = self.touched.get_key_value(&key) {
            return (key.clone(), touched.clone());
        }
        match self.state.held(&key) {
            Some((key, held)) => (key.clone(), Some(held.clone())),
            None => (key, None),
        }
    }

    fn put(&mut self, key: Key, found: Option<Held>, body: &Body) -> Result<Entry, WriteError> {
        let revision = self.revision + 1;
        let value = fill(&body.json, body.at..body.at, revision).ok_or(Failure::NoPlace(body.at))?;
        let place = u32::try_from(body.at).map_err(|_| Failure::NoPlace(body.at))?;
        let expires = body.expires.map(|when| Expiry { when, place });
        let held = Held { revision, value: value.clone(), expires };
        Ok(self.take(key, found, value, Some(held)))
    }

    fn remove(&mut self, key: Key, found: Held, value: Bytes) -> Entry {
        self.take(key, Some(found), value, None)
    }

    fn take(&mut self, key: Key, found: Option<Held>, value: Bytes, after: Option<Held>) -> Entry {
        self.revision += 1;
        let revision = self.revision;
        let (before, previous) = found.map_or((0, None), |held| (held.revision, Some(held.value)));
        self.touched.insert(key.clone(), after.clone());
        let event =
            Event { revision, key: key.clone(), value: value.clone(), deleted: after.is_none(), previous };
        self.writes.push(Write { record: Record { event: Arc::new(event), before }, after });
        Entry { key, revision, value }
    }
}

/// The JSON with the revision's digits in place of what is there, which must stand between quotes.
fn fill(json: &[u8], place: std::ops::Range<usize>, revision: Revision) -> Option<Bytes> {
    let quoted = json.get(place.start.checked_sub(1)?) == Some(&b'"') && json.get(place.end) == Some(&b'"');
    let (before, after) = (json.get(..place.start)?, json.get(place.end..)?);
    quoted.then(|| Bytes::from([before, revision.to_string().as_bytes(), after].concat()))
}
