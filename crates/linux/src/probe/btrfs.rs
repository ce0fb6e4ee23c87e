//! btrfs: a superblock at 64 KiB, with copies at 64 MiB, 256 GiB and 1 PiB.

use super::{Finding, Source, Verdict, crc32c, le16, le32, le64, uuid};
use crate::{FsType, Result};

const OFFSET: u64 = 64 << 10;
const LENGTH: usize = 4096;
const MAGIC_AT: usize = 0x40;
const MAGIC: &[u8] = b"_BHRfS_M";
/// What mkfs writes until it is done.
const UNFINISHED: &[u8] = b"!BHRfS_M";

/// Where the copies lie.
pub(super) const COPIES: [u64; 3] = [64 << 20, 256 << 30, 1 << 50];

/// The flag of a change of UUID under way, in all metadata.
const CHANGING_FSID: u64 = 1 << 35;
/// Likewise, in the superblock only.
const CHANGING_FSID_V2: u64 = 1 << 36;

const CRC32C: u16 = 0;

pub(super) fn find(source: &mut Source<'_>) -> Result<Option<Finding>> {
    let size = source.size;
    Ok(source.at(OFFSET, LENGTH)?.and_then(|block| judge(&block, size)))
}

pub(super) fn copy(source: &mut Source<'_>) -> Result<Option<String>> {
    for offset in COPIES {
        let Some(block) = source.at(offset, LENGTH)? else { continue };
        if has(&block, MAGIC) && le64(&block, 0x30) == offset {
            return Ok(Some(format!("a copy of a btrfs superblock at {offset}, its original is gone")));
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
    Some(Finding { verdict, what, offset: OFFSET, claim: OFFSET..device_bytes(block) })
}

/// What the file system uses of this device.
fn device_bytes(block: &[u8]) -> u64 {
    const DEVICE_ITEM: usize = 0xC9;
    le64(block, DEVICE_ITEM + 8)
}

fn problem(block: &[u8], size: u64) -> Option<String> {
    if le16(block, 0xC4) == CRC32C && crc32c::crc32c(&block[0x20..]) != le32(block, 0) {
        return Some("does not match its checksum".to_owned());
    }
    if le64(block, 0x30) != OFFSET || le64(block, 0x88) == 0 {
        return Some("is not one for this place, or of no device".to_owned());
    }
    let bytes = device_bytes(block);
    (bytes > size).then(|| format!("tells {bytes} bytes on a device of {size}: the end is cut off"))
}

/// A superblock that a probe found sound, to be given another UUID.
///
/// Done by our own hand, since btrfstune takes two transactions for it and a file system on which it was
/// interrupted between them neither mounts nor can be handed to it again. For one device it is a matter of
/// the superblock alone: the UUID that the metadata carry is noted beside the one that users see.
pub(crate) struct BtrfsSuper {
    block: Vec<u8>,
}

impl BtrfsSuper {
    /// Where the superblock is.
    pub(crate) const OFFSET: u64 = OFFSET;
    /// How long it is.
    pub(crate) const LENGTH: usize = LENGTH;

    const FLAGS_AT: usize = 0x38;
    const INCOMPAT_AT: usize = 0xBC;
    const METADATA_UUID_AT: usize = 0x23B;
    const METADATA_UUID: u64 = 1 << 10;

    /// `block` is [`Self::LENGTH`] bytes from [`Self::OFFSET`].
    pub(crate) fn new(block: Vec<u8>) -> Self {
        Self { block }
    }

    /// A log of the file system's last moments waits to be replayed by a mount.
    pub(crate) fn has_log(&self) -> bool {
        le64(&self.block, 0x60) != 0
    }

    /// A change of the UUID by another program began and did not end; no kernel mounts it like this.
    pub(crate) fn is_changing_uuid(&self) -> bool {
        le64(&self.block, Self::FLAGS_AT) & (CHANGING_FSID | CHANGING_FSID_V2) != 0
    }

    /// Whether [`Self::with_uuid`] can do it: not with a checksum other than the usual one, and not while all
    /// metadata are being rewritten.
    pub(crate) fn can_change_uuid(&self) -> bool {
        le16(&self.block, 0xC4) == CRC32C && le64(&self.block, Self::FLAGS_AT) & CHANGING_FSID == 0
    }

    /// The superblock with another UUID, as it is to be written to `offset` (the original's or a copy's).
    pub(crate) fn with_uuid(&self, uuid: [u8; 16], offset: u64) -> Vec<u8> {
        let mut block = self.block.clone();
        let incompat = le64(&block, Self::INCOMPAT_AT);
        if incompat & Self::METADATA_UUID == 0 {
            block.copy_within(0x20..0x30, Self::METADATA_UUID_AT);
        }
        let flags = le64(&block, Self::FLAGS_AT) & !CHANGING_FSID_V2;
        block[Self::FLAGS_AT..][..8].copy_from_slice(&flags.to_le_bytes());
        block[Self::INCOMPAT_AT..][..8].copy_from_slice(&(incompat | Self::METADATA_UUID).to_le_bytes());
        block[0x20..0x30].copy_from_slice(&uuid);
        block[0x30..0x38].copy_from_slice(&offset.to_le_bytes());
        let checksum = crc32c::crc32c(&block[0x20..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Where the copies lie that a device of this size has.
    pub(crate) fn copies(size: u64) -> impl Iterator<Item = u64> {
        COPIES.into_iter().filter(move |offset| offset + LENGTH as u64 <= size)
    }
}
