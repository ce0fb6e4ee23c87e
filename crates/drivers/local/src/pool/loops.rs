//! Which loop devices belong to a volume, and who holds them.
//!
//! A pod that has a raw device can reconfigure it: LOOP_CLR_FD makes the kernel release the image at the last close, and
//! the device's number then goes to the next image that anyone attaches, which the pod's device node shows from then on.
//! So a device that pods get is *held*: a second, read-only loop device, the holder, has the device as its backing file.
//! The kernel keeps the device open as long as the holder exists, independent of any process, so only the driver, which
//! detaches the holder first, can release the image. Pods never get a holder.
//!
//! A holder is recognized by its label and its backing device, so it is found again after a restart. It gets this label only
//! after its device was compared with the image: the device can go to another image before it is held, and such a holder
//! must not make it the volume's. Everything else that
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
    /// Holders of devices that are not the volume's: left by a crash before the device was compared.
    strays: Vec<LoopDevice>,
    /// The identities that its image has: by its record, and by its path.
    images: Vec<FileId>,
}

impl VolumeLoops {
    /// Selects the devices of a volume whose holders have these labels.
    fn select(all: &[LoopDevice], labels: &HolderLabels, images: Vec<FileId>) -> Self {
        let mut found = Self { images, ..Self::default() };
        let holders = || all.iter().filter(|device| device.backing_device.is_some());
        for device in all.iter().filter(|device| device.unreadable.is_none()) {
            let held = holders()
                .any(|holder| holder.label == labels.held && holder.backing_device == Some(device.number));
            if found.images.contains(&device.backing) || held {
                found.devices.push(device.clone());
            }
        }
        for holder in holders().filter(|holder| labels.contains(&holder.label)) {
            if found.devices.iter().any(|device| holder.backing_device == Some(device.number)) {
                found.holders.push(holder.clone());
            } else if holder.label == labels.new {
                found.strays.push(holder.clone());
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

/// The labels of the holders of a volume.
struct HolderLabels {
    /// The device was compared with the volume's image while it was held.
    held: String,
    /// It was not compared yet.
    new: String,
}

impl HolderLabels {
    /// The pool is part of the label, because volumes of the same name in two pools have the same id. Label lengths are
    /// limited, so only the beginning of its identity is.
    fn of(pool: &str, id: &str) -> Self {
        let pool: String = pool.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        Self { held: format!("hold:{pool}:{id}"), new: format!("new:{pool}:{id}") }
    }

    fn contains(&self, label: &str) -> bool {
        label == self.held || label == self.new
    }
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
        Ok(VolumeLoops::select(
            all,
            &HolderLabels::of(&self.uuid, id),
            recorded.into_iter().chain(present).collect(),
        ))
    }

    /// Holds a device before a pod can get it, and restores what a pod with access to it has changed. Refuses a device
    /// that no longer has the volume's image.
    pub(super) fn secure(&self, record: &VolumeRecord, device: &LoopDevice) -> Result<(), DeviceError> {
        let id = &record.id;
        let before = self.loops_of(record)?;
        self.detach_strays(id, &before)?;
        let new = match before.is_held(device) {
            true => None,
            false => Some(self.hold(id, device)?),
        };
        // Only now can the device's number not go to another image: compare its identity after that, not before.
        let loops = self.loops_of(record)?;
        let found = loops.devices.iter().find(|found| found.path == device.path);
        match found.filter(|found| loops.has_image(found)) {
            Some(found) => {
                for holder in loops.holders_of(found) {
                    self.confirm_holder(id, holder)?;
                }
                self.restore(id, found)
            }
            None => {
                // It may belong to another program since it was listed.
                if let Some(holder) = new {
                    self.detach_holder(id, &holder)?;
                }
                Err(DeviceError::WrongDevice(format!(
                    "{id}: {} shows another file than the volume's image: a process with access to the device \
                     replaced it (LOOP_CHANGE_FD); delete the pods that use the volume on this node and start \
                     them again",
                    device.path.display()
                )))
            }
        }
    }

    /// Holds a device, which is not known to be the volume's yet.
    fn hold(&self, id: &str, device: &LoopDevice) -> Result<LoopDevice, Fault> {
        let label = HolderLabels::of(&self.uuid, id).new;
        self.kernel().loop_hold(&device.path, &label).during("hold its device", id)
    }

    /// The device of this holder is the volume's.
    fn confirm_holder(&self, id: &str, holder: &LoopDevice) -> Result<(), Fault> {
        let label = HolderLabels::of(&self.uuid, id).held;
        match holder.label == label {
            true => Ok(()),
            false => {
                self.kernel().loop_reset(&holder.path, &label).during("label the holder of its device", id)
            }
        }
    }

    fn detach_holder(&self, id: &str, holder: &LoopDevice) -> Result<(), Fault> {
        let detached = self.kernel().loop_detach(&holder.path, Some(holder.backing));
        detached.during("detach the holder of its device", id)
    }

    fn detach_strays(&self, id: &str, loops: &VolumeLoops) -> Result<(), Fault> {
        loops.strays.iter().try_for_each(|holder| self.detach_holder(id, holder))
    }

    /// Holds a device again that could not be detached, if it still has the same file.
    fn hold_again(&self, id: &str, device: &LoopDevice) -> Result<(), Fault> {
        let holder = self.hold(id, device)?;
        let all = self.kernel().loop_devices().during("list loop devices", id)?;
        match all.iter().any(|found| found.path == device.path && found.backing == device.backing) {
            true => self.confirm_holder(id, &holder),
            false => self.detach_holder(id, &holder),
        }
    }

    /// Restores the configuration of a device.
    pub(super) fn restore(&self, id: &str, device: &LoopDevice) -> Result<(), DeviceError> {
        let Some(how) = device.altered(id) else { return Ok(()) };
        tracing::warn!(
            volume_handle = id,
            device = %device.path.display(),
            "restoring configuration of device: a process {how}"
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
            self.detach_holder(id, holder).map_err(in_use)?;
        }
        let detached = self.kernel().loop_detach(&device.path, Some(device.backing));
        detached.during("detach its device", id).map_err(|fault| {
            // Another process has it open, perhaps a pod that has not ended yet.
            if let Some(error) = held.then(|| self.hold_again(id, device).err()).flatten() {
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
                self.detach_strays(&record.id, &loops)?;
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

/// The device that writers get, with the one that readers get. A device in which a pod has replaced the image is no reader, and
/// it is what writers get only if there is no other: then it is found and released.
pub(super) fn to_device(record: &VolumeRecord, loops: &VolumeLoops) -> Option<Device> {
    let main = loops.devices.iter().min_by_key(|device| (!loops.has_image(device), device.read_only))?;
    let is_reader = |device: &&LoopDevice| device.read_only && loops.has_image(device);
    let reader = loops.devices.iter().filter(is_reader).find(|device| device.path != main.path);
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
            device(2, other(1), Some((7, 1)), "hold:pool:vol-1"),
            // Kubelet's lock of the published device, and the holder of another volume.
            device(3, other(1), Some((7, 1)), "/var/lib/kubelet/dev"),
            device(4, other(9), Some((7, 9)), "hold:pool:vol-2"),
            // A pod replaced the image of this one, and changed its label.
            device(5, other(99), None, "mine"),
            device(6, other(5), Some((7, 5)), "hold:pool:vol-1"),
            // A volume of the same name in another pool.
            device(10, other(96), None, "vol-1"),
            device(11, other(10), Some((7, 10)), "hold:other:vol-1"),
            // A label alone proves nothing.
            device(7, other(98), None, "vol-1"),
            device(8, other(97), None, "hold:pool:vol-1"),
            // A crash before the device was compared: with the image it is the volume's, else it is not.
            device(12, IMAGE, None, "vol-1"),
            device(13, other(12), Some((7, 12)), "new:pool:vol-1"),
            device(14, other(95), None, "of another program"),
            device(15, other(14), Some((7, 14)), "new:pool:vol-1"),
        ];
        let labels = HolderLabels { held: "hold:pool:vol-1".into(), new: "new:pool:vol-1".into() };
        let found = VolumeLoops::select(&all, &labels, vec![IMAGE]);
        let id = format!("vol-{}", "0".repeat(32));
        let longest = HolderLabels::of("b3f3182b-8090-4594-974f-4a8c6ca9ef90", &id).held;
        assert_eq!(longest, format!("hold:b3f3182b80904594:{id}"));
        assert!(longest.len() <= 63);
        let numbers =
            |devices: &[LoopDevice]| devices.iter().map(|device| device.number.1).collect::<Vec<_>>();
        assert_eq!((numbers(&found.devices), numbers(&found.holders)), (vec![1, 5, 12], vec![2, 6, 13]));
        assert_eq!(numbers(&found.strays), [15]);
        assert!(found.has_image(&all[0]) && !found.has_image(&all[4]));
        assert!(found.is_held(&all[0]) && found.is_held(&all[4]));
    }
}
