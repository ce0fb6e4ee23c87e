//! Group snapshots: all members are taken at one point in time, all or none. The group's record is written before its
//! members and removed after them, so an incomplete group is always recognized as one.

use wharf_driver::backend::{BackendError, DeleteError, GroupSnapshot, NewGroupSnapshot, SnapshotError};

use super::PoolCore;
use super::snapshots::{new_record, no_volume};
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::locks::VolumeLock;
use crate::parameters;
use crate::record::{GroupRecord, GroupState, Member, Timestamp, VERSION};
use crate::store;

impl PoolCore {
    /// Takes a group snapshot. Idempotent for the same name and sources.
    pub fn create_group(&self, wanted: &NewGroupSnapshot) -> Result<GroupSnapshot, SnapshotError> {
        let NewGroupSnapshot { name, sources, .. } = wanted;
        parameters::of_snapshot(&wanted.parameters)
            .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        let id = ids::derive(Kind::Group, name);
        let _lock = self.locks.exclusive(&id)?;
        self.check_identity()?;
        self.refuse_broken(&id)?;
        let existing = self.index().group(&id).cloned();
        match existing {
            Some(record) if record.state != GroupState::Ready => self.undo_group(record)?,
            Some(record) => {
                let members = record.members.iter().map(|member| &member.source);
                if record.name != *name || !members.eq(sources) {
                    return Err(SnapshotError::Exists(format!(
                        "a group snapshot named {name:?} exists ({id}), but of other volumes"
                    )));
                }
                return self.wait_for_group(&record);
            }
            None => {}
        }
        let members: Vec<Member> = sources
            .iter()
            .map(|source| Member { source: source.clone(), snapshot: ids::derive_member(name, source) })
            .collect();
        for member in &members {
            // Report it once, as for a single snapshot.
            if let Some(failure) = self.copies.take_failure(&member.snapshot) {
                return Err(failure.into());
            }
        }
        self.take_group(name, id.clone(), members)?;
        let record = self.index().group(&id).cloned();
        let gone = || SnapshotError::Backend(BackendError::Busy(format!("{id} was abandoned: retry")));
        self.wait_for_group(&record.ok_or_else(gone)?)
    }

    fn take_group(&self, name: &str, id: String, members: Vec<Member>) -> Result<(), SnapshotError> {
        let mut held = Vec::new();
        let mut volumes = Vec::with_capacity(members.len());
        for Member { source, .. } in &members {
            if self.ready_volume(source)?.is_none() {
                return Err(no_volume(source));
            }
            held.push(self.locks.shared(source)?);
            volumes.push(self.ready_volume(source)?.ok_or_else(|| no_volume(source))?);
        }
        let record = GroupRecord {
            version: VERSION,
            id: id.clone(),
            name: name.to_owned(),
            created: Timestamp::now(),
            state: GroupState::Creating,
            members,
        };
        let snapshots: Vec<_> = std::iter::zip(&volumes, &record.members)
            .map(|(volume, member)| {
                let name = format!("{id}/{}", volume.id);
                (volume, new_record(volume, member.snapshot.clone(), name, Some(id.clone())))
            })
            .collect();
        self.admit_snapshots(&snapshots)?;
        let made = self.save_group(record.clone()).map_err(SnapshotError::from).and_then(|()| {
            self.take_snapshots(&snapshots)?;
            Ok(self.save_group(GroupRecord {
                state: GroupState::Ready,
                created: Timestamp::now(),
                ..record.clone()
            })?)
        });
        if made.is_err()
            && let Err(fault) = self.undo_group(record)
        {
            tracing::error!(group_snapshot = id, error = %fault, "failed to undo an incomplete group snapshot; the next call or start retries");
        }
        made
    }

    /// Waits up to `COPY_WAIT` for the members' copies.
    fn wait_for_group(&self, record: &GroupRecord) -> Result<GroupSnapshot, SnapshotError> {
        let members: Vec<&str> = record.members.iter().map(|member| member.snapshot.as_str()).collect();
        self.enqueue_and_wait(&members);
        for snapshot in members {
            if let Some(failure) = self.copies.take_failure(snapshot) {
                return Err(failure.into());
            }
        }
        Ok(self.group(record)?)
    }

