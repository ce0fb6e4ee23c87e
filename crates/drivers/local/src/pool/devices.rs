//! The node half's device: the image through a loop device, after proving that it is the volume's own.

use std::path::Path;

use wharf_driver::backend::{Capability, Device, DeviceError, Format};
use wharf_linux::{FileStat, LoopDevice, LoopOptions};

use super::Core;
use super::cut::is_on;
use crate::fault::During as _;
use crate::plan;
use crate::record::VolumeRecord;
use crate::store;

/// What can be wrong with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageFault {
    Missing,
    /// Another file.
    Swapped,
    /// Another size, in bytes.
    Size(u64),
}

impl ImageFault {
    /// In words, with the way out.
    pub(super) fn message(self, image: &Path, size: u64) -> String {
        let image = image.display();
        match self {
            Self::Missing => format!("its image {image} is missing: put it back from a backup"),
            Self::Swapped => format!(
                "its image {image} is another file than the one it was made with: put that back; or, if this \
                 one is right (a restored backup), stop the driver and run wharf local check --adopt"
            ),
            Self::Size(found) => {
                format!(
                    "its image {image} has {found} bytes, its record says {size}: put it back from a backup"
                )
            }
        }
    }
}

/// Compares an image with its record.
pub(super) fn image_fault(stat: Option<FileStat>, inode: Option<u64>, size: u64) -> Option<ImageFault> {
    match stat {
        None => Some(ImageFault::Missing),
        Some(stat) if stat.is_dir || Some(stat.id.inode) != inode => Some(ImageFault::Swapped),
        Some(stat) if stat.size != size => Some(ImageFault::Size(stat.size)),
        Some(_) => None,
    }
}

