//! The directories of volumes and of their parents: claim, create, place.
//!
//! A directory's record is its lock: whoever writes it decides what happens at that path. New directories are made in the
//! staging area under a random name, recorded with their identity, and renamed into place, so that each step can be
//! recognized later. Nothing is taken for the driver's own because of its path alone.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::create::{ATTEMPTS, contended};
use super::error::During as _;
use super::files::{Entry, EntryKind, has_no_xattrs, is_beneath_other_type};
use super::record::{
    DirectoryIdentity, DirectoryRecord, DirectoryState, DirectoryUse, Origin, VolumeRecord, VolumeState,
};
use super::root::own;
use super::store::{Slot, Swap};
use super::{ErrorKind, Share, ShareError};
use crate::parameters::OnDelete;
use crate::path::SharePath;

/// The mode of a volume's directory if the class does not say it, and of parents: as csi-driver-nfs creates them.
const DEFAULT_MODE: u32 = 0o755;

/// What is at a path, compared with a recorded identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The recorded directory.
    Same,
    /// Something else.
    Other,
    /// Nothing.
    Missing,
}

impl Share {
    /// Makes sure that the volume's directory is in place and references the volume. Returns whether it is limited.
    pub(super) fn make_directory(&self, volume: &VolumeRecord) -> Result<bool, ShareError> {
        for _ in 0..ATTEMPTS {
            self.make_parents(&volume.path)?;
            let slot = self.read_record::<DirectoryRecord>(volume.path.as_str())?;
            let Some(directory) = slot.record.clone() else {
                let claimed = self.new_directory(volume)?;
                self.swap_record(&slot, Some(claimed))?;
                continue;
            };
            match &directory.usage {
                DirectoryUse::Parent => {
                    return Err(nested(&volume.path, "contains directories of other volumes"));
                }
                DirectoryUse::Removed => return Err(removed_recently(&volume.path)),
                DirectoryUse::Archive { handle } => {
                    if self.stat(volume.path.as_path())?.is_none() {
                        // The administrator removed the archive.
                        self.swap_record(&slot, None)?;
                        continue;
                    }
                    return Err(nested(&volume.path, &format!("holds the archived volume {handle}")));
                }
                DirectoryUse::Volume { state: DirectoryState::Removing { .. }, .. } => {
                    self.finish_removal(&slot)?;
                }
                DirectoryUse::Volume { references, state } if !references.contains(&volume.handle) => {
                    if *state != DirectoryState::Ready && self.is_being_created(references)? {
                        let message =
                            format!("directory {} is being created for another volume", volume.path);
                        return Err(ShareError::new(ErrorKind::InProgress { percent: None }, message));
                    }
                    refuse_source(volume)?;
                    let joined = match state {
                        DirectoryState::Ready => self.joined(volume, &directory)?,
                        // It was gone, and the volume that began to create it again was undone.
                        _ => with_references(directory.clone(), &directory, &volume.handle),
                    };
                    self.swap_record(&slot, Some(joined))?;
                }
                DirectoryUse::Volume { state: DirectoryState::Ready, .. } => {
                    return self.check_limit(volume, &directory);
                }
                DirectoryUse::Volume { state: DirectoryState::Creating { staging }, .. } => {
                    match (&directory.identity, staging) {
                        (Some(identity), Some(staging)) => self.place(volume, &slot, identity, staging)?,
                        _ => self.stage(volume, &slot)?,
                    }
                }
            }
        }
        Err(contended(volume.path.as_str()))
    }

    /// The first record of a volume's directory: to be created, or one that exists and is not the driver's.
    fn new_directory(&self, volume: &VolumeRecord) -> Result<DirectoryRecord, ShareError> {
        let references = BTreeSet::from([volume.handle.clone()]);
        let (path, kept) = (volume.path.clone(), OnDelete::default());
        Ok(match self.stat(volume.path.as_path())? {
            None => {
                let state = DirectoryState::Creating { staging: None };
                let usage = DirectoryUse::Volume { references, state };
                let origin = Origin::Created;
                DirectoryRecord { path, origin, identity: None, kept, limited: false, usage }
            }
            Some(entry) => {
                let identity = existing_directory(&volume.path, &entry)?;
                refuse_source(volume)?;
                let limited = self.has_limit(&path, identity.file_id)?;
                let usage = DirectoryUse::Volume { references, state: DirectoryState::Ready };
                let (origin, identity) = (Origin::Existing, Some(identity));
                DirectoryRecord { path, origin, identity, kept, limited, usage }
            }
        })
    }

