//! Reads from the superblock whether a file system can grow into its device, so that growing starts only if there is space,
//! and impossible growth is detected beforehand. Pure except for one read.

use std::path::Path;

use wharf_linux::{FsType, Kernel};

use super::error::NodeError;

/// Enough bytes for the superblock of each type.
const LENGTH: usize = 4096;

/// Whether the device has unused space into which the file system can grow.
pub(crate) fn can_grow(kernel: &dyn Kernel, device: &Path, fs: FsType) -> Result<bool, NodeError> {
    let size = kernel.device_size(device)?;
    let mut block = vec![0; LENGTH];
    // Reads of a device are whole blocks: the ext4 superblock is in the middle of the first one.
    let (offset, skip) = match fs {
        FsType::Ext4 => (0, 1024),
        FsType::Xfs => (0, 0),
        FsType::Btrfs => (64 * 1024, 0),
    };
    kernel.read_device(device, offset, &mut block)?;
    can_extend(fs, &block[skip..], size)
        .ok_or_else(|| NodeError::Precondition(format!("{} has no valid {fs} superblock", device.display())))
}

/// `None` if this is not a superblock of this type.
fn can_extend(fs: FsType, superblock: &[u8], device_size: u64) -> Option<bool> {
    match fs {
        FsType::Ext4 => ext4(superblock, device_size),
        FsType::Xfs => {
            let block = u64::from(u32::from_be_bytes(bytes(superblock, 4)?));
            let blocks = u64::from_be_bytes(bytes(superblock, 8)?);
            let ours = superblock.starts_with(b"XFSB");
            (ours && block > 0).then(|| blocks < device_size / block)
        }
        FsType::Btrfs => {
            let sector = u64::from(u32::from_le_bytes(bytes(superblock, 0x90)?));
            let total = u64::from_le_bytes(bytes(superblock, 0x70)?);
            let ours = superblock.get(0x40..0x48)? == b"_BHRfS_M";
            (ours && sector > 0).then(|| total / sector < device_size / sector)
        }
    }
}

/// ext4 consists of block groups, and resize2fs leaves the end of a device unused if it is too short for a group with its
/// own tables. Such a rest does not count as space: growing would have no effect.
fn ext4(superblock: &[u8], device_size: u64) -> Option<bool> {
    let word = |at| Some(u64::from(u32::from_le_bytes(bytes(superblock, at)?)));
    let half = |at| Some(u64::from(u16::from_le_bytes(bytes(superblock, at)?)));
    let (magic, log_block, group) = (half(56)?, word(24)?, word(32)?);
    if magic != 0xef53 || log_block > 6 || group == 0 {
        return None;
    }
    let block = 1024u64 << log_block;
    let wide = word(96)? & 0x80 != 0;
    let blocks = word(4)? + if wide { word(336)? << 32 } else { 0 };
    let descriptor = if wide { half(254)?.max(64) } else { 32 };
    let after_last_group = blocks.saturating_sub(word(20)?).is_multiple_of(group);

    let descriptors = (blocks.div_ceil(group) * descriptor).div_ceil(block);
    let inode_table = (word(40)? * half(88)?).div_ceil(block);
    // A superblock, two bitmaps, and the minimum of 50 data blocks that resize2fs requires.
    let smallest_group = 3 + 50 + descriptors + half(206)? + inode_table;
    let left = (device_size / block).saturating_sub(blocks);
    Some(left > 0 && !(after_last_group && left < smallest_group))
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(block: &mut [u8], at: usize, value: &[u8]) {
        block[at..at + value.len()].copy_from_slice(value);
    }

    fn ext4_of(blocks: u32) -> Vec<u8> {
        let mut block = vec![0; LENGTH];
        put(&mut block, 4, &blocks.to_le_bytes());
        put(&mut block, 24, &2u32.to_le_bytes());
        put(&mut block, 32, &32768u32.to_le_bytes());
        put(&mut block, 40, &8192u32.to_le_bytes());
        put(&mut block, 56, &0xef53u16.to_le_bytes());
        put(&mut block, 88, &256u16.to_le_bytes());
        put(&mut block, 206, &1024u16.to_le_bytes());
        block
    }

    #[test]
    fn ext4_grows_if_the_rest_is_large_enough_for_a_group() {
        for (blocks, device_blocks, expected) in [
            (32768, 32768, false),
            (32768, 40000, true),
            (32768, 32768 + 1000, false), // too short for a group with its tables
            (32768, 32768 + 3000, true),
            (30000, 30001, true), // the last group is not full yet
            (32768, 30000, false),
        ] {
            let device = device_blocks * 4096 + 1000;
            assert_eq!(
                can_extend(FsType::Ext4, &ext4_of(blocks), device),
                Some(expected),
                "{blocks} {device_blocks}"
            );
        }
    }

    #[test]
    fn xfs_and_btrfs_grow_by_whole_blocks() {
        let mut xfs = vec![0; LENGTH];
        put(&mut xfs, 0, b"XFSB");
        put(&mut xfs, 4, &4096u32.to_be_bytes());
        put(&mut xfs, 8, &1000u64.to_be_bytes());
        let mut btrfs = vec![0; LENGTH];
        put(&mut btrfs, 0x40, b"_BHRfS_M");
        put(&mut btrfs, 0x70, &(1000u64 * 4096).to_le_bytes());
        put(&mut btrfs, 0x90, &4096u32.to_le_bytes());
        for (fs, block) in [(FsType::Xfs, xfs), (FsType::Btrfs, btrfs)] {
            assert_eq!(can_extend(fs, &block, 1000 * 4096 + 512), Some(false));
            assert_eq!(can_extend(fs, &block, 1001 * 4096), Some(true));
        }
    }

    #[test]
    fn invalid_superblock_has_no_size() {
        for fs in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
            assert_eq!(can_extend(fs, &[0; LENGTH], 1 << 30), None);
            assert_eq!(can_extend(fs, &[], 1 << 30), None);
        }
    }
}
