//! What is in memory: all objects, and the tail of the log with which older revisions are made of the present one.
//!
//! Plain data. The writer alone changes it, by what is durable already.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::FIRST;
use super::{Entry, Event, Key, ListError, Options, Page, Revision};

/// An object.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) revision: Revision,
    pub(super) value: Bytes,
    pub(super) expires: Option<Expiry>,
}

/// When an object goes by itself, and where in its JSON the revision of that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry {
    pub(super) when: i64,
    pub(super) place: u32,
}

/// An event, and what undoes it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) event: Arc<Event>,
    /// Of `event.previous`.
    pub(super) before: Revision,
}

impl Record {
    /// What the log alone keeps in memory: all other values are those of objects, or the previous of another event.
    pub(super) fn bytes(&self) -> usize {
        let last = if self.event.deleted { self.event.value.len() } else { 0 };
        last + self.event.previous.as_ref().map_or(0, Bytes::len)
    }
}

/// One write that is judged good.
pub(super) struct Write {
    pub(super) record: Record,
    /// The object from now on; none at a deletion.
    pub(super) after: Option<Held>,
}

/// A row of the log, as it is on disk.
pub(super) struct Row {
    pub(super) revision: Revision,
    pub(super) key: Key,
    pub(super) previous: Option<(Revision, Bytes)>,
    /// At a deletion, what watchers are told.
    pub(super) deleted: Option<Bytes>,
}

/// All of it.
#[derive(Default)]
pub(super) struct State {
    objects: BTreeMap<Key, Held>,
    /// Of all revisions after `compacted`, without a gap.
    log: VecDeque<Record>,
    deadlines: BTreeSet<(i64, Key)>,
    revision: Revision,
    compacted: Revision,
    bytes: usize,
    log_bytes: usize,
}

impl State {
    /// With nothing in it.
    pub(super) fn empty() -> Self {
        Self { revision: FIRST, compacted: FIRST, ..Self::default() }
    }

    /// From what was on disk; says what does not fit together.
    pub(super) fn rebuild(
        revision: Revision,
        compacted: Revision,
        objects: BTreeMap<Key, Held>,
        rows: Vec<Row>,
    ) -> Result<Self, String> {
        if rows.len() as u64 != revision.saturating_sub(compacted) {
            return Err(format!("{} events for the revisions {compacted} to {revision}", rows.len()));
        }
        // Backwards, for the value of an event is what the next one of the same key found.
        let mut found: HashMap<Key, Option<(Revision, Bytes)>> = HashMap::new();
        let mut log = VecDeque::with_capacity(rows.len());
        for (row, expected) in rows.into_iter().rev().zip((compacted + 1..=revision).rev()) {
            let key = objects.get_key_value(&row.key).map_or(row.key, |(key, _)| key.clone());
            let wrong = |what: &str| Err(format!("the event of revision {expected} on {key} {what}"));
            if row.revision != expected {
                return wrong("is missing");
            }
            let then = match found.get(&key) {
                Some(then) => then.clone(),
                None => objects.get(&key).map(|held| (held.revision, held.value.clone())),
            };
            let (value, deleted) = match (row.deleted, then) {
                (Some(last), None) => (last, true),
                (None, Some((written, value))) if written == expected => (value, false),
                _ => return wrong("does not lead to what came after it"),
            };
            let before = row.previous.as_ref().map_or(0, |(before, _)| *before);
            if before >= expected || (deleted && before == 0) {
                return wrong("does not follow from what came before it");
            }
            let previous = row.previous.as_ref().map(|(_, value)| value.clone());
            found.insert(key.clone(), row.previous);
            let event = Event { revision: expected, key, value, deleted, previous };
            log.push_front(Record { event: Arc::new(event), before });
        }
        let deadlines =
            objects.iter().filter_map(|(key, held)| Some((held.expires?.when, key.clone()))).collect();
        let bytes = objects.values().map(|held| held.value.len()).sum();
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

    pub(super) fn objects(&self) -> &BTreeMap<Key, Held> {
        &self.objects
    }

    /// With the key as it is stored, so that a million events share it.
    pub(super) fn held(&self, key: &str) -> Option<(&Key, &Held)> {
        self.objects.get_key_value(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.held(key).map(|(key, held)| entry(key, held.revision, &held.value))
    }

    /// Whether there is a past from this revision on.
    pub(super) fn reach(&self, from: Revision) -> Result<(), ListError> {
        if from > self.revision {
            Err(ListError::Future { current: self.revision })
        } else if from < self.compacted {
            Err(ListError::Compacted { oldest: self.compacted })
        } else {
            Ok(())
        }
    }

    /// What came after a revision that [`State::reach`] allows, oldest first.
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
    ) -> Result<Page, ListError> {
        let revision = at.unwrap_or(self.revision);
        self.reach(revision)?;
        // Newest first, so what stays is what the oldest of them found.
        let mut past: BTreeMap<&str, Option<(Revision, &Bytes)>> = BTreeMap::new();
        for Record { event, before } in self.since(revision).rev() {
            if event.key.starts_with(prefix) {
                past.insert(&event.key, event.previous.as_ref().map(|value| (*before, value)));
            }
        }
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let now = self.objects.range::<str, _>((start, Bound::Unbounded));
        let now =
            now.take_while(|(key, _)| key.starts_with(prefix)).filter(|(key, _)| !past.contains_key(&***key));
        let now = now.map(|(key, held)| (&**key, Some(key), held.revision, &held.value));
        let then = past.range::<str, _>((start, Bound::Unbounded));
        let then =
            then.filter_map(|(key, found)| found.map(|(revision, value)| (*key, None, revision, value)));

        let mut all = Merged { left: now.peekable(), right: then.peekable() };
        let mut entries = Vec::new();
        let limit = if limit == 0 { usize::MAX } else { limit };
        for (key, stored, revision, value) in all.by_ref().take(limit) {
            let key = stored.cloned().unwrap_or_else(|| Key::from(key));
            entries.push(Entry { key, revision, value: value.clone() });
        }
        let remaining = all.count();
        Ok(Page { entries, revision, more: remaining > 0, remaining })
    }

    /// Up to where the log is to be forgotten when these writes are added to it. Not one by one: each time it is
    /// cut, it is cut by an eighth.
    pub(super) fn surplus(&self, writes: &[Write], options: Options) -> Revision {
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

    /// Those whose time has come, the oldest first.
    pub(super) fn expired(&self, now: i64) -> impl Iterator<Item = &Key> {
        self.deadlines.iter().take_while(move |(when, _)| *when <= now).map(|(_, key)| key)
    }

    pub(super) fn next_deadline(&self) -> Option<i64> {
        self.deadlines.first().map(|(when, _)| *when)
    }

    /// Makes durable writes visible, and forgets the log up to a revision.
    pub(super) fn apply(&mut self, writes: Vec<Write>, compacted: Revision) {
        for Write { record, after } in writes {
            let key = record.event.key.clone();
            let expires = after.as_ref().and_then(|held| held.expires);
            self.bytes += after.as_ref().map_or(0, |held| held.value.len());
            let old = match after {
                Some(held) => self.objects.insert(key.clone(), held),
                None => self.objects.remove(&key),
            };
            if let Some(old) = old {
                self.bytes -= old.value.len();
                if let Some(Expiry { when, .. }) = old.expires {
                    self.deadlines.remove(&(when, key.clone()));
                }
            }
            if let Some(Expiry { when, .. }) = expires {
                self.deadlines.insert((when, key));
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

/// Two lists by key, without a key in common, as one.
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