    /// Deletes a group and its members. Succeeds if it does not exist.
    pub fn delete_group(&self, id: &str) -> Result<(), DeleteError> {
        if !ids::is(Kind::Group, id) {
            return Ok(());
        }
        self.check_identity()?;
        self.refuse_broken(id)?;
        if self.index().group(id).is_none() {
            return Ok(());
        }
        let _lock = self.locks.exclusive(id)?;
        let Some(record) = self.index().group(id).cloned() else { return Ok(()) };
        // Held until the end: no restore can start from a member that is being deleted.
        let _held = self.lock_members(&record)?;
        for Member { snapshot, .. } in &record.members {
            self.refuse_copy_source(snapshot).map_err(DeleteError::InUse)?;
        }
        let record = self.mark_group_deleting(record)?;
        for Member { snapshot, .. } in &record.members {
            self.cancel_and_discard(snapshot)?;
        }
        self.remove_group(&record)?;
        tracing::info!(group_snapshot = id, "deleted group snapshot");
        Ok(())
    }

    fn lock_members(&self, record: &GroupRecord) -> Result<Vec<VolumeLock<'_>>, BackendError> {
        record.members.iter().map(|member| self.locks.exclusive(&member.snapshot)).collect()
    }

    /// Undoes a group for which the pool has no space, unless one of its members is in use; returns whether it did.
    pub(super) fn abandon_group(&self, record: GroupRecord) -> Result<bool, Fault> {
        let Ok(_held) = self.lock_members(&record) else { return Ok(false) };
        if record.members.iter().any(|member| self.refuse_copy_source(&member.snapshot).is_err()) {
            return Ok(false);
        }
        self.undo_group(record).map(|()| true)
    }

    /// Durably marks a group as being deleted, before the first member is deleted.
    fn mark_group_deleting(&self, record: GroupRecord) -> Result<GroupRecord, Fault> {
        if record.state == GroupState::Deleting {
            return Ok(record);
        }
        let id = &record.id;
        let (from, to) = (store::record_of(id), store::deleting_of(id));
        self.kernel()
            .rename(&self.store.at(&from), &self.store.at(&to))
            .during("mark it as being deleted", id)?;
        let record = GroupRecord { state: GroupState::Deleting, ..record };
        self.index().put_group(record.clone());
        self.store.sync(store::GROUPS.as_ref()).during("mark it as being deleted", &record.id)?;
        Ok(record)
    }

    /// Undoes an unfinished group, or finishes its deletion.
    pub(super) fn undo_group(&self, mut record: GroupRecord) -> Result<(), Fault> {
        if record.state == GroupState::Ready {
            record = self.mark_group_deleting(record)?;
        }
        for Member { snapshot, .. } in &record.members {
            let exists = self.index().snapshot(snapshot).is_some();
            if exists {
                self.discard(snapshot)?;
            }
        }
        self.remove_group(&record)
    }

    fn remove_group(&self, record: &GroupRecord) -> Result<(), Fault> {
        let id = &record.id;
        let path = match record.state {
            GroupState::Deleting => store::deleting_of(id),
            GroupState::Creating | GroupState::Ready => store::record_of(id),
        };
        self.store.remove_file(&path).during("remove its record", id)?;
        self.index().remove_group(id);
        self.store.sync(store::GROUPS.as_ref()).during("make its deletion durable", id)
    }

    /// One group snapshot, if it is ready.
    pub fn get_group(&self, id: &str) -> Result<Option<GroupSnapshot>, BackendError> {
        self.refuse_broken(id)?;
        let record = self.index().group(id).filter(|record| record.state == GroupState::Ready).cloned();
        record.map(|record| self.group(&record)).transpose()
    }

    fn group(&self, record: &GroupRecord) -> Result<GroupSnapshot, BackendError> {
        let index = self.index();
        let mut snapshots = Vec::with_capacity(record.members.len());
        for Member { snapshot, .. } in &record.members {
            let member = index.snapshot(snapshot).ok_or_else(|| {
                BackendError::Internal(format!(
                    "{} has lost its member {snapshot}: delete the group",
                    record.id
                ))
            })?;
            snapshots.push(self.snapshot(member));
        }
        Ok(GroupSnapshot { id: record.id.clone(), created: record.created.into(), snapshots })
    }
}
