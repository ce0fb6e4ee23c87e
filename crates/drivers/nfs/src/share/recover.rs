//! Recovery: finishes or undoes what a crash left. Runs when a share is opened and every hour, also while other
//! controllers work on the same share: whatever is younger than the grace period may belong to one of them.

use std::path::Path;
use std::time::SystemTime;

use super::directory::Found;
use super::error::During as _;
use super::record::{
    DirectoryRecord, DirectoryState, DirectoryUse, NameRecord, Origin, Record, VolumeRecord, VolumeState,
};
use super::root::own;
use super::snapshot_record::{JobKey, JobRecord, SnapshotRecord};
use super::store::{Slot, Swap};
use super::{Share, ShareError};
use crate::parameters::OnDelete;
use crate::path::SharePath;

impl Share {
    /// Returns how many objects were finished, undone or removed.
    pub(super) fn recover(&self) -> Result<u64, ShareError> {
        // A share on which the driver has nothing is not written to.
        if self.stat(&own(["tmp"]))?.is_none() {
            return Ok(0);
        }
        let now = self.server_time()?;
        // Before the records are read: a staging directory that is recorded later is not in this list.
        let staging = self.names(&own(["staging"]))?;
        let content = self.names(&own(["content"]))?;
        let mut done = 0;
        let volumes = self.list_records::<VolumeRecord>()?;
        for slot in &volumes.slots {
            done += self.attempt(&slot.key, self.recover_volume(slot, now));
        }
        let names = self.list_records::<NameRecord>()?;
        for slot in &names.slots {
            done += self.attempt(&slot.key, self.recover_name(slot, now));
        }
        let (recovered, mut staged) = self.recover_snapshots(content, now)?;
        done += recovered;
        let directories = self.list_records::<DirectoryRecord>()?;
        done += self.attempt("misplaced directories", self.restore_misplaced(&directories.slots));
        for slot in &directories.slots {
            done += self.attempt(&slot.key, self.recover_directory(slot, now));
            let current = self.read_record::<DirectoryRecord>(&slot.key)?;
            if let Some(DirectoryUse::Volume {
                state: DirectoryState::Creating { staging: Some(id) }, ..
            }) = current.record.map(|record| record.usage)
            {
                staged.insert(id);
            }
        }
        // A record that cannot be read may be that of a staging directory.
        if directories.unreadable.is_empty() {
            for id in staging.iter().filter(|id| !staged.contains(*id)) {
                done += self.attempt(id, self.recover_staging(id, now));
            }
        }
        for store in [
            VolumeRecord::STORE,
            NameRecord::STORE,
            DirectoryRecord::STORE,
            SnapshotRecord::STORE,
            JobRecord::STORE,
        ] {
            for name in self.names(&own([store]))? {
                done += self.attempt(&name, self.recover_empty_record(&own([store, &name]), now));
            }
        }
        for name in self.names(&own(["tmp"]))? {
            let file = own(["tmp", &name]);
            if self.is_abandoned(&file, now)? {
                self.remove(&file)?;
                done += 1;
            }
        }
        self.ensure_reserve()?;
        if done > 0 {
            tracing::info!(objects = done, "recovered share");
        }
        Ok(done)
    }

    /// One object that cannot be recovered must not keep the others from it.
    pub(super) fn attempt(&self, object: &str, result: Result<bool, ShareError>) -> u64 {
        self.tick();
        match result {
            Ok(done) => u64::from(done),
            Err(error) => {
                tracing::warn!(object, %error, "failed to recover object on share; continuing with the others");
                0
            }
        }
    }

