//! xfs: a superblock at the start of the device, and a copy at the start of every allocation group.

use super::{DeviceReader, Finding, Verdict};
use crate::bytes::{be16, be32, be64, le32, uuid};
use crate::{FsType, Result, crc32c};

const MAGIC: &[u8] = b"XFSB";
/// The part with fields; the checksum covers the whole sector.
const LENGTH: usize = 512;
const CRC_AT: usize = 224;

/// Offsets of the copies if the file system has the four groups that mkfs chooses for most sizes.
pub(super) fn backup_offsets(size: u64) -> impl Iterator<Item = u64> {
    const BLOCK: u64 = 4096;
    let group = (size / BLOCK).div_ceil(4) * BLOCK;
    (1..4).map(move |number| number * group).filter(|offset| *offset > 0)
}

pub(super) fn find(reader: &mut DeviceReader<'_>) -> Result<Option<Finding>> {
    let Some(block) = read(reader, 0)? else { return Ok(None) };
    Ok(Some(judge(&block, reader.size)))
}

pub(super) fn find_backup(reader: &mut DeviceReader<'_>) -> Result<Option<String>> {
    for offset in backup_offsets(reader.size) {
        if read(reader, offset)?.is_some() {
            return Ok(Some(format!("a copy of an xfs superblock at {offset}, but no primary superblock")));
        }
    }
    Ok(None)
}

/// The whole sector of a superblock, if it has the magic.
fn read(reader: &mut DeviceReader<'_>, offset: u64) -> Result<Option<Vec<u8>>> {
    let Some(block) = reader.read_at(offset, LENGTH)?.filter(|block| block.starts_with(MAGIC)) else {
        return Ok(None);
    };
    let sector = usize::from(be16(&block, 102));
    if sector.is_power_of_two() && (LENGTH..=32768).contains(&sector) {
        return Ok(reader.read_at(offset, sector)?.or(Some(block)));
    }
    Ok(Some(block))
}

fn judge(block: &[u8], size: u64) -> Finding {
    if let Some(problem) = problem(block, size) {
        return Finding::damaged(FsType::Xfs, format!("xfs whose superblock {problem}"), 0);
    }
    Finding {
        verdict: Verdict::Ours { fs: FsType::Xfs, uuid: uuid(block, 32) },
        what: "xfs".to_owned(),
        offset: 0,
        covers: 0..bytes(block).unwrap_or(u64::MAX),
    }
}

fn bytes(block: &[u8]) -> Option<u64> {
    be64(block, 8).checked_mul(u64::from(be32(block, 4))).filter(|bytes| *bytes > 0)
}

fn problem(block: &[u8], size: u64) -> Option<String> {
    const VERSION_5: u16 = 5;
    if be16(block, 100) & 0xF == VERSION_5 && checksum(block) != le32(block, CRC_AT) {
        return Some("does not match its checksum".to_owned());
    }
    let (block_size, sector) = (be32(block, 4), be16(block, 102));
    let sound = block_size.is_power_of_two()
        && (512..=65536).contains(&block_size)
        && usize::from(sector) == block.len()
        && be32(block, 84) > 0
        && be32(block, 88) > 0;
    let Some(bytes) = bytes(block).filter(|_| sound) else {
        return Some("records an impossible geometry".to_owned());
    };
    if block[126] != 0 {
        return Some("says that its mkfs did not finish".to_owned());
    }
    (bytes > size).then(|| format!("records {bytes} bytes, but the device has {size}: the end is cut off"))
}

fn checksum(block: &[u8]) -> u32 {
    let mut block = block.to_vec();
    block[CRC_AT..CRC_AT + 4].fill(0);
    crc32c::crc32c(&block)
}