impl Core {
    /// Attaches a volume's image; attached already is success.
    pub fn attach(&self, id: &str, capability: &Capability) -> Result<Device, DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _claim = self.claims.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        self.refuse_copied(id).map_err(DeviceError::InUse)?;
        // An expansion that failed half-way has left an image of another size than the record says.
        let record = self.finish_growth(record)?;
        let path = store::image_of(id);
        let stat = self.store.stat(&path).during("look at its image", id)?;
        self.prove_image(id, stat, record.image_inode, record.size).map_err(DeviceError::NotOurs)?;
        let read_only = plan::needs_read_only_device(capability);
        let device = match self.reusable(&record, read_only)? {
            Some(device) => device,
            None => {
                let options = LoopOptions { read_only, label: id.to_owned() };
                self.kernel().loop_attach(&self.store.at(&path), &options).during("attach its image", id)?
            }
        };
        if Some(device.backing) != stat.map(|stat| stat.id) {
            // Swapped between the look and the attach. Nobody has used the device yet.
            self.kernel().loop_detach(&device.path).during("let go of a foreign image", id)?;
            return Err(DeviceError::NotOurs(format!("{id}: its image was replaced just now")));
        }
        self.fit(&record, &device)
    }

    /// Refuses an image that is not the one its record describes.
    pub(super) fn prove_image(
        &self,
        id: &str,
        stat: Option<FileStat>,
        inode: Option<u64>,
        size: u64,
    ) -> Result<(), String> {
        match image_fault(stat, inode, size) {
            Some(fault) => {
                let image = self.store.root.join(store::image_of(id));
                Err(format!("{id}: {}", fault.message(&image, size)))
            }
            None => Ok(()),
        }
    }

    /// A device that is there already and will do.
    fn reusable(&self, record: &VolumeRecord, read_only: bool) -> Result<Option<LoopDevice>, DeviceError> {
        let mut loops = self.loops_of(record)?;
        // One that waits for its last close would take its number with it, for another volume to get.
        for device in loops.extract_if(.., |device| device.going) {
            self.release(&record.id, &device)?;
        }
        if loops.len() > 1 {
            tracing::warn!(id = record.id, count = loops.len(), "attached more than once, the first is used");
        }
        // Writers can read: a writable one serves both.
        loops.sort_by_key(|device| device.read_only);
        match loops.first() {
            Some(device) if device.read_only && !read_only => {
                self.release(&record.id, device)?;
                Ok(None)
            }
            _ => Ok(loops.into_iter().next()),
        }
    }

    /// The device with the size that the record says.
    fn fit(&self, record: &VolumeRecord, device: &LoopDevice) -> Result<Device, DeviceError> {
        let id = &record.id;
        let size = self.kernel().device_size(&device.path).during("ask for its device's size", id)?;
        if size != record.size {
            self.kernel().loop_refresh(&device.path).during("make its device see the new size", id)?;
        }
        Ok(described(record, device))
    }

    /// The device if it is attached now.
    pub fn find(&self, id: &str) -> Result<Option<Device>, DeviceError> {
        let Some(record) = self.ready_volume(id)? else { return Ok(None) };
        let mut loops = self.loops_of(&record)?;
        loops.sort_by_key(|device| device.read_only);
        Ok(loops.first().map(|device| described(&record, device)))
    }

    /// Lets go of the device; not attached or gone is success.
    pub fn detach(&self, id: &str) -> Result<(), DeviceError> {
        if self.index().volume(id).is_none() {
            return Ok(());
        }
        let _claim = self.claims.exclusive(id)?;
        let Some(record) = self.index().volume(id).cloned() else { return Ok(()) };
        for device in self.loops_of(&record)? {
            self.release(id, &device)?;
        }
        Ok(())
    }

    fn release(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        self.refuse_mounted(id, device)?;
        let detached = self.kernel().loop_detach(&device.path).during("let go of its device", id);
        detached.map_err(|fault| match fault.is_busy() {
            true => DeviceError::InUse(fault.to_string()),
            false => fault.into(),
        })
    }

    /// Makes the device see the volume's present size.
    pub fn refresh(&self, id: &str) -> Result<Device, DeviceError> {
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        let loops = self.loops_of(&record)?;
        let first = loops.first().ok_or_else(|| DeviceError::NotFound(format!("{id} is not staged here")))?;
        for device in &loops {
            self.fit(&record, device)?;
        }
        Ok(described(&record, first))
    }

    /// Refuses a device that is mounted or handed out.
    fn refuse_mounted(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        let table = self.kernel().mount_table().during("read the mount table", id)?;
        let number = self.kernel().device_number(&device.path).during("look at its device", id)?;
        let mounted = table.mounts().iter().filter(|mount| is_on(mount, &device.path, number));
        let mut used = mounted.chain(table.of_device_node(&device.path));
        match used.next() {
            Some(mount) => {
                let (device, place) = (device.path.display(), mount.mount_point.display());
                Err(DeviceError::InUse(format!("{id} is still in use: {device} is mounted at {place}")))
            }
            None => Ok(()),
        }
    }

    /// The record of what a volume's bytes are.
    pub fn format(&self, id: &str) -> Result<Format, DeviceError> {
        Ok(self.ready_volume(id)?.ok_or_else(|| no_volume(id))?.format)
    }

    /// Replaces that record, durably. Refuses a step back to where a format would be allowed again.
    pub fn set_format(&self, id: &str, format: &Format) -> Result<(), DeviceError> {
        if self.ready_volume(id)?.is_none() {
            return Err(no_volume(id));
        }
        let _claim = self.claims.exclusive(id)?;
        let record = self.ready_volume(id)?.ok_or_else(|| no_volume(id))?;
        if record.format == *format {
            return Ok(());
        }
        if !plan::may_become(&record.format, format) {
            return Err(DeviceError::NotOurs(format!(
                "{id}: its record says {:?}, which never becomes {format:?}",
                record.format
            )));
        }
        Ok(self.save_volume(VolumeRecord { format: format.clone(), ..record })?)
    }
}

fn described(record: &VolumeRecord, device: &LoopDevice) -> Device {
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
    fn images() {
        let stat = FileStat { id: FileId { device: 1, inode: 7 }, size: 4096, allocated: 0, is_dir: false };
        let cases = [
            (Some(stat), Some(7), None),
            (None, Some(7), Some(ImageFault::Missing)),
            (Some(stat), Some(8), Some(ImageFault::Swapped)),
            (Some(stat), None, Some(ImageFault::Swapped)),
            (Some(FileStat { is_dir: true, ..stat }), Some(7), Some(ImageFault::Swapped)),
            (Some(FileStat { size: 5, ..stat }), Some(7), Some(ImageFault::Size(5))),
        ];
        for (stat, inode, expected) in cases {
            assert_eq!(image_fault(stat, inode, 4096), expected);
        }
    }
}
