//! btrfs. The UUID that users see and the UUID in the metadata can differ: the superblock records both. So for a file
//! system on one device only the superblock changes.

use crate::bytes::{le16, le64};
use crate::crc32c;

/// Flag: a UUID change of all metadata is in progress.
const CHANGING_FSID: u64 = 1 << 35;
/// Flag: a UUID change of the superblock only is in progress.
const CHANGING_FSID_V2: u64 = 1 << 36;

const CRC32C: u16 = 0;

/// A superblock that a probe found valid.
pub(crate) struct BtrfsSuper {
    block: Vec<u8>,
}

impl BtrfsSuper {
    /// Offset of the primary superblock.
    pub(crate) const OFFSET: u64 = 64 << 10;
    /// Length of a superblock.
    pub(crate) const LENGTH: usize = 4096;

    /// Offsets of the copies, as far as the device is large enough.
    pub(crate) const COPIES: [u64; 3] = [64 << 20, 256 << 30, 1 << 50];

    const UUID: std::ops::Range<usize> = 0x20..0x30;
    const FLAGS_AT: usize = 0x38;
    const INCOMPAT_AT: usize = 0xBC;
    const METADATA_UUID_AT: usize = 0x23B;
    const METADATA_UUID: u64 = 1 << 10;

    /// `block` is [`Self::LENGTH`] bytes from [`Self::OFFSET`].
    pub(crate) fn new(block: Vec<u8>) -> Self {
        Self { block }
    }

    /// Whether the log must be replayed by a mount.
    pub(crate) fn has_log(&self) -> bool {
        le64(&self.block, 0x60) != 0
    }

    /// Whether another program started to change the UUID and did not finish. The kernel does not mount this state.
    pub(crate) fn is_changing_uuid(&self) -> bool {
        le64(&self.block, Self::FLAGS_AT) & (CHANGING_FSID | CHANGING_FSID_V2) != 0
    }

    /// Whether [`Self::with_uuid`] can be used: only with CRC-32C checksums, and not while all metadata is being
    /// rewritten.
    pub(crate) fn can_change_uuid(&self) -> bool {
        le16(&self.block, 0xC4) == CRC32C && le64(&self.block, Self::FLAGS_AT) & CHANGING_FSID == 0
    }

    /// The superblock with a new UUID, to be written to `offset` (of the primary superblock or a copy).
    pub(crate) fn with_uuid(&self, uuid: [u8; 16], offset: u64) -> Vec<u8> {
        let mut block = self.block.clone();
        let incompat = le64(&block, Self::INCOMPAT_AT);
        if incompat & Self::METADATA_UUID == 0 {
            block.copy_within(Self::UUID, Self::METADATA_UUID_AT);
        }
        let flags = le64(&block, Self::FLAGS_AT) & !CHANGING_FSID_V2;
        block[Self::FLAGS_AT..][..8].copy_from_slice(&flags.to_le_bytes());
        block[Self::INCOMPAT_AT..][..8].copy_from_slice(&(incompat | Self::METADATA_UUID).to_le_bytes());
        block[Self::UUID].copy_from_slice(&uuid);
        block[0x30..0x38].copy_from_slice(&offset.to_le_bytes());
        let checksum = crc32c::crc32c(&block[0x20..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Offsets of the copies that this file system has: those within the part of the device that it uses.
    pub(crate) fn copies(&self) -> impl Iterator<Item = u64> {
        const DEVICE_BYTES_AT: usize = 0xC9 + 8;
        let bytes = le64(&self.block, DEVICE_BYTES_AT);
        Self::COPIES.into_iter().filter(move |offset| offset + (Self::LENGTH as u64) < bytes)
    }
}
