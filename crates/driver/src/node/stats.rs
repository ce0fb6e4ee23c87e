//! Usage of the volume at a path. A path at which the volume is not mounted is an error, because the numbers would be those
//! of another file system.

use std::path::{Path, PathBuf};

use wharf_csi::v1::{VolumeUsage, volume_usage::Unit};
use wharf_linux::{FsUsage, Kernel};

use super::block::Block;
use super::error::NodeError;
use super::mounts::{DeviceNode, VolumeMode};
use super::share::Share;
use crate::backend::Device;
use crate::wire;

impl Block {
    /// Bytes and inodes of a file system, the size of a raw device.
    pub(crate) async fn stats(&self, id: &str, path: PathBuf) -> Result<Vec<VolumeUsage>, NodeError> {
        let device = self.find_at(id, &path).await?.ok_or_else(|| not_mounted_at(&path))?;
        self.kernel.run(move |kernel| block_stats(kernel, &device, &path)).await
    }
}

impl Share {
    /// Bytes and inodes of the file system at the path.
    pub(crate) async fn stats(&self, path: PathBuf) -> Result<Vec<VolumeUsage>, NodeError> {
        self.kernel
            .run(move |kernel| {
                let path = kernel.resolve(&path)?;
                match kernel.mount_table()?.at(&path) {
                    Some(_) => Ok(filesystem(&kernel.usage(&path)?)),
                    None => Err(not_mounted_at(&path)),
                }
            })
            .await
    }
}

fn block_stats(kernel: &dyn Kernel, device: &Device, path: &Path) -> Result<Vec<VolumeUsage>, NodeError> {
    let path = kernel.resolve(path)?;
    let table = kernel.mount_table()?;
    let node = DeviceNode::of(kernel, device)?;
    match table.at(&path).and_then(|mount| node.mode_of(mount)) {
        Some(VolumeMode::Filesystem) => Ok(filesystem(&kernel.usage(&path)?)),
        Some(VolumeMode::Block) => Ok(vec![usage(Unit::Bytes, kernel.device_size(&device.path)?, 0, 0)]),
        None => Err(not_mounted_at(&path)),
    }
}

/// The error for a path at which the volume is not mounted.
pub(super) fn not_mounted_at(path: &Path) -> NodeError {
    NodeError::NotFound(format!("the volume is neither staged nor published at {}", path.display()))
}

/// btrfs has no fixed number of inodes, and a total of 0 would read as "no inode left".
pub(super) fn filesystem(found: &FsUsage) -> Vec<VolumeUsage> {
    let mut all = vec![usage(Unit::Bytes, found.total_bytes, found.used_bytes, found.available_bytes)];
    if found.total_inodes > 0 {
        all.push(usage(Unit::Inodes, found.total_inodes, found.used_inodes, found.available_inodes));
    }
    all
}

fn usage(unit: Unit, total: u64, used: u64, available: u64) -> VolumeUsage {
    let number = wire::bytes;
    VolumeUsage { unit: unit.into(), total: number(total), used: number(used), available: number(available) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_reported_only_if_the_file_system_counts_them() {
        let ext4 = FsUsage {
            total_bytes: 10,
            used_bytes: 4,
            available_bytes: 5,
            total_inodes: 3,
            ..FsUsage::default()
        };
        let usages = filesystem(&ext4);
        assert_eq!(usages[0], usage(Unit::Bytes, 10, 4, 5));
        assert_eq!(usages[1], usage(Unit::Inodes, 3, 0, 0));
        assert_eq!(filesystem(&FsUsage { total_inodes: 0, ..ext4 }).len(), 1);
        assert_eq!(usage(Unit::Bytes, u64::MAX, 0, 0).total, i64::MAX);
    }
}
