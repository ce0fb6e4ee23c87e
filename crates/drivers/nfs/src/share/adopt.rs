//! Adoption: records for volumes that csi-driver-nfs or nfs-subdir-external-provisioner created.
//!
//! Without a record a volume is mounted, but never deleted. The directory's record comes first: if the adoption stops in
//! between, nothing references the directory that could delete it, and a repeat finishes it.

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
                return match (volume.state, volume.path == request.path) {
                    (VolumeState::Ready, true) => Ok(info(volume, true, self.is_limited(volume)?)),
                    _ => Err(refused(request, "has a record already, with another directory or state")),
                };
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
                origin: Origin::Adopted,
                identity: Some(DirectoryIdentity { file_id, xattr: None }),
                kept: OnDelete::default(),
                limited: self.has_limit(&request.path, file_id)?,
                usage: DirectoryUse::Volume {
                    references: BTreeSet::from([request.handle.clone()]),
                    state: DirectoryState::Ready,
                },
            },
            Some(directory) => match directory.usage {
                DirectoryUse::Volume { mut references, state: DirectoryState::Ready } => {
                    if !references.insert(request.handle.clone()) {
                        return Ok(true);
                    }
                    let usage = DirectoryUse::Volume { references, state: DirectoryState::Ready };
                    DirectoryRecord { usage, ..directory }
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
                tracing::warn!(volume = request.handle, outer = %parent, "directory contains another volume; it is kept");
                let kept = DirectoryRecord { origin: Origin::Existing, ..outer };
                if let Swap::Done(_) = self.swap_record(&slot, Some(kept))? {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn refused(request: &Adopt, problem: &str) -> ShareError {
    let message = format!("volume {} cannot be adopted: it {problem} ({})", request.handle, request.path);
    ShareError::new(ErrorKind::Precondition, message)
}
