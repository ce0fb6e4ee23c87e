//! Devices for the node service: attaches a volume's image to a loop device after verifying that the image is the
//! volume's own.

use std::path::Path;

use wharf_driver::backend::{Capability, Device, DeviceError, FormatState};
use wharf_linux::{FileStat, LoopDevice, LoopOptions};

use super::PoolCore;
use super::reflink::is_on;
use crate::fault::During as _;
use crate::plan;
use crate::record::VolumeRecord;
use crate::store;

/// A mismatch between an image and its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageProblem {
    Missing,
    /// A different file.
    Swapped,
    /// A different size, in bytes.
    Size(u64),
}

impl ImageProblem {
    /// The error message, with the remedy.
    pub(super) fn message(self, image: &Path, size: u64) -> String {
        let image = image.display();
        match self {
            Self::Missing => format!("its image {image} is missing: restore it from a backup"),
            Self::Swapped => format!(
                "its image {image} is not the file it was created with: restore the original file; if this \
                 file is correct (a restored backup), stop the driver and run wharf local check --adopt"
            ),
            Self::Size(found) => {
                format!(
                    "its image {image} has {found} bytes, but its record says {size}: restore it from a backup"
                )
            }
        }
    }
}

/// Compares an image with its record.
pub(super) fn image_problem(stat: Option<FileStat>, inode: Option<u64>, size: u64) -> Option<ImageProblem> {
    match stat {
        None => Some(ImageProblem::Missing),
        Some(stat) if stat.is_dir || Some(stat.id.inode) != inode => Some(ImageProblem::Swapped),
        Some(stat) if stat.size != size => Some(ImageProblem::Size(stat.size)),
        Some(_) => None,
    }
}

