//! Copies in the background, for pools whose file system cannot share extents. One at a time, in pieces, so
//! that it can be cancelled or stopped between two of them; how far it is durable is kept in the record, and
//! a start goes on from there. The source stays as it is meanwhile: the copy's record keeps it from being
//! staged, deleted or grown. A copy for which the pool has no room is undone, so that it does not hold its source
//! for good; one that fails otherwise stays (it may be all that is left of a source that cannot be read), and
//! is tried again when it is asked for again or at the next start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wharf_driver::backend::{BackendError, CreateError, SnapshotError, Source};

use super::{Core, lock};
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::record::Phase;
use crate::store;

/// How much is copied between two looks at whether to go on.
const PIECE: u64 = 64 << 20;

/// How much data is copied between two notes of how far it is durable.
const NOTE: u64 = 1 << 30;

/// How long a call waits for its copy before it answers "not yet": a copy of little is done within the call
/// that asks for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a deletion waits for the copy to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How many failures are remembered until somebody asks.
const FAILURES: usize = 64;

/// The queue of copies.
#[derive(Default)]
pub(super) struct Copies {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<String>,
    running: Option<Running>,
    failed: BTreeMap<String, Failure>,
    stop: bool,
}

struct Running {
    id: String,
    cancelled: bool,
}

/// What a copy does between two pieces.
enum Step {
    Go,
    /// It is being deleted.
    Cancel,
    /// The driver stops.
    Stop,
}

/// Why a copy was given up.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    message: String,
    full: bool,
}

impl From<Failure> for CreateError {
    fn from(Failure { message, full }: Failure) -> Self {
        if full { Self::Exhausted(message) } else { Self::Backend(BackendError::Internal(message)) }
    }
}

impl From<Failure> for SnapshotError {
    fn from(Failure { message, full }: Failure) -> Self {
        if full { Self::Exhausted(message) } else { Self::Backend(BackendError::Internal(message)) }
    }
}

impl Copies {
    /// Puts the copy into `id` at the end of the queue; being there already is fine.
    pub(super) fn enqueue(&self, id: &str) {
        let mut state = lock(&self.state);
        if !state.pending(id) {
            state.queue.push_back(id.to_owned());
        }
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stop = true;
        self.changed.notify_all();
    }

    /// Why the last copy into `id` was given up; told once.
    pub(super) fn take_failure(&self, id: &str) -> Option<Failure> {
        lock(&self.state).failed.remove(id)
    }

    /// Waits until no copy into any of `ids` is queued or running, but not for too long.
    fn wait(&self, ids: &[&str]) {
        self.until(PATIENCE, |state| !ids.iter().any(|id| state.pending(id)));
    }

    /// Takes the copy into `id` out of the queue, or stops it; `false` if it does not stop. Whatever made it
    /// fail before is forgotten: the next one of this name is another.
    pub(super) fn cancel(&self, id: &str) -> bool {
        let mut state = lock(&self.state);
        state.queue.retain(|queued| queued != id);
        if let Some(running) = state.running.as_mut().filter(|running| running.id == id) {
            running.cancelled = true;
        }
        drop(state);
        let stopped = self.until(STOP_PATIENCE, |state| !state.pending(id));
        self.take_failure(id);
        stopped
    }

