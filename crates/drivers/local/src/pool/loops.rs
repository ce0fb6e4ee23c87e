//! Which loop devices belong to a volume, and who holds them.
//!
//! A pod that has a raw device can reconfigure it: LOOP_CLR_FD makes the kernel release the image at the last close, and
//! the device's number then goes to the next image that anyone attaches, which the pod's device node shows from then on.
//! So a device that pods get is *held*: a second, read-only loop device, the holder, has the device as its backing file.
//! The kernel keeps the device open as long as the holder exists, independent of any process, so only the driver, which
//! detaches the holder first, can release the image. Pods never get a holder.
//!
//! A holder is recognized by its label and its backing device, so it is found again after a restart. Everything else that
//! a pod can change (autoclear, offset, size limit, sector size, label) stays within its own image; the driver restores
//! it at the next attach, publish or start. LOOP_CHANGE_FD, possible on read-only devices, shows the pod a file that the
//! pod itself has opened; the driver refuses to publish such a device and detaches it like any other.

use wharf_driver::backend::{Device, DeviceError, FormatState};
use wharf_linux::{FileId, LoopDevice, MountTable, check_readable};

use super::PoolCore;
use super::reflink::is_on;
use crate::fault::{During as _, Fault};
use crate::record::{Phase, VolumeRecord};
use crate::store;

/// The loop devices of one volume.
#[derive(Debug, Default)]
pub(super) struct VolumeLoops {
    /// Devices over its image, and held devices in which a pod has replaced the image.
    pub(super) devices: Vec<LoopDevice>,
    /// Devices over those devices.
    pub(super) holders: Vec<LoopDevice>,
    /// The identities that its image has: by its record, and by its path.
    images: Vec<FileId>,
}

impl VolumeLoops {
    /// Selects the devices of the volume `id`.
    fn select(all: &[LoopDevice], id: &str, images: Vec<FileId>) -> Self {
        let label = holder_label(id);
        let mut found = Self { images, ..Self::default() };
        let holders = || all.iter().filter(|device| device.label == label && device.backing_device.is_some());
        for device in all.iter().filter(|device| device.unreadable.is_none()) {
            let held = holders().any(|holder| holder.backing_device == Some(device.number));
            if found.images.contains(&device.backing) || held {
                found.devices.push(device.clone());
            }
        }
        for holder in holders() {
            if found.devices.iter().any(|device| holder.backing_device == Some(device.number)) {
                found.holders.push(holder.clone());
            }
        }
        found
    }

    /// Whether the device still has the volume's image.
    pub(super) fn has_image(&self, device: &LoopDevice) -> bool {
        self.images.contains(&device.backing)
    }

    /// The holders of a device.
    pub(super) fn holders_of(&self, device: &LoopDevice) -> impl Iterator<Item = &LoopDevice> {
        self.holders.iter().filter(|holder| holder.backing_device == Some(device.number))
    }

    pub(super) fn is_held(&self, device: &LoopDevice) -> bool {
        self.holders_of(device).next().is_some()
    }
}

fn holder_label(id: &str) -> String {
    format!("hold:{id}")
}

impl PoolCore {
    /// The loop devices of a volume: those backed by the recorded inode or by the file at its path now.
    pub(super) fn loop_devices_of(&self, record: &VolumeRecord) -> Result<Vec<LoopDevice>, Fault> {
        Ok(self.loops_of(record)?.devices)
    }

    /// The loop devices of a volume and their holders.
    pub(super) fn loops_of(&self, record: &VolumeRecord) -> Result<VolumeLoops, Fault> {
        let all = self.kernel().loop_devices().during("list loop devices", &record.id)?;
        self.loops_among(&all, record)
    }

