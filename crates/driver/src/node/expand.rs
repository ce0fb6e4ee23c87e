//! NodeExpandVolume: the device sees the volume's new size, and the file system takes it.
//!
//! Where the kernel lets nobody grow a mounted file system (ext4 without CAP_SYS_RESOURCE), this is known
//! beforehand, and the answer is FAILED_PRECONDITION with what to do. Not success, which would claim room that
//! is not there; and not another error, since kubelet takes this one for "in use": it stops asking and keeps
//! the pod's mount, and the next stage grows the file system before it is mounted.

use std::path::{Path, PathBuf};

use wharf_linux::{FsType, Kernel, Mount, MountTable};

use super::block::Block;
use super::error::NodeError;
use super::fs_size::can_grow;
use super::mounts::{DeviceNode, Kind};
use super::stats::not_at;
use crate::backend::{Device, SizeRange};

impl Block {
    /// Answers the volume's size on this node.
    pub(crate) async fn expand(&self, id: &str, path: PathBuf, size: SizeRange) -> Result<u64, NodeError> {
        let before = self.find_at(id, &path).await?.ok_or_else(|| not_at(&path))?;
        let at = path.clone();
        self.machine.run(move |kernel| shown_at(kernel, &before, &at).map(drop)).await?;

        let device = self.devices.refresh(id, size.required).await?;
        let seen = self.size_of(&device).await?;
        if seen != device.size {
            return Err(NodeError::Precondition(format!(
                "{} has {seen} bytes, and the volume has {}; see what became of the storage behind it",
                device.path.display(),
                device.size
            )));
        }
        if seen < self.devices.least_for(size.required) {
            return Err(NodeError::OutOfRange(format!(
                "it has {seen} bytes, and {} are asked for; expand it by the controller first",
                size.required
            )));
        }
        self.machine.run(move |kernel| grow(kernel, &device, &path)).await?;
        Ok(seen)
    }
}

/// How the volume is at a path, or NOT_FOUND.
fn shown_at(
    kernel: &dyn Kernel,
    device: &Device,
    path: &Path,
) -> Result<(MountTable, DeviceNode, Kind), NodeError> {
    let path = kernel.resolve(path)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    let kind = table.at(&path).and_then(|mount| node.kind_of(mount)).ok_or_else(|| not_at(&path))?;
    Ok((table, node, kind))
}

fn grow(kernel: &dyn Kernel, device: &Device, path: &Path) -> Result<(), NodeError> {
    let (table, node, kind) = shown_at(kernel, device, path)?;
    if kind == Kind::Raw {
        return Ok(());
    }
    let mounts: Vec<&Mount> = node.uses(&table).collect();
    let Some(fs) = mounts.first().and_then(|mount| mount.fs_type.parse::<FsType>().ok()) else {
        return Err(NodeError::Precondition("it holds a file system that this driver cannot grow".into()));
    };
    if !can_grow(kernel, &device.path, fs)? {
        return Ok(());
    }
    let Some(writable) = mounts.iter().find(|mount| !mount.is_read_only()) else {
        return Err(NodeError::Precondition(
            "it is mounted read-only; its file system grows when it is next staged for writing".into(),
        ));
    };
    kernel.can_grow_online(fs).map_err(|why| {
        NodeError::Precondition(format!(
            "{fs} cannot grow while it is mounted here: {why}; it grows by itself when the volume is next \
             staged: stop the pods that use it on this node and start them again"
        ))
    })?;
    Ok(kernel.grow_fs(&device.path, fs, Some(&writable.mount_point))?)
}