    /// Whether one of the volumes that reference a directory is still being created, so that its requests, or recovery, finish the
    /// directory.
    fn is_being_created(&self, references: &BTreeSet<String>) -> Result<bool, ShareError> {
        for handle in references {
            let record = self.read_record::<VolumeRecord>(handle)?.record;
            if record.is_some_and(|volume| volume.state == VolumeState::Creating) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The record of a directory in use, with a further volume. A directory that is gone is created again; one that someone put there
    /// instead is not the driver's.
    fn joined(
        &self,
        volume: &VolumeRecord,
        directory: &DirectoryRecord,
    ) -> Result<DirectoryRecord, ShareError> {
        let found = match &directory.identity {
            Some(identity) => self.compare(volume.path.as_path(), identity)?,
            None => Found::Missing,
        };
        let joined = match found {
            Found::Same => directory.clone(),
            Found::Missing => {
                tracing::warn!(path = %volume.path, "directory of a volume does not exist; creating it again");
                let usage = with_state(&directory.usage, DirectoryState::Creating { staging: None });
                DirectoryRecord { identity: None, limited: false, usage, ..directory.clone() }
            }
            Found::Other => {
                tracing::warn!(path = %volume.path, "directory of a volume was replaced; it is kept from now on");
                self.new_directory(volume)?
            }
        };
        Ok(with_references(joined, directory, &volume.handle))
    }

    /// Makes the new directory in the staging area and records it. If another controller was faster, its directory is used.
    fn stage(&self, volume: &VolumeRecord, slot: &Slot<DirectoryRecord>) -> Result<(), ShareError> {
        if volume.source.is_some() {
            // The copy of a source is one for all controllers and attempts.
            let (staging, limited) = self.staged_content(volume)?;
            return self.record_staged(volume, slot, &staging, limited).map(drop);
        }
        let staging = self.new_id()?;
        let recorded = self
            .stage_empty(volume, &staging)
            .and_then(|limited| self.record_staged(volume, slot, &staging, limited));
        let discarded = match recorded {
            Ok(true) => return Ok(()),
            Ok(false) | Err(_) => self.discard(&own(["staging", &staging])),
        };
        // A repeat makes another one, so none may stay. If the record was written all the same, the next attempt finds that its
        // directory is gone.
        match (recorded, discarded) {
            (Ok(_), discarded) => discarded,
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(remains)) => {
                tracing::warn!(staging, error = %remains, "failed to discard an unfinished directory");
                Err(error)
            }
        }
    }

    /// Records the staged directory as that of the volume; false if another controller changed the record.
    fn record_staged(
        &self,
        volume: &VolumeRecord,
        slot: &Slot<DirectoryRecord>,
        staging: &str,
        limited: bool,
    ) -> Result<bool, ShareError> {
        let data = staged(staging);
        let (Some(entry), Some(directory)) = (self.stat(&data)?, slot.record.clone()) else {
            return Ok(false);
        };
        let xattr = self.new_id()?;
        let named =
            self.files.set_id(&data, &xattr).during("set the ID of the directory of", &volume.handle)?;
        let identity = DirectoryIdentity { file_id: entry.file_id, xattr: named.then_some(xattr) };
        let state = DirectoryState::Creating { staging: Some(staging.to_owned()) };
        let usage = with_state(&directory.usage, state);
        let recorded = DirectoryRecord { identity: Some(identity), limited, usage, ..directory };
        Ok(matches!(self.swap_record(slot, Some(recorded))?, Swap::Done(_)))
    }

    /// Makes an empty directory in the staging area, with the owner, mode and limit of the class. Returns whether it is
    /// limited.
    fn stage_empty(&self, volume: &VolumeRecord, staging: &str) -> Result<bool, ShareError> {
        self.ensure_dir(&own(["staging", staging]))?;
        let data = staged(staging);
        self.ensure_dir(&data)?;
        let limited = self.limit_staged(volume, staging)?;
        self.set_attributes(volume, &data)?;
        Ok(limited)
    }

    /// Sets the owner and the mode that the class requests for a volume's directory.
    pub(super) fn set_attributes(&self, volume: &VolumeRecord, dir: &Path) -> Result<(), ShareError> {
        if volume.uid.is_some() || volume.gid.is_some() {
            let owned = self.files.set_owner(dir, volume.uid, volume.gid);
            owned.during("set the owner of the directory of", &volume.handle)?;
        }
        // After the owner: chown removes setuid and setgid.
        let mode = volume.mode.unwrap_or(DEFAULT_MODE);
        self.files.set_mode(dir, mode).during("set the mode of the directory of", &volume.handle)
    }

    /// Renames the staged directory into place.
    fn place(
        &self,
        volume: &VolumeRecord,
        slot: &Slot<DirectoryRecord>,
        identity: &DirectoryIdentity,
        staging: &str,
    ) -> Result<(), ShareError> {
        let (path, data) = (volume.path.as_path(), staged(staging));
        let Some(directory) = slot.record.clone() else { return Ok(()) };
        // The staged one first: another controller may rename it in between.
        let (at_data, at_path) = (self.compare(&data, identity)?, self.compare(path, identity)?);
        match (at_path, at_data) {
            (Found::Missing, Found::Same) => {
                let renamed = self.files.rename(&data, path);
                match self.compare(path, identity)? {
                    Found::Same if self.parents_hold(&volume.path)? => {}
                    // A parent became another volume's directory: take it back, and let the next attempt decide.
                    Found::Same => {
                        return self.files.rename(path, &data).during("move back", volume.path.as_str());
                    }
                    // A parent was removed, or another controller moved it: the next attempt decides.
                    Found::Missing | Found::Other if is_missing(&renamed) => return Ok(()),
                    Found::Missing | Found::Other => {
                        return renamed.during("move the new directory to", volume.path.as_str());
                    }
                }
            }
            (Found::Same, _) => {}
            // Neither in place nor staged: it was removed by hand.
            (Found::Missing, _) => {
                let usage = with_state(&directory.usage, DirectoryState::Creating { staging: None });
                self.swap_record(slot, Some(DirectoryRecord { identity: None, usage, ..directory }))?;
                return Ok(());
            }
            // Someone created it after the claim: it is not the driver's.
            (Found::Other, _) => {
                self.discard(&own(["staging", staging]))?;
                let replaced = match volume.source {
                    None => self.new_directory(volume)?,
                    Some(_) => return refuse_source(volume),
                };
                self.swap_record(slot, Some(with_references(replaced, &directory, &volume.handle)))?;
                return Ok(());
            }
        }
        if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
            self.files.sync(parent).during("sync the parent of", volume.path.as_str())?;
        }
        let usage = with_state(&directory.usage, DirectoryState::Ready);
        let ready = DirectoryRecord { usage, ..directory };
        if let Swap::Done(_) = self.swap_record(slot, Some(ready))? {
            self.discard(&own(["staging", staging]))?;
        }
        Ok(())
    }