    fn loops_among(&self, all: &[LoopDevice], record: &VolumeRecord) -> Result<VolumeLoops, Fault> {
        let id = &record.id;
        let path = store::image_of(id);
        check_readable(all, &path).during("list loop devices", id)?;
        let dir = self.store.stat(&store::dir_of(id)).during("stat its directory", id)?;
        let image = self.store.stat(&path).during("stat its image", id)?;
        let recorded =
            dir.zip(record.image_inode).map(|(dir, inode)| FileId { device: dir.id.device, inode });
        let present = image.map(|image| image.id);
        Ok(VolumeLoops::select(all, id, recorded.into_iter().chain(present).collect()))
    }

    /// Holds a device before a pod can get it, and restores what a pod with access to it has changed. Refuses a device
    /// that no longer has the volume's image.
    pub(super) fn secure(&self, record: &VolumeRecord, device: &LoopDevice) -> Result<(), DeviceError> {
        let id = &record.id;
        if !self.loops_of(record)?.is_held(device) {
            self.hold(id, device)?;
        }
        // Only now can the device's number not go to another image: compare its identity after that, not before.
        let loops = self.loops_of(record)?;
        let found = loops.devices.iter().find(|found| found.path == device.path);
        match found {
            Some(found) if loops.has_image(found) => self.restore(id, found),
            _ => {
                let reason = format!(
                    "{id}: {} shows another file than the volume's image: a process with access to the device \
                     replaced it (LOOP_CHANGE_FD); delete the pods that use the volume on this node and start \
                     them again",
                    device.path.display()
                );
                if found.is_none() {
                    self.release_stray_holders(id, device)?;
                }
                Err(DeviceError::WrongDevice(reason))
            }
        }
    }

    fn hold(&self, id: &str, device: &LoopDevice) -> Result<(), Fault> {
        self.kernel().loop_hold(&device.path, &holder_label(id)).during("hold its device", id).map(drop)
    }

    /// The device got another image between listing and holding it: it is not the volume's.
    fn release_stray_holders(&self, id: &str, device: &LoopDevice) -> Result<(), Fault> {
        let label = holder_label(id);
        let all = self.kernel().loop_devices().during("list loop devices", id)?;
        let stray =
            all.iter().filter(|other| other.label == label && other.backing_device == Some(device.number));
        for holder in stray {
            let detached = self.kernel().loop_detach(&holder.path, Some(holder.backing));
            detached.during("detach the holder of its device", id)?;
        }
        Ok(())
    }

    /// Restores the configuration of a device.
    pub(super) fn restore(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        let Some(how) = device.altered(id) else { return Ok(()) };
        tracing::warn!(
            volume_handle = id,
            device = %device.path.display(),
            "a process changed the configuration of the device: it {how}; restoring it"
        );
        Ok(self.kernel().loop_reset(&device.path, id).during("restore its device", id)?)
    }

    /// Detaches a device that is not in use, and its holders.
    pub(super) fn release(
        &self,
        id: &str,
        loops: &VolumeLoops,
        device: &LoopDevice,
    ) -> Result<(), DeviceError> {
        self.refuse_mounted(id, device)?;
        let held = loops.is_held(device);
        if held && device.autoclear {
            // Or the device would detach itself with its last holder, and its number could go to another image.
            self.kernel().loop_reset(&device.path, id).during("restore its device", id)?;
        }
        for holder in loops.holders_of(device) {
            let detached = self.kernel().loop_detach(&holder.path, Some(holder.backing));
            detached.during("detach the holder of its device", id).map_err(in_use)?;
        }
        let detached = self.kernel().loop_detach(&device.path, Some(device.backing));
        detached.during("detach its device", id).map_err(|fault| {
            // Another process has it open, perhaps a pod that has not ended yet.
            if let Some(error) = held.then(|| self.hold(id, device).err()).flatten() {
                tracing::error!(volume_handle = id, %error, "failed to hold a device that is still in use");
            }
            in_use(fault)
        })
    }

    /// Refuses a device that is mounted or published.
    fn refuse_mounted(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        let table = self.kernel().mount_table().during("read the mount table", id)?;
        let mounted = table.mounts().iter().filter(|mount| is_on(mount, &device.path, device.number));
        let mut used = mounted.chain(table.of_device_node(&device.path));
        match used.next() {
            Some(mount) => {
                let (device, mount_point) = (device.path.display(), mount.mount_point.display());
                Err(DeviceError::InUse(format!("{id} is still in use: {device} is mounted at {mount_point}")))
            }
            None => Ok(()),
        }
    }

