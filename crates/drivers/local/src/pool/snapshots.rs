//! Snapshots: separate image files, which outlive their volume. With reflinks they are instant; otherwise they are
//! copied in the background.

use wharf_driver::backend::{BackendError, DeleteError, ListPage, NewSnapshot, Snapshot, SnapshotError};

use super::PoolCore;
use super::reflink::{CopyConsistency, ReflinkCopy};
use super::space::Refusal;
use super::volumes::cannot_copy_in_use;
use crate::account::Demand;
use crate::fault::During as _;
use crate::ids::{self, Kind};
use crate::index::Index;
use crate::parameters;
use crate::plan;
use crate::record::{Phase, SnapshotRecord, Timestamp, VERSION, VolumeRecord};
use crate::store;

impl PoolCore {
    /// Takes a snapshot. Idempotent for the same name and source.
    pub fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        let NewSnapshot { name, source, .. } = wanted;
        parameters::of_snapshot(&wanted.parameters)
            .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        // A snapshot is on the node of its volume, which is this one.
        if !plan::satisfies_topology(&wanted.requisite, &self.config.node_id) {
            return Err(SnapshotError::Exhausted(format!(
                "snapshot {name:?} would be on node {}, which is not in the requested topology",
                self.config.node_id
            )));
        }
        let id = ids::derive(Kind::Snapshot, name);
        let _lock = self.locks.exclusive(&id)?;
        self.check_identity()?;
        self.refuse_broken(&id)?;
        if let Some(failure) = self.copies.take_failure(&id) {
            return Err(failure.into());
        }
        let existing = self.index().snapshot(&id).cloned();
        match existing {
            Some(SnapshotRecord { state: Phase::Creating, .. }) => self.discard(&id)?,
            Some(record) if record.source != *source || record.name != *name => {
                return Err(SnapshotError::Exists(format!(
                    "a snapshot named {name:?} exists ({id}), but of {}",
                    record.source
                )));
            }
            Some(_) => return self.wait_for_snapshot(&id),
            None => {}
        }
        if self.ready_volume(source)?.is_none() {
            return Err(no_volume(source));
        }
        let held = self.locks.shared(source)?;
        let volume = self.ready_volume(source)?.ok_or_else(|| no_volume(source))?;
        let record = new_record(&volume, id.clone(), name.clone(), None);
        self.admit_snapshots(&[(&volume, record.clone())])?;
        if let Err(error) = self.take_snapshots(&[(&volume, record)]) {
            if let Err(fault) = self.discard(&id) {
                tracing::error!(snapshot_handle = id, error = %fault, "failed to undo an incomplete snapshot; the next call or start retries");
            }
            return Err(error);
        }
        drop(held);
        self.wait_for_snapshot(&id)
    }

    /// Checks that these volumes can be snapshotted now: not being formatted, not in use where that would tear the
    /// copy, and with enough space. Adds the snapshots, which are `creating`, to the index, so that their space is not
    /// promised twice.
    pub(super) fn admit_snapshots(
        &self,
        wanted: &[(&VolumeRecord, SnapshotRecord)],
    ) -> Result<(), SnapshotError> {
        for (volume, _) in wanted {
            self.refuse_formatting(volume)?;
            let stat = self.store.stat(&store::image_of(&volume.id)).during("stat its image", &volume.id)?;
            self.verify_image(&volume.id, stat, volume.image_inode, volume.size)
                .map_err(SnapshotError::Precondition)?;
            if !self.reflink && !self.loop_devices_of(volume)?.is_empty() {
                return Err(SnapshotError::Precondition(cannot_copy_in_use(&volume.id)));
            }
        }
        // At the time of the admission: it depends on the other snapshots of these volumes.
        let demand = || {
            wanted.iter().try_fold(Demand::default(), |demand, (volume, _)| {
                Ok(demand.and(match self.reflink {
                    true => self.demand_of_sharing(volume)?,
                    false => Demand { thick: self.allocated(&volume.id)?, ..Demand::default() },
                }))
            })
        };
        let promise = |index: &mut Index| {
            for (_, record) in wanted {
                index.put_snapshot(record.clone());
            }
        };
        self.admit(demand, promise).map_err(|refusal| match refusal {
            Refusal::Exhausted(reason) => SnapshotError::Exhausted(reason),
            Refusal::Fault(fault) => fault.into(),
        })
    }

    /// Takes snapshots of several volumes at one point in time; the records passed in are `creating`. The caller undoes
    /// what an error leaves, and queues the copies once everything else that belongs to them is durable.
    pub(super) fn take_snapshots(
        &self,
        wanted: &[(&VolumeRecord, SnapshotRecord)],
    ) -> Result<(), SnapshotError> {
        for (_, record) in wanted {
            self.create_dir(&record.id)?;
            self.save_snapshot(record.clone())?;
        }
        let mut crash_consistent = false;
        if self.reflink {
            let copies: Vec<_> =
                wanted.iter().map(|(source, record)| ReflinkCopy { source, target: &record.id }).collect();
            crash_consistent = self.reflink_all(&copies)? == CopyConsistency::CrashConsistent;
        }
        let created = Timestamp::now();
        for (source, record) in wanted {
            let id = &record.id;
            if !self.reflink {
                let image = store::image_of(id);
                self.kernel().set_size(&self.store.at(&image), source.size).during("set its size", id)?;
            }
            let image_inode = Some(self.persist_image(id)?);
            let state = match self.reflink {
                true => Phase::Ready,
                false => Phase::Copying { done: 0, total: source.size },
            };
            let taken = SnapshotRecord { state, image_inode, created, crash_consistent, ..record.clone() };
            self.save_snapshot(taken)?;
        }
        Ok(())
    }

    /// Returns the snapshot. Waits up to `COPY_WAIT` for its copy, so that a small one is ready at once.
    fn wait_for_snapshot(&self, id: &str) -> Result<Snapshot, SnapshotError> {
        self.enqueue_and_wait(&[id]);
        if let Some(failure) = self.copies.take_failure(id) {
            return Err(failure.into());
        }
        let record = self.index().snapshot(id).cloned();
        let gone = || BackendError::Busy(format!("{id} is being deleted: retry")).into();
        record.map(|record| self.snapshot(&record)).ok_or_else(gone)
    }

    /// Deletes a snapshot. Succeeds if it does not exist.
    pub fn delete_snapshot(&self, id: &str) -> Result<(), DeleteError> {
        if !ids::is(Kind::Snapshot, id) {
            return Ok(());
        }
        self.check_identity()?;
        self.refuse_broken(id)?;
        let Some(record) = self.index().snapshot(id).cloned() else { return Ok(()) };
        if let Some(group) = record.group {
            return Err(DeleteError::GroupMember(format!(
                "{id} belongs to group snapshot {group}: delete the group snapshot"
            )));
        }
        let _lock = self.locks.exclusive(id)?;
        self.cancel_and_discard(id)?;
        tracing::info!(snapshot_handle = id, "deleted snapshot");
        Ok(())
    }

    /// Cancels a snapshot's copy and moves it to the trash, unless it is the source of a running copy.
    pub(super) fn cancel_and_discard(&self, id: &str) -> Result<(), DeleteError> {
        if !self.copies.cancel(id) {
            return Err(BackendError::Busy(format!("{}: retry", self.progress(id))).into());
        }
        if self.index().snapshot(id).is_none() {
            return Ok(());
        }
        self.refuse_copy_source(id).map_err(DeleteError::InUse)?;
        Ok(self.discard(id)?)
    }

    /// One snapshot, if it was taken.
    pub fn get_snapshot(&self, id: &str) -> Result<Option<Snapshot>, BackendError> {
        self.refuse_broken(id)?;
        Ok(self.index().snapshot(id).filter(|record| is_taken(record)).map(|record| self.snapshot(record)))
    }

    /// At most `max` snapshots whose id is greater than `after`; only those of `source`, if it is given.
    pub fn list_snapshots(
        &self,
        source: Option<&str>,
        after: Option<&str>,
        max: usize,
    ) -> ListPage<Snapshot> {
        let index = self.index();
        let mut records: Box<dyn Iterator<Item = &SnapshotRecord>> = match source {
            Some(source) => Box::new(index.snapshots_of(source, after)),
            None => Box::new(index.snapshots_after(after)),
        };
        let mut taken = records.by_ref().filter(|record| is_taken(record));
        let entries = taken.by_ref().take(max).map(|record| self.snapshot(record)).collect();
        ListPage { entries, more: taken.next().is_some() }
    }

    pub(super) fn snapshot(&self, record: &SnapshotRecord) -> Snapshot {
        Snapshot {
            id: record.id.clone(),
            source: record.source.clone(),
            // A claim that requests as much as the volume's claim did can be restored: the volume is rounded up again.
            size: record.requested.unwrap_or(record.size),
            created: record.created.into(),
            ready_to_use: record.state == Phase::Ready,
            group: record.group.clone(),
            topology: self.topology(),
        }
    }
}

/// A snapshot that is still being copied counts as taken: its source cannot change during the copy.
fn is_taken(record: &SnapshotRecord) -> bool {
    record.state != Phase::Creating
}

pub(super) fn no_volume(id: &str) -> SnapshotError {
    SnapshotError::NotFound(format!("there is no volume {id}"))
}

pub(super) fn new_record(
    volume: &VolumeRecord,
    id: String,
    name: String,
    group: Option<String>,
) -> SnapshotRecord {
    SnapshotRecord {
        version: VERSION,
        id,
        name,
        created: Timestamp::now(),
        state: Phase::Creating,
        source: volume.id.clone(),
        size: volume.size,
        requested: volume.requested,
        format: volume.format.clone(),
        group,
        image_inode: None,
        crash_consistent: false,
        of_copy: Some(volume.source.is_some()),
    }
}
