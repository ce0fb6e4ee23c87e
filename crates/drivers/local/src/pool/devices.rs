//! Devices for the node service: attaches a volume's image to a loop device after verifying that the image is the
//! volume's own.

use std::path::Path;

use wharf_driver::backend::{Capability, Device, DeviceError, FormatState, VolumeAccess};
use wharf_linux::{FileStat, LoopDevice, LoopOptions};

use super::PoolCore;
use super::loops::to_device;
use crate::fault::{During as _, Fault};
use crate::plan;
use crate::record::{Provisioning, VolumeRecord};
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
        let stat = self.store.stat(&store::image_of(id)).during("stat its image", id)?;
        self.verify_image(id, stat, record.image_inode, record.size).map_err(DeviceError::WrongDevice)?;
        let read_only = plan::needs_read_only_device(capability);
        let device = match self.reusable_device(&record, read_only)? {
            Some(device) => device,
            None => self.attach_image(id, stat, read_only)?,
        };
        if matches!(capability.access, VolumeAccess::Block) {
            self.secure(&record, &device)?;
        }
        self.keep_blocks(&record, &device, stat)?;
        self.sync_device_size(&record, &device)?;
        self.attached_device(&record)
    }

    /// A read-only device of a volume that is attached for writing: a bind mount cannot make a device node read-only.
    pub fn attach_reader(&self, id: &str) -> Result<Device, DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        let stat = self.store.stat(&store::image_of(id)).during("stat its image", id)?;
        self.verify_image(id, stat, record.image_inode, record.size).map_err(DeviceError::WrongDevice)?;
        let loops = self.loops_of(&record)?;
        let reader = loops.devices.iter().find(|device| device.read_only && loops.has_image(device)).cloned();
        let reader = match reader {
            Some(reader) => reader,
            None => self.attach_image(id, stat, true)?,
        };
        self.secure(&record, &reader)?;
        self.sync_device_size(&record, &reader)?;
        self.attached_device(&record)
    }

    /// Before a pod gets the device of a raw volume: verifies its identity and holds it.
    pub fn before_publish(&self, id: &str, capability: &Capability) -> Result<(), DeviceError> {
        if !matches!(capability.access, VolumeAccess::Block) {
            return Ok(());
        }
        let Some(_) = self.ready_volume(id)? else { return Err(no_volume(id)) };
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        for device in &self.loop_devices_of(&record)? {
            self.secure(&record, device)?;
            self.sync_device_size(&record, device)?;
        }
        Ok(())
    }

    fn attach_image(
        &self,
        id: &str,
        image: Option<FileStat>,
        read_only: bool,
    ) -> Result<LoopDevice, DeviceError> {
        let path = store::image_of(id);
        let options = LoopOptions { read_only, label: id.to_owned() };
        let device =
            self.kernel().loop_attach(&self.store.at(&path), &options).during("attach its image", id)?;
        if Some(device.backing) != image.map(|image| image.id) {
            // Replaced between stat and attach. The device has not been used yet.
            let detached = self.kernel().loop_detach(&device.path, Some(device.backing));
            detached.during("detach a foreign image", id)?;
            return Err(DeviceError::WrongDevice(format!("{id}: its image was replaced during the attach")));
        }
        Ok(device)
    }

    /// A thick volume keeps its blocks: discards of its device are off, and blocks that it has lost are allocated again.
    fn keep_blocks(
        &self,
        record: &VolumeRecord,
        device: &LoopDevice,
        stat: Option<FileStat>,
    ) -> Result<(), DeviceError> {
        let id = &record.id;
        if record.provisioning != Provisioning::Thick {
            return Ok(());
        }
        if let Err(error) = self.kernel().loop_disable_discard(&device.path) {
            // For example if sysfs is read-only. The account still reserves the blocks, and the next attach allocates
            // them.
            tracing::warn!(volume_handle = id, %error, "failed to disable discards of the device of a thick volume");
        }
        if stat.is_some_and(|stat| stat.allocated < record.size) {
            let path = store::image_of(id);
            let allocated = self.kernel().allocate(&self.store.at(&path), record.size);
            match allocated.during("allocate its blocks again", id) {
                Ok(()) => tracing::info!(volume_handle = id, "allocated missing blocks of a thick volume"),
                Err(fault) if fault.is_full() => {
                    tracing::error!(volume_handle = id, error = %fault, "failed to allocate missing blocks of a thick volume");
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(())
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
        let mut loops = self.loops_of(record)?;
        // A device in autoclear that nothing holds would disappear on its last close, and another volume could get its
        // number.
        let (usable, other): (Vec<_>, Vec<_>) = std::mem::take(&mut loops.devices)
            .into_iter()
            .partition(|device| loops.has_image(device) && (!device.autoclear || loops.is_held(device)));
        for device in &other {
            self.release(&record.id, &loops, device)?;
        }
        for device in &usable {
            self.restore(&record.id, device)?;
        }
        match usable.iter().min_by_key(|device| device.read_only) {
            // Prefer a writable device: it serves readers as well.
            Some(device) if device.read_only && !read_only => {
                self.release(&record.id, &loops, device)?;
                Ok(None)
            }
            device => Ok(device.cloned()),
        }
    }

    /// Refreshes the device if its size differs from the record.
    fn sync_device_size(&self, record: &VolumeRecord, device: &LoopDevice) -> Result<(), Fault> {
        let id = &record.id;
        let size = self.kernel().device_size(&device.path).during("read its device's size", id)?;
        if size != record.size {
            self.kernel().loop_refresh(&device.path).during("refresh its device's size", id)?;
        }
        Ok(())
    }

    /// The volume's device, if it is attached.
    pub fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let Some(record) = self.ready_volume(id)? else { return Ok(None) };
        Ok(to_device(&record, &self.loops_of(&record)?))
    }

    fn attached_device(&self, record: &VolumeRecord) -> Result<Device, DeviceError> {
        to_device(record, &self.loops_of(record)?)
            .ok_or_else(|| DeviceError::NotFound(format!("volume {} is not staged on this node", record.id)))
    }

    /// Detaches the device. Succeeds if the volume is not attached or does not exist.
    pub fn detach(&self, id: &str) -> Result<(), DeviceError> {
        if self.index().volume(id).is_none() {
            return Ok(());
        }
        let _lock = self.locks.exclusive(id)?;
        let Some(record) = self.index().volume(id).cloned() else { return Ok(()) };
        let loops = self.loops_of(&record)?;
        for device in &loops.devices {
            self.release(id, &loops, device)?;
        }
        Ok(())
    }

    /// Updates the device to the volume's current size.
    pub fn refresh(&self, id: &str) -> Result<Device, DeviceError> {
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        for device in &self.loop_devices_of(&record)? {
            self.restore(id, device)?;
            self.sync_device_size(&record, device)?;
        }
        self.attached_device(&record)
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

    /// Whether an offline growth of the volume's file system is recorded.
    pub fn is_growing_offline(&self, id: &str) -> Result<bool, DeviceError> {
        Ok(self.ready_volume(id)?.ok_or_else(|| no_volume(id))?.growing_offline)
    }

    /// Durably records that an offline growth of the volume's file system starts or has ended.
    pub fn set_growing_offline(&self, id: &str, growing_offline: bool) -> Result<(), DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _lock = self.locks.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        match record.growing_offline == growing_offline {
            true => Ok(()),
            false => Ok(self.save_volume(VolumeRecord { growing_offline, ..record })?),
        }
    }
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
