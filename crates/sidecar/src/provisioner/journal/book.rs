//! The rules of the journal: which intents go into the next segment, when a segment may be deleted, and what
//! becomes of requests that may or may not have happened. No I/O and no clock: [`Book::next`] says what to do, and
//! what came of it is told to the book.
//!
//! - An intent is open from the moment it is written until it is finished.
//! - A segment is deleted only when all that was ever in it is finished. What cannot be read never is.
//! - Many intents cost one write: while one is under way the next collects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use wharf_cluster::ApiError;

use super::JournalError;
use super::removals::Removals;
use super::segment::{Found, MOST_BYTES, MOST_INTENTS, cost, fits};
use crate::provisioner::intent::Intent;

/// So many writes run at once.
const AT_ONCE: usize = 4;
/// Between two writes that are not full: what comes in a burst shares a segment.
const GATHER: Duration = Duration::from_millis(10);
/// So long an intent waits for a write that is under way, before it gets one of its own.
const PATIENCE: Duration = Duration::from_millis(50);
/// So often a write is tried that may or may not have happened.
const TRIES: u32 = 3;
/// Between these tries, and between failed loads: doubled each time.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// So long after it was read the journal is looked at again: the last request of one who died may come late. API
/// servers give up after a minute.
const LATE: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120)];
/// Between two looks whether we may keep a journal.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// Whoever waits for a write.
pub(super) type Ticket = u64;
/// What they are told.
pub(super) type Answers = Vec<(Ticket, Result<(), JournalError>)>;

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Job {
    /// Read all segments.
    Load,
    /// Create a segment.
    Write { name: String, intents: Vec<Arc<str>> },
    /// Delete a segment: the one with this identity, or, without one, whatever a lost request may have left.
    Remove { name: String, uid: Option<String> },
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Written {
    /// It is there.
    Done { uid: String },
    /// Perhaps it is there.
    Doubtful(ApiError),
    /// The server was too busy to look at it.
    Busy(Duration),
    /// We may not keep a journal.
    NotAllowed(ApiError),
    /// It is not there, and will not be.
    Refused(ApiError),
}

/// What came of reading all segments.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Loaded {
    /// These are all.
    All(Vec<Found>),
    /// We may not keep a journal.
    NotAllowed(ApiError),
    /// It did not work.
    Failed,
}

/// How far the journal can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Another replica may be writing it.
    Shut,
    /// It has to be read, not before this.
    Unread { at: Instant },
    /// It is as the book says since it was read, and has been looked at so often since.
    Durable { since: Instant, looks: usize },
    /// We may not keep it; look again then.
    Memory { again: Instant },
}

/// The book.
pub(super) struct Book {
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
    again: Vec<Batch>,
    last_write: Option<Instant>,
    /// Segments that are to go.
    pub(super) removals: Removals,
    /// Volumes whose intents were found, not written by us.
    found: Vec<String>,
}

struct Open {
    intent: Arc<Intent>,
    /// The segments it is in; none while it is only in memory.
    segments: Vec<String>,
}

struct Segment {
    uid: String,
    /// Volumes whose intents are open.
    open: BTreeSet<String>,
    /// It has something that we cannot read, and so cannot finish.
    unreadable: bool,
}

struct Entry {
    /// `None` for what was only kept in memory so far.
    ticket: Option<Ticket>,
    intent: Arc<Intent>,
    text: Arc<str>,
    since: Instant,
}

struct Batch {
    entries: Vec<Entry>,
    tries: u32,
    /// Not before this.
    at: Instant,
}

impl Book {
    /// A book that nobody has opened.
    pub(super) fn new() -> Self {
        Self {
            access: Access::Shut,
            loading: false,
            load_failures: 0,
            open: BTreeMap::new(),
            segments: BTreeMap::new(),
            waiting: VecDeque::new(),
            writing: BTreeMap::new(),
            again: Vec::new(),
            last_write: None,
            removals: Removals::default(),
            found: Vec::new(),
        }
    }

    /// We may act from now on: what there is has to be read first.
    pub(super) fn opened(&mut self, now: Instant) {
        self.access = Access::Unread { at: now };
    }

    /// We may no longer act: from now on others write the journal, so that nothing we know of it is true. What is
    /// only in our memory stays. Nothing is deleted any more either: another replica may find a segment before it
    /// is gone, and act on what is in it.
    pub(super) fn shut(&mut self) -> Answers {
        self.access = Access::Shut;
        self.segments.clear();
        self.removals.call_off();
        self.open.retain(|_, open| open.segments.is_empty());
        self.found.clear();
        let again = self.again.drain(..).flat_map(|batch| batch.entries);
        let tickets = again.chain(self.waiting.drain(..)).filter_map(|entry| entry.ticket);
        tickets.map(|ticket| (ticket, Err(JournalError::Shut))).collect()
    }

