//! CreateVolume: the volume's record first, then its directory, then the record is `ready`.
//!
//! A repeated request continues where the earlier attempt stopped, even if that attempt still runs on another controller.
//! If an attempt fails and the caller does not repeat it, it is undone here, or by recovery.

use super::record::{NameRecord, VolumeRecord, VolumeState};
use super::snapshot_record::JobKey;
use super::store::{Slot, Swap};
use super::{CreateVolume, ErrorKind, Share, ShareError, VolumeInfo};

/// How often an operation starts again because another controller changed the same record.
pub(super) const ATTEMPTS: usize = 32;

impl Share {
    pub(super) fn create_volume(&self, request: &CreateVolume) -> Result<VolumeInfo, ShareError> {
        self.ensure_records()?;
        for _ in 0..ATTEMPTS {
            if !self.claim_name(request)? {
                continue;
            }
            let slot = self.read_record::<VolumeRecord>(&request.handle)?;
            let (slot, volume) = match slot.record.clone() {
                None => {
                    // Before anything is created.
                    if let Some(source) = &request.source {
                        self.find_source(source)?;
                    }
                    match self.swap_record(&slot, Some(new_record(request)))? {
                        Swap::Done(slot) => (slot, new_record(request)),
                        Swap::Conflict => continue,
                    }
                }
                Some(existing) => {
                    if matches!(existing.state, VolumeState::Deleting { .. }) {
                        self.finish_delete(&slot)?;
                        continue;
                    }
                    if let Some(difference) = difference(&existing, request) {
                        let message =
                            format!("volume {:?} already exists, with another {difference}", request.name);
                        return Err(ShareError::new(ErrorKind::AlreadyExists, message));
                    }
                    if existing.state == VolumeState::Ready {
                        return Ok(info(&existing, true, self.is_limited(&existing)?));
                    }
                    (slot, existing)
                }
            };
            let limited = match self.make_directory(&volume) {
                Ok(limited) => limited,
                Err(error) => {
                    if is_final(error.kind) {
                        self.undo_create(&slot, &volume)?;
                    }
                    return Err(error);
                }
            };
            if volume.source.is_some() {
                self.forget_job(&JobKey::Volume(volume.handle.clone()))?;
            }
            let ready = VolumeRecord { state: VolumeState::Ready, ..volume };
            if let Swap::Done(_) = self.swap_record(&slot, Some(ready.clone()))? {
                return Ok(info(&ready, true, limited));
            }
        }
        Err(contended(&request.handle))
    }

    /// Records which volume a name belongs to; false if another controller changed that. A repeat with other parameters can
    /// have another handle, and must not create a second volume.
    fn claim_name(&self, request: &CreateVolume) -> Result<bool, ShareError> {
        let slot = self.read_record::<NameRecord>(&request.name)?;
        match &slot.record {
            Some(claimed) if claimed.handle == request.handle => return Ok(true),
            Some(claimed) if self.read_record::<VolumeRecord>(&claimed.handle)?.record.is_some() => {
                let message = format!(
                    "volume {:?} already exists, with other parameters: its handle is {}",
                    request.name, claimed.handle
                );
                return Err(ShareError::new(ErrorKind::AlreadyExists, message));
            }
            Some(_) | None => {}
        }
        let record = NameRecord { name: request.name.clone(), handle: request.handle.clone() };
        Ok(matches!(self.swap_record(&slot, Some(record))?, Swap::Done(_)))
    }

    /// Forgets the name of a volume that is deleted.
    pub(super) fn release_name(&self, volume: &VolumeRecord) -> Result<(), ShareError> {
        let slot = self.read_record::<NameRecord>(&volume.name)?;
        match &slot.record {
            Some(claimed) if claimed.handle == volume.handle => self.swap_record(&slot, None).map(drop),
            _ => Ok(()),
        }
    }

    /// Undoes a create that was never returned to a caller. If another controller finished it meanwhile, it stays.
    pub(super) fn undo_create(
        &self,
        slot: &Slot<VolumeRecord>,
        volume: &VolumeRecord,
    ) -> Result<(), ShareError> {
        let on_delete = crate::parameters::OnDelete::Delete;
        let undone = VolumeRecord { state: VolumeState::Deleting { on_delete }, ..volume.clone() };
        match self.swap_record(slot, Some(undone))? {
            Swap::Done(slot) => self.finish_delete(&slot),
            Swap::Conflict => Ok(()),
        }
    }
}

/// Whether the caller does not repeat a request that failed like this.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::InUse
        | ErrorKind::Precondition
        | ErrorKind::Forbidden => true,
        ErrorKind::InProgress { .. }
        | ErrorKind::OutOfSpace
        | ErrorKind::Unavailable
        | ErrorKind::Internal => false,
    }
}

fn new_record(request: &CreateVolume) -> VolumeRecord {
    VolumeRecord {
        handle: request.handle.clone(),
        name: request.name.clone(),
        path: request.path.clone(),
        state: VolumeState::Creating,
        size: request.size,
        context: request.context.clone(),
        options: request.options.clone(),
        on_delete: request.on_delete,
        source: request.source.clone(),
        mode: request.mode,
        uid: request.uid,
        gid: request.gid,
        quota: request.quota,
    }
}

/// The first property in which a request differs from the existing volume. Mount options may change between repeats.
fn difference(existing: &VolumeRecord, request: &CreateVolume) -> Option<&'static str> {
    let fits = request.size <= existing.size && request.limit.is_none_or(|limit| existing.size <= limit);
    if existing.name != request.name || existing.path != request.path {
        return Some("name or directory");
    }
    if !fits {
        return Some("size");
    }
    if existing.source != request.source {
        return Some("source");
    }
    (existing.context != request.context).then_some("parameters")
}

pub(super) fn info(volume: &VolumeRecord, present: bool, limited: bool) -> VolumeInfo {
    VolumeInfo {
        handle: volume.handle.clone(),
        path: volume.path.clone(),
        size: volume.size,
        limited,
        used: None,
        context: volume.context.clone(),
        options: volume.options.clone(),
        source: volume.source.clone(),
        present,
        recorded: true,
    }
}

pub(super) fn contended(object: &str) -> ShareError {
    let message = format!("another controller keeps changing {object:?}; try again");
    ShareError::new(ErrorKind::Unavailable, message)
}
