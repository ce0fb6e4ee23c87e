//! Reads from an ext4 superblock whether resize2fs was interrupted while it grew the file system.

use std::path::Path;

use super::devices::Reader;
use crate::Result;

const SUPERBLOCK: u64 = 1024;
const LENGTH: usize = 1024;
const ERRORS_DETECTED: u16 = 2;
const WIDE_BLOCK_COUNT: u32 = 0x80;

/// Whether resize2fs was interrupted on this device, for example by a power cut. A file system in that state can need repairs
/// that `e2fsck -p` does not make.
pub(super) fn growth_was_interrupted(device: &Path) -> Result<bool> {
    let mut reader = Reader::open(device)?;
    if reader.size() < SUPERBLOCK + LENGTH as u64 {
        return Ok(false);
    }
    let mut superblock = [0; LENGTH];
    reader.read(SUPERBLOCK, &mut superblock)?;
    Ok(shows_interrupted_growth(&superblock, reader.size()))
}

/// Before its first change, resize2fs marks the file system as having errors. It removes the mark with the change that makes
/// the file system larger. The kernel also sets the mark, but counts the errors that it finds.
fn shows_interrupted_growth(superblock: &[u8; LENGTH], device_size: u64) -> bool {
    let half = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
    let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
    let (log_block_size, errors_of_kernel) = (word(24), word(404));
    if half(56) != 0xef53 || log_block_size > 6 {
        return false;
    }
    let high = if word(96) & WIDE_BLOCK_COUNT != 0 { word(336) } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(word(4));
    let device_blocks = device_size / (1024 << log_block_size);
    half(58) & ERRORS_DETECTED != 0 && errors_of_kernel == 0 && blocks < device_blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_was_interrupted_only_if_marked_without_errors_of_the_kernel_and_smaller_than_the_device() {
        let superblock = |state: u16, errors: u32, blocks: u32| {
            let mut bytes = [0; LENGTH];
            bytes[4..8].copy_from_slice(&blocks.to_le_bytes());
            bytes[24..28].copy_from_slice(&2u32.to_le_bytes());
            bytes[56..58].copy_from_slice(&0xef53u16.to_le_bytes());
            bytes[58..60].copy_from_slice(&state.to_le_bytes());
            bytes[404..408].copy_from_slice(&errors.to_le_bytes());
            bytes
        };
        const SIZE: u64 = 1000 * 4096;
        for (state, errors, blocks, expected) in [
            (3, 0, 500, true),
            (2, 0, 999, true),
            (1, 0, 500, false),
            (3, 1, 500, false),
            (3, 0, 1000, false),
            (3, 0, 1001, false),
        ] {
            let bytes = superblock(state, errors, blocks);
            assert_eq!(shows_interrupted_growth(&bytes, SIZE), expected, "{state} {errors} {blocks}");
            assert!(!shows_interrupted_growth(&[0; LENGTH], SIZE));
            let mut wide = bytes;
            wide[96..100].copy_from_slice(&WIDE_BLOCK_COUNT.to_le_bytes());
            wide[336..340].copy_from_slice(&1u32.to_le_bytes());
            assert!(!shows_interrupted_growth(&wide, SIZE), "its block count is larger than 32 bits");
        }
    }
}
