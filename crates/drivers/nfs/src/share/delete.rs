//! DeleteVolume: only what the records prove to be the volume's own is touched.
//!
//! The volume's record becomes `deleting`, its reference to the directory is removed, and the last reference moves the
//! directory to the trash or the archive. A handle without a record is success, and nothing is touched.

use super::create::{ATTEMPTS, contended};
use super::directory::{Found, staged, with_state};
use super::error::During as _;
use super::files::{ID_XATTR, is_beneath_other_type, none_if_missing};
use super::record::{
    Destination, DirectoryIdentity, DirectoryRecord, DirectoryState, DirectoryUse, Origin, VolumeRecord,
    VolumeState,
};
use super::root::{SHARE_RECORD, own};
use super::snapshot_record::JobKey;
use super::store::{Slot, Swap};
use super::trash::trash_data;
use super::{DeleteVolume, Deletion, ErrorKind, Share, ShareError};
use crate::parameters::OnDelete;
use crate::path::{MAX_COMPONENT, RECORDS, SharePath};

impl Share {
    pub(super) fn delete_volume(&self, request: &DeleteVolume) -> Result<Deletion, ShareError> {
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<VolumeRecord>(&request.handle)?;
            let Some(volume) = slot.record.clone() else {
                // A tombstone: repeats of a deletion that succeeded are usual.
                let deleted = slot.generation > 0;
                return Ok(if deleted { Deletion::Done } else { Deletion::NoRecord });
            };
            if matches!(volume.state, VolumeState::Deleting { .. }) {
                return self.finish_delete(&slot).map(|()| Deletion::Done);
            }
            let on_delete = volume.on_delete.unwrap_or(request.default_on_delete);
            let deleting = VolumeRecord { state: VolumeState::Deleting { on_delete }, ..volume };
            if let Swap::Done(slot) = self.swap_record(&slot, Some(deleting))? {
                return self.finish_delete(&slot).map(|()| Deletion::Done);
            }
        }
        Err(contended(&request.handle))
    }

    /// Finishes a deletion that has begun.
    pub(super) fn finish_delete(&self, slot: &Slot<VolumeRecord>) -> Result<(), ShareError> {
        let Some(volume) = &slot.record else { return Ok(()) };
        let VolumeState::Deleting { on_delete } = volume.state else { return Ok(()) };
        if volume.source.is_some() {
            self.cancel_job(&JobKey::Volume(volume.handle.clone()))?;
        }
        self.release_directory(slot, volume, on_delete)?;
        // An earlier attempt may have stopped before this.
        self.remove_parents(&volume.path)?;
        self.release_name(volume)?;
        // A conflict means that another controller finished it.
        self.swap_record(slot, None).map(drop)
    }

    /// Removes a deleted volume's reference to its directory. The last reference decides what happens to the directory.
    fn release_directory(
        &self,
        deleting: &Slot<VolumeRecord>,
        volume: &VolumeRecord,
        on_delete: OnDelete,
    ) -> Result<(), ShareError> {
        let (path, handle) = (&volume.path, volume.handle.as_str());
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<DirectoryRecord>(path.as_str())?;
            // After the directory's record was read: while the volume's record is the same, a reference in it is not that of
            // a new volume with the same handle, which another controller created after it finished this deletion.
            if self.read_record::<VolumeRecord>(handle)?.generation != deleting.generation {
                return Ok(());
            }
            let Some(directory) = &slot.record else { return Ok(()) };
            let DirectoryUse::Volume { references, state } = &directory.usage else { return Ok(()) };
            if !references.contains(handle) {
                return Ok(());
            }
            if let DirectoryState::Removing { .. } = state {
                return self.finish_removal(&slot);
            }
            if references.len() > 1 {
                let mut references = references.clone();
                references.remove(handle);
                // In place: only the last step of its creation is missing, and the other volumes use it.
                let in_place = match (&directory.identity, state) {
                    (Some(identity), DirectoryState::Creating { .. }) => {
                        self.compare(path.as_path(), identity)? == Found::Same
                    }
                    _ => false,
                };
                let state = if in_place { DirectoryState::Ready } else { state.clone() };
                let usage = DirectoryUse::Volume { references, state };
                // What this volume's class promised to keep, the others must not delete.
                let kept = directory.kept.more_careful(on_delete);
                let released = DirectoryRecord { usage, kept, ..directory.clone() };
                match self.swap_record(&slot, Some(released))? {
                    Swap::Done(_) => return Ok(()),
                    Swap::Conflict => continue,
                }
            }
            let removing = self.removal(directory, state, handle, on_delete)?;
            match self.swap_record(&slot, removing.clone())? {
                Swap::Conflict => {}
                Swap::Done(slot) if removing.is_some() => return self.finish_removal(&slot),
                Swap::Done(_) => return Ok(()),
            }
        }
        Err(contended(path.as_str()))
    }

    /// The directory's next record when its last reference goes: `None` to leave the directory as it is.
    fn removal(
        &self,
        directory: &DirectoryRecord,
        state: &DirectoryState,
        handle: &str,
        on_delete: OnDelete,
    ) -> Result<Option<DirectoryRecord>, ShareError> {
        let Some(identity) = &directory.identity else { return Ok(None) };
        let mut on_delete = on_delete.more_careful(directory.kept);
        if let DirectoryState::Creating { staging: Some(staging) } = state {
            // Out of reach for another controller that is about to rename it into place; then it is there, or nowhere.
            self.discard(&own(["staging", staging]))?;
            if self.compare(&staged(staging), identity)? == Found::Same {
                let message = format!("failed to discard the unfinished directory of {handle}; try again");
                return Err(ShareError::new(ErrorKind::Unavailable, message));
            }
            if self.compare(directory.path.as_path(), identity)? != Found::Same {
                return Ok(None);
            }
            // It was never returned to a caller.
            on_delete = OnDelete::Delete;
        }
        if directory.origin == Origin::Existing || on_delete == OnDelete::Retain {
            return Ok(None);
        }
        self.refuse_share(&directory.path)?;
        let destination = match (directory.origin, on_delete) {
            (Origin::Existing, _) | (_, OnDelete::Retain) => return Ok(None),
            (Origin::Created | Origin::Adopted, OnDelete::Delete) => Destination::Trash(self.new_id()?),
            (Origin::Created | Origin::Adopted, OnDelete::Archive) => {
                Destination::Archive(self.claim_archive(&directory.path, handle)?)
            }
        };
        let usage = with_state(&directory.usage, DirectoryState::Removing { destination });
        Ok(Some(DirectoryRecord { usage, ..directory.clone() }))
    }

    /// Moves a directory to its destination and drops its record. Can be repeated.
    pub(super) fn finish_removal(&self, slot: &Slot<DirectoryRecord>) -> Result<(), ShareError> {
        let Some(directory) = &slot.record else { return Ok(()) };
        let DirectoryUse::Volume { state: DirectoryState::Removing { destination }, .. } = &directory.usage
        else {
            return Ok(());
        };
        let Some(identity) = &directory.identity else { return Ok(()) };
        let target = match destination {
            Destination::Trash(id) => {
                self.prepare_trash(id, identity)?;
                trash_data(id)
            }
            Destination::Archive(path) => path.as_path().to_owned(),
        };
        let path = &directory.path;
        // The path first: another controller may move it in between.
        match (self.compare(path.as_path(), identity)?, self.compare(&target, identity)?) {
            // Moved by an earlier attempt; what is at the path now is not the volume's.
            (_, Found::Same) => {}
            (Found::Missing, _) => tracing::warn!(%path, "directory of deleted volume does not exist"),
            (Found::Other, _) => return Err(self.wrong_directory(slot)),
            (Found::Same, Found::Other) => match destination {
                Destination::Trash(_) => return Err(self.wrong_directory(slot)),
                // Someone created the archive's name by hand.
                Destination::Archive(taken) => return self.archive_elsewhere(slot, taken),
            },
            (Found::Same, Found::Missing) => {
                self.refuse_share(path)?;
                if let Destination::Archive(archive) = destination {
                    match self.make_parents(archive) {
                        // A parent of the archive became a volume or an archive.
                        Err(error) if error.kind == ErrorKind::Invalid => {
                            return self.archive_elsewhere(slot, archive);
                        }
                        made => made?,
                    }
                }
                self.move_away(slot, identity, &target)?;
            }
        }
        if let Destination::Archive(archive) = destination {
            self.record_archive(archive, identity)?;
        }
        // A conflict means that another controller finished it.
        self.swap_record(slot, None)?;
        self.remove_parents(path)
    }

    /// Refuses to move a directory that another class or installation uses as its share: with it would go volumes and snapshots
    /// that have their records in there.
    fn refuse_share(&self, path: &SharePath) -> Result<(), ShareError> {
        match self.is_share(path.as_path()) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let message = format!(
                    "directory {path} contains {path}/{RECORDS}, so it is a share with volumes or snapshots of its own, and was not \
                     touched: delete these first, then remove {path}/{RECORDS}"
                );
                Err(ShareError::new(ErrorKind::Precondition, message))
            }
            Err(error) => Err(error).during("look for another share's records in", path.as_str()),
        }
    }

    /// Whether a directory has the records of a share. Only a file that every share has counts: a user may have a directory of
    /// the same name.
    pub(super) fn is_share(&self, path: &std::path::Path) -> std::io::Result<bool> {
        match self.files.stat(&path.join(own([SHARE_RECORD]))) {
            Ok(found) => Ok(found.is_some()),
            Err(error) if is_beneath_other_type(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renames a volume's directory and checks that it was the right one.
    fn move_away(
        &self,
        slot: &Slot<DirectoryRecord>,
        identity: &DirectoryIdentity,
        target: &std::path::Path,
    ) -> Result<(), ShareError> {
        let Some(DirectoryRecord { path, .. }) = &slot.record else { return Ok(()) };
        let renamed = self.files.rename(path.as_path(), target);
        match (self.compare(target, identity)?, self.compare(path.as_path(), identity)?) {
            (Found::Same, _) => {
                if let Some(parent) = target.parent().filter(|parent| *parent != std::path::Path::new("")) {
                    // Another controller finished, and purged the trash.
                    let synced = none_if_missing(self.files.sync(parent));
                    synced.during("sync the parent of", &target.display().to_string())?;
                }
                Ok(())
            }
            // Between the comparison and the rename, another controller moved the volume away, and a new volume was created.
            (Found::Other, Found::Missing) if renamed.is_ok() => {
                self.files.rename(target, path.as_path()).during("move back", path.as_str())?;
                Err(self.wrong_directory(slot))
            }
            // Another controller moved and purged it, or the rename failed.
            (Found::Missing, Found::Missing | Found::Other) => Ok(()),
            (Found::Missing | Found::Other, _) => {
                none_if_missing(renamed).during("move away", path.as_str())?;
                Err(self.wrong_directory(slot))
            }
        }
    }

    /// The error for a directory that is not the volume's. What is at the path of a removal that another controller finished
    /// is none of its business.
    fn wrong_directory(&self, slot: &Slot<DirectoryRecord>) -> ShareError {
        let path = &slot.key;
        match self.read_record::<DirectoryRecord>(path) {
            Err(error) => error,
            Ok(current) if current != *slot => contended(path),
            Ok(_) => self.wrong_identity(slot),
        }
    }

    /// The error for a directory that does not have the recorded identity.
    fn wrong_identity(&self, slot: &Slot<DirectoryRecord>) -> ShareError {
        let path = &slot.key;
        let message = match self.changed_id(slot) {
            Some(id) => format!(
                "directory {path} has the recorded file ID, but another {ID_XATTR}, so it was not touched: either a program copied \
                 attributes to it (as rsync -X does), then let the deletion finish with `setfattr -n {ID_XATTR} -v {id}` on the \
                 directory, or it is another directory, then move it away"
            ),
            None => format!(
                "directory {path} is not the one that was created for the volume (other file ID), so it was not touched: move it \
                 away to let the deletion finish"
            ),
        };
        ShareError::new(ErrorKind::Internal, message)
    }

    /// The recorded ID of a directory that is in place, by its file ID, but has another one: users of a volume can change it.
    fn changed_id(&self, slot: &Slot<DirectoryRecord>) -> Option<String> {
        let DirectoryRecord { path, identity: Some(identity), .. } = slot.record.as_ref()? else {
            return None;
        };
        let found = self.files.stat(path.as_path()).ok()??;
        identity.xattr.clone().filter(|_| found.file_id == identity.file_id)
    }

    /// Reserves a name for an archived directory: `archived-<path>`, as csi-driver-nfs, or a unique one if that is taken.
    fn claim_archive(&self, path: &SharePath, handle: &str) -> Result<SharePath, ShareError> {
        for attempt in 0..ATTEMPTS {
            let suffix = if attempt == 0 { String::new() } else { self.new_id()? };
            let archive = archive_path(path, &suffix);
            if self.claim_archive_path(&archive, handle)? {
                return Ok(archive);
            }
        }
        Err(contended(path.as_str()))
    }

    /// Chooses another name for an archive that cannot be used, and goes on.
    fn archive_elsewhere(&self, slot: &Slot<DirectoryRecord>, taken: &SharePath) -> Result<(), ShareError> {
        let Some(directory) = &slot.record else { return Ok(()) };
        let DirectoryUse::Volume { references, .. } = &directory.usage else { return Ok(()) };
        let handle = references.first().map(String::as_str).unwrap_or_default();
        let claim = self.read_record::<DirectoryRecord>(taken.as_str())?;
        let unused = DirectoryUse::Archive { handle: handle.to_owned() };
        if claim.record.as_ref().is_some_and(|record| record.usage == unused && record.identity.is_none()) {
            self.swap_record(&claim, None)?;
        }
        let archive = archive_path(&directory.path, &self.new_id()?);
        if !self.claim_archive_path(&archive, handle)? {
            return Err(contended(directory.path.as_str()));
        }
        let destination = Destination::Archive(archive);
        let usage = with_state(&directory.usage, DirectoryState::Removing { destination });
        match self.swap_record(slot, Some(DirectoryRecord { usage, ..directory.clone() }))? {
            Swap::Done(slot) => self.finish_removal(&slot),
            Swap::Conflict => Err(contended(directory.path.as_str())),
        }
    }

    /// Reserves one name for an archived directory; false if it is taken. A repeat gets the name it reserved before.
    fn claim_archive_path(&self, archive: &SharePath, handle: &str) -> Result<bool, ShareError> {
        for parent in archive.parents() {
            let parent = self.read_record::<DirectoryRecord>(parent.as_str())?;
            let passable = [DirectoryUse::Parent, DirectoryUse::Removed];
            if parent.record.is_some_and(|record| !passable.contains(&record.usage)) {
                return Ok(false);
            }
        }
        let slot = self.read_record::<DirectoryRecord>(archive.as_str())?;
        if self.stat(archive.as_path())?.is_some() {
            return Ok(false);
        }
        let usage = DirectoryUse::Archive { handle: handle.to_owned() };
        match &slot.record {
            Some(DirectoryRecord { usage: claimed, identity: None, .. }) if *claimed == usage => Ok(true),
            Some(DirectoryRecord {
                usage: DirectoryUse::Volume { .. } | DirectoryUse::Parent | DirectoryUse::Removed,
                ..
            }) => Ok(false),
            // An archive that the administrator removed can be replaced; one that is still being moved cannot.
            Some(DirectoryRecord { usage: DirectoryUse::Archive { .. }, identity: None, .. }) => Ok(false),
            Some(DirectoryRecord { usage: DirectoryUse::Archive { .. }, identity: Some(_), .. }) | None => {
                let record = DirectoryRecord {
                    path: archive.clone(),
                    origin: Origin::Created,
                    identity: None,
                    kept: OnDelete::default(),
                    limited: false,
                    usage,
                };
                Ok(matches!(self.swap_record(&slot, Some(record))?, Swap::Done(_)))
            }
        }
    }

    /// Records that an archive is in place.
    fn record_archive(&self, archive: &SharePath, identity: &DirectoryIdentity) -> Result<(), ShareError> {
        let slot = self.read_record::<DirectoryRecord>(archive.as_str())?;
        match slot.record.clone() {
            Some(record) if record.identity.is_none() => {
                self.swap_record(
                    &slot,
                    Some(DirectoryRecord { identity: Some(identity.clone()), ..record }),
                )?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// `archived-<path>`, or with a suffix; the first component is shortened to what a file name can have.
fn archive_path(path: &SharePath, suffix: &str) -> SharePath {
    const PREFIX: &str = "archived-";
    let (first, rest) = match path.as_str().split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path.as_str(), None),
    };
    let suffix =
        suffix.split('-').next().filter(|suffix| !suffix.is_empty()).map(|suffix| format!("-{suffix}"));
    let suffix = suffix.unwrap_or_default();
    let mut end = first.len().min(MAX_COMPONENT - PREFIX.len() - suffix.len());
    while !first.is_char_boundary(end) {
        end -= 1;
    }
    let name = format!("{PREFIX}{}{suffix}", &first[..end]);
    let joined = rest.map_or_else(|| name.clone(), |rest| format!("{name}/{rest}"));
    // A prefix does not make an allowed path invalid, except that it can become too long.
    SharePath::new(&joined).or_else(|_| SharePath::new(&name)).unwrap_or_else(|_| path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    // B8
    #[test]
    fn archive_names_are_those_of_csi_driver_nfs_or_unique() {
        let path = |text: &str| SharePath::new(text).unwrap();
        assert_eq!(archive_path(&path("a"), "").as_str(), "archived-a");
        assert_eq!(archive_path(&path("a/b"), "").as_str(), "archived-a/b");
        assert_eq!(archive_path(&path("a/b"), "0123-4567").as_str(), "archived-a-0123/b");
        let long = "ä".repeat(127);
        let archived = archive_path(&path(&long), "01234567-89");
        assert!(archived.as_str().len() <= MAX_COMPONENT && archived.as_str().ends_with("-01234567"));
    }
}
