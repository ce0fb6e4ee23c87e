//! ext2, ext3, ext4: one superblock at 1 KiB, copies at the start of some block groups.

use super::{Finding, Source, Verdict};
use crate::bytes::{le16, le32, uuid};
use crate::{FsType, Result, crc32c};

const OFFSET: u64 = 1024;
const LENGTH: usize = 1024;
const MAGIC_AT: usize = 56;
const MAGIC: u16 = 0xEF53;

const HAS_JOURNAL: u32 = 0x4;
const JOURNAL_DEVICE: u32 = 0x8;
/// Incompatible features that only ext4 knows: extents, 64bit, flex_bg, ea_inode, csum_seed, large_dir,
/// inline_data, encrypt, casefold.
const EXT4_INCOMPAT: u32 = 0x40 | 0x80 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000;
/// Likewise of those that a read-only mount may ignore: huge_file, gdt_csum, dir_nlink, extra_isize, quota,
/// bigalloc, metadata_csum, project.
const EXT4_RO_COMPAT: u32 = 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000;
const METADATA_CSUM: u32 = 0x400;

/// The first block groups that keep a copy: 1 and the powers of 3, 5 and 7.
pub(super) const COPY_GROUPS: [u64; 9] = [1, 3, 5, 7, 9, 25, 27, 49, 81];

/// Where the copies lie if the file system has the usual number of blocks to a group.
pub(super) fn copy_offsets() -> impl Iterator<Item = u64> {
    [1024, 2048, 4096].into_iter().flat_map(|block: u64| {
        // A bitmap of one block describes a group; with 1 KiB blocks the first block is the boot sector's.
        let first = if block == 1024 { 1024 } else { 0 };
        COPY_GROUPS.into_iter().map(move |group| group * block * 8 * block + first)
    })
}

pub(super) fn find(source: &mut Source<'_>) -> Result<Option<Finding>> {
    let size = source.size;
    Ok(source.at(OFFSET, LENGTH)?.and_then(|block| judge(&block, size)))
}

pub(super) fn copy(source: &mut Source<'_>) -> Result<Option<String>> {
    for offset in copy_offsets() {
        let Some(block) = source.at(offset, LENGTH)? else { continue };
        // A group number in the copy that is its own place makes a chance hit unlikely.
        if le16(&block, MAGIC_AT) == MAGIC && le16(&block, 90) != 0 && problem(&block, u64::MAX).is_none() {
            return Ok(Some(format!("a copy of an ext superblock at {offset}, its original is gone")));
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
    let claim = OFFSET..bytes(block).unwrap_or(u64::MAX);
    let verdict = match name {
        "ext4" => Verdict::Ours { fs: FsType::Ext4, uuid: uuid(block, 104) },
        _ => Verdict::Foreign,
    };
    Some(Finding { verdict, what: name.to_owned(), offset: OFFSET, claim })
}

/// The size that the superblock tells, if it makes sense.
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
    let Some(bytes) = bytes(block) else { return Some("tells an impossible size".to_owned()) };
    if le32(block, 0) == 0 || le32(block, 32) == 0 || le32(block, 40) == 0 {
        return Some("tells of no inodes or no blocks".to_owned());
    }
    (bytes > size).then(|| format!("tells {bytes} bytes on a device of {size}: the end is cut off"))
}