impl PoolCore {
    /// Attaches a volume's image. Succeeds if it is already attached.
    pub fn attach(&self, id: &str, capability: &Capability) -> Result<Device, DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        self.refuse_copy_source(id).map_err(DeviceError::InUse)?;
        // An expansion that failed halfway leaves an image whose size differs from the record.
        let record = self.finish_growth(record)?;
        let path = store::image_of(id);
        let stat = self.store.stat(&path).during("stat its image", id)?;
        self.verify_image(id, stat, record.image_inode, record.size).map_err(DeviceError::WrongDevice)?;
        let read_only = plan::needs_read_only_device(capability);
        let device = match self.reusable_device(&record, read_only)? {
            Some(device) => device,
            None => {
                let options = LoopOptions { read_only, label: id.to_owned() };
                self.kernel().loop_attach(&self.store.at(&path), &options).during("attach its image", id)?
            }
        };
        if Some(device.backing) != stat.map(|stat| stat.id) {
            // Replaced between stat and attach. The device has not been used yet.
            self.kernel().loop_detach(&device.path).during("detach a foreign image", id)?;
            return Err(DeviceError::WrongDevice(format!("{id}: its image was replaced during the attach")));
        }
        self.sync_device_size(&record, &device)
    }

    /// Refuses an image that is not the one its record describes.
    pub(super) fn verify_image(
        &self,
        id: &str,
        stat: Option<FileStat>,
        inode: Option<u64>,
        size: u64,
    ) -> Result<(), String> {
        match image_problem(stat, inode, size) {
            Some(fault) => {
                let image = self.store.root.join(store::image_of(id));
                Err(format!("{id}: {}", fault.message(&image, size)))
            }
            None => Ok(()),
        }
    }

    /// An attached device that satisfies the request.
    fn reusable_device(
        &self,
        record: &VolumeRecord,
        read_only: bool,
    ) -> Result<Option<LoopDevice>, DeviceError> {
        let mut loops = self.loop_devices_of(record)?;
        // A device in autoclear would disappear on its last close, and another volume could get its number.
        for device in loops.extract_if(.., |device| device.autoclear) {
            self.release(&record.id, &device)?;
        }
        if loops.len() > 1 {
            tracing::warn!(
                volume_handle = record.id,
                count = loops.len(),
                "volume is attached more than once; using the first device"
            );
        }
        // Prefer a writable device: it serves readers as well.
        loops.sort_by_key(|device| device.read_only);
        match loops.first() {
            Some(device) if device.read_only && !read_only => {
                self.release(&record.id, device)?;
                Ok(None)
            }
            _ => Ok(loops.into_iter().next()),
        }
    }

    /// Refreshes the device if its size differs from the record.
    fn sync_device_size(&self, record: &VolumeRecord, device: &LoopDevice) -> Result<Device, DeviceError> {
        let id = &record.id;
        let size = self.kernel().device_size(&device.path).during("read its device's size", id)?;
        if size != record.size {
            self.kernel().loop_refresh(&device.path).during("refresh its device's size", id)?;
        }
        Ok(to_device(record, device))
    }

    /// The volume's device, if it is attached.
    pub fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let Some(record) = self.ready_volume(id)? else { return Ok(None) };
        let mut loops = self.loop_devices_of(&record)?;
        loops.sort_by_key(|device| device.read_only);
        Ok(loops.first().map(|device| to_device(&record, device)))
    }

    /// Detaches the device. Succeeds if the volume is not attached or does not exist.
    pub fn detach(&self, id: &str) -> Result<(), DeviceError> {
        if self.index().volume(id).is_none() {
            return Ok(());
        }
        let _lock = self.locks.exclusive(id)?;
        let Some(record) = self.index().volume(id).cloned() else { return Ok(()) };
        for device in self.loop_devices_of(&record)? {
            self.release(id, &device)?;
        }
        Ok(())
    }

    fn release(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        self.refuse_mounted(id, device)?;
        let detached = self.kernel().loop_detach(&device.path).during("detach its device", id);
        detached.map_err(|fault| match fault.is_busy() {
            true => DeviceError::InUse(fault.to_string()),
            false => fault.into(),
        })
    }

    /// Updates the device to the volume's current size.
    pub fn refresh(&self, id: &str) -> Result<Device, DeviceError> {
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        let loops = self.loop_devices_of(&record)?;
        let first = loops
            .first()
            .ok_or_else(|| DeviceError::NotFound(format!("volume {id} is not staged on this node")))?;
        for device in &loops {
            self.sync_device_size(&record, device)?;
        }
        Ok(to_device(&record, first))
    }

    /// Refuses a device that is mounted or published.
    fn refuse_mounted(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        let table = self.kernel().mount_table().during("read the mount table", id)?;
        let number = self.kernel().device_number(&device.path).during("read its device number", id)?;
        let mounted = table.mounts().iter().filter(|mount| is_on(mount, &device.path, number));
        let mut used = mounted.chain(table.of_device_node(&device.path));
        match used.next() {
            Some(mount) => {
                let (device, mount_point) = (device.path.display(), mount.mount_point.display());
                Err(DeviceError::InUse(format!("{id} is still in use: {device} is mounted at {mount_point}")))
            }
            None => Ok(()),
        }
    }

    /// A volume's recorded format state.
    pub fn format(&self, id: &str) -> Result<FormatState, DeviceError> {
        Ok(self.ready_volume(id)?.ok_or_else(|| no_volume(id))?.format)
    }

    /// Durably records a new format state. Refuses a transition back to a state in which formatting is allowed.
    pub fn set_format(&self, id: &str, format: &FormatState) -> Result<(), DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        if record.format == *format {
            return Ok(());
        }
        if !plan::is_allowed_transition(&record.format, format) {
            return Err(DeviceError::WrongDevice(format!(
                "{id}: its recorded format state {:?} must not change to {format:?}",
                record.format
            )));
        }
        Ok(self.save_volume(VolumeRecord { format: format.clone(), ..record })?)
    }
}

fn to_device(record: &VolumeRecord, device: &LoopDevice) -> Device {
    Device { path: device.path.clone(), size: record.size, read_only: device.read_only }
}

fn no_volume(id: &str) -> DeviceError {
    DeviceError::NotFound(format!("there is no volume {id} in this pool"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_linux::FileId;

    #[test]
    fn image_is_compared_by_inode_and_size() {
        let stat = FileStat { id: FileId { device: 1, inode: 7 }, size: 4096, allocated: 0, is_dir: false };
        let cases = [
            (Some(stat), Some(7), None),
            (None, Some(7), Some(ImageProblem::Missing)),
            (Some(stat), Some(8), Some(ImageProblem::Swapped)),
            (Some(stat), None, Some(ImageProblem::Swapped)),
            (Some(FileStat { is_dir: true, ..stat }), Some(7), Some(ImageProblem::Swapped)),
            (Some(FileStat { size: 5, ..stat }), Some(7), Some(ImageProblem::Size(5))),
        ];
        for (stat, inode, expected) in cases {
            assert_eq!(image_problem(stat, inode, 4096), expected);
        }
    }
}