    /// Makes sure that the directories above a path exist, and that none of them is a volume.
    pub(super) fn make_parents(&self, path: &SharePath) -> Result<(), ShareError> {
        for _ in 0..ATTEMPTS {
            let mut complete = true;
            for parent in path.parents() {
                complete = self.make_parent(path, &parent)?;
                if !complete {
                    break;
                }
            }
            if complete {
                return Ok(());
            }
        }
        Err(contended(path.as_str()))
    }

    /// Makes one parent; false if it or its own parent was removed meanwhile.
    fn make_parent(&self, path: &SharePath, parent: &SharePath) -> Result<bool, ShareError> {
        let record = |origin, identity| {
            let (path, kept, limited) = (parent.clone(), OnDelete::default(), false);
            Some(DirectoryRecord { path, origin, identity, kept, limited, usage: DirectoryUse::Parent })
        };
        // Another controller may finish with the parent, and remove its record, between the intent that is read here and
        // the directory that is then created here. The directory is the driver's all the same.
        let mut created = None;
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<DirectoryRecord>(parent.as_str())?;
            let found = |entry: &Entry| {
                let identity = existing_directory(parent, entry)?;
                let own = created.as_ref() == Some(&identity);
                Ok(record(if own { Origin::Created } else { Origin::Existing }, Some(identity)))
            };
            let next = match &slot.record {
                None | Some(DirectoryRecord { usage: DirectoryUse::Removed, .. }) => {
                    match self.stat(parent.as_path())? {
                        None => record(Origin::Created, None),
                        Some(entry) => found(&entry)?,
                    }
                }
                Some(DirectoryRecord {
                    usage: DirectoryUse::Parent,
                    identity: Some(identity),
                    origin,
                    ..
                }) => match (self.compare(parent.as_path(), identity)?, self.stat(parent.as_path())?) {
                    (Found::Same, _) if *origin == Origin::Existing && created.as_ref() == Some(identity) => {
                        record(Origin::Created, created.clone())
                    }
                    (Found::Same, _) => return Ok(true),
                    (_, Some(entry)) => found(&entry)?,
                    (_, None) => record(Origin::Created, None),
                },
                // The intent was recorded before: an empty directory that is there now is the driver's.
                Some(DirectoryRecord { usage: DirectoryUse::Parent, identity: None, .. }) => {
                    match self.create_parent(parent)? {
                        Some((origin, identity)) => {
                            created = (origin == Origin::Created).then(|| identity.clone());
                            record(origin, Some(identity))
                        }
                        None => return Ok(false),
                    }
                }
                Some(DirectoryRecord {
                    usage: DirectoryUse::Volume { state: DirectoryState::Removing { .. }, .. },
                    ..
                }) => {
                    self.finish_removal(&slot)?;
                    continue;
                }
                Some(DirectoryRecord { usage: DirectoryUse::Volume { .. }, .. }) => {
                    return Err(nested(
                        path,
                        &format!("is inside {parent}, the directory of another volume"),
                    ));
                }
                Some(DirectoryRecord { usage: DirectoryUse::Archive { handle }, .. }) => {
                    return Err(nested(path, &format!("is inside {parent}, the archived volume {handle}")));
                }
            };
            self.swap_record(&slot, next)?;
        }
        Err(contended(parent.as_str()))
    }

    /// Creates a parent whose intent is recorded; `None` if it or its own parent is gone. A directory that has content was not
    /// made by an attempt that stopped after creating it: someone else made it meanwhile.
    fn create_parent(&self, parent: &SharePath) -> Result<Option<(Origin, DirectoryIdentity)>, ShareError> {
        let created = self.files.create_dir(parent.as_path());
        let existed = matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
        match created {
            Err(_) if existed => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            created => created.during("create the parent directory", parent.as_str())?,
        }
        let Some(entry) = self.stat(parent.as_path())? else { return Ok(None) };
        let identity = existing_directory(parent, &entry)?;
        if existed {
            let names = self.files.list(parent.as_path()).during("list", parent.as_str())?;
            if names.is_none_or(|names| !names.is_empty()) {
                return Ok(Some((Origin::Existing, identity)));
            }
        }
        if entry.mode == 0o700 {
            match self.files.set_mode_of(parent.as_path(), identity.file_id, DEFAULT_MODE) {
                // Another controller removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                changed => changed.during("set the mode of the parent directory", parent.as_str())?,
            }
        }
        Ok(Some((Origin::Created, identity)))
    }

    /// Whether all directories above a path are still recorded as parents, and not as another volume's directory.
    fn parents_hold(&self, path: &SharePath) -> Result<bool, ShareError> {
        for parent in path.parents() {
            let slot = self.read_record::<DirectoryRecord>(parent.as_str())?;
            if !matches!(slot.record, Some(DirectoryRecord { usage: DirectoryUse::Parent, .. })) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the empty directories above a path that the driver created.
    pub(super) fn remove_parents(&self, path: &SharePath) -> Result<(), ShareError> {
        for parent in path.parents().into_iter().rev() {
            let slot = self.read_record::<DirectoryRecord>(parent.as_str())?;
            if slot.record.as_ref().is_none_or(|record| record.usage == DirectoryUse::Removed) {
                match self.files.stat(parent.as_path()) {
                    // Removed by an attempt that stopped before the next one.
                    Ok(None) => continue,
                    // A create that failed because of such a path must be undone all the same.
                    Err(error) if is_beneath_other_type(&error) => return Ok(()),
                    found => found.during("read", parent.as_str())?,
                };
            }
            let Some(DirectoryRecord {
                usage: DirectoryUse::Parent,
                origin: Origin::Created,
                identity: Some(identity),
                ..
            }) = &slot.record
            else {
                return Ok(());
            };
            // Not `None`: another controller may be between its comparison and its removal, and would remove the new, empty
            // directory of a volume that is created here.
            let removed = DirectoryRecord {
                path: parent.clone(),
                origin: Origin::Created,
                identity: None,
                kept: OnDelete::default(),
                limited: false,
                usage: DirectoryUse::Removed,
            };
            match self.compare(parent.as_path(), identity)? {
                Found::Other => return Ok(()),
                Found::Missing => {}
                Found::Same => match self.files.remove_dir(parent.as_path()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        // Not empty, or not allowed: the directory stays, as it would with csi-driver-nfs.
                        tracing::debug!(path = %parent, %error, "kept parent directory: failed to remove it");
                        return Ok(());
                    }
                    Ok(()) => {}
                },
            }
            self.swap_record(&slot, Some(removed))?;
        }
        Ok(())
    }

    /// Compares what is at a path with a recorded identity.
    pub(super) fn compare(&self, path: &Path, identity: &DirectoryIdentity) -> Result<Found, ShareError> {
        let entry = match self.files.stat(path) {
            Ok(None) => return Ok(Found::Missing),
            Ok(Some(entry)) => entry,
            Err(error) if is_beneath_other_type(&error) => return Ok(Found::Other),
            Err(error) => return Err(error).during("read", &path.display().to_string()),
        };
        if entry.kind != EntryKind::Directory || entry.file_id != identity.file_id {
            return Ok(Found::Other);
        }
        let Some(expected) = &identity.xattr else { return Ok(Found::Same) };
        match self.files.id(path) {
            Ok(found) if found.as_ref() == Some(expected) => Ok(Found::Same),
            Ok(_) => Ok(Found::Other),
            // The directory was created over a mount with another version, by another class of the same share. The file ID is what
            // identifies the volumes of this one, too.
            Err(error) if has_no_xattrs(&error) => Ok(Found::Same),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
            Err(error) => Err(error).during("read the ID of", &path.display().to_string()),
        }
    }

    /// Reads the attributes of a path.
    pub(super) fn stat(&self, path: &Path) -> Result<Option<Entry>, ShareError> {
        self.files.stat(path).during("read", &path.display().to_string())
    }
}

