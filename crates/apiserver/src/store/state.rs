//! The in-memory state: all objects, and the tail of the log from which older revisions are reconstructed.
//!
//! Plain data. Only the writer changes it, and only with writes that are durable already.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::FIRST_REVISION;
use super::{Entry, Event, Key, ListError, ListPage, Options, Revision};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoredObject {
    pub(super) revision: Revision,
    pub(super) value: Bytes,
    pub(super) expires: Option<Expiry>,
}

/// When an object expires, and the offset in its JSON for the revision of that deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry {
    pub(super) deadline: i64,
    pub(super) revision_offset: u32,
}

/// An event with the data to undo it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) event: Arc<Event>,
    /// The revision of `event.previous`.
    pub(super) previous_revision: Revision,
}

impl Record {
    /// The bytes that only the log holds: other values belong to current objects or to the `previous` of another event.
    pub(super) fn bytes(&self) -> usize {
        let last = if self.event.deleted { self.event.value.len() } else { 0 };
        last + self.event.previous.as_ref().map_or(0, Bytes::len)
    }
}

/// One accepted write.
pub(super) struct Write {
    pub(super) record: Record,
    /// The object after the write; none for a deletion.
    pub(super) after: Option<StoredObject>,
}

/// A row of the log on disk.
pub(super) struct LogRow {
    pub(super) revision: Revision,
    pub(super) key: Key,
    pub(super) previous: Option<(Revision, Bytes)>,
    /// For a deletion, the last state for watchers.
    pub(super) deleted: Option<Bytes>,
}

#[derive(Default)]
pub(super) struct State {
    objects: BTreeMap<Key, StoredObject>,
    /// All revisions after `compacted`, without a gap.
    log: VecDeque<Record>,
    deadlines: BTreeSet<(i64, Key)>,
    revision: Revision,
    compacted: Revision,
    bytes: usize,
    log_bytes: usize,
}

impl State {
    pub(super) fn empty() -> Self {
        Self { revision: FIRST_REVISION, compacted: FIRST_REVISION, ..Self::default() }
    }

