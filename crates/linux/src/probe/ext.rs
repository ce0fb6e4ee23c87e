//! ext2, ext3, ext4: a superblock at 1 KiB, and copies at the start of some block groups.

use super::{DeviceReader, Finding, Verdict};
use crate::bytes::{le16, le32, uuid};
use crate::{FsType, Result, crc32c};

const OFFSET: u64 = 1024;
const LENGTH: usize = 1024;
const MAGIC_AT: usize = 56;
const MAGIC: u16 = 0xEF53;

const HAS_JOURNAL: u32 = 0x4;
const JOURNAL_DEVICE: u32 = 0x8;
/// Incompatible features that only ext4 has: extents, 64bit, flex_bg, ea_inode, csum_seed, large_dir,
/// inline_data, encrypt, casefold.
const EXT4_INCOMPAT: u32 = 0x40 | 0x80 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000;
/// Read-only compatible features that only ext4 has: huge_file, gdt_csum, dir_nlink, extra_isize, quota,
/// bigalloc, metadata_csum, project.
const EXT4_RO_COMPAT: u32 = 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000;
const METADATA_CSUM: u32 = 0x400;

/// The first block groups with a copy: 1 and the powers of 3, 5 and 7.
pub(super) const BACKUP_GROUPS: [u64; 9] = [1, 3, 5, 7, 9, 25, 27, 49, 81];

/// Offsets of the copies if the file system has the default number of blocks per group.
pub(super) fn backup_offsets() -> impl Iterator<Item = u64> {
    [1024, 2048, 4096].into_iter().flat_map(|block: u64| {
        // A group is described by a bitmap of one block. With 1 KiB blocks, block 0 is the boot sector.
        let first = if block == 1024 { 1024 } else { 0 };
        BACKUP_GROUPS.into_iter().map(move |group| group * block * 8 * block + first)
    })
}

pub(super) fn find(reader: &mut DeviceReader<'_>) -> Result<Option<Finding>> {
    let size = reader.size;
    Ok(reader.read_at(OFFSET, LENGTH)?.and_then(|block| judge(&block, size)))
}

pub(super) fn find_backup(reader: &mut DeviceReader<'_>) -> Result<Option<String>> {
    for offset in backup_offsets() {
        let Some(block) = reader.read_at(offset, LENGTH)? else { continue };
        // A copy has the number of its block group, which makes a false positive unlikely.
        if le16(&block, MAGIC_AT) == MAGIC && le16(&block, 90) != 0 && problem(&block, u64::MAX).is_none() {
            return Ok(Some(format!("a copy of an ext superblock at {offset}, but no primary superblock")));
        }
    }
    Ok(None)
}

fn judge(block: &[u8], size: u64) -> Option<Finding> {
    if le16(block, MAGIC_AT) != MAGIC {
        return None;
    }
    let (compat, incompat, ro_compat) = (le32(block, 92), le32(block, 96), le32(block, 100));
    if incompat & JOURNAL_DEVICE != 0 {
        return Some(Finding::foreign("the journal of an ext4", OFFSET));
    }
    let name = if incompat & EXT4_INCOMPAT != 0 || ro_compat & EXT4_RO_COMPAT != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    if let Some(problem) = problem(block, size) {
        return Some(Finding::damaged(FsType::Ext4, format!("{name} whose superblock {problem}"), OFFSET));
    }
    let covers = OFFSET..bytes(block).unwrap_or(u64::MAX);
    let verdict = match name {
        "ext4" => Verdict::Ours { fs: FsType::Ext4, uuid: uuid(block, 104) },
        _ => Verdict::Foreign,
    };
    Some(Finding { verdict, what: name.to_owned(), offset: OFFSET, covers })
}

/// The size recorded in the superblock, if it is plausible.
fn bytes(block: &[u8]) -> Option<u64> {
    const SIXTY_FOUR_BIT: u32 = 0x80;
    let shift = le32(block, 24).checked_add(10).filter(|shift| *shift <= 16)?;
    let high = if le32(block, 96) & SIXTY_FOUR_BIT != 0 { u64::from(le32(block, 0x150)) } else { 0 };
    let blocks = high << 32 | u64::from(le32(block, 4));
    blocks.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn problem(block: &[u8], size: u64) -> Option<String> {
    const CRC32C: u8 = 1;
    if le32(block, 100) & METADATA_CSUM != 0
        && (block[0x175] != CRC32C || crc32c::raw(&block[..0x3FC]) != le32(block, 0x3FC))
    {
        return Some("does not match its checksum".to_owned());
    }
    let Some(bytes) = bytes(block) else { return Some("records an impossible size".to_owned()) };
    if le32(block, 0) == 0 || le32(block, 32) == 0 || le32(block, 40) == 0 {
        return Some("records no inodes or no blocks".to_owned());
    }
    (bytes > size).then(|| format!("records {bytes} bytes, but the device has {size}: the end is cut off"))
}
