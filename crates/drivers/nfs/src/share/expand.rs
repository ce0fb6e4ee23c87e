//! Reading and expanding volumes, and the capacity of the share.

use super::create::{ATTEMPTS, contended, info};
use super::directory::Found;
use super::error::During as _;
use super::files::{Entry, EntryKind};
use super::record::{DirectoryRecord, VolumeRecord, VolumeState};
use super::store::Swap;
use super::{CapacityInfo, ErrorKind, ExpandVolume, GetVolume, Share, ShareError, VolumeInfo};

impl Share {
    /// A volume that CreateVolume returned, or one without a record whose directory exists. `None` while it is created or
    /// deleted.
    pub(super) fn get_volume(&self, request: &GetVolume) -> Result<Option<VolumeInfo>, ShareError> {
        let slot = self.read_record::<VolumeRecord>(&request.handle)?;
        let Some(volume) = slot.record else { return self.get_without_record(request) };
        if volume.state != VolumeState::Ready {
            return Ok(None);
        }
        let directory = self.read_record::<DirectoryRecord>(volume.path.as_str())?;
        let limited = directory.record.as_ref().filter(|directory| directory.limited);
        let used = limited.and_then(|directory| self.usage(&volume, directory));
        let limited = limited.is_some();
        let identity = directory.record.and_then(|directory| directory.identity);
        let present = match identity {
            Some(identity) => self.compare(volume.path.as_path(), &identity)? == Found::Same,
            None => false,
        };
        Ok(Some(VolumeInfo { used, ..info(&volume, present, limited) }))
    }

    /// A volume of csi-driver-nfs that was not adopted.
    fn get_without_record(&self, request: &GetVolume) -> Result<Option<VolumeInfo>, ShareError> {
        let Some(path) = &request.path else { return Ok(None) };
        let is_directory = |entry: Entry| entry.kind == EntryKind::Directory;
        if !self.stat(path.as_path())?.is_some_and(is_directory) {
            return Ok(None);
        }
        Ok(Some(VolumeInfo {
            handle: request.handle.clone(),
            path: path.clone(),
            size: 0,
            limited: false,
            used: None,
            context: Default::default(),
            options: Vec::new(),
            source: None,
            present: true,
            recorded: false,
        }))
    }

    /// Raises the limit of a volume that has one, and records the larger size.
    pub(super) fn expand_volume(&self, request: &ExpandVolume) -> Result<VolumeInfo, ShareError> {
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<VolumeRecord>(&request.handle)?;
            let Some(volume) = slot.record.clone().filter(|volume| volume.state == VolumeState::Ready) else {
                let message = format!("there is no volume {}", request.handle);
                return Err(ShareError::new(ErrorKind::NotFound, message));
            };
            let directory = self.read_record::<DirectoryRecord>(volume.path.as_str())?.record;
            let limited = directory.filter(|directory| directory.limited);
            if request.size <= volume.size {
                return Ok(info(&volume, true, limited.is_some()));
            }
            // Before the record: a size that is recorded can be used.
            if let Some(directory) = &limited {
                self.raise_limit(&volume, directory, request.size)?;
            }
            let expanded = VolumeRecord { size: request.size, ..volume };
            if let Swap::Done(_) = self.swap_record(&slot, Some(expanded.clone()))? {
                return Ok(info(&expanded, true, limited.is_some()));
            }
        }
        Err(contended(&request.handle))
    }

    pub(super) fn capacity(&self) -> Result<CapacityInfo, ShareError> {
        let capacity = self.files.capacity().during("read the capacity of", "the share")?;
        self.unpromised_capacity(capacity)
    }
}
