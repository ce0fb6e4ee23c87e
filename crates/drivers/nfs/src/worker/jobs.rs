//! Jobs: long copies, each in a process of its own. A job is killed when it reports no progress for a while.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout};

use super::child::next_message;
use super::protocol::{FromWorker, ToWorker, encode};
use super::workers::Inner;
use super::{Export, WorkerError};
use crate::share;

/// The running jobs, by key.
#[derive(Default)]
pub(super) struct Jobs {
    running: Arc<Mutex<BTreeSet<String>>>,
    /// Recoveries and purges that have not succeeded since they were last started. The result of a copy is on the share.
    failed: Arc<Mutex<BTreeSet<String>>>,
}

/// Removes the key when the job's task ends, also by a panic.
struct Key {
    jobs: Arc<Mutex<BTreeSet<String>>>,
    key: String,
}

impl Drop for Key {
    fn drop(&mut self) {
        lock(&self.jobs).remove(&self.key);
    }
}

impl Jobs {
    pub(super) fn runs(&self, key: &str) -> bool {
        lock(&self.running).contains(key)
    }

    pub(super) fn has_failed(&self, key: &str) -> bool {
        lock(&self.failed).contains(key)
    }

    /// Starts a job, unless one with this key runs.
    pub(super) fn start(
        &self,
        inner: Arc<Inner>,
        export: Export,
        key: &str,
        request: share::Request,
        stall: Duration,
    ) {
        if !lock(&self.running).insert(key.to_owned()) {
            return;
        }
        if matches!(request, share::Request::Recover | share::Request::PurgeTrash(_)) {
            lock(&self.failed).insert(key.to_owned());
        }
        let failed = self.failed.clone();
        let key = Key { jobs: self.running.clone(), key: key.to_owned() };
        tokio::spawn(async move {
            let started = Instant::now();
            let result = inner.unless_stopped(run(&inner, &export, request, stall)).await;
            let (job, duration) = (&key.key, started.elapsed());
            match result {
                Ok(share::Response::Recover(Err(error)) | share::Response::PurgeTrash(Err(error))) => {
                    tracing::warn!(%export, job, ?duration, %error, "job failed");
                }
                Ok(_) => {
                    lock(&failed).remove(job);
                    tracing::info!(%export, job, ?duration, "job ended");
                }
                Err(WorkerError::ShuttingDown) => {
                    tracing::info!(%export, job, ?duration, "job interrupted by shutdown; it is repeated after the next start");
                }
                Err(error) => tracing::warn!(%export, job, ?duration, %error, "job failed"),
            }
        });
    }
}

fn lock(jobs: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the job to its end. The result of a copy is on the share.
async fn run(
    inner: &Arc<Inner>,
    export: &Export,
    request: share::Request,
    stall: Duration,
) -> Result<share::Response, WorkerError> {
    let internal = |error: std::io::Error| WorkerError::Internal(format!("{export}: {error}"));
    let (_process, mut input, mut lines) =
        inner.open("job", export, Instant::now() + inner.options.start).await?;
    let line = encode(&ToWorker::Request { id: 0, request }).map_err(internal)?;
    input.write_all(&line).await.map_err(internal)?;
    let mut buffer = Vec::new();
    loop {
        let stalled = |_| WorkerError::TimedOut {
            server: export.server.clone(),
            subject: format!("a job on {export} makes no progress; it"),
            deadline: stall,
        };
        match timeout(stall, next_message(&mut lines, &mut buffer))
            .await
            .map_err(stalled)?
            .map_err(internal)?
        {
            Some(FromWorker::Progress) => {}
            Some(FromWorker::Response { response, .. }) => {
                tracing::debug!(%export, ?response, "job responded");
                return Ok(response);
            }
            Some(_) => {
                return Err(WorkerError::Internal(format!(
                    "{export}: the worker sent an unexpected message"
                )));
            }
            None => {
                return Err(WorkerError::Lost {
                    subject: export.to_string(),
                    reason: "it exited".to_owned(),
                });
            }
        }
    }
}
