//! Adoption: records for volumes that csi-driver-nfs or nfs-subdir-external-provisioner created.
//!
//! Without a record a volume is mounted, but never deleted. The directory's record comes first: if the adoption stops in
//! between, nothing references the directory that could delete it, and a repeat finishes it. It references all volumes of the run
//! from the start: a volume without a record cannot release its reference, so the directory stays until all of them have one.

use std::collections::BTreeSet;

use super::create::{ATTEMPTS, contended, info};
use super::directory::removed_recently;
use super::files::EntryKind;
use super::record::{
    DirectoryIdentity, DirectoryRecord, DirectoryState, DirectoryUse, Origin, VolumeRecord, VolumeState,
};
use super::store::Swap;
use super::{Adopt, ErrorKind, Share, ShareError, VolumeInfo};
use crate::parameters::{OnDelete, QuotaMode};

impl Share {
    pub(super) fn adopt(&self, request: &Adopt) -> Result<VolumeInfo, ShareError> {
        // Before anything is written: most shares have no volume of a wrong handle.
        let Some(entry) =
            self.stat(request.path.as_path())?.filter(|entry| entry.kind == EntryKind::Directory)
        else {
            let message = format!("volume {} has no directory {}", request.handle, request.path);
            return Err(ShareError::new(ErrorKind::NotFound, message));
        };
        self.ensure_records()?;
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<VolumeRecord>(&request.handle)?;
            if let Some(volume) = &slot.record {
                if volume.state != VolumeState::Ready || volume.path != request.path {
                    return Err(refused(request, "has a record already, with another directory or state"));
                }
                if !self.add_users(request)? {
                    continue;
                }
                return Ok(info(volume, true, self.is_limited(volume)?));
            }
            if !self.adopt_directory(request, entry.file_id)? {
                continue;
            }
            let volume = VolumeRecord {
                handle: request.handle.clone(),
                name: request.name.clone(),
                path: request.path.clone(),
                state: VolumeState::Ready,
                size: request.size,
                context: request.context.clone(),
                options: request.options.clone(),
                on_delete: request.on_delete,
                source: None,
                mode: None,
                uid: None,
                gid: None,
                quota: QuotaMode::IfAvailable,
            };
            let directory = self.read_record::<DirectoryRecord>(volume.path.as_str())?.record;
            let Some(directory) = directory else { continue };
            let limited = self.check_limit(&volume, &directory)?;
            if let Swap::Done(_) = self.swap_record(&slot, Some(volume.clone()))? {
                return Ok(info(&volume, true, limited));
            }
        }
        Err(contended(&request.handle))
    }

    /// Adds the volume to its directory's record; false if another controller changed it.
    fn adopt_directory(&self, request: &Adopt, file_id: u64) -> Result<bool, ShareError> {
        self.keep_outer_volumes(request)?;
        self.make_parents(&request.path)?;
        let slot = self.read_record::<DirectoryRecord>(request.path.as_str())?;
        let record = match slot.record.clone() {
            None => DirectoryRecord {
                path: request.path.clone(),
                origin: if request.keep { Origin::Existing } else { Origin::Adopted },
                identity: Some(DirectoryIdentity { file_id, xattr: None }),
                kept: OnDelete::default(),
                limited: self.has_limit(&request.path, file_id)?,
                usage: DirectoryUse::Volume {
                    references: references(request, BTreeSet::new()),
                    state: DirectoryState::Ready,
                },
            },
            Some(directory) => match &directory.usage {
                DirectoryUse::Volume { state: DirectoryState::Ready, .. } => {
                    match with_users(request, &directory) {
                        None => return Ok(true),
                        Some(changed) => changed,
                    }
                }
                DirectoryUse::Volume { .. } => {
                    return Err(refused(request, "is in a directory that is being created or removed"));
                }
                DirectoryUse::Parent => {
                    return Err(refused(request, "is in a directory that contains other volumes"));
                }
                DirectoryUse::Removed => return Err(removed_recently(&request.path)),
                DirectoryUse::Archive { .. } => return Err(refused(request, "is in an archived directory")),
            },
        };
        Ok(matches!(self.swap_record(&slot, Some(record))?, Swap::Done(_)))
    }

    /// Adds what this run knows about the users of the directory of a volume that has a record; false if another controller
    /// changed the directory's record.
    fn add_users(&self, request: &Adopt) -> Result<bool, ShareError> {
        let slot = self.read_record::<DirectoryRecord>(request.path.as_str())?;
        let ready = |directory: &&DirectoryRecord| {
            matches!(&directory.usage, DirectoryUse::Volume { references, state: DirectoryState::Ready }
                if references.contains(&request.handle))
        };
        match slot.record.as_ref().filter(ready).and_then(|directory| with_users(request, directory)) {
            None => Ok(true),
            Some(changed) => Ok(matches!(self.swap_record(&slot, Some(changed))?, Swap::Done(_))),
        }
    }

    /// A volume whose directory contains that of another volume is never deleted, whichever was adopted first.
    fn keep_outer_volumes(&self, request: &Adopt) -> Result<(), ShareError> {
        for parent in request.path.parents() {
            for _ in 0..ATTEMPTS {
                let slot = self.read_record::<DirectoryRecord>(parent.as_str())?;
                let Some(outer) = slot.record.clone() else { break };
                let deletable =
                    matches!(outer.usage, DirectoryUse::Volume { state: DirectoryState::Ready, .. })
                        && outer.origin != Origin::Existing;
                if !deletable {
                    break;
                }
                tracing::warn!(volume_handle = request.handle, outer = %parent, "keeping outer directory: it contains another volume");
                let kept = DirectoryRecord { origin: Origin::Existing, ..outer };
                if let Swap::Done(_) = self.swap_record(&slot, Some(kept))? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// All volumes of the run that reference the directory, and those that did before.
fn references(request: &Adopt, mut references: BTreeSet<String>) -> BTreeSet<String> {
    references.extend(request.shared_with.iter().cloned());
    references.insert(request.handle.clone());
    references
}

/// The record of a volume's directory with the users that the request names; `None` if it has them.
fn with_users(request: &Adopt, directory: &DirectoryRecord) -> Option<DirectoryRecord> {
    let DirectoryUse::Volume { references: before, state } = &directory.usage else { return None };
    let usage =
        DirectoryUse::Volume { references: references(request, before.clone()), state: state.clone() };
    let origin = if request.keep { Origin::Existing } else { directory.origin };
    let changed = DirectoryRecord { usage, origin, ..directory.clone() };
    (changed != *directory).then_some(changed)
}

fn refused(request: &Adopt, problem: &str) -> ShareError {
    let message = format!("volume {} cannot be adopted: it {problem} ({})", request.handle, request.path);
    ShareError::new(ErrorKind::Precondition, message)
}
