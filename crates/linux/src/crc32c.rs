//! CRC-32C (Castagnoli), the checksum of ext4, xfs and btrfs superblocks.

use crc::{CRC_32_ISCSI, Crc};

static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The checksum without the final inversion, as ext4 stores it.
pub(crate) fn raw(bytes: &[u8]) -> u32 {
    !crc32c(bytes)
}

/// The standard checksum, as xfs and btrfs store it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc32c_matches_the_standard_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::raw(b"123456789"), 0x1CF9_6D7C);
        assert_eq!(super::raw(b""), !0);
    }
}
