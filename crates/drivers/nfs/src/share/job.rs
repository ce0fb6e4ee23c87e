//! Jobs: copies that run in the background, at most one per object.
//!
//! A job's record is its lock. The process that works on it changes the record from time to time, by compare-and-swap; the
//! modification time of the record's file, by the server's clock, is the heartbeat. A record without a heartbeat for three
//! lease times is taken over: the new owner starts in a fresh staging directory, and the old one notices at its next change
//! that it has lost the job. So a cancelled job stops too: its record is gone.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use super::create::{ATTEMPTS, contended};
use super::error::During as _;
use super::files::none_if_missing;
use super::root::own;
use super::snapshot_record::{JobKey, JobRecord, JobResult, JobState};
use super::store::{Slot, Swap};
use super::{ErrorKind, Share, ShareError};
use crate::copy::Progress;

/// A heartbeat may be this many leases late.
const LEASES: u32 = 3;

/// How long a copy may stand still while the share takes its heartbeats.
const STANDSTILL: Duration = Duration::from_secs(3600);

/// A complete job.
pub(super) struct CompleteJob {
    pub(super) attempt: String,
    pub(super) result: JobResult,
}

/// What a running job needs to prove that it still owns its record.
pub(super) struct OwnedJob {
    pub(super) attempt: String,
    slot: RefCell<Slot<JobRecord>>,
    last: RefCell<Instant>,
    /// The progress of the copy, and when it last changed.
    moved: Cell<(Progress, Instant)>,
}

impl Share {
    /// The result of a job. While it runs, and before it starts, the error is [`ErrorKind::InProgress`]; whoever called then
    /// sends [`super::Request::RunJob`]. The error of a failed job is returned once.
    pub(super) fn job_result(&self, job: &JobKey) -> Result<CompleteJob, ShareError> {
        let in_progress = |percent: Option<u8>| {
            let done = percent.map(|percent| format!(", {percent} % done")).unwrap_or_default();
            ShareError::new(
                ErrorKind::InProgress { percent },
                format!("the copy for {job} is in progress{done}"),
            )
        };
        let slot = self.read_record::<JobRecord>(&job.to_string())?;
        match slot.record.clone() {
            None => Err(in_progress(None)),
            Some(record) => match record.state {
                JobState::Running { .. } => Err(in_progress(record.percent())),
                JobState::Done { attempt, result } => Ok(CompleteJob { attempt, result }),
                JobState::Failed { error } => {
                    self.swap_record(&slot, None)?;
                    Err(error)
                }
            },
        }
    }