/// The directory that is being prepared in a staging area.
pub(super) fn staged(staging: &str) -> PathBuf {
    own(["staging", staging, "data"])
}

/// The same use in another state.
pub(super) fn with_state(usage: &DirectoryUse, state: DirectoryState) -> DirectoryUse {
    match usage {
        DirectoryUse::Volume { references, .. } => {
            DirectoryUse::Volume { references: references.clone(), state }
        }
        other => other.clone(),
    }
}

/// A record with the references of the one before it, and one more.
fn with_references(mut record: DirectoryRecord, before: &DirectoryRecord, handle: &str) -> DirectoryRecord {
    if let (DirectoryUse::Volume { references, .. }, DirectoryUse::Volume { references: others, .. }) =
        (&mut record.usage, &before.usage)
    {
        references.extend(others.iter().cloned());
        references.insert(handle.to_owned());
    }
    record.kept = before.kept;
    record
}

/// The identity of a directory that was there before.
fn existing_directory(path: &SharePath, entry: &Entry) -> Result<DirectoryIdentity, ShareError> {
    match entry.kind {
        EntryKind::Directory => Ok(DirectoryIdentity { file_id: entry.file_id, xattr: None }),
        EntryKind::File | EntryKind::Symlink | EntryKind::Other => Err(ShareError::new(
            ErrorKind::Invalid,
            format!("{path} exists and is not a directory: remove it, or use another subDir"),
        )),
    }
}

/// Content is never copied into a directory that exists.
fn refuse_source(volume: &VolumeRecord) -> Result<(), ShareError> {
    match volume.source {
        None => Ok(()),
        Some(_) => Err(ShareError::new(
            ErrorKind::AlreadyExists,
            format!("directory {} exists, so nothing can be copied into it: use another subDir", volume.path),
        )),
    }
}

fn nested(path: &SharePath, problem: &str) -> ShareError {
    ShareError::new(ErrorKind::Invalid, format!("directory {path} {problem}: use another subDir"))
}

/// A directory that was a parent until now.
pub(super) fn removed_recently(path: &SharePath) -> ShareError {
    let message = format!(
        "directory {path} was removed with the volumes inside it; recovery releases its name within two hours: try again, or use \
         another subDir"
    );
    ShareError::new(ErrorKind::Unavailable, message)
}

fn is_missing(result: &io::Result<()>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::NotFound)
}
