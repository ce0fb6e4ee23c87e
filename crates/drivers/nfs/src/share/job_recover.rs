//! Recovery of snapshots and jobs: what no process works on any more is finished or dropped.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::record::{VolumeRecord, VolumeState};
use super::root::own;
use super::snapshot_record::{JobKey, JobRecord, JobState, SnapshotRecord, SnapshotState};
use super::store::Slot;
use super::{Share, ShareError};

impl Share {
    /// Returns how many objects were finished or dropped, and the staging directories of jobs. `content` are the names in that
    /// directory, read before the records.
    pub(super) fn recover_snapshots(
        &self,
        content: Vec<String>,
        now: SystemTime,
    ) -> Result<(u64, BTreeSet<String>), ShareError> {
        let mut done = 0;
        // Before the snapshots: a snapshot that becomes ready records its content first, and drops its job then.
        let jobs = self.list_records::<JobRecord>()?;
        let attempt_of = |record: &JobRecord| record.attempt().map(str::to_owned);
        let mut used: BTreeSet<_> =
            jobs.slots.iter().filter_map(|slot| slot.record.as_ref().and_then(attempt_of)).collect();
        let snapshots = self.list_records::<SnapshotRecord>()?;
        for slot in &snapshots.slots {
            done += self.attempt(&slot.key, self.recover_snapshot(slot, now));
            let current = self.read_record::<SnapshotRecord>(&slot.key)?.record;
            used.extend(current.and_then(|record| record.content).and_then(|content| content.attempt));
        }
        for slot in &jobs.slots {
            done += self.attempt(&slot.key, self.recover_job(slot, now));
            let current = self.read_record::<JobRecord>(&slot.key)?.record;
            used.extend(current.as_ref().and_then(attempt_of));
        }
        // A record that cannot be read may be that of any content.
        let known = snapshots.unreadable.is_empty() && jobs.unreadable.is_empty();
        for id in content.iter().filter(|id| known && !used.contains(*id)) {
            let dir = own(["content", id]);
            let discarded = self.is_abandoned(&dir, now).and_then(|abandoned| match abandoned {
                true => self.discard(&dir).map(|()| true),
                false => Ok(false),
            });
            done += self.attempt(id, discarded);
        }
        Ok((done, used))
    }

    fn recover_snapshot(&self, slot: &Slot<SnapshotRecord>, now: SystemTime) -> Result<bool, ShareError> {
        let Some(snapshot) = &slot.record else { return self.remove_tombstone(slot, now) };
        match snapshot.state {
            SnapshotState::Ready => Ok(false),
            SnapshotState::Deleting => self.finish_delete_snapshot(slot).map(|()| true),
            SnapshotState::Creating => {
                let job = JobKey::Snapshot(snapshot.name.clone());
                if !self.is_abandoned(&self.record_file(slot), now)? || self.job_is_alive(&job, now)? {
                    return Ok(false);
                }
                self.undo_snapshot(slot).map(|()| true)
            }
        }
    }

    /// Drops a job whose object does not wait for it.
    fn recover_job(&self, slot: &Slot<JobRecord>, now: SystemTime) -> Result<bool, ShareError> {
        if slot.record.is_none() {
            return self.remove_tombstone(slot, now);
        }
        let Some(job) = JobKey::parse(&slot.key) else { return Ok(false) };
        let waits = match &job {
            JobKey::Snapshot(name) => {
                let record = self.read_record::<SnapshotRecord>(name)?.record;
                record.is_some_and(|record| record.state == SnapshotState::Creating)
            }
            JobKey::Volume(handle) => {
                let record = self.read_record::<VolumeRecord>(handle)?.record;
                record.is_some_and(|record| record.state == VolumeState::Creating)
            }
        };
        if waits || !self.is_abandoned(&self.record_file(slot), now)? {
            return Ok(false);
        }
        self.cancel_job(&job).map(|()| true)
    }

    /// Whether a process works on a job, or its end is so new that the next request still has to use it. A copy can take longer
    /// than the grace period.
    pub(super) fn job_is_alive(&self, job: &JobKey, now: SystemTime) -> Result<bool, ShareError> {
        let slot = self.read_record::<JobRecord>(&job.to_string())?;
        match slot.record.as_ref().map(|record| &record.state) {
            Some(JobState::Running { .. }) => Ok(!self.is_stale(&slot)?),
            Some(JobState::Done { .. } | JobState::Failed { .. }) => {
                Ok(!self.is_abandoned(&self.record_file(&slot), now)?)
            }
            None => Ok(false),
        }
    }
}
