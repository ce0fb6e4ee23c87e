//! Snapshots: files of their own, which outlive their volume. Instant where extents can be shared, a copy in
//! the background elsewhere.

use wharf_driver::backend::{
    BackendError, DeleteError, NewSnapshot, Page, Snapshot, SnapshotError, SnapshotFilter,
};

use super::Core;
use super::cut::Cut;
use super::volumes::unsharable;
use crate::capacity;
use crate::fault::During as _;
use crate::ids::{self, Kind};
use crate::parameters;
use crate::plan;
use crate::record::{Moment, Phase, SnapshotRecord, VERSION, VolumeRecord};
use crate::store;

impl Core {
    /// Cuts a snapshot; the same name and source again is the same snapshot.
    pub fn create_snapshot(&self, wanted: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        let NewSnapshot { name, source, .. } = wanted;
        parameters::of_snapshot(&wanted.parameters)
            .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        // They are where their volume is, which is here.
        if !plan::is_reachable(&wanted.requisite, &self.config.node_id) {
            return Err(SnapshotError::Exhausted(format!(
                "snapshot {name:?} would be on node {}, and that is none of the places asked for",
                self.config.node_id
            )));
        }
        let id = ids::derive(Kind::Snapshot, name);
        let _claim = self.claims.exclusive(&id)?;
        self.refuse_broken(&id)?;
        if let Some(failure) = self.copies.take_failure(&id) {
            return Err(failure.into());
        }
        let existing = self.index().snapshot(&id).cloned();
        match existing {
            Some(SnapshotRecord { state: Phase::Creating, .. }) => self.discard(&id)?,
            Some(record) if record.source != *source || record.name != *name => {
                return Err(SnapshotError::Exists(format!(
                    "a snapshot named {name:?} exists ({id}), of {}",
                    record.source
                )));
            }
            Some(_) => return self.settled_snapshot(&id),
            None => {}
        }
        if self.ready_volume(source)?.is_none() {
            return Err(no_volume(source));
        }
        let held = self.claims.shared(source)?;
        let volume = self.ready_volume(source)?.ok_or_else(|| no_volume(source))?;
        self.admit_snapshots(&[&volume])?;
        let record = new_record(&volume, id.clone(), name.clone(), None);
        if let Err(error) = self.make_snapshots(&[(&volume, record)]) {
            if let Err(fault) = self.discard(&id) {
                tracing::error!(id, %fault, "a failed snapshot could not be undone; the next call or start will");
            }
            return Err(error);
        }
        drop(held);
        self.settled_snapshot(&id)
    }

    /// Whether these volumes can be snapshotted now: settled, not torn, and with room.
    pub(super) fn admit_snapshots(&self, volumes: &[&VolumeRecord]) -> Result<(), SnapshotError> {
        let mut taken = 0u64;
        for volume in volumes {
            self.must_be_settled(volume)?;
            let stat =
                self.store.stat(&store::image_of(&volume.id)).during("look at its image", &volume.id)?;
            self.prove_image(&volume.id, stat, volume.image_inode, volume.size)
                .map_err(SnapshotError::Precondition)?;
            if !self.reflink {
                if !self.loops_of(volume)?.is_empty() {
                    return Err(SnapshotError::Precondition(unsharable(&volume.id)));
                }
                taken = taken.saturating_add(self.allocated(&volume.id)?);
            }
        }
        let room = self.room(&self.usage()?, self.index().committed());
        capacity::admits(&room, 0, taken).map_err(SnapshotError::Exhausted)
    }

