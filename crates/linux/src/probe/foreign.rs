//! Unsupported formats: other file systems, partition tables, encryption, volume managers, RAID, swap.
//!
//! One table of magic bytes, and formats that need more than a comparison. A device with a listed format is refused. A
//! format missing here matters only if the zero proof of the driver crate also finds only zeroes.

use super::{DeviceReader, Finding};
use crate::{Result, bytes};

/// The location of a signature.
#[derive(Clone, Copy)]
pub(super) enum Location {
    /// From the start of the device.
    Start(u64),
    /// Back from the end of the device.
    End(u64),
    /// Back from the end, after the device is rounded down to this unit.
    RoundedEnd { unit: u64, back: u64 },
}

impl Location {
    /// The offset on a device of this size.
    pub(super) fn offset(self, size: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End(back) => size.checked_sub(back),
            Self::RoundedEnd { unit, back } => (size - size % unit).checked_sub(back),
        }
    }
}

use Location::{End, RoundedEnd, Start};

/// Software RAID 1.0: 8 KiB before the end, on a 4 KiB boundary.
const RAID_1_0: Location = RoundedEnd { unit: 4096, back: 8192 };
/// Software RAID 0.90: the last whole 64 KiB but one.
const RAID_0_90: Location = RoundedEnd { unit: 65536, back: 65536 };