    /// Rebuilds the state from disk, or returns the inconsistency found.
    pub(super) fn rebuild(
        revision: Revision,
        compacted: Revision,
        objects: BTreeMap<Key, StoredObject>,
        rows: Vec<LogRow>,
    ) -> Result<Self, String> {
        if rows.len() as u64 != revision.saturating_sub(compacted) {
            return Err(format!("{} events for the revisions {compacted} to {revision}", rows.len()));
        }
        // Backwards, because the value of an event is the previous value in the next event of the same key.
        let mut found: HashMap<Key, Option<(Revision, Bytes)>> = HashMap::new();
        let mut log = VecDeque::with_capacity(rows.len());
        for (row, expected) in rows.into_iter().rev().zip((compacted + 1..=revision).rev()) {
            let key = objects.get_key_value(&row.key).map_or(row.key, |(key, _)| key.clone());
            let wrong = |problem: &str| Err(format!("the event of revision {expected} on {key} {problem}"));
            if row.revision != expected {
                return wrong("is missing");
            }
            let state_after = match found.get(&key) {
                Some(state) => state.clone(),
                None => objects.get(&key).map(|object| (object.revision, object.value.clone())),
            };
            let (value, deleted) = match (row.deleted, state_after) {
                (Some(last), None) => (last, true),
                (None, Some((written, value))) if written == expected => (value, false),
                _ => return wrong("does not match the state after it"),
            };
            let previous_revision =
                row.previous.as_ref().map_or(0, |(previous_revision, _)| *previous_revision);
            if previous_revision >= expected || (deleted && previous_revision == 0) {
                return wrong("does not match the state before it");
            }
            let previous = row.previous.as_ref().map(|(_, value)| value.clone());
            found.insert(key.clone(), row.previous);
            let event = Event { revision: expected, key, value, deleted, previous };
            log.push_front(Record { event: Arc::new(event), previous_revision });
        }
        let deadlines = objects
            .iter()
            .filter_map(|(key, object)| Some((object.expires?.deadline, key.clone())))
            .collect();
        let bytes = objects.values().map(|object| object.value.len()).sum();
        let log_bytes = log.iter().map(Record::bytes).sum();
        Ok(Self { objects, log, deadlines, revision, compacted, bytes, log_bytes })
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn oldest(&self) -> Revision {
        self.compacted
    }

    pub(super) fn keys(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn log_len(&self) -> usize {
        self.log.len()
    }

    pub(super) fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    pub(super) fn objects(&self) -> &BTreeMap<Key, StoredObject> {
        &self.objects
    }

    /// Returns the stored key too, so that events share its allocation.
    pub(super) fn stored(&self, key: &str) -> Option<(&Key, &StoredObject)> {
        self.objects.get_key_value(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.stored(key).map(|(key, object)| entry(key, object.revision, &object.value))
    }

    /// Checks that the log reaches back to this revision.
    pub(super) fn check_revision(&self, from: Revision) -> Result<(), ListError> {
        if from > self.revision {
            Err(ListError::Future { current: self.revision })
        } else if from < self.compacted {
            Err(ListError::Compacted { oldest: self.compacted })
        } else {
            Ok(())
        }
    }

    /// The records after a revision that [`State::check_revision`] accepts, oldest first.
    pub(super) fn since(&self, from: Revision) -> impl DoubleEndedIterator<Item = &Record> {
        let skip =
            usize::try_from(from.saturating_sub(self.compacted)).unwrap_or(usize::MAX).min(self.log.len());
        self.log.range(skip..)
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, ListError> {
        let revision = at.unwrap_or(self.revision);
        self.check_revision(revision)?;
        // Newest first, so the entry that remains is the state before the oldest event.
        let mut past: BTreeMap<&str, Option<(Revision, &Bytes)>> = BTreeMap::new();
        for Record { event, previous_revision } in self.since(revision).rev() {
            if event.key.starts_with(prefix) {
                past.insert(&event.key, event.previous.as_ref().map(|value| (*previous_revision, value)));
            }
        }
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let now = self.objects.range::<str, _>((start, Bound::Unbounded));
        let now =
            now.take_while(|(key, _)| key.starts_with(prefix)).filter(|(key, _)| !past.contains_key(&***key));
        let now = now.map(|(key, object)| (&**key, Some(key), object.revision, &object.value));
        let older = past.range::<str, _>((start, Bound::Unbounded));
        let older =
            older.filter_map(|(key, found)| found.map(|(revision, value)| (*key, None, revision, value)));

        let mut all = Merged { left: now.peekable(), right: older.peekable() };
        let mut entries = Vec::new();
        let limit = if limit == 0 { usize::MAX } else { limit };
        for (key, stored, revision, value) in all.by_ref().take(limit) {
            let key = stored.cloned().unwrap_or_else(|| Key::from(key));
            entries.push(Entry { key, revision, value: value.clone() });
        }
        let remaining = all.count();
        Ok(ListPage { entries, revision, more: remaining > 0, remaining })
    }

    /// The revision up to which the log is compacted when these writes are added. Compaction removes an eighth of the
    /// log at a time, not single events.
    pub(super) fn compact_up_to(&self, writes: &[Write], options: Options) -> Revision {
        let all = || self.log.iter().chain(writes.iter().map(|write| &write.record));
        let mut len = self.log.len() + writes.len();
        let mut bytes = self.log_bytes + writes.iter().map(|write| write.record.bytes()).sum::<usize>();
        if len <= options.history + options.history / 8
            && bytes <= options.history_bytes + options.history_bytes / 8
        {
            return self.compacted;
        }
        let mut compacted = self.compacted;
        for record in all() {
            if len <= options.history && bytes <= options.history_bytes {
                break;
            }
            (len, bytes, compacted) = (len - 1, bytes - record.bytes(), record.event.revision);
        }
        compacted
    }

    /// The keys of expired objects, oldest deadline first.
    pub(super) fn expired(&self, now: i64) -> impl Iterator<Item = &Key> {
        self.deadlines.iter().take_while(move |(deadline, _)| *deadline <= now).map(|(_, key)| key)
    }

    pub(super) fn next_deadline(&self) -> Option<i64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Makes durable writes visible and compacts the log up to a revision.
    pub(super) fn apply(&mut self, writes: Vec<Write>, compacted: Revision) {
        for Write { record, after } in writes {
            let key = record.event.key.clone();
            let expires = after.as_ref().and_then(|object| object.expires);
            self.bytes += after.as_ref().map_or(0, |object| object.value.len());
            let old = match after {
                Some(object) => self.objects.insert(key.clone(), object),
                None => self.objects.remove(&key),
            };
            if let Some(old) = old {
                self.bytes -= old.value.len();
                if let Some(Expiry { deadline, .. }) = old.expires {
                    self.deadlines.remove(&(deadline, key.clone()));
                }
            }
            if let Some(Expiry { deadline, .. }) = expires {
                self.deadlines.insert((deadline, key));
            }
            self.revision = record.event.revision;
            self.log_bytes += record.bytes();
            self.log.push_back(record);
        }
        while self.compacted < compacted
            && let Some(record) = self.log.pop_front()
        {
            self.compacted = record.event.revision;
            self.log_bytes -= record.bytes();
        }
    }
}

pub(super) fn entry(key: &Key, revision: Revision, value: &Bytes) -> Entry {
    Entry { key: key.clone(), revision, value: value.clone() }
}

type Item<'a> = (&'a str, Option<&'a Key>, Revision, &'a Bytes);

/// Merges two iterators that are ordered by key and have no key in common.
struct Merged<L: Iterator, R: Iterator> {
    left: std::iter::Peekable<L>,
    right: std::iter::Peekable<R>,
}

impl<'a, L: Iterator<Item = Item<'a>>, R: Iterator<Item = Item<'a>>> Iterator for Merged<L, R> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        match (self.left.peek(), self.right.peek()) {
            (Some(left), Some(right)) if right.0 < left.0 => self.right.next(),
            (Some(_), _) => self.left.next(),
            (None, _) => self.right.next(),
        }
    }
}
