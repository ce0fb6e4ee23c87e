//! The one thread that writes: takes what waits, judges it, commits it once, publishes it, answers.
//!
//! Nothing is published or acknowledged that is not durable. If a commit fails, its writers are told so, memory
//! stays as it was, and the file is opened anew; unless it then says what memory says, the thread ends, and with
//! it the store: better none than one that disagrees with its disk.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::disk::Disk;
use super::plan::Plan;
use super::state::{State, Write};
use super::{Change, Entry, Failure, Key, Options, Publish, WriteError};

/// At most so many writes in one commit, so that the first does not wait for ever for the last.
const BATCH: usize = 512;

/// The clock may be set while we sleep: look at it so often.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// In milliseconds.
const EXPIRY_PAUSE: i64 = 10_000;

/// A write that waits.
pub(super) struct Request {
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) answer: oneshot::Sender<Result<Entry, WriteError>>,
    /// Its part of what may wait; let go when it is answered.
    pub(super) _room: OwnedSemaphorePermit,
}

/// The writer.
pub(super) struct Writer {
    disk: Disk,
    publish: Publish,
    waiting: Receiver<Request>,
    options: Options,
    /// After a commit that failed nothing expires for a while: nobody waits for it, and a full disk stays full.
    expire_from: i64,
}

impl Writer {
    pub(super) fn new(disk: Disk, publish: Publish, waiting: Receiver<Request>, options: Options) -> Self {
        Self { disk, publish, waiting, options, expire_from: i64::MIN }
    }

    /// Until all handles of the store are gone, or the disk cannot be trusted.
    pub(super) fn run(mut self) {
        let mut alive = true;
        while alive {
            let deadline = self.publish.0.read().next_deadline().map(|when| when.max(self.expire_from));
            let sleep = sleep(deadline, now());
            let mut batch = match self.waiting.recv_timeout(sleep) {
                Ok(first) => vec![first],
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            batch.extend(self.waiting.try_iter().take(BATCH - batch.len()));
            alive = self.batch(batch, now());
        }
    }

    /// Does a batch; whether there can be another.
    fn batch(&mut self, batch: Vec<Request>, now: i64) -> bool {
        let (answers, writes, compacted) = {
            let state = self.publish.0.read();
            let (answers, writes) = plan(&state, &batch, (now >= self.expire_from).then_some(now));
            let compacted = state.surplus(&writes, self.options);
            (answers, writes, compacted)
        };
        let began = Instant::now();
        let done = if writes.is_empty() { Ok(()) } else { self.disk.commit(&writes, compacted) };
        match done {
            Ok(()) => {
                if !writes.is_empty() {
                    let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.publish.0.commit_micros.store(micros, Ordering::Relaxed);
                    self.publish.0.write().apply(writes, compacted);
                    self.publish.published();
                }
                for (request, answer) in batch.into_iter().zip(answers) {
                    let _ = request.answer.send(answer); // Who hung up does not want to know.
                }
                true
            }
            Err(error) => {
                let failed = WriteError::Failed(Failure::Disk(error.to_string().into()));
                tracing::error!(%error, writes = writes.len(), "a commit of the store failed");
                self.expire_from = now.saturating_add(EXPIRY_PAUSE);
                // First the file, then the answers: who is told of the failure finds the store as it will be.
                let alive = self.recover();
                for request in batch {
                    let _ = request.answer.send(Err(failed.clone()));
                }
                alive
            }
        }
    }

    /// After a commit that failed: whether the file still says what memory says.
    fn recover(&mut self) -> bool {
        let known = self.publish.0.read().revision();
        match self.disk.reopen() {
            Ok(found) if found == known => true,
            Ok(found) => {
                tracing::error!(found, known, "the store closes: its file is not at the revision it knows");
                false
            }
            Err(error) => {
                tracing::error!(%error, "the store closes: its file cannot be opened again");
                false
            }
        }
    }
}

/// What becomes of each of a batch, and what is to be committed: theirs, and the end of what expired by now.
fn plan(state: &State, batch: &[Request], now: Option<i64>) -> (Vec<Result<Entry, WriteError>>, Vec<Write>) {
    let mut plan = Plan::new(state);
    let answers = batch.iter().map(|request| plan.judge(request.key.clone(), &request.change)).collect();
    if let Some(now) = now {
        for key in state.expired(now).take(BATCH) {
            plan.expire(key, now);
        }
    }
    (answers, plan.into_writes())
}

/// How long nothing needs to be done unless somebody asks.
fn sleep(deadline: Option<i64>, now: i64) -> Duration {
    let until = deadline.map(|deadline| u64::try_from(deadline.saturating_sub(now)).unwrap_or(0));
    until.map_or(LONGEST_SLEEP, |until| Duration::from_millis(until).min(LONGEST_SLEEP))
}

/// Wall time in milliseconds.
fn now() -> i64 {
    wharf_model::chance::now().0
}