    /// Whether it was read, or cannot be.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.access, Access::Durable { .. } | Access::Memory { .. })
    }

    /// Whether intents outlive us.
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

    /// The volumes whose intents were found since this was last asked.
    pub(super) fn take_found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    /// Open intents and segments.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.open.len(), self.segments.len())
    }

    /// Somebody wants an intent written. `None`: they will be told.
    pub(super) fn write(
        &mut self,
        ticket: Ticket,
        intent: Arc<Intent>,
        text: Arc<str>,
        now: Instant,
    ) -> Option<Result<(), JournalError>> {
        if self.access == Access::Shut {
            return Some(Err(JournalError::Shut));
        }
        if self.is_ready()
            && let Some(answer) = self.known(&intent)
        {
            return Some(answer);
        }
        if self.is_ready() && (!self.is_durable() || !fits(&text)) {
            self.open.insert(intent.volume.clone(), Open { intent, segments: Vec::new() });
            return Some(Ok(()));
        }
        self.waiting.push_back(Entry { ticket: Some(ticket), intent, text, since: now });
        None
    }

    /// What to say to somebody whose volume has an open intent already.
    fn known(&self, intent: &Intent) -> Option<Result<(), JournalError>> {
        let Open { intent: open, .. } = self.open.get(&intent.volume)?;
        // When it was written is no part of what is intended.
        let same = Intent { written: open.written, ..intent.clone() } == **open;
        Some(if same { Ok(()) } else { Err(JournalError::Exists { volume: intent.volume.clone() }) })
    }

    /// All is done for this volume.
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
            self.removals.finished(name, segment.uid, now);
        }
    }

    /// This intent is open. Of two for one volume the newer counts: a lost request may have left an older wish.
    /// Tells whether it is news.
    fn open(&mut self, intent: &Arc<Intent>, segment: Option<&str>) -> bool {
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

    /// The next thing to do, which from now on counts as begun. `name` makes names for segments.
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
        let (name, uid) = self.removals.next(now)?;
        Some(Job::Remove { name, uid })
    }

    /// When [`Book::next`] is to be asked again, if nothing else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.load_due(), self.write_due(), self.removal_due()].into_iter().flatten().min()
    }

    /// Nothing is read while we write or delete: what is under way would be missing, or come back.
    fn load_due(&self) -> Option<Instant> {
        match self.access {
            _ if self.loading || !self.writing.is_empty() || self.removals.are_running() => None,
            Access::Unread { at } | Access::Memory { again: at } => Some(at),
            Access::Durable { since, looks } => LATE.get(looks).map(|&late| since + late),
            Access::Shut => None,
        }
    }

    fn removal_due(&self) -> Option<Instant> {
        if self.loading { None } else { self.removals.due() }
    }

    fn write_due(&self) -> Option<Instant> {
        if !self.is_durable() || self.loading || self.writing.len() >= AT_ONCE {
            return None;
        }
        let again = self.again.iter().map(|batch| batch.at).min();
        let fresh = self.waiting.front().map(|oldest| {
            let (count, bytes) = self
                .waiting
                .iter()
                .take(MOST_INTENTS)
                .fold((0, 0), |(count, bytes), entry| (count + 1, bytes + cost(&entry.text)));
            let full = count >= MOST_INTENTS || bytes >= MOST_BYTES;
            let soon = self.last_write.map_or(oldest.since, |last| last + GATHER);
            match (full, self.writing.is_empty()) {
                (true, _) => oldest.since,
                (false, true) => soon.min(oldest.since + PATIENCE),
                (false, false) => oldest.since + PATIENCE,
            }
        });
        [again, fresh].into_iter().flatten().min()
    }

    fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        if let Some(index) = self.again.iter().position(|batch| batch.at <= now) {
            return Some(self.again.swap_remove(index));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        while let Some(entry) = self.waiting.front() {
            bytes += cost(&entry.text);
            if entries.len() >= MOST_INTENTS || bytes > MOST_BYTES {
                break;
            }
            entries.extend(self.waiting.pop_front());
        }
        self.last_write = Some(now);
        (!entries.is_empty()).then_some(Batch { entries, tries: 0, at: now })
    }

    /// A write has ended.
    pub(super) fn written(&mut self, name: &str, outcome: Written, now: Instant) -> Answers {
        let Some(mut batch) = self.writing.remove(name) else { return Answers::new() };
        // Whoever waits is answered by another try, so that this one can go as soon as it is found.
        if let (Written::Doubtful(_), Access::Durable { .. } | Access::Memory { .. }) =
            (&outcome, self.access)
        {
            self.removals.doubtful(name, now);
        }
        match (outcome, self.access) {
            // What was written will be found when the journal is read again; who wanted it has to look again.
            (_, Access::Shut | Access::Unread { .. }) => batch.told(|| Err(JournalError::Shut)),
            (Written::Done { uid }, _) => {
                let segment = Segment { uid, open: BTreeSet::new(), unreadable: false };
                self.segments.insert(name.to_owned(), segment);
                self.keep(batch, Some(name), now)
            }
            (Written::NotAllowed(_), Access::Durable { .. }) => {
                self.access = Access::Memory { again: now + ASK_AGAIN };
                let waiting = Batch { entries: self.waiting.drain(..).collect(), tries: 0, at: now };
                let again = std::mem::take(&mut self.again);
                let batches = [batch, waiting].into_iter().chain(again);
                batches.flat_map(|batch| self.keep(batch, None, now)).collect()
            }
            (Written::Refused(error), _) => batch.told(|| Err(JournalError::Api(error.clone()))),
            (_, Access::Memory { .. }) => self.keep(batch, None, now),
            (Written::Busy(after), Access::Durable { .. }) => {
                batch.at = now + after;
                self.again.push(batch);
                Answers::new()
            }
            (Written::Doubtful(error), Access::Durable { .. }) => {
                batch.tries += 1;
                if batch.tries >= TRIES {
                    return batch.told(|| Err(JournalError::Api(error.clone())));
                }
                batch.at = now + pause(batch.tries);
                self.again.push(batch);
                Answers::new()
            }
        }
    }

    /// The intents of a batch are open from now on, in this segment or in memory alone.
    fn keep(&mut self, batch: Batch, name: Option<&str>, now: Instant) -> Answers {
        for Entry { ticket, intent, .. } in &batch.entries {
            // What was open before it was written may have been finished meanwhile.
            if ticket.is_none() && !self.open.contains_key(&intent.volume) {
                continue;
            }
            self.open(intent, name);
            if let Some(segment) = name.and_then(|name| self.segments.get_mut(name)) {
                segment.open.insert(intent.volume.clone());
            }
        }
        if let Some(name) = name {
            self.remove_if_empty(name.to_owned(), now);
        }
        batch.told(|| Ok(()))
    }

    /// The journal was read, or could not be.
    pub(super) fn loaded(&mut self, outcome: Loaded, now: Instant) -> Answers {
        self.loading = false;
        match (outcome, self.access) {
            // The lease was lost meanwhile: it will be read anew.
            (_, Access::Shut) => Answers::new(),
            (Loaded::Failed, Access::Memory { .. }) => {
                self.access = Access::Memory { again: now + ASK_AGAIN };
                Answers::new()
            }
            (Loaded::All(found), Access::Durable { since, looks }) => {
                self.access = Access::Durable { since, looks: looks + 1 };
                self.adopt(found, now)
            }
            // It was as the book says before, and is still; writes will tell whether we may not any more.
            (Loaded::Failed | Loaded::NotAllowed(_), Access::Durable { since, looks }) => {
                self.access = Access::Durable { since, looks: looks + 1 };
                Answers::new()
            }
            (Loaded::Failed, Access::Unread { .. }) => {
                self.load_failures += 1;
                self.access = Access::Unread { at: now + pause(self.load_failures) };
                Answers::new()
            }
            (Loaded::NotAllowed(_), Access::Unread { .. } | Access::Memory { .. }) => {
                self.access = Access::Memory { again: now + ASK_AGAIN };
                let waiting = Batch { entries: self.waiting.drain(..).collect(), tries: 0, at: now };
                self.keep(waiting, None, now)
            }
            (Loaded::All(found), Access::Unread { .. } | Access::Memory { .. }) => {
                self.load_failures = 0;
                self.access = Access::Durable { since: now, looks: 0 };
                self.queue_unwritten(now);
                self.adopt(found, now)
            }
        }
    }

    /// Has written what was only in memory.
    fn queue_unwritten(&mut self, now: Instant) {
        for open in self.open.values().filter(|open| open.segments.is_empty()) {
            let intent = Arc::clone(&open.intent);
            if let Ok(text) = serde_json::to_string(&*intent)
                && fits(&text)
            {
                self.waiting.push_front(Entry { ticket: None, intent, text: text.into(), since: now });
            }
        }
    }

    /// Takes up what was found.
    fn adopt(&mut self, found: Vec<Found>, now: Instant) -> Answers {
        for Found { name, uid, intents, unreadable } in found {
            // All that is in the former is finished or was never acted on; the latter are known.
            if self.removals.contains(&name) || self.segments.contains_key(&name) {
                continue;
            }
            for intent in &intents {
                if self.open(intent, Some(&name)) {
                    self.found.push(intent.volume.clone());
                }
            }
            let open = intents.iter().map(|intent| intent.volume.clone()).collect();
            self.segments.insert(name.clone(), Segment { uid, open, unreadable: unreadable > 0 });
            self.remove_if_empty(name, now);
        }
        // Who waited for the reading may want what was found.
        let mut answers = Answers::new();
        for entry in std::mem::take(&mut self.waiting) {
            match (entry.ticket, self.known(&entry.intent)) {
                (Some(ticket), Some(answer)) => answers.push((ticket, answer)),
                (Some(ticket), None) if !fits(&entry.text) => {
                    self.open(&entry.intent, None);
                    answers.push((ticket, Ok(())));
                }
                _ => self.waiting.push_back(entry),
            }
        }
        answers
    }
}

impl Batch {
    fn told(self, answer: impl Fn() -> Result<(), JournalError>) -> Answers {
        self.entries.into_iter().filter_map(|entry| entry.ticket).map(|ticket| (ticket, answer())).collect()
    }
}

pub(super) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
