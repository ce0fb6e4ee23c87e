//! The writer thread: takes queued writes, plans them, commits them in one transaction, publishes them and replies.
//!
//! Only durable writes are published or acknowledged. If a commit fails, the callers get an error, the in-memory state
//! stays unchanged and the file is reopened. If its revision then differs from the in-memory state, the thread exits
//! and the store closes: better no store than one that disagrees with its disk.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use wharf_model::panics::catch_sync;

use super::disk::Disk;
use super::plan::Plan;
use super::state::{State, Write};
use super::{Change, Entry, Failure, Key, Options, Publisher, WriteError};
use crate::memory_budget::MemoryShare;

/// The maximum number of writes in one commit, which bounds the latency of the first.
const BATCH: usize = 512;

/// The longest sleep of the thread. The system clock may be changed meanwhile, which changes when objects expire.
const MAX_SLEEP: Duration = Duration::from_secs(10);

/// How long no objects are expired after a failed commit.
const EXPIRY_BACKOFF_MS: i64 = 10_000;

/// A queued write.
pub(super) struct Request {
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) reply: oneshot::Sender<Result<Entry, WriteError>>,
    /// Its share of the queue budget, released with the reply.
    pub(super) _share: MemoryShare,
}

pub(super) struct Writer {
    disk: Disk,
    publisher: Publisher,
    requests: Receiver<Request>,
    options: Options,
    /// When objects are expired again after a failed commit. No client waits for expiry, and a commit to a full disk
    /// would fail again.
    expiry_resumes_at: i64,
}

impl Writer {
    pub(super) fn new(
        disk: Disk,
        publisher: Publisher,
        requests: Receiver<Request>,
        options: Options,
    ) -> Self {
        Self { disk, publisher, requests, options, expiry_resumes_at: i64::MIN }
    }

    /// Runs until all handles of the store are dropped, or [`Self::recover`] fails.
    pub(super) fn run(mut self) {
        let mut alive = true;
        while alive {
            let deadline =
                self.publisher.0.read().next_deadline().map(|deadline| deadline.max(self.expiry_resumes_at));
            let sleep = sleep_duration(deadline, now());
            let mut batch = match self.requests.recv_timeout(sleep) {
                Ok(first) => vec![first],
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            batch.extend(self.requests.try_iter().take(BATCH - batch.len()));
            alive = self.commit_batch(batch, now());
        }
    }

    /// Processes a batch. Returns whether the store can continue.
    fn commit_batch(&mut self, batch: Vec<Request>, now: i64) -> bool {
        // Planning changes nothing: after a panic only this batch fails. A panic in the commit ends the thread, which
        // closes the store.
        let planned = catch_sync("store", "plan", || {
            let state = self.publisher.0.read();
            let (results, writes) = plan(&state, &batch, (now >= self.expiry_resumes_at).then_some(now));
            let compacted = state.compact_up_to(&writes, self.options);
            (results, writes, compacted)
        });
        let (results, writes, compacted) = match planned {
            Ok(planned) => planned,
            Err(panic) => {
                self.expiry_resumes_at = now.saturating_add(EXPIRY_BACKOFF_MS);
                let failed = WriteError::Failed(Failure::Disk(panic.to_string().into()));
                for request in batch {
                    let _ = request.reply.send(Err(failed.clone()));
                }
                return true;
            }
        };
        let started = Instant::now();
        let committed = if writes.is_empty() { Ok(()) } else { self.disk.commit(&writes, compacted) };
        match committed {
            Ok(()) => {
                if !writes.is_empty() {
                    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.publisher.0.commit_micros.store(micros, Ordering::Relaxed);
                    self.publisher.0.write().apply(writes, compacted);
                    self.publisher.notify_watchers();
                }
                for (request, result) in batch.into_iter().zip(results) {
                    let _ = request.reply.send(result); // The caller may have dropped the future.
                }
                true
            }
            Err(error) => {
                let failed = WriteError::Failed(Failure::Disk(error.to_string().into()));
                tracing::error!(%error, writes = writes.len(), "failed to commit to the store");
                self.expiry_resumes_at = now.saturating_add(EXPIRY_BACKOFF_MS);
                // Reopen the file before replying, so that callers see the store in its new state.
                let alive = self.recover();
                for request in batch {
                    let _ = request.reply.send(Err(failed.clone()));
                }
                alive
            }
        }
    }

    /// Reopens the file after a failed commit. Returns whether it matches the in-memory state.
    fn recover(&mut self) -> bool {
        let known = self.publisher.0.read().revision();
        match self.disk.reopen() {
            Ok(found) if found == known => true,
            Ok(found) => {
                tracing::error!(found, known, "closing the store: the file is not at the expected revision");
                false
            }
            Err(error) => {
                tracing::error!(%error, "closing the store: failed to reopen its file");
                false
            }
        }
    }
}

/// Plans a batch: the result of each request, and the writes to commit. With `now`, these include deletions of expired
/// objects.
fn plan(state: &State, batch: &[Request], now: Option<i64>) -> (Vec<Result<Entry, WriteError>>, Vec<Write>) {
    let mut plan = Plan::new(state);
    let results = batch.iter().map(|request| plan.stage(request.key.clone(), &request.change)).collect();
    if let Some(now) = now {
        for key in state.expired(now).take(BATCH) {
            plan.expire(key, now);
        }
    }
    (results, plan.into_writes())
}

/// How long the writer can sleep if no request arrives.
fn sleep_duration(deadline: Option<i64>, now: i64) -> Duration {
    let until = deadline.map(|deadline| u64::try_from(deadline.saturating_sub(now)).unwrap_or(0));
    until.map_or(MAX_SLEEP, |until| Duration::from_millis(until).min(MAX_SLEEP))
}

/// Wall time in milliseconds.
fn now() -> i64 {
    wharf_model::system::now().0
}