    fn recover_volume(&self, slot: &Slot<VolumeRecord>, now: SystemTime) -> Result<bool, ShareError> {
        let Some(volume) = &slot.record else { return self.remove_tombstone(slot, now) };
        match volume.state {
            VolumeState::Ready => Ok(false),
            VolumeState::Deleting { .. } => self.finish_delete(slot).map(|()| true),
            VolumeState::Creating if !self.is_abandoned(&self.record_file(slot), now)? => Ok(false),
            VolumeState::Creating if self.job_is_alive(&JobKey::Volume(volume.handle.clone()), now)? => {
                Ok(false)
            }
            VolumeState::Creating => {
                let directory = self.read_record::<DirectoryRecord>(volume.path.as_str())?;
                let in_place = matches!(
                    directory.record.map(|record| record.usage),
                    Some(DirectoryUse::Volume { references, state: DirectoryState::Ready })
                        if references.contains(&volume.handle)
                );
                if in_place {
                    let ready = VolumeRecord { state: VolumeState::Ready, ..volume.clone() };
                    return Ok(matches!(self.swap_record(slot, Some(ready))?, Swap::Done(_)));
                }
                self.undo_create(slot, volume).map(|()| true)
            }
        }
    }

    /// A name whose volume never got a record, or is deleted.
    fn recover_name(&self, slot: &Slot<NameRecord>, now: SystemTime) -> Result<bool, ShareError> {
        let Some(name) = &slot.record else { return self.remove_tombstone(slot, now) };
        let unused = self.is_abandoned(&self.record_file(slot), now)?
            && self.read_record::<VolumeRecord>(&name.handle)?.record.is_none();
        Ok(unused && matches!(self.swap_record(slot, None)?, Swap::Done(_)))
    }

    fn recover_directory(&self, slot: &Slot<DirectoryRecord>, now: SystemTime) -> Result<bool, ShareError> {
        let Some(directory) = &slot.record else { return self.remove_tombstone(slot, now) };
        let path = &directory.path;
        match &directory.usage {
            DirectoryUse::Volume { state: DirectoryState::Removing { .. }, .. } => {
                self.finish_removal(slot).map(|()| true)
            }
            DirectoryUse::Volume { references, state } => {
                // References of volumes that never got a record, or were undone meanwhile.
                if !self.is_abandoned(&self.record_file(slot), now)? {
                    return Ok(false);
                }
                let mut released = false;
                for handle in references {
                    let unused = match (directory.origin, state) {
                        (Origin::Adopted, _) => false,
                        (_, DirectoryState::Creating { .. }) | (Origin::Existing, _) => true,
                        // It may hold data although the record is lost: only an empty directory is removed.
                        (Origin::Created, _) => self
                            .files
                            .list(path.as_path())
                            .ok()
                            .flatten()
                            .is_some_and(|names| names.is_empty()),
                    };
                    if unused {
                        released |= self.release_dangling(path, handle)?;
                    }
                }
                Ok(released)
            }
            DirectoryUse::Parent => {
                let missing = match &directory.identity {
                    Some(identity) => self.compare(path.as_path(), identity)? == Found::Missing,
                    None => self.stat(path.as_path())?.is_none(),
                };
                if self.is_abandoned(&self.record_file(slot), now)? {
                    if missing {
                        return Ok(matches!(self.swap_record(slot, None)?, Swap::Done(_)));
                    }
                    if directory.origin == Origin::Created {
                        return self.remove_unused_parent(slot);
                    }
                }
                Ok(false)
            }
            DirectoryUse::Removed => Ok(self.is_abandoned(&self.record_file(slot), now)?
                && matches!(self.swap_record(slot, None)?, Swap::Done(_))),
            DirectoryUse::Archive { .. } => Ok(false),
        }
    }