    /// Takes a job that no process works on. `None` if it is complete or has failed; an error while another process works on
    /// it.
    pub(super) fn claim_job(&self, job: &JobKey, total: Option<u64>) -> Result<Option<OwnedJob>, ShareError> {
        let key = job.to_string();
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<JobRecord>(&key)?;
            if let Some(record) = &slot.record {
                match &record.state {
                    JobState::Done { .. } | JobState::Failed { .. } => return Ok(None),
                    JobState::Running { .. } if !self.is_stale(&slot)? => {
                        let message = format!("another process works on the copy for {job}");
                        let kind = ErrorKind::InProgress { percent: record.percent() };
                        return Err(ShareError::new(kind, message));
                    }
                    JobState::Running { .. } => {}
                }
            }
            let attempt = self.new_id()?;
            let state = JobState::Running { attempt: attempt.clone() };
            let record = JobRecord { key: key.clone(), state, progress: Progress::default(), total };
            let stale = slot.record.as_ref().and_then(JobRecord::attempt).map(str::to_owned);
            if let Swap::Done(slot) = self.with_reserve(|| self.swap_record(&slot, Some(record.clone())))? {
                if let Some(stale) = stale {
                    tracing::warn!(job = %job, "took over a copy whose process is gone");
                    self.discard_attempt(&stale)?;
                }
                self.ensure_dir(&own(["staging", &attempt]))?;
                return Ok(Some(OwnedJob {
                    attempt,
                    slot: RefCell::new(slot),
                    last: RefCell::new(Instant::now()),
                    moved: Cell::new((Progress::default(), Instant::now())),
                }));
            }
        }
        Err(contended(&key))
    }

    /// The progress callback of a copy: a heartbeat now and then. Stops the copy if the job was cancelled or taken over.
    pub(super) fn heartbeat(&self, job: &OwnedJob, progress: Progress) -> ControlFlow<()> {
        if job.moved.get().0 != progress {
            job.moved.set((progress, Instant::now()));
        }
        let standstill = job.moved.get().1.elapsed();
        crate::worker::report_progress(activity(progress, job.slot.borrow().generation, standstill));
        if job.last.borrow().elapsed() < self.environment.lease {
            return ControlFlow::Continue(());
        }
        *job.last.borrow_mut() = Instant::now();
        let slot = job.slot.borrow().clone();
        let record = slot.record.clone().map(|record| JobRecord { progress, ..record });
        match self.swap_record(&slot, record) {
            Ok(Swap::Done(slot)) => {
                job.slot.replace(slot);
                ControlFlow::Continue(())
            }
            // An earlier heartbeat, whose error came after its effect, is no reason to stop.
            Ok(Swap::Conflict) => match self.read_record::<JobRecord>(&slot.key) {
                Ok(current) if is_running(&current, &job.attempt) => {
                    job.slot.replace(current);
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Break(()),
            },
            // The server may answer again. If not, another process takes over, and the last change finds that out.
            Err(error) => {
                tracing::warn!(%error, "failed to record the progress of a copy");
                ControlFlow::Continue(())
            }
        }
    }

    /// Records the end of a job. The staging directory of a job that failed, or was lost meanwhile, is discarded.
    pub(super) fn end_job(
        &self,
        job: &OwnedJob,
        result: Result<JobResult, ShareError>,
    ) -> Result<(), ShareError> {
        let slot = job.slot.borrow().clone();
        let Some(record) = slot.record.clone() else { return Ok(()) };
        let attempt = job.attempt.clone();
        let (state, failed) = match result {
            Ok(result) => (JobState::Done { attempt, result }, None),
            Err(error) => (JobState::Failed { error: error.clone() }, Some(error)),
        };
        if failed.as_ref().is_some_and(|error| error.kind == ErrorKind::OutOfSpace) {
            self.empty_attempt(&job.attempt);
        }
        let recorded = self.record_end(job, slot, JobRecord { state, ..record })?;
        if failed.is_some() || !recorded {
            self.discard_attempt(&job.attempt)?;
        }
        match failed {
            Some(error) => Err(error),
            None if recorded => Ok(()),
            None => Err(ShareError::new(
                ErrorKind::Unavailable,
                format!("the copy for {} was cancelled or taken over", job.slot.borrow().key),
            )),
        }
    }

    /// Writes the last record of a job; false if the job was cancelled or taken over. A conflict alone does not prove that: an
    /// earlier write of this process, whose error came after its effect, is a conflict too.
    fn record_end(
        &self,
        job: &OwnedJob,
        mut slot: Slot<JobRecord>,
        ended: JobRecord,
    ) -> Result<bool, ShareError> {
        for _ in 0..ATTEMPTS {
            if let Swap::Done(_) = self.with_reserve(|| self.swap_record(&slot, Some(ended.clone())))? {
                return Ok(true);
            }
            slot = self.read_record::<JobRecord>(&slot.key)?;
            match &slot.record {
                Some(current) if current.state == ended.state => return Ok(true),
                _ if is_running(&slot, &job.attempt) => {}
                _ => return Ok(false),
            }
        }
        Err(contended(&slot.key))
    }

    /// Forgets a job, whatever its state. A process that works on it stops; its staging directory is discarded.
    pub(super) fn cancel_job(&self, job: &JobKey) -> Result<(), ShareError> {
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<JobRecord>(&job.to_string())?;
            let Some(record) = &slot.record else { return Ok(()) };
            let attempt = record.attempt().map(str::to_owned);
            if let Swap::Done(_) = self.swap_record(&slot, None)? {
                return attempt.map_or(Ok(()), |attempt| self.discard_attempt(&attempt));
            }
        }
        Err(contended(&job.to_string()))
    }

    /// Forgets a complete job whose staging directory another record references now.
    pub(super) fn forget_job(&self, job: &JobKey) -> Result<(), ShareError> {
        let slot = self.read_record::<JobRecord>(&job.to_string())?;
        match &slot.record {
            // A conflict means that another controller does the same.
            Some(_) => self.swap_record(&slot, None).map(drop),
            None => Ok(()),
        }
    }

    /// Whether no process works on a running job any more.
    pub(super) fn is_stale(&self, slot: &Slot<JobRecord>) -> Result<bool, ShareError> {
        let Some(entry) = self.stat(&self.record_file(slot))? else {
            // It changed: someone works on it.
            return Ok(false);
        };
        Ok(is_late(entry.modified, self.server_time()?, self.environment.lease * LEASES))
    }

    fn discard_attempt(&self, attempt: &str) -> Result<(), ShareError> {
        match self.discard(&own(["staging", attempt])) {
            Err(error) if error.kind == ErrorKind::OutOfSpace => {
                // Under a name that no record has: what is removed in place must not be taken for complete meanwhile.
                let removed = self.new_id()?;
                let moved = self.files.rename(&own(["staging", attempt]), &own(["staging", &removed]));
                none_if_missing(moved).during("discard the copy", attempt)?;
                self.empty_attempt(&removed);
                self.discard(&own(["staging", &removed]))
            }
            discarded => discarded,
        }
    }

    /// Removes what an attempt has copied, in place. On a full share, a record or the way to the trash needs the space of the copy.
    fn empty_attempt(&self, attempt: &str) {
        if let Err(error) = self.remove_tree(&own(["staging", attempt])) {
            tracing::warn!(attempt, %error, "failed to remove an unfinished copy");
        }
    }
}

