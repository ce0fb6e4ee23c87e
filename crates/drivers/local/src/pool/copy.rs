//! Background copies, for pools whose file system has no reflinks.
//!
//! One copy runs at a time, in chunks, and can be cancelled or stopped between two chunks. Its record stores how much
//! is durable, and the next start resumes there. The source does not change during the copy: the copy's record
//! prevents staging, deleting and expanding it. A copy that runs out of space is undone, so that it does not block
//! its source forever. A copy that fails for another reason is kept (it may hold the last readable data of a
//! failing source) and is retried on the next request or at the next start.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wharf_driver::backend::{BackendError, CreateError, SnapshotError, VolumeContentSource};

use super::{PoolCore, lock};
use crate::account::REMEDY;
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::record::Phase;
use crate::store;

/// Bytes copied between two checks for cancellation.
const CHUNK: u64 = 64 << 20;

/// Bytes of data copied between two durable updates of the progress in the record.
const CHECKPOINT: u64 = 1 << 30;

/// How long a call waits for its copy before it returns "not ready": a small copy completes within the call that
/// requested it.
const COPY_WAIT: Duration = Duration::from_secs(5);

/// How long a deletion waits for a running copy to stop.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// How many failures are retained until a caller collects them.
const MAX_FAILURES: usize = 64;

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
    failed: BTreeMap<String, CopyFailure>,
    stop: bool,
}

struct Running {
    id: String,
    cancelled: bool,
}

/// What a copy does after a chunk.
enum Next {
    Continue,
    /// The copy is being deleted.
    Cancel,
    /// The driver is shutting down.
    Stop,
}

/// Why a copy failed.
#[derive(Debug, Clone)]
pub(super) struct CopyFailure {
    message: String,
    full: bool,
}

impl From<CopyFailure> for CreateError {
    fn from(CopyFailure { message, full }: CopyFailure) -> Self {
        if full { Self::Exhausted(message) } else { Self::Backend(BackendError::Internal(message)) }
    }
}

impl From<CopyFailure> for SnapshotError {
    fn from(CopyFailure { message, full }: CopyFailure) -> Self {
        if full { Self::Exhausted(message) } else { Self::Backend(BackendError::Internal(message)) }
    }
}

impl Copies {
    /// Queues the copy into `id`, unless it is already queued or running.
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

    /// Takes the failure of the last copy into `id`: it is reported once.
    pub(super) fn take_failure(&self, id: &str) -> Option<CopyFailure> {
        lock(&self.state).failed.remove(id)
    }

    /// Waits up to `COPY_WAIT` until no copy into any of `ids` is queued or running.
    fn wait(&self, ids: &[&str]) {
        self.wait_until(COPY_WAIT, |state| !ids.iter().any(|id| state.pending(id)));
    }

    /// Dequeues or stops the copy into `id`; `false` if it does not stop in time. Drops an earlier failure, because
    /// the next object with this name is a new one.
    pub(super) fn cancel(&self, id: &str) -> bool {
        let mut state = lock(&self.state);
        state.queue.retain(|queued| queued != id);
        if let Some(running) = state.running.as_mut().filter(|running| running.id == id) {
            running.cancelled = true;
        }
        drop(state);
        let stopped = self.wait_until(CANCEL_TIMEOUT, |state| !state.pending(id));
        self.take_failure(id);
        stopped
    }