    /// Makes snapshots of several volumes at one moment; the records say `creating`. Undoing what an error
    /// leaves is the caller's, and so is asking for the copies, once whatever else belongs to them is durable.
    pub(super) fn make_snapshots(
        &self,
        wanted: &[(&VolumeRecord, SnapshotRecord)],
    ) -> Result<(), SnapshotError> {
        for (_, record) in wanted {
            self.make_dir(&record.id)?;
            self.save_snapshot(record.clone())?;
        }
        if self.reflink {
            let cuts: Vec<_> =
                wanted.iter().map(|(source, record)| Cut { source, target: &record.id }).collect();
            self.cut(&cuts)?;
        }
        let created = Moment::now();
        for (source, record) in wanted {
            let id = &record.id;
            if !self.reflink {
                let image = store::image_of(id);
                self.kernel().set_size(&self.store.at(&image), source.size).during("set its size", id)?;
            }
            let image_inode = Some(self.seal(id)?);
            let state = match self.reflink {
                true => Phase::Ready,
                false => Phase::Copying { done: 0, total: source.size },
            };
            self.save_snapshot(SnapshotRecord { state, image_inode, created, ..record.clone() })?;
        }
        Ok(())
    }

    /// The snapshot; a copy of little is waited for, so that it is ready at once.
    fn settled_snapshot(&self, id: &str) -> Result<Snapshot, SnapshotError> {
        self.await_copies(&[id]);
        if let Some(failure) = self.copies.take_failure(id) {
            return Err(failure.into());
        }
        let record = self.index().snapshot(id).cloned();
        let gone = || BackendError::Busy(format!("{id} is being deleted: call again")).into();
        record.map(|record| self.snapshot(&record)).ok_or_else(gone)
    }

    /// Deletes a snapshot; gone is success.
    pub fn delete_snapshot(&self, id: &str) -> Result<(), DeleteError> {
        if !ids::is(Kind::Snapshot, id) {
            return Ok(());
        }
        self.refuse_broken(id)?;
        let Some(record) = self.index().snapshot(id).cloned() else { return Ok(()) };
        if let Some(group) = record.group {
            return Err(DeleteError::Member(format!("{id} belongs to group snapshot {group}: delete that")));
        }
        let _claim = self.claims.exclusive(id)?;
        self.drop_snapshot(id)?;
        tracing::info!(id, "deleted");
        Ok(())
    }

    /// Cancels a snapshot's copy and moves it into the trash, unless a copy is being made of it.
    pub(super) fn drop_snapshot(&self, id: &str) -> Result<(), DeleteError> {
        if !self.copies.cancel(id) {
            return Err(BackendError::Busy(format!("{}: call again", self.progress(id))).into());
        }
        if self.index().snapshot(id).is_none() {
            return Ok(());
        }
        self.refuse_copied(id).map_err(DeleteError::InUse)?;
        Ok(self.discard(id)?)
    }

    /// One snapshot that is cut.
    pub fn get_snapshot(&self, id: &str) -> Result<Option<Snapshot>, BackendError> {
        self.refuse_broken(id)?;
        Ok(self.index().snapshot(id).filter(|record| is_cut(record)).map(|record| self.snapshot(record)))
    }

    /// At most `max` snapshots that pass `filter` and whose id is greater than `after`.
    pub fn list_snapshots(&self, filter: &SnapshotFilter, after: Option<&str>, max: usize) -> Page<Snapshot> {
        let index = self.index();
        let mut records: Box<dyn Iterator<Item = &SnapshotRecord>> = match &filter.source {
            Some(source) => Box::new(index.snapshots_of(source, after)),
            None => Box::new(index.snapshots_after(after)),
        };
        let mut cut = records.by_ref().filter(|record| is_cut(record));
        let entries = cut.by_ref().take(max).map(|record| self.snapshot(record)).collect();
        Page { entries, more: cut.next().is_some() }
    }

    pub(super) fn snapshot(&self, record: &SnapshotRecord) -> Snapshot {
        Snapshot {
            id: record.id.clone(),
            source: record.source.clone(),
            size: record.size,
            created: record.created.into(),
            ready: record.state == Phase::Ready,
            group: record.group.clone(),
            topology: self.topology(),
        }
    }
}

/// A copy under way is cut: its source does not change any more.
fn is_cut(record: &SnapshotRecord) -> bool {
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
        created: Moment::now(),
        state: Phase::Creating,
        source: volume.id.clone(),
        size: volume.size,
        format: volume.format.clone(),
        group,
        image_inode: None,
    }
}
