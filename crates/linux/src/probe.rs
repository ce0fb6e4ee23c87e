//! Which format a device carries, found by its signatures.

use crate::{FsType, Probe, Result};

/// Every place where a known format keeps a superblock or a copy of one, as `(offset, length)`.
pub fn signature_offsets(device_size: u64) -> Vec<(u64, u64)> {
    vec![(0, device_size.min(2 << 20))]
}

pub(crate) fn recognise(_size: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Probe> {
    let mut head = vec![0; 128 << 10];
    read(0, &mut head)?;
    let uuid = |at: usize| {
        let hex: String = head[at..at + 16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    };
    Ok(if head[1080..1082] == [0x53, 0xEF] {
        Probe::Filesystem { fs: FsType::Ext4, uuid: uuid(1024 + 104) }
    } else if &head[..4] == b"XFSB" {
        Probe::Filesystem { fs: FsType::Xfs, uuid: uuid(32) }
    } else if &head[65600..65608] == b"_BHRfS_M" {
        Probe::Filesystem { fs: FsType::Btrfs, uuid: uuid(65536 + 32) }
    } else {
        Probe::Nothing
    })
}