    fn wait_until(&self, timeout: Duration, done: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
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

    /// Waits for the next copy; `None` on shutdown.
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

    fn next_action(&self) -> Next {
        let state = lock(&self.state);
        match &state.running {
            Some(running) if running.cancelled => Next::Cancel,
            _ if state.stop => Next::Stop,
            _ => Next::Continue,
        }
    }

    fn finished(&self, id: String, failure: Option<CopyFailure>) {
        let mut state = lock(&self.state);
        state.running = None;
        if let Some(failure) = failure {
            if state.failed.len() >= MAX_FAILURES {
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
pub(super) fn spawn(core: Arc<PoolCore>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(id) = core.copies.next() {
            let copy = || core.copy(&id).err().map(|fault| core.abandon_copy(&id, &fault));
            // Without this thread no copy would ever end.
            let failure = std::panic::catch_unwind(AssertUnwindSafe(copy)).unwrap_or_else(|_| {
                tracing::error!(id, "copying an image panicked");
                let message = format!(
                    "the copy panicked: this is a bug, see the driver's log; retry to resume it, or delete {id} to \
                     abandon it"
                );
                Some(CopyFailure { message, full: false })
            });
            core.copies.finished(id, failure);
        }
    })
}

/// A copy, as recorded.
struct CopyJob {
    source: String,
    done: u64,
    total: u64,
}

impl PoolCore {
    fn job(&self, id: &str) -> Option<CopyJob> {
        let index = self.index();
        let (state, source) = if ids::is(Kind::Snapshot, id) {
            let record = index.snapshot(id)?;
            (record.state, record.source.clone())
        } else {
            let record = index.volume(id)?;
            let Some(VolumeContentSource::Snapshot(source) | VolumeContentSource::Volume(source)) =
                &record.source
            else {
                return None;
            };
            (record.state, source.clone())
        };
        match state {
            Phase::Copying { done, total } => Some(CopyJob { source, done, total }),
            Phase::Creating | Phase::Ready => None,
        }
    }

    /// Queues the unfinished copies into `ids` and waits up to `COPY_WAIT` for all of them. Copies that failed
    /// before are retried.
    pub(super) fn enqueue_and_wait(&self, ids: &[&str]) {
        ids.iter().filter(|id| self.job(id).is_some()).for_each(|id| self.copies.enqueue(id));
        self.copies.wait(ids);
    }

    /// Copies until completion, cancellation or shutdown.
    fn copy(&self, id: &str) -> Result<(), Fault> {
        let Some(CopyJob { source, mut done, total }) = self.job(id) else { return Ok(()) };
        let (from, to) = (store::image_of(&source), store::image_of(id));
        tracing::info!(id, source, done, total, "copying image");
        let mut since_checkpoint = 0;
        while done < total {
            match self.copies.next_action() {
                Next::Continue => {}
                Next::Cancel => return Ok(()),
                Next::Stop => {
                    self.store.sync(&to).during("make the copy so far durable", id)?;
                    self.set_phase(id, Phase::Copying { done, total })?;
                    tracing::info!(
                        id,
                        done,
                        total,
                        "copy interrupted by shutdown; the next start resumes it"
                    );
                    return Ok(());
                }
            }
            let length = CHUNK.min(total - done);
            let copied = self.kernel().copy_range(&self.store.at(&from), &self.store.at(&to), done, length);
            since_checkpoint += copied.during("copy its source", id)?;
            done += length;
            if since_checkpoint >= CHECKPOINT {
                self.store.sync(&to).during("make the copy so far durable", id)?;
                self.set_phase(id, Phase::Copying { done, total })?;
                tracing::info!(id, done, total, "copying image");
                since_checkpoint = 0;
            }
        }
        self.persist_image(id)?;
        self.set_phase(id, Phase::Ready)?;
        tracing::info!(id, total, "copied image");
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

    /// Handles a failed copy. One that ran out of space is undone, together with its whole group if it has one.
    fn abandon_copy(&self, id: &str, fault: &Fault) -> CopyFailure {
        if !fault.is_full() {
            tracing::error!(id, error = %fault, "failed to copy image");
            let message =
                format!("the copy failed: {fault}; retry to resume it, or delete {id} to abandon it");
            return CopyFailure { message, full: false };
        }
        tracing::error!(id, error = %fault, "failed to copy image: out of space; undoing the copy");
        let group = self.index().snapshot(id).and_then(|record| record.group.clone());
        let group = group.and_then(|group| self.index().group(&group).cloned());
        let undone = match group {
            Some(group) => self.abandon_group(group),
            None => self.discard(id).map(|()| true),
        };
        let what = match undone {
            Ok(true) => "the copy was abandoned",
            // A member of its group is being deleted or used as a restore source.
            Ok(false) => "the copy is incomplete",
            Err(error) => {
                tracing::error!(id, %error, "failed to undo the copy; the next request retries it");
                "the copy is incomplete"
            }
        };
        let message = format!("{what}: {fault}; {REMEDY}");
        CopyFailure { message, full: true }
    }

    /// Describes the progress of a copy.
    pub(super) fn progress(&self, id: &str) -> String {
        match self.job(id) {
            Some(CopyJob { source, done, total }) => {
                format!("{id} is being copied from {source}, at least {done} of {total} bytes are done")
            }
            None => format!("{id} is being copied"),
        }
    }
}
