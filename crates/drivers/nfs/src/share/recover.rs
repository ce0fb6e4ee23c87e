//! Recovery: finishes or undoes what a crash left. Runs when a share is opened and every hour, also while other
//! controllers work on the same share: whatever is younger than the grace period may belong to one of them.

use std::path::Path;
use std::time::SystemTime;

use super::directory::Found;
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
        for slot in self.list_records::<VolumeRecord>()? {
            done += self.attempt(&slot.key, self.recover_volume(&slot, now));
        }
        for slot in self.list_records::<NameRecord>()? {
            done += self.attempt(&slot.key, self.recover_name(&slot, now));
        }
        let (recovered, mut staged) = self.recover_snapshots(content, now)?;
        done += recovered;
        for slot in self.list_records::<DirectoryRecord>()? {
            done += self.attempt(&slot.key, self.recover_directory(&slot, now));
            let current = self.read_record::<DirectoryRecord>(&slot.key)?;
            if let Some(DirectoryUse::Volume {
                state: DirectoryState::Creating { staging: Some(id) }, ..
            }) = current.record.map(|record| record.usage)
            {
                staged.insert(id);
            }
        }
        for id in staging.iter().filter(|id| !staged.contains(*id)) {
            done += self.attempt(id, self.recover_staging(id, now));
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
        Ok(done)
    }

    /// One object that cannot be recovered must not keep the others from it.
    pub(super) fn attempt(&self, object: &str, result: Result<bool, ShareError>) -> u64 {
        match result {
            Ok(done) => u64::from(done),
            Err(error) => {
                tracing::warn!(object, %error, "failed to recover");
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
            VolumeState::Creating if self.job_is_alive(&JobKey::Volume(volume.handle.clone()))? => Ok(false),
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
                    if unused && self.read_record::<VolumeRecord>(handle)?.record.is_none() {
                        self.release_directory(path, handle, OnDelete::Delete)?;
                        released = true;
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
            DirectoryUse::Archive { .. } => Ok(false),
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
        match file.parent() {
            // In one step: a writer finds the old tombstone, or no directory.
            Some(dir) => self.discard(dir).map(|()| true),
            None => Ok(false),
        }
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
