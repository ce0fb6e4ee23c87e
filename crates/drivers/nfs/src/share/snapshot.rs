//! CreateSnapshot, DeleteSnapshot, GetSnapshot and ListSnapshots.
//!
//! The record is first, then the copy as a job, then one change of the record makes the snapshot ready. CSI wants the
//! moment of the cut to have passed when CreateSnapshot succeeds, and a copy is cut when it ends; until then the answer is
//! [`ErrorKind::InProgress`].

use super::create::{ATTEMPTS, contended, is_final};
use super::error::During as _;
use super::files::none_if_missing;
use super::message::{CreateSnapshot, SnapshotInfo};
use super::record::VolumeRecord;
use super::root::own;
use super::snapshot_record::{JobKey, SnapshotContent, SnapshotRecord, SnapshotState};
use super::snapshot_upstream::safe_handle;
use super::store::{Slot, Swap};
use super::{ErrorKind, Share, ShareError};

impl Share {
    pub(super) fn create_snapshot(&self, request: &CreateSnapshot) -> Result<SnapshotInfo, ShareError> {
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<SnapshotRecord>(&request.name)?;
            let Some(snapshot) = slot.record.clone() else {
                let source = wharf_driver::backend::VolumeContentSource::Volume(request.source.clone());
                self.find_source(&source)?;
                if request.format.is_upstream() {
                    self.check_upstream_place(&request.handle)?;
                }
                self.ensure_records()?;
                self.swap_record(&slot, Some(new_record(request)))?;
                continue;
            };
            if snapshot.state == SnapshotState::Deleting {
                self.finish_delete_snapshot(&slot)?;
                continue;
            }
            if snapshot.source != request.source || snapshot.handle != request.handle {
                let message =
                    format!("snapshot {} already exists, of volume {}", request.name, snapshot.source);
                return Err(ShareError::new(ErrorKind::AlreadyExists, message));
            }
            return match self.finish_snapshot(&snapshot) {
                Err(error) if is_final(error.kind) => {
                    self.undo_snapshot(&slot)?;
                    Err(error)
                }
                result => result,
            };
        }
        Err(contended(&request.name))
    }

    /// Drops a snapshot that was never returned to a caller.
    pub(super) fn undo_snapshot(&self, slot: &Slot<SnapshotRecord>) -> Result<(), ShareError> {
        let Some(snapshot) = &slot.record else { return Ok(()) };
        let deleting = SnapshotRecord { state: SnapshotState::Deleting, ..snapshot.clone() };
        match self.swap_record(slot, Some(deleting))? {
            Swap::Done(slot) => self.finish_delete_snapshot(&slot),
            Swap::Conflict => Ok(()),
        }
    }

    /// Makes a snapshot ready if its job is complete. Can be repeated, and by several controllers at once.
    pub(super) fn finish_snapshot(&self, snapshot: &SnapshotRecord) -> Result<SnapshotInfo, ShareError> {
        let job = JobKey::Snapshot(snapshot.name.clone());
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<SnapshotRecord>(&snapshot.name)?;
            let Some(current) = slot.record.clone().filter(|record| record.handle == snapshot.handle) else {
                return Err(gone(&snapshot.name));
            };
            match current.state {
                SnapshotState::Ready => {
                    // An earlier attempt may have stopped before this.
                    self.cancel_job(&job)?;
                    return Ok(info(&current));
                }
                SnapshotState::Deleting => return Err(gone(&snapshot.name)),
                SnapshotState::Creating => {}
            }
            let complete = self.job_result(&job)?;
            let placed = match current.format.is_upstream() {
                true => {
                    self.place_upstream(&current, &complete.attempt)?.map(|file_id| (None, Some(file_id)))
                }
                false => {
                    self.keep_content(&complete.attempt)?.then(|| (Some(complete.attempt.clone()), None))
                }
            };
            let Some((attempt, file_id)) = placed else {
                // Someone removed the copy by hand: start again.
                self.forget_job(&job)?;
                continue;
            };
            let volume_size = self.recorded_size(&current.source)?;
            let content = Some(SnapshotContent { attempt, file_id, result: complete.result, volume_size });
            let ready = SnapshotRecord { state: SnapshotState::Ready, content, ..current };
            self.swap_record(&slot, Some(ready))?;
        }
        Err(contended(&snapshot.name))
    }

    /// The size of a volume, if its record has one.
    fn recorded_size(&self, handle: &str) -> Result<Option<u64>, ShareError> {
        let record = self.read_record::<VolumeRecord>(handle)?.record;
        Ok(record.map(|volume| volume.size).filter(|size| *size > 0))
    }

    /// Moves a complete copy from the staging area to its place; false if it is nowhere.
    pub(super) fn keep_content(&self, attempt: &str) -> Result<bool, ShareError> {
        let (from, to) = (own(["staging", attempt]), own(["content", attempt]));
        self.ensure_dir(&own(["content"]))?;
        if self.stat(&to)?.is_none() {
            // Judged by looking again: another controller may do the same.
            let renamed = none_if_missing(self.files.rename(&from, &to));
            if self.stat(&to)?.is_none() {
                renamed.during("keep the copy", attempt)?;
                return Ok(false);
            }
        }
        for dir in ["staging", "content"] {
            self.files.sync(&own([dir])).during("sync", dir)?;
        }
        Ok(true)
    }

    pub(super) fn delete_snapshot(&self, handle: &str) -> Result<(), ShareError> {
        // Not a handle that this driver or csi-driver-nfs has written.
        let Some(parsed) = safe_handle(handle) else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<SnapshotRecord>(&parsed.name)?;
            let Some(snapshot) = slot.record.clone() else { return self.delete_upstream(&parsed) };
            if snapshot.handle != handle {
                return Ok(());
            }
            if snapshot.state == SnapshotState::Deleting {
                return self.finish_delete_snapshot(&slot);
            }
            let deleting = SnapshotRecord { state: SnapshotState::Deleting, ..snapshot };
            if let Swap::Done(slot) = self.swap_record(&slot, Some(deleting))? {
                return self.finish_delete_snapshot(&slot);
            }
        }
        Err(contended(handle))
    }

    /// Finishes a deletion that has begun.
    pub(super) fn finish_delete_snapshot(&self, slot: &Slot<SnapshotRecord>) -> Result<(), ShareError> {
        let Some(snapshot) = &slot.record else { return Ok(()) };
        let job = JobKey::Snapshot(snapshot.name.clone());
        let attempt = self.job_attempt(&job)?;
        if snapshot.format.is_upstream() {
            self.remove_placed(snapshot, attempt.as_deref())?;
        }
        // A job that was complete may have been moved already, without the record that says so.
        let recorded = snapshot.content.as_ref().and_then(|content| content.attempt.clone());
        for attempt in [attempt, recorded].into_iter().flatten() {
            self.discard(&own(["content", &attempt]))?;
        }
        self.cancel_job(&job)?;
        // A conflict means that another controller finished it.
        self.swap_record(slot, None).map(drop)
    }

    pub(super) fn get_snapshot(&self, handle: &str) -> Result<Option<SnapshotInfo>, ShareError> {
        let Some(parsed) = safe_handle(handle) else { return Ok(None) };
        match self.read_record::<SnapshotRecord>(&parsed.name)?.record {
            Some(record) if record.handle == handle && record.state == SnapshotState::Ready => {
                Ok(Some(info(&record)))
            }
            Some(_) => Ok(None),
            None => self.upstream_info(&parsed),
        }
    }

    /// All snapshots that have a record and are ready, by name.
    pub(super) fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>, ShareError> {
        let slots = self.list_records::<SnapshotRecord>()?.slots.into_iter().filter_map(|slot| slot.record);
        let ready = slots.filter(|record| record.state == SnapshotState::Ready);
        let mut infos: Vec<_> = ready.map(|record| info(&record)).collect();
        infos.sort_by(|one, other| one.handle.cmp(&other.handle));
        Ok(infos)
    }
}

fn new_record(request: &CreateSnapshot) -> SnapshotRecord {
    SnapshotRecord {
        name: request.name.clone(),
        handle: request.handle.clone(),
        source: request.source.clone(),
        format: request.format,
        state: SnapshotState::Creating,
        content: None,
    }
}

fn info(record: &SnapshotRecord) -> SnapshotInfo {
    let result = record.content.as_ref().map(|content| &content.result);
    SnapshotInfo {
        handle: record.handle.clone(),
        source: Some(record.source.clone()),
        size: record.content.as_ref().map_or(0, SnapshotContent::restore_size),
        created: result.map_or(0, |result| result.finished),
        report: result.map(|result| result.report.clone()).unwrap_or_default(),
    }
}

fn gone(name: &str) -> ShareError {
    ShareError::new(ErrorKind::Unavailable, format!("snapshot {name} was deleted meanwhile; try again"))
}
