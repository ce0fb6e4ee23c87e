//! Checks queued writes against the current objects and against earlier writes of the same batch, and computes the
//! resulting events. Pure; [`Plan::stage`] is the rule.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::state::{Expiry, Record, State, StoredObject, Write, entry};
use super::{Body, Change, Entry, Event, Failure, Key, Revision, WriteError};

/// A batch that is being planned.
pub(super) struct Plan<'a> {
    state: &'a State,
    /// Keys that this batch has written.
    staged: HashMap<Key, Option<StoredObject>>,
    writes: Vec<Write>,
    revision: Revision,
}

impl<'a> Plan<'a> {
    pub(super) fn new(state: &'a State) -> Self {
        Self { state, staged: HashMap::new(), writes: Vec::new(), revision: state.revision() }
    }

    pub(super) fn into_writes(self) -> Vec<Write> {
        self.writes
    }

    /// Adds a change to the batch or rejects it. The result is valid once the batch is durable.
    pub(super) fn stage(&mut self, key: Key, change: &Change) -> Result<Entry, WriteError> {
        let (key, found) = self.lookup(key);
        match (change, found) {
            (Change::Create(body), None) => self.put(key, None, body),
            (Change::Create(_), Some(object)) => {
                Err(WriteError::AlreadyExists(entry(&key, object.revision, &object.value)))
            }
            (Change::Update(..) | Change::Delete(..), None) => Err(WriteError::NotFound),
            (Change::Update(expected, _) | Change::Delete(expected, _), Some(object))
                if object.revision != *expected =>
            {
                Err(WriteError::Conflict(entry(&key, object.revision, &object.value)))
            }
            (Change::Update(_, body), Some(object)) => self.put(key, Some(object), body),
            (Change::Delete(_, body), Some(object)) => {
                let value = fill(&body.json, body.revision_offset..body.revision_offset, self.revision + 1)
                    .ok_or(Failure::NoRevisionSlot(body.revision_offset))?;
                Ok(self.remove(key, object, value))
            }
        }
    }

    /// Deletes an expired object, unless a write of this batch extended its deadline or deleted it already.
    pub(super) fn expire(&mut self, key: &Key, now: i64) {
        let (key, found) = self.lookup(key.clone());
        let Some(object) = found else { return };
        let Some(Expiry { deadline, revision_offset }) = object.expires else { return };
        if deadline > now {
            return;
        }
        let revision_offset = revision_offset as usize;
        let digits = revision_offset..revision_offset + object.revision.to_string().len();
        // `put` has verified the quotes. If they are missing, delete the object anyway, or expiry would retry
        // endlessly.
        let value = fill(&object.value, digits, self.revision + 1).unwrap_or_else(|| object.value.clone());
        self.remove(key, object, value);
    }

    fn lookup(&self, key: Key) -> (Key, Option<StoredObject>) {
        if let Some((key, staged)) = self.staged.get_key_value(&key) {
            return (key.clone(), staged.clone());
        }
        match self.state.stored(&key) {
            Some((key, object)) => (key.clone(), Some(object.clone())),
            None => (key, None),
        }
    }

    fn put(&mut self, key: Key, found: Option<StoredObject>, body: &Body) -> Result<Entry, WriteError> {
        let revision = self.revision + 1;
        let value = fill(&body.json, body.revision_offset..body.revision_offset, revision)
            .ok_or(Failure::NoRevisionSlot(body.revision_offset))?;
        let revision_offset =
            u32::try_from(body.revision_offset).map_err(|_| Failure::NoRevisionSlot(body.revision_offset))?;
        let expires = body.expires.map(|deadline| Expiry { deadline, revision_offset });
        let object = StoredObject { revision, value: value.clone(), expires };
        Ok(self.record(key, found, value, Some(object)))
    }

    fn remove(&mut self, key: Key, found: StoredObject, value: Bytes) -> Entry {
        self.record(key, Some(found), value, None)
    }

    fn record(
        &mut self,
        key: Key,
        found: Option<StoredObject>,
        value: Bytes,
        after: Option<StoredObject>,
    ) -> Entry {
        self.revision += 1;
        let revision = self.revision;
        let (previous_revision, previous) =
            found.map_or((0, None), |object| (object.revision, Some(object.value)));
        self.staged.insert(key.clone(), after.clone());
        let event =
            Event { revision, key: key.clone(), value: value.clone(), deleted: after.is_none(), previous };
        self.writes.push(Write { record: Record { event: Arc::new(event), previous_revision }, after });
        Entry { key, revision, value }
    }
}

/// Replaces the bytes in `slot`, which must be enclosed in quotes, with the digits of the revision.
fn fill(json: &[u8], slot: std::ops::Range<usize>, revision: Revision) -> Option<Bytes> {
    let quoted = json.get(slot.start.checked_sub(1)?) == Some(&b'"') && json.get(slot.end) == Some(&b'"');
    let (head, tail) = (json.get(..slot.start)?, json.get(slot.end..)?);
    quoted.then(|| Bytes::from([head, revision.to_string().as_bytes(), tail].concat()))
}