/// A number that changes while a job is alive: with its progress, and for some time also with each change of its record. A copy can
/// wait for minutes, for the agent's other copies or until the server has written what it copied.
fn activity(progress: Progress, generation: u64, standstill: Duration) -> u64 {
    let heartbeats = if standstill < STANDSTILL { generation } else { 0 };
    progress.entries.wrapping_add(progress.bytes).wrapping_add(heartbeats)
}

/// Whether an attempt still runs.
fn is_running(slot: &Slot<JobRecord>, attempt: &str) -> bool {
    let state = slot.record.as_ref().map(|record| &record.state);
    matches!(state, Some(JobState::Running { attempt: running }) if running == attempt)
}

/// Whether a heartbeat is too old. A time in the future is not: clocks can jump.
fn is_late(heartbeat: SystemTime, now: SystemTime, limit: Duration) -> bool {
    now.duration_since(heartbeat).is_ok_and(|age| age >= limit)
}

/// A file or directory in the staging directory of an attempt.
pub(super) fn in_staging(attempt: &str, name: &str) -> PathBuf {
    own(["staging", attempt, name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_heartbeats_show_that_a_job_is_alive() {
        let hour = Duration::from_secs(3600);
        let number = |entries, bytes, generation, standstill| {
            activity(Progress { entries, bytes }, generation, standstill)
        };
        for (case, standstill, [entries, bytes, generation], changes) in [
            ("nothing", Duration::ZERO, [1, 10, 3], false),
            ("entries", Duration::ZERO, [2, 10, 3], true),
            ("bytes", Duration::ZERO, [1, 11, 3], true),
            ("a heartbeat", hour / 2, [1, 10, 4], true),
            ("only heartbeats for an hour", hour, [1, 10, 4], false),
            ("bytes after an hour", hour, [1, 11, 4], true),
        ] {
            let changed = number(1, 10, 3, standstill) != number(entries, bytes, generation, standstill);
            assert_eq!(changed, changes, "{case}");
        }
    }

    #[test]
    fn heartbeat_is_late_after_the_limit_and_never_in_the_future() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let limit = Duration::from_secs(60);
        for (heartbeat, now, late) in
            [(100, 100, false), (100, 159, false), (100, 160, true), (200, 100, false)]
        {
            assert_eq!(is_late(at(heartbeat), at(now), limit), late, "{heartbeat} {now}");
        }
    }
}
