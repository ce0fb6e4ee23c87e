//! btrfs. Users see one UUID and the metadata carry another, which the superblock notes beside it; so for a
//! file system on one device the superblock alone changes.

use crate::bytes::{le16, le64};
use crate::crc32c;

/// The flag of a change of UUID under way, in all metadata.
const CHANGING_FSID: u64 = 1 << 35;
/// Likewise, in the superblock only.
const CHANGING_FSID_V2: u64 = 1 << 36;

const CRC32C: u16 = 0;

/// A superblock that a probe found sound.
pub(crate) struct BtrfsSuper {
    block: Vec<u8>,
}

impl BtrfsSuper {
    /// Where the superblock is.
    pub(crate) const OFFSET: u64 = 64 << 10;
    /// How long it is.
    pub(crate) const LENGTH: usize = 4096;

    /// Where its copies lie, as far as the device reaches.
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

    /// Where the copies lie that this file system has: those within what it uses of its device.
    pub(crate) fn copies(&self) -> impl Iterator<Item = u64> {
        const DEVICE_BYTES_AT: usize = 0xC9 + 8;
        let bytes = le64(&self.block, DEVICE_BYTES_AT);
        Self::COPIES.into_iter().filter(move |offset| offset + (Self::LENGTH as u64) < bytes)
    }
}