    /// Moves directories of volumes back that a deletion of an earlier volume at the same path took by mistake, before it was
    /// killed (see [`super::delete`]). They are where something else belongs: in the trash, or in an archive.
    fn restore_misplaced(&self, directories: &[Slot<DirectoryRecord>]) -> Result<bool, ShareError> {
        let mut missing = Vec::new();
        for record in directories.iter().filter_map(|slot| slot.record.as_ref()) {
            let DirectoryUse::Volume { state: DirectoryState::Ready, .. } = record.usage else { continue };
            let Some(identity) = &record.identity else { continue };
            if self.compare(record.path.as_path(), identity)? == Found::Missing {
                missing.push((&record.path, identity));
            }
        }
        if missing.is_empty() {
            return Ok(false);
        }
        let mut misplaced = self.misplaced_trash()?;
        for record in directories.iter().filter_map(|slot| slot.record.as_ref()) {
            if let (DirectoryUse::Archive { .. }, Some(identity)) = (&record.usage, &record.identity)
                && self.compare(record.path.as_path(), identity)? == Found::Other
            {
                misplaced.push(record.path.as_path().to_owned());
            }
        }
        let mut restored = false;
        for (path, identity) in missing {
            for from in &misplaced {
                if self.compare(from, identity)? == Found::Same && self.stat(path.as_path())?.is_none() {
                    tracing::warn!(%path, from = %from.display(), "moving misplaced directory back to the path of its volume");
                    self.make_parents(path)?;
                    self.files.rename(from, path.as_path()).during("move back", path.as_str())?;
                    restored = true;
                }
            }
        }
        Ok(restored)
    }

    /// Removes a reference whose volume has no record. The volume gets a record for that, so that a create of the same
    /// volume comes before, or waits.
    fn release_dangling(&self, path: &SharePath, handle: &str) -> Result<bool, ShareError> {
        let slot = self.read_record::<VolumeRecord>(handle)?;
        if slot.record.is_some() {
            return Ok(false);
        }
        let deleting = VolumeRecord {
            handle: handle.to_owned(),
            name: String::new(),
            path: path.clone(),
            state: VolumeState::Deleting { on_delete: OnDelete::Delete },
            size: 0,
            context: Default::default(),
            options: Vec::new(),
            on_delete: None,
            source: None,
            mode: None,
            uid: None,
            gid: None,
            quota: Default::default(),
        };
        match self.swap_record(&slot, Some(deleting))? {
            Swap::Done(slot) => self.finish_delete(&slot).map(|()| true),
            Swap::Conflict => Ok(false),
        }
    }

    /// Removes a parent that a crash left empty.
    fn remove_unused_parent(&self, slot: &Slot<DirectoryRecord>) -> Result<bool, ShareError> {
        let Some(directory) = &slot.record else { return Ok(false) };
        let Some(identity) = &directory.identity else {
            // The intent is recorded, and the directory exists: complete the record first.
            self.make_parents(&below(&directory.path)?)?;
            return Ok(true);
        };
        if self.compare(directory.path.as_path(), identity)? != Found::Same {
            return Ok(false);
        }
        self.remove_parents(&below(&directory.path)?)?;
        Ok(self.stat(directory.path.as_path())?.is_none())
    }

    fn recover_staging(&self, id: &str, now: SystemTime) -> Result<bool, ShareError> {
        let dir = own(["staging", id]);
        if !self.is_abandoned(&dir, now)? {
            return Ok(false);
        }
        self.discard(&dir).map(|()| true)
    }

    /// Removes a tombstone when no writer can run any more that read the record before.
    pub(super) fn remove_tombstone<T: Record>(
        &self,
        slot: &Slot<T>,
        now: SystemTime,
    ) -> Result<bool, ShareError> {
        let file = self.record_file(slot);
        if !self.is_abandoned(&file, now)? {
            return Ok(false);
        }
        // By its number: a record that another controller wrote meanwhile has a higher one, and keeps its directory.
        self.remove(&file)?;
        file.parent().map_or(Ok(false), |dir| self.remove_own_dir(dir))
    }

    /// Removes the directory of a record that was never written.
    fn recover_empty_record(&self, dir: &Path, now: SystemTime) -> Result<bool, ShareError> {
        if !self.names(dir)?.is_empty() || !self.is_abandoned(dir, now)? {
            return Ok(false);
        }
        self.remove_own_dir(dir)
    }
}

/// Any path in a directory, to address the directory as its parent.
fn below(path: &SharePath) -> Result<SharePath, ShareError> {
    SharePath::new(&format!("{path}/x"))
        .map_err(|error| ShareError::new(super::ErrorKind::Internal, error.to_string()))
}
