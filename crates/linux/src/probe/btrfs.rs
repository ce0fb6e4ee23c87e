//! btrfs: a superblock at 64 KiB, with copies at 64 MiB, 256 GiB and 1 PiB.

use super::{DeviceReader, Finding, Verdict};
use crate::bytes::{le16, le32, le64, uuid};
use crate::new_uuid::BtrfsSuper;
use crate::{FsType, Result, crc32c};

const OFFSET: u64 = BtrfsSuper::OFFSET;
const LENGTH: usize = BtrfsSuper::LENGTH;
const MAGIC_AT: usize = 0x40;
const MAGIC: &[u8] = b"_BHRfS_M";
/// The magic that mkfs writes until it has finished.
const UNFINISHED: &[u8] = b"!BHRfS_M";

/// Offsets of the backup copies.
pub(super) const COPIES: [u64; 3] = BtrfsSuper::COPIES;

const CRC32C: u16 = 0;

pub(super) fn find(reader: &mut DeviceReader<'_>) -> Result<Option<Finding>> {
    let size = reader.size;
    Ok(reader.read_at(OFFSET, LENGTH)?.and_then(|block| judge(&block, size)))
}

pub(super) fn find_backup(reader: &mut DeviceReader<'_>) -> Result<Option<String>> {
    for offset in COPIES {
        let Some(block) = reader.read_at(offset, LENGTH)? else { continue };
        if has(&block, MAGIC) && le64(&block, 0x30) == offset {
            return Ok(Some(format!("a copy of a btrfs superblock at {offset}, but no primary superblock")));
        }
    }
    Ok(None)
}

fn has(block: &[u8], magic: &[u8]) -> bool {
    block[MAGIC_AT..].starts_with(magic)
}

fn judge(block: &[u8], size: u64) -> Option<Finding> {
    if has(block, UNFINISHED) {
        return Some(Finding::damaged(FsType::Btrfs, "btrfs whose mkfs did not finish", OFFSET));
    }
    if !has(block, MAGIC) {
        return None;
    }
    if let Some(problem) = problem(block, size) {
        return Some(Finding::damaged(FsType::Btrfs, format!("btrfs whose superblock {problem}"), OFFSET));
    }
    let devices = le64(block, 0x88);
    let (verdict, what) = if devices == 1 {
        (Verdict::Ours { fs: FsType::Btrfs, uuid: uuid(block, 0x20) }, "btrfs".to_owned())
    } else {
        (Verdict::Foreign, format!("one of {devices} devices of a btrfs"))
    };
    Some(Finding { verdict, what, offset: OFFSET, covers: OFFSET..device_bytes(block) })
}

/// The number of bytes that the file system uses on this device.
fn device_bytes(block: &[u8]) -> u64 {
    const DEVICE_ITEM: usize = 0xC9;
    le64(block, DEVICE_ITEM + 8)
}

fn problem(block: &[u8], size: u64) -> Option<String> {
    if le16(block, 0xC4) == CRC32C && crc32c::crc32c(&block[0x20..]) != le32(block, 0) {
        return Some("does not match its checksum".to_owned());
    }
    if le64(block, 0x30) != OFFSET || le64(block, 0x88) == 0 {
        return Some("has a wrong offset or no devices".to_owned());
    }
    let bytes = device_bytes(block);
    (bytes > size).then(|| format!("records {bytes} bytes, but the device has {size}: the end is cut off"))
}
