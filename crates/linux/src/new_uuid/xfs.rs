//! xfs. The UUID that users see and the UUID in the metadata can differ: the superblock records both. But the log contains
//! the UUID that users see, and a mount compares it in the last log record. A clean log ends with an unmount record, so
//! that record changes together with the superblocks.

use std::ops::Range;

use crate::bytes::{be16, be32, be64, le32};
use crate::crc32c;

const UUID: Range<usize> = 32..48;
const FEATURES_AT: usize = 216;
const CRC_AT: usize = 224;
const META_UUID_AT: usize = 248;
const HAS_META_UUID: u32 = 4;

/// A superblock that a probe found valid: one whole sector.
pub(crate) struct XfsSuper {
    sector: Vec<u8>,
}

impl XfsSuper {
    /// The smallest sector size: enough to read the real sector size.
    pub(crate) const MIN_SECTOR: usize = 512;

    /// The sector size recorded at the start of a superblock.
    pub(crate) fn sector_length(start: &[u8]) -> usize {
        usize::from(be16(start, 102))
    }

    /// Parses a whole sector; `None` if it is not the superblock of an xfs with checksums (version 5).
    pub(crate) fn new(sector: Vec<u8>) -> Option<Self> {
        let sound = sector.starts_with(b"XFSB")
            && be16(&sector, 100) & 0xF == 5
            && sector.len() == Self::sector_length(&sector)
            && le32(&sector, CRC_AT) == checksum(&sector);
        sound.then_some(Self { sector })
    }

    /// The UUID that users see.
    pub(crate) fn uuid(&self) -> &[u8] {
        &self.sector[UUID]
    }

    /// Offsets of the superblocks of all allocation groups; the first is the primary.
    pub(crate) fn superblock_offsets(&self) -> impl Iterator<Item = u64> {
        let group = u64::from(be32(&self.sector, 84)) * self.block();
        (0..u64::from(be32(&self.sector, 88))).map(move |number| number * group)
    }

    /// The byte range of the log; `None` if it is on another device.
    pub(crate) fn log(&self) -> Option<Range<u64>> {
        let start = be64(&self.sector, 48);
        if start == 0 {
            return None;
        }
        // A block number consists of the group number and, in the low bits, the block within the group.
        let bits = self.sector[124];
        let (group, within) = (start >> bits, start & ((1 << bits) - 1));
        let block = group.checked_mul(u64::from(be32(&self.sector, 84)))?.checked_add(within)?;
        let start = block.checked_mul(self.block())?;
        Some(start..start.checked_add(u64::from(be32(&self.sector, 96)) * self.block())?)
    }

    fn block(&self) -> u64 {
        u64::from(be32(&self.sector, 4))
    }

    /// The sector with a new UUID.
    pub(crate) fn with_uuid(&self, uuid: [u8; 16]) -> Vec<u8> {
        let mut sector = self.sector.clone();
        let features = be32(&sector, FEATURES_AT);
        if features & HAS_META_UUID == 0 {
            sector.copy_within(UUID, META_UUID_AT);
            sector[FEATURES_AT..][..4].copy_from_slice(&(features | HAS_META_UUID).to_be_bytes());
        }
        sector[UUID].copy_from_slice(&uuid);
        let checksum = checksum(&sector).to_le_bytes();
        sector[CRC_AT..][..4].copy_from_slice(&checksum);
        sector
    }
}

fn checksum(sector: &[u8]) -> u32 {
    let mut sector = sector.to_vec();
    sector[CRC_AT..CRC_AT + 4].fill(0);
    crc32c::crc32c(&sector)
}

/// The header of a log record: one block of 512 bytes. The record's data follows in the next blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogRecord {
    header: Vec<u8>,
}

impl LogRecord {
    /// The block size of the log.
    pub(crate) const BLOCK: usize = 512;

    const CRC_AT: usize = 32;
    const UUID: Range<usize> = 304..320;
    /// Records up to this size have a single header block.
    const ONE_HEADER: u32 = 32 << 10;

    /// Parses a block of the log, if it is a header. Other blocks cannot be mistaken for one: each begins with the log's
    /// cycle number.
    pub(crate) fn new(block: &[u8]) -> Option<Self> {
        (be32(block, 0) == 0xFEED_BABE).then(|| Self { header: block.to_vec() })
    }

    /// The log sequence number: the cycle, and the block within the log.
    pub(crate) fn sequence(&self) -> u64 {
        be64(&self.header, 16)
    }

    /// The block number within the log.
    pub(crate) fn block(&self) -> u64 {
        self.sequence() & 0xFFFF_FFFF
    }

    /// The user-visible UUID when the record was written.
    pub(crate) fn uuid(&self) -> &[u8] {
        &self.header[Self::UUID]
    }

    /// The length of its data in bytes.
    pub(crate) fn data_length(&self) -> u64 {
        u64::from(be32(&self.header, 12))
    }

    /// Whether this is a complete unmount record: then there is nothing to replay.
    pub(crate) fn is_unmount(&self, data: &[u8]) -> bool {
        const UNMOUNT: u8 = 0x20;
        be32(&self.header, 40) == 1
            && be32(&self.header, 320) <= Self::ONE_HEADER
            && data.get(9).is_some_and(|flags| flags & UNMOUNT != 0)
            && self.checksum_length(data).is_some()
    }

    /// The header with a new UUID; `None` if its checksum does not match.
    pub(crate) fn with_uuid(&self, uuid: [u8; 16], data: &[u8]) -> Option<Vec<u8>> {
        let length = self.checksum_length(data)?;
        let mut header = self.header.clone();
        header[Self::UUID].copy_from_slice(&uuid);
        let checksum = Self::checksum(&header, length, data).to_le_bytes();
        header[Self::CRC_AT..][..4].copy_from_slice(&checksum);
        Some(header)
    }

    /// How much of the header the checksum covers: the structure's padding differs between architectures.
    fn checksum_length(&self, data: &[u8]) -> Option<usize> {
        let stored = le32(&self.header, Self::CRC_AT);
        [328, 324].into_iter().find(|length| Self::checksum(&self.header, *length, data) == stored)
    }

    fn checksum(header: &[u8], length: usize, data: &[u8]) -> u32 {
        let mut covered = header[..length].to_vec();
        covered[Self::CRC_AT..Self::CRC_AT + 4].fill(0);
        covered.extend_from_slice(data);
        crc32c::crc32c(&covered)
    }
}
