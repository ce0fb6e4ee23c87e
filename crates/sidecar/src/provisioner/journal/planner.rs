//! The rules of the journal: which intents go into the next segment, when a segment is deleted, and how requests with
//! an unknown result are handled. No I/O and no clock: [`Planner::next`] returns a job, and the caller reports its
//! result.
//!
//! - An intent is open from the moment it is written until it is finished.
//! - A segment is deleted only when all of its intents are finished. A segment with undecodable intents never is.
//! - Many intents cost one write: while a write runs, new intents collect for the next one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use wharf_cluster::{ApiError, Backoff};

use super::JournalError;
use super::removals::Removals;
use super::segment::{FoundSegment, MAX_BYTES, MAX_INTENTS, cost, fits};
use crate::provisioner::intent::Intent;

/// Maximum concurrent writes.
const MAX_CONCURRENT: usize = 4;
/// Pause between writes that are not full, so that a burst of intents shares a segment.
const BATCH_WINDOW: Duration = Duration::from_millis(10);
/// How long an intent waits for a running write before it gets one of its own.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// Maximum attempts for a write with an unknown result.
const MAX_TRIES: u32 = 3;
/// Pause between these attempts and between failed loads, doubled each time.
pub(super) const BASE_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The journal is read again at these times after the first read: the last request of a crashed process may take effect
/// late. API servers time out after a minute.
const REREAD_AFTER: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120)];
/// Between checks whether the journal may be stored by now.
const RETRY_ACCESS: Duration = Duration::from_secs(300);

/// Identifies a caller that waits for a write.
pub(super) type WriteId = u64;
/// Results for waiting callers.
pub(super) type WriteResults = Vec<(WriteId, Result<(), JournalError>)>;

/// A request to run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Job {
    /// Read all segments.
    Load,
    /// Create a segment.
    Write { name: String, intents: Vec<Arc<str>> },
    /// Delete a segment: the one with this UID or, without a UID, what a request without a response may have created.
    Remove { name: String, uid: Option<String> },
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum WriteOutcome {
    /// The segment exists.
    Done { uid: String },
    /// The segment may exist.
    Unknown(ApiError),
    /// The server throttles: retry after this time.
    Throttled(Duration),
    /// Storing the journal is not permitted.
    Forbidden(ApiError),
    /// The segment does not exist, and a retry would not help.
    Rejected(ApiError),
}

/// The result of reading all segments.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LoadOutcome {
    /// All segments.
    All(Vec<FoundSegment>),
    /// Reading the journal is not permitted.
    Forbidden(ApiError),
    /// The request failed.
    Failed,
}

/// How the journal can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Another replica may be writing it.
    Closed,
    /// It has to be read, no earlier than this.
    Unread { at: Instant },
    /// It was read, and the planner's state has matched it since. It was read again this often.
    Durable { since: Instant, rereads: usize },
    /// Storing it is not permitted. Check again at this time.
    Memory { retry_at: Instant },
}

/// The planner.
pub(super) struct Planner {
    access: Access,
    loading: bool,
    load_failures: u32,
    /// By volume.
    open: BTreeMap<String, Open>,
    /// By name.
    segments: BTreeMap<String, Segment>,
    waiting: VecDeque<Entry>,
    /// By the name of the segment.
    writing: BTreeMap<String, Batch>,
    retries: Vec<Batch>,
    last_write: Option<Instant>,
    /// Segments to delete.
    pub(super) removals: Removals,
    /// Volumes whose intents were found and not written by this process.
    found: Vec<String>,
}

struct Open {
    intent: Arc<Intent>,
    /// The segments that contain it. Empty while it is in memory only.
    segments: Vec<String>,
}

struct Segment {
    uid: String,
    /// Volumes whose intents are open.
    open: BTreeSet<String>,
    /// It has intents that cannot be decoded, and so cannot be finished.
    unreadable: bool,
}

struct Entry {
    /// `None` for an intent that was held in memory and has no waiting caller.
    write_id: Option<WriteId>,
    intent: Arc<Intent>,
    text: Arc<str>,
    since: Instant,
}

struct Batch {
    entries: Vec<Entry>,
    tries: u32,
    /// No earlier than this.
    at: Instant,
}

impl Planner {
    /// A planner without the lease.
    pub(super) fn new() -> Self {
        Self {
            access: Access::Closed,
            loading: false,
            load_failures: 0,
            open: BTreeMap::new(),
            segments: BTreeMap::new(),
            waiting: VecDeque::new(),
            writing: BTreeMap::new(),
            retries: Vec::new(),
            last_write: None,
            removals: Removals::default(),
            found: Vec::new(),
        }
    }

