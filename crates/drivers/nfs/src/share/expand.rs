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
        let identity = directory.record.and_then(|directory| directory.identity);
        let present = match identity {
            Some(identity) => self.compare(volume.path.as_path(), &identity)? == Found::Same,
            None => false,
        };
        Ok(Some(info(&volume, present)))
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
            context: Default::default(),
            options: Vec::new(),
            source: None,
            present: true,
            recorded: false,
        }))
    }

    /// Records a larger size. NFS does not enforce it.
    pub(super) fn expand_volume(&self, request: &ExpandVolume) -> Result<VolumeInfo, ShareError> {
        for _ in 0..ATTEMPTS {
            let slot = self.read_record::<VolumeRecord>(&request.handle)?;
            let Some(volume) = slot.record.clone().filter(|volume| volume.state == VolumeState::Ready) else {
                let message = format!("there is no volume {}", request.handle);
                return Err(ShareError::new(ErrorKind::NotFound, message));
            };
            if request.size <= volume.size {
                return Ok(info(&volume, true));
            }
            let expanded = VolumeRecord { size: request.size, ..volume };
            if let Swap::Done(_) = self.swap_record(&slot, Some(expanded.clone()))? {
                return Ok(info(&expanded, true));
            }
        }
        Err(contended(&request.handle))
    }

    pub(super) fn capacity(&self) -> Result<CapacityInfo, ShareError> {
        self.files.capacity().during("read the capacity of", "the share")
    }
}
