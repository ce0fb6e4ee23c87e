//! CRC-32C (Castagnoli), the checksum of ext4, xfs and btrfs superblocks.

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82F6_3B78 } else { value >> 1 };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
}

/// The checksum without the final inversion, as ext4 stores it.
pub(crate) fn raw(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xFF) as usize] ^ (crc >> 8))
}

/// The standard checksum, as xfs and btrfs store it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !raw(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc32c_matches_the_standard_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
    }
}