    /// After a restart: holds the devices that pods may have, also those of a driver that did not hold them.
    pub(super) fn secure_published(&self) -> wharf_linux::Result<()> {
        let all = self.kernel().loop_devices()?;
        let table = self.kernel().mount_table()?;
        let ready: Vec<_> =
            self.index().volumes().filter(|record| record.state == Phase::Ready).cloned().collect();
        for record in ready {
            let secured = self.loops_among(&all, &record).map_err(DeviceError::from).and_then(|loops| {
                let raw = |device: &&LoopDevice| may_be_raw(&record, &loops, device, &table);
                loops.devices.iter().filter(raw).try_for_each(|device| self.secure(&record, device))
            });
            // One volume must not prevent the driver from serving the others.
            if let Err(error) = secured {
                tracing::error!(volume_handle = record.id, %error, "failed to secure the volume's device");
            }
        }
        Ok(())
    }
}

/// Whether a pod may have this device as a raw device.
fn may_be_raw(record: &VolumeRecord, loops: &VolumeLoops, device: &LoopDevice, table: &MountTable) -> bool {
    record.format == FormatState::Raw
        || loops.is_held(device)
        || table.of_device_node(&device.path).next().is_some()
}

fn in_use(fault: Fault) -> DeviceError {
    match fault.is_busy() {
        true => DeviceError::InUse(fault.to_string()),
        false => fault.into(),
    }
}

/// The device that writers get, with the one that readers get.
pub(super) fn to_device(record: &VolumeRecord, devices: &[LoopDevice]) -> Option<Device> {
    let main = devices.iter().min_by_key(|device| device.read_only)?;
    let reader = devices.iter().find(|device| device.read_only && device.path != main.path);
    Some(Device {
        path: main.path.clone(),
        size: record.size,
        read_only: main.read_only,
        reader: reader.map(|device| device.path.clone()),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const IMAGE: FileId = FileId { device: 9, inode: 7 };

    fn device(number: u32, backing: FileId, backing_device: Option<(u32, u32)>, label: &str) -> LoopDevice {
        LoopDevice {
            path: Path::new("/dev").join(format!("loop{number}")),
            number: (7, number),
            backing,
            backing_device,
            label: label.to_owned(),
            read_only: backing_device.is_some(),
            direct_io: true,
            autoclear: false,
            offset: 0,
            size_limit: 0,
            sector_size: LoopDevice::SECTOR_SIZE,
            unreadable: None,
        }
    }

    #[test]
    fn devices_and_holders_are_selected_by_backing_and_label() {
        let other = |inode| FileId { device: 6, inode };
        let all = [
            device(1, IMAGE, None, "vol-1"),
            device(2, other(1), Some((7, 1)), "hold:vol-1"),
            // Kubelet's lock of the published device, and the holder of another volume.
            device(3, other(1), Some((7, 1)), "/var/lib/kubelet/dev"),
            device(4, other(9), Some((7, 9)), "hold:vol-2"),
            // A pod replaced the image of this one, and changed its label.
            device(5, other(99), None, "mine"),
            device(6, other(5), Some((7, 5)), "hold:vol-1"),
            // A label alone proves nothing.
            device(7, other(98), None, "vol-1"),
            device(8, other(97), None, "hold:vol-1"),
        ];
        let found = VolumeLoops::select(&all, "vol-1", vec![IMAGE]);
        let numbers =
            |devices: &[LoopDevice]| devices.iter().map(|device| device.number.1).collect::<Vec<_>>();
        assert_eq!((numbers(&found.devices), numbers(&found.holders)), (vec![1, 5], vec![2, 6]));
        assert!(found.has_image(&all[0]) && !found.has_image(&all[4]));
        assert!(found.is_held(&all[0]) && found.is_held(&all[4]));
    }
}