    fn until(&self, patience: Duration, done: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = lock(&self.state);
        while !done(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stop {
                return false;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Waits for work; `None` at the end.
    fn next(&self) -> Option<String> {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return None;
            }
            if let Some(id) = state.queue.pop_front() {
                state.running = Some(Running { id: id.clone(), cancelled: false });
                return Some(id);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn next_step(&self) -> Step {
        let state = lock(&self.state);
        match &state.running {
            Some(running) if running.cancelled => Step::Cancel,
            _ if state.stop => Step::Stop,
            _ => Step::Go,
        }
    }

    fn finished(&self, id: String, failure: Option<Failure>) {
        let mut state = lock(&self.state);
        state.running = None;
        if let Some(failure) = failure {
            if state.failed.len() >= FAILURES {
                state.failed.pop_first();
            }
            state.failed.insert(id, failure);
        }
        self.changed.notify_all();
    }
}

impl State {
    fn pending(&self, id: &str) -> bool {
        self.queue.iter().any(|queued| queued == id)
            || self.running.as_ref().is_some_and(|running| running.id == id)
    }
}

/// Starts the thread that copies.
pub(super) fn spawn(core: Arc<Core>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(id) = core.copies.next() {
            let failure = core.copy(&id).err().map(|fault| core.give_up(&id, &fault));
            core.copies.finished(id, failure);
        }
    })
}

/// A copy as its record has it.
struct Job {
    source: String,
    done: u64,
    total: u64,
}

impl Core {
    fn job(&self, id: &str) -> Option<Job> {
        let index = self.index();
        let (state, source) = if ids::is(Kind::Snapshot, id) {
            let record = index.snapshot(id)?;
            (record.state, record.source.clone())
        } else {
            let record = index.volume(id)?;
            let Some(Source::Snapshot(source) | Source::Volume(source)) = &record.source else { return None };
            (record.state, source.clone())
        };
        match state {
            Phase::Copying { done, total } => Some(Job { source, done, total }),
            Phase::Creating | Phase::Ready => None,
        }
    }

    /// Asks for the copies into `ids`, as far as there are any to be made, and waits a while for all of them.
    /// Those that failed before are tried again.
    pub(super) fn await_copies(&self, ids: &[&str]) {
        ids.iter().filter(|id| self.job(id).is_some()).for_each(|id| self.copies.enqueue(id));
        self.copies.wait(ids);
    }

    /// Copies until it is done, cancelled or stopped.
    fn copy(&self, id: &str) -> Result<(), Fault> {
        let Some(Job { source, mut done, total }) = self.job(id) else { return Ok(()) };
        let (from, to) = (store::image_of(&source), store::image_of(id));
        tracing::info!(id, source, done, total, "copying");
        let mut since_note = 0;
        while done < total {
            match self.copies.next_step() {
                Step::Go => {}
                Step::Cancel => return Ok(()),
                Step::Stop => {
                    self.store.sync(&to).during("make the copy so far durable", id)?;
                    self.set_phase(id, Phase::Copying { done, total })?;
                    tracing::info!(id, done, total, "the copy goes on at the next start");
                    return Ok(());
                }
            }
            let length = PIECE.min(total - done);
            let copied = self.kernel().copy_range(&self.store.at(&from), &self.store.at(&to), done, length);
            since_note += copied.during("copy its source", id)?;
            done += length;
            if since_note >= NOTE {
                self.store.sync(&to).during("make the copy so far durable", id)?;
                self.set_phase(id, Phase::Copying { done, total })?;
                tracing::info!(id, done, total, "copying");
                since_note = 0;
            }
        }
        self.seal(id)?;
        self.set_phase(id, Phase::Ready)?;
        tracing::info!(id, total, "copied");
        Ok(())
    }

    fn set_phase(&self, id: &str, state: Phase) -> Result<(), Fault> {
        if ids::is(Kind::Snapshot, id) {
            let record = self.index().snapshot(id).cloned();
            record.map_or(Ok(()), |mut record| {
                record.state = state;
                self.save_snapshot(record)
            })
        } else {
            let record = self.index().volume(id).cloned();
            record.map_or(Ok(()), |mut record| {
                record.state = state;
                self.save_volume(record)
            })
        }
    }

    /// Undoes a copy that found no room, with the whole group if it belongs to one.
    fn give_up(&self, id: &str, fault: &Fault) -> Failure {
        if !fault.is_full() {
            tracing::error!(id, %fault, "the copy failed");
            let message =
                format!("the copy failed: {fault}; call again to go on, or delete {id} to give it up");
            return Failure { message, full: false };
        }
        tracing::error!(id, %fault, "the copy is given up");
        let group = self.index().snapshot(id).and_then(|record| record.group.clone());
        let group = group.and_then(|group| self.index().group(&group).cloned());
        let undone = match group {
            Some(group) => self.give_up_group(group),
            None => self.discard(id).map(|()| true),
        };
        let what = match undone {
            Ok(true) => "the copy was given up",
            // A member of its group is being restored from, or deleted.
            Ok(false) => "the copy is not done",
            Err(error) => {
                tracing::error!(id, %error, "the copy could not be undone: it is tried again when it is asked for");
                "the copy is not done"
            }
        };
        let message =
            format!("{what}: {fault}; delete volumes or snapshots, or enlarge the pool's file system");
        Failure { message, full: true }
    }

    /// How far a copy is, in words.
    pub(super) fn progress(&self, id: &str) -> String {
        match self.job(id) {
            Some(Job { source, done, total }) => {
                format!("{id} is being copied from {source}, more than {done} of {total} bytes are done")
            }
            None => format!("{id} is being copied"),
        }
    }
}
