//! NodeExpandVolume: updates the device to the volume's new size, and grows the file system.
//!
//! Where the kernel cannot grow a mounted file system (ext4 without CAP_SYS_RESOURCE), this is detected beforehand, and the
//! call fails with FAILED_PRECONDITION and a way out. Success would report space that does not exist. FAILED_PRECONDITION
//! is the right error, because kubelet takes it for "in use": it stops retrying and keeps the pod's mount, and the next
//! stage grows the file system before it is mounted.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, Mount, MountTable};

use super::block::Block;
use super::error::NodeError;
use super::fs_size::can_grow;
use super::mounts::{DeviceNode, VolumeMode};
use super::stats::not_mounted_at;
use crate::backend::{Device, RefreshDevice};

impl Block {
    /// Expands the volume and returns its size on this node.
    pub(crate) async fn expand(&self, refresh: &RefreshDevice, path: PathBuf) -> Result<u64, NodeError> {
        let before = self.find_at(&refresh.id, &path).await?.ok_or_else(|| not_mounted_at(&path))?;
        let at = path.clone();
        self.kernel.run(move |kernel| shown_at(kernel, &before, &at).map(drop)).await?;

        let device = self.devices.refresh(refresh).await?;
        let seen = self.size_of(&device).await?;
        if seen != device.size {
            return Err(NodeError::Precondition(format!(
                "{} has {seen} bytes, but the volume has {}; check the storage behind the device",
                device.path.display(),
                device.size
            )));
        }
        if seen < self.devices.minimum_device_size(refresh.at_least) {
            return Err(NodeError::OutOfRange(format!(
                "the device has {seen} bytes, but {} were requested; call ControllerExpandVolume first",
                refresh.at_least
            )));
        }
        if let Some(limit) = refresh.limit.filter(|limit| seen > *limit) {
            return Err(NodeError::OutOfRange(format!(
                "the device has {seen} bytes, and the limit is {limit}; volumes cannot shrink"
            )));
        }
        self.kernel.run(move |kernel| grow(kernel, &device, &path)).await?;
        Ok(seen)
    }
}

/// The volume mode of the mount at a path, or NOT_FOUND if the volume is not there.
fn shown_at(
    kernel: &dyn Kernel,
    device: &Device,
    path: &Path,
) -> Result<(MountTable, DeviceNode, VolumeMode), NodeError> {
    let path = kernel.resolve(path)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let kind = table.at(&path).and_then(|mount| node.mode_of(mount)).ok_or_else(|| not_mounted_at(&path))?;
    Ok((table, node, kind))
}

fn grow(kernel: &dyn Kernel, device: &Device, path: &Path) -> Result<(), NodeError> {
    let (table, node, kind) = shown_at(kernel, device, path)?;
    if kind == VolumeMode::Block {
        return Ok(());
    }
    let mounts: Vec<&Mount> = node.mounts_in(&table).collect();
    let Some(fs) = mounts.first().and_then(|mount| mount.fs_type.parse::<FsType>().ok()) else {
        return Err(NodeError::Precondition("the driver cannot grow this type of file system".into()));
    };
    if !can_grow(kernel, &device.path, fs)? {
        return Ok(());
    }
    let Some(writable) = mounts.iter().find(|mount| !mount.is_read_only()) else {
        return Err(NodeError::Precondition(
            "the volume is mounted read-only; its file system grows when it is next staged for writing"
                .into(),
        ));
    };
    kernel.can_grow_online(fs).map_err(|reason| {
        NodeError::Precondition(format!(
            "{fs} cannot grow while it is mounted here: {reason}; it grows automatically when the volume is next \
             staged: stop the pods that use it on this node and start them again"
        ))
    })?;
    Ok(kernel.grow_fs(&device.path, fs, Some(&writable.mount_point))?)
}