    /// The lease was acquired: the journal has to be read first.
    pub(super) fn lease_acquired(&mut self, now: Instant) {
        self.access = Access::Unread { at: now };
    }

    /// The lease was lost: from now on another replica may write the journal, so the known state is void. Intents
    /// that are in memory only stay. Nothing is deleted any more, either: another replica may find a segment before
    /// it is deleted, and act on its intents.
    pub(super) fn lease_lost(&mut self) -> WriteResults {
        self.access = Access::Closed;
        self.segments.clear();
        self.removals.cancel_pending();
        self.open.retain(|_, open| open.segments.is_empty());
        self.found.clear();
        let again = self.retries.drain(..).flat_map(|batch| batch.entries);
        let write_ids = again.chain(self.waiting.drain(..)).filter_map(|entry| entry.write_id);
        write_ids.map(|write_id| (write_id, Err(JournalError::Closed))).collect()
    }

    /// Whether the journal was read, or cannot be.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.access, Access::Durable { .. } | Access::Memory { .. })
    }

    /// Whether intents survive a crash.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.access, Access::Durable { .. })
    }

    /// The open intent of a volume.
    pub(super) fn get(&self, volume: &str) -> Option<Arc<Intent>> {
        self.open.get(volume).map(|open| Arc::clone(&open.intent))
    }

    /// The volumes with open intents.
    pub(super) fn volumes(&self) -> Vec<String> {
        self.open.keys().cloned().collect()
    }

    /// The volumes whose intents were found since the last call.
    pub(super) fn take_found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    /// The numbers of open intents and of segments.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.open.len(), self.segments.len())
    }

    /// Requests to write an intent. `None`: the result follows later.
    pub(super) fn write(
        &mut self,
        write_id: WriteId,
        intent: Arc<Intent>,
        text: Arc<str>,
        now: Instant,
    ) -> Option<Result<(), JournalError>> {
        if self.access == Access::Closed {
            return Some(Err(JournalError::Closed));
        }
        if self.is_ready()
            && let Some(result) = self.existing(&intent)
        {
            return Some(result);
        }
        if self.is_ready() && (!self.is_durable() || !fits(&text)) {
            self.open.insert(intent.volume.clone(), Open { intent, segments: Vec::new() });
            return Some(Ok(()));
        }
        self.waiting.push_back(Entry { write_id: Some(write_id), intent, text, since: now });
        None
    }

    /// The result for a write to a volume that has an open intent already.
    fn existing(&self, intent: &Intent) -> Option<Result<(), JournalError>> {
        let Open { intent: open, .. } = self.open.get(&intent.volume)?;
        // The time of writing does not matter for equality.
        let same = Intent { written: open.written, ..intent.clone() } == **open;
        Some(if same { Ok(()) } else { Err(JournalError::Exists { volume: intent.volume.clone() }) })
    }

    /// Closes the intent of a volume.
    pub(super) fn finish(&mut self, volume: &str, now: Instant) {
        let Some(open) = self.open.remove(volume) else { return };
        for name in open.segments {
            if let Some(segment) = self.segments.get_mut(&name) {
                segment.open.remove(volume);
            }
            self.remove_if_empty(name, now);
        }
    }

    fn remove_if_empty(&mut self, name: String, now: Instant) {
        let empty = |segment: &Segment| segment.open.is_empty() && !segment.unreadable;
        if self.segments.get(&name).is_some_and(empty)
            && let Some(segment) = self.segments.remove(&name)
        {
            self.removals.schedule_finished(name, segment.uid, now);
        }
    }

    /// Marks an intent as open and returns whether it is new. Of two intents for one volume the newer counts: a request
    /// without a response may have left an older one behind.
    fn open_intent(&mut self, intent: &Arc<Intent>, segment: Option<&str>) -> bool {
        let fresh = Open { intent: Arc::clone(intent), segments: Vec::new() };
        let mut news = false;
        let open = self.open.entry(intent.volume.clone()).or_insert_with(|| {
            news = true;
            fresh
        });
        if intent.written > open.intent.written {
            open.intent = Arc::clone(intent);
            news = true;
        }
        open.segments.extend(segment.map(str::to_owned));
        news
    }

    /// The next job, which counts as started from now on. `name` generates names for segments.
    pub(super) fn next(&mut self, now: Instant, name: impl FnOnce() -> String) -> Option<Job> {
        if self.load_due().is_some_and(|at| at <= now) {
            self.loading = true;
            return Some(Job::Load);
        }
        if self.write_due().is_some_and(|at| at <= now)
            && let Some(batch) = self.next_batch(now)
        {
            let name = name();
            let intents = batch.entries.iter().map(|entry| Arc::clone(&entry.text)).collect();
            self.writing.insert(name.clone(), batch);
            return Some(Job::Write { name, intents });
        }
        self.removal_due()?;
        let (name, uid) = self.removals.start_next(now)?;
        Some(Job::Remove { name, uid })
    }

    /// When to call [`Planner::next`] again if nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.load_due(), self.write_due(), self.removal_due()].into_iter().flatten().min()
    }

    /// Nothing is read during writes and deletions: a running write would be missing, a running deletion reappear.
    fn load_due(&self) -> Option<Instant> {
        match self.access {
            _ if self.loading || !self.writing.is_empty() || self.removals.are_running() => None,
            Access::Unread { at } | Access::Memory { retry_at: at } => Some(at),
            Access::Durable { since, rereads } => REREAD_AFTER.get(rereads).map(|&late| since + late),
            Access::Closed => None,
        }
    }

    fn removal_due(&self) -> Option<Instant> {
        if self.loading { None } else { self.removals.next_due() }
    }

    fn write_due(&self) -> Option<Instant> {
        if !self.is_durable() || self.loading || self.writing.len() >= MAX_CONCURRENT {
            return None;
        }
        let again = self.retries.iter().map(|batch| batch.at).min();
        let fresh = self.waiting.front().map(|oldest| {
            let (count, bytes) = self
                .waiting
                .iter()
                .take(MAX_INTENTS)
                .fold((0, 0), |(count, bytes), entry| (count + 1, bytes + cost(&entry.text)));
            let full = count >= MAX_INTENTS || bytes >= MAX_BYTES;
            let soon = self.last_write.map_or(oldest.since, |last| last + BATCH_WINDOW);
            match (full, self.writing.is_empty()) {
                (true, _) => oldest.since,
                (false, true) => soon.min(oldest.since + MAX_WAIT),
                (false, false) => oldest.since + MAX_WAIT,
            }
        });
        [again, fresh].into_iter().flatten().min()
    }

    fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        if let Some(index) = self.retries.iter().position(|batch| batch.at <= now) {
            return Some(self.retries.swap_remove(index));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        while let Some(entry) = self.waiting.front() {
            bytes += cost(&entry.text);
            if entries.len() >= MAX_INTENTS || bytes > MAX_BYTES {
                break;
            }
            entries.extend(self.waiting.pop_front());
        }
        self.last_write = Some(now);
        (!entries.is_empty()).then_some(Batch { entries, tries: 0, at: now })
    }

    /// Reports the result of a write.
    pub(super) fn written(&mut self, name: &str, outcome: WriteOutcome, now: Instant) -> WriteResults {
        let Some(mut batch) = self.writing.remove(name) else { return WriteResults::new() };
        // The callers get the result of another attempt, so this segment can be deleted as soon as it is found.
        if let (WriteOutcome::Unknown(_), Access::Durable { .. } | Access::Memory { .. }) =
            (&outcome, self.access)
        {
            self.removals.schedule_possible(name, now);
        }
        match (outcome, self.access) {
            // The segment will be found when the journal is read again. The callers have to start again.
            (_, Access::Closed | Access::Unread { .. }) => batch.results(|| Err(JournalError::Closed)),
            (WriteOutcome::Done { uid }, _) => {
                let segment = Segment { uid, open: BTreeSet::new(), unreadable: false };
                self.segments.insert(name.to_owned(), segment);
                self.mark_open(batch, Some(name), now)
            }
            (WriteOutcome::Forbidden(_), Access::Durable { .. }) => {
                self.access = Access::Memory { retry_at: now + RETRY_ACCESS };
                let waiting = Batch { entries: self.waiting.drain(..).collect(), tries: 0, at: now };
                let again = std::mem::take(&mut self.retries);
                let batches = [batch, waiting].into_iter().chain(again);
                batches.flat_map(|batch| self.mark_open(batch, None, now)).collect()
            }
            (WriteOutcome::Rejected(error), _) => batch.results(|| Err(JournalError::Api(error.clone()))),
            (_, Access::Memory { .. }) => self.mark_open(batch, None, now),
            (WriteOutcome::Throttled(after), Access::Durable { .. }) => {
                batch.at = now + after;
                self.retries.push(batch);
                WriteResults::new()
            }
            (WriteOutcome::Unknown(error), Access::Durable { .. }) => {
                batch.tries += 1;
                if batch.tries >= MAX_TRIES {
                    return batch.results(|| Err(JournalError::Api(error.clone())));
                }
                batch.at = now + pause(batch.tries);
                self.retries.push(batch);
                WriteResults::new()
            }
        }
    }

    /// Marks the intents of a batch as open, in this segment or in memory only.
    fn mark_open(&mut self, batch: Batch, name: Option<&str>, now: Instant) -> WriteResults {
        for Entry { write_id, intent, .. } in &batch.entries {
            // An intent that was open in memory may have been finished in the meantime.
            if write_id.is_none() && !self.open.contains_key(&intent.volume) {
                continue;
            }
            self.open_intent(intent, name);
            if let Some(segment) = name.and_then(|name| self.segments.get_mut(name)) {
                segment.open.insert(intent.volume.clone());
            }
        }
        if let Some(name) = name {
            self.remove_if_empty(name.to_owned(), now);
        }
        batch.results(|| Ok(()))
    }

    /// Reports the result of reading the journal.
    pub(super) fn loaded(&mut self, outcome: LoadOutcome, now: Instant) -> WriteResults {
        self.loading = false;
        match (outcome, self.access) {
            // The lease was lost: the journal will be read again.
            (_, Access::Closed) => WriteResults::new(),
            (LoadOutcome::Failed, Access::Memory { .. }) => {
                self.access = Access::Memory { retry_at: now + RETRY_ACCESS };
                WriteResults::new()
            }
            (LoadOutcome::All(found), Access::Durable { since, rereads }) => {
                self.access = Access::Durable { since, rereads: rereads + 1 };
                self.adopt(found, now)
            }
            // The known state still holds. Writes will show whether the permission is gone.
            (LoadOutcome::Failed | LoadOutcome::Forbidden(_), Access::Durable { since, rereads }) => {
                self.access = Access::Durable { since, rereads: rereads + 1 };
                WriteResults::new()
            }
            (LoadOutcome::Failed, Access::Unread { .. }) => {
                self.load_failures += 1;
                self.access = Access::Unread { at: now + pause(self.load_failures) };
                WriteResults::new()
            }
            (LoadOutcome::Forbidden(_), Access::Unread { .. } | Access::Memory { .. }) => {
                self.access = Access::Memory { retry_at: now + RETRY_ACCESS };
                let waiting = Batch { entries: self.waiting.drain(..).collect(), tries: 0, at: now };
                self.mark_open(waiting, None, now)
            }
            (LoadOutcome::All(found), Access::Unread { .. } | Access::Memory { .. }) => {
                self.load_failures = 0;
                self.access = Access::Durable { since: now, rereads: 0 };
                self.queue_in_memory(now);
                self.adopt(found, now)
            }
        }
    }

    /// Queues intents that are in memory only for writing.
    fn queue_in_memory(&mut self, now: Instant) {
        for open in self.open.values().filter(|open| open.segments.is_empty()) {
            let intent = Arc::clone(&open.intent);
            if let Ok(text) = serde_json::to_string(&*intent)
                && fits(&text)
            {
                self.waiting.push_front(Entry { write_id: None, intent, text: text.into(), since: now });
            }
        }
    }

    /// Takes over the segments that were found.
    fn adopt(&mut self, found: Vec<FoundSegment>, now: Instant) -> WriteResults {
        for FoundSegment { name, uid, intents, unreadable } in found {
            // Segments to delete hold only finished intents or such that were never acted on; the others are known.
            if self.removals.contains(&name) || self.segments.contains_key(&name) {
                continue;
            }
            for intent in &intents {
                if self.open_intent(intent, Some(&name)) {
                    self.found.push(intent.volume.clone());
                }
            }
            let open = intents.iter().map(|intent| intent.volume.clone()).collect();
            self.segments.insert(name.clone(), Segment { uid, open, unreadable: unreadable > 0 });
            self.remove_if_empty(name, now);
        }
        // Writers that waited for the read may match what was found.
        let mut results = WriteResults::new();
        for entry in std::mem::take(&mut self.waiting) {
            match (entry.write_id, self.existing(&entry.intent)) {
                (Some(write_id), Some(result)) => results.push((write_id, result)),
                (Some(write_id), None) if !fits(&entry.text) => {
                    self.open_intent(&entry.intent, None);
                    results.push((write_id, Ok(())));
                }
                _ => self.waiting.push_back(entry),
            }
        }
        results
    }
}

impl Batch {
    fn results(self, result: impl Fn() -> Result<(), JournalError>) -> WriteResults {
        self.entries
            .into_iter()
            .filter_map(|entry| entry.write_id)
            .map(|write_id| (write_id, result()))
            .collect()
    }
}

pub(super) fn pause(failures: u32) -> Duration {
    Backoff::without_jitter(BASE_PAUSE, MAX_PAUSE).after(failures)
}

#[cfg(test)]
mod tests;