/// Name, location and magic bytes of each format.
#[rustfmt::skip]
pub(super) const SIGNATURES: &[(&str, Location, &[u8])] = &[
    ("LUKS", Start(0), b"LUKS\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x4000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x8000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x1_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x2_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x4_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x8_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x10_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x20_0000), b"SKUL\xBA\xBE"),
    ("LUKS2 (second header)", Start(0x40_0000), b"SKUL\xBA\xBE"),
    ("BitLocker", Start(3), b"-FVE-FS-"),
    ("LVM2 physical volume", Start(0), b"LABELONE"),
    ("LVM2 physical volume", Start(512), b"LABELONE"),
    ("LVM2 physical volume", Start(1024), b"LABELONE"),
    ("LVM2 physical volume", Start(1536), b"LABELONE"),
    ("device-mapper snapshot", Start(0), b"SnAp"),
    ("dm-integrity", Start(0), b"integrt\0"),
    ("dm-verity", Start(0), b"verity\0\0"),
    ("VDO", Start(0), b"dmvdo001"),
    ("Stratis", Start(512), b"!Stra0tis\x86\xFF\x02^\x41rh"),
    ("Ceph BlueStore", Start(0), b"bluestore block device"),
    ("bcache", Start(4096 + 24), b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81"),
    ("bcachefs", Start(4096 + 24), b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF"),
    ("software RAID 1.1", Start(0), b"\xFC\x4E\x2B\xA9"),
    ("software RAID 1.2", Start(4096), b"\xFC\x4E\x2B\xA9"),
    ("software RAID 1.0", RAID_1_0, b"\xFC\x4E\x2B\xA9"),
    ("software RAID 0.90", RAID_0_90, b"\xFC\x4E\x2B\xA9"),
    ("software RAID 0.90 (big-endian)", RAID_0_90, b"\xA9\x2B\x4E\xFC"),
    ("Intel RAID", End(1024), b"Intel Raid ISM Cfg Sig. "),
    ("DDF RAID", End(512), b"\xDE\x11\xDE\x11"),
    ("GPT partition table", Start(512), b"EFI PART"),
    ("GPT partition table", Start(4096), b"EFI PART"),
    ("GPT partition table (copy)", End(512), b"EFI PART"),
    ("GPT partition table (copy)", End(4096), b"EFI PART"),
    ("swap", Start(4096 - 10), b"SWAPSPACE2"),
    ("swap", Start(8192 - 10), b"SWAPSPACE2"),
    ("swap", Start(16384 - 10), b"SWAPSPACE2"),
    ("swap", Start(65536 - 10), b"SWAPSPACE2"),
    ("swap (old)", Start(4096 - 10), b"SWAP-SPACE"),
    ("suspended system in swap", Start(4096 - 10), b"S1SUSPEND"),
    ("NTFS", Start(3), b"NTFS    "),
    ("exFAT", Start(3), b"EXFAT   "),
    ("FAT", Start(54), b"FAT12   "),
    ("FAT", Start(54), b"FAT16   "),
    ("FAT", Start(82), b"FAT32   "),
    ("ReFS", Start(3), b"ReFS\0"),
    ("squashfs", Start(0), b"hsqs"),
    ("romfs", Start(0), b"-rom1fs-"),
    ("cramfs", Start(0), b"\x45\x3D\xCD\x28"),
    ("erofs", Start(1024), b"\xE2\xE1\xF5\xE0"),
    ("f2fs", Start(1024), b"\x10\x20\xF5\xF2"),
    ("f2fs (second superblock)", Start(5120), b"\x10\x20\xF5\xF2"),
    ("HFS+", Start(1024), b"H+\0\x04"),
    ("HFSX", Start(1024), b"HX\0\x05"),
    ("APFS", Start(32), b"NXSB"),
    ("ISO 9660", Start(32769), b"CD001"),
    ("UDF", Start(32769), b"BEA01"),
    ("JFS", Start(32768), b"JFS1"),
    ("ReiserFS", Start(65536 + 52), b"ReIsEr"),
    ("Reiser4", Start(65536), b"ReIsEr4"),
    ("GFS2", Start(65536), b"\x01\x16\x19\x70"),
    ("OCFS2", Start(4096), b"OCFSV2"),
    ("OCFS2", Start(8192), b"OCFSV2"),
    ("VMFS", Start(0x10_0000), b"\x0D\xD0\x01\xC0"),
];

/// The four locations of a ZFS label, 256 KiB each; the uberblocks fill the second half.
pub(super) const ZFS_LABELS: [Location; 4] = [
    Start(0),
    Start(256 << 10),
    RoundedEnd { unit: 256 << 10, back: 512 << 10 },
    RoundedEnd { unit: 256 << 10, back: 256 << 10 },
];

pub(super) fn find(reader: &mut DeviceReader<'_>) -> Result<Vec<Finding>> {
    let mut found: Vec<Finding> = Vec::new();
    for (what, location, magic) in SIGNATURES {
        let Some(offset) = location.offset(reader.size) else { continue };
        if reader.read_at(offset, magic.len())?.is_some_and(|bytes| bytes == *magic) {
            found.push(Finding::foreign(*what, offset));
        }
    }
    found.extend(zfs(reader)?);
    // A boot sector ends with the same bytes as a partition table, so check this only if nothing else was found.
    if found.is_empty() {
        found.extend(mbr(reader)?);
    }
    Ok(found)
}

fn zfs(reader: &mut DeviceReader<'_>) -> Result<Option<Finding>> {
    const UBERBLOCKS: u64 = 128 << 10;
    const SLOT: usize = 1024;
    const MAGIC: u64 = 0x00BA_B10C;
    for location in ZFS_LABELS {
        let Some(offset) = location.offset(reader.size) else { continue };
        let Some(slots) = reader.read_at(offset + UBERBLOCKS, UBERBLOCKS as usize)? else { continue };
        if slots.chunks_exact(SLOT).any(|slot| [bytes::le64(slot, 0), bytes::be64(slot, 0)].contains(&MAGIC))
        {
            return Ok(Some(Finding::foreign("ZFS", offset + UBERBLOCKS)));
        }
    }
    Ok(None)
}

/// An MBR partition table: its last two bytes, and four valid entries of which at least one is in use.
fn mbr(reader: &mut DeviceReader<'_>) -> Result<Option<Finding>> {
    let Some(sector) = reader.read_at(0, 512)?.filter(|sector| sector.ends_with(b"\x55\xAA")) else {
        return Ok(None);
    };
    let mut entries = sector[446..510].chunks_exact(16);
    let sound = entries.clone().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.any(|entry| entry[4] != 0 && bytes::le32(entry, 12) != 0);
    Ok((sound && used).then(|| Finding::foreign("MBR partition table", 0)))
}
