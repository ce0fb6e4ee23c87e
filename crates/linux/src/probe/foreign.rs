//! All that is not ours: other file systems, partition tables, encryption, volume managers, RAID, swap.
//!
//! One table of magic bytes, and three formats that need a second look. What is listed here is refused, so a
//! format that is missing is a gap only if the zero proof above this crate sees zeroes everywhere, too.

use super::{Finding, Source};
use crate::{Result, bytes};

/// Where a signature is looked for.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// From the start of the device.
    Start(u64),
    /// Back from the end of the device.
    End(u64),
    /// Back from the end, after the device is rounded down to this unit.
    RoundedEnd { unit: u64, back: u64 },
}

impl Place {
    /// The offset on a device of this size.
    pub(super) fn offset(self, size: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End(back) => size.checked_sub(back),
            Self::RoundedEnd { unit, back } => (size - size % unit).checked_sub(back),
        }
    }
}

use Place::{End, RoundedEnd, Start};

/// Software RAID 1.0: 8 KiB before the end, on a 4 KiB boundary.
const RAID_1_0: Place = RoundedEnd { unit: 4096, back: 8192 };
/// Software RAID 0.90: the last whole 64 KiB but one.
const RAID_0_90: Place = RoundedEnd { unit: 65536, back: 65536 };

/// Name, place, bytes.
#[rustfmt::skip]
pub(super) const SIGNATURES: &[(&str, Place, &[u8])] = &[
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

/// The four places of a ZFS label, 256 KiB each; its uberblocks fill the second half.
pub(super) const ZFS_LABELS: [Place; 4] = [
    Start(0),
    Start(256 << 10),
    RoundedEnd { unit: 256 << 10, back: 512 << 10 },
    RoundedEnd { unit: 256 << 10, back: 256 << 10 },
];

pub(super) fn find(source: &mut Source<'_>) -> Result<Vec<Finding>> {
    let mut found: Vec<Finding> = Vec::new();
    for (what, place, magic) in SIGNATURES {
        let Some(offset) = place.offset(source.size) else { continue };
        if source.at(offset, magic.len())?.is_some_and(|bytes| bytes == *magic) {
            found.push(Finding::foreign(*what, offset));
        }
    }
    found.extend(zfs(source)?);
    // A boot sector ends like a partition table: asked only where nothing more telling was found.
    if found.is_empty() {
        found.extend(mbr(source)?);
    }
    Ok(found)
}

fn zfs(source: &mut Source<'_>) -> Result<Option<Finding>> {
    const UBERBLOCKS: u64 = 128 << 10;
    const SLOT: usize = 1024;
    const MAGIC: u64 = 0x00BA_B10C;
    for place in ZFS_LABELS {
        let Some(offset) = place.offset(source.size) else { continue };
        let Some(slots) = source.at(offset + UBERBLOCKS, UBERBLOCKS as usize)? else { continue };
        if slots.chunks_exact(SLOT).any(|slot| [bytes::le64(slot, 0), bytes::be64(slot, 0)].contains(&MAGIC))
        {
            return Ok(Some(Finding::foreign("ZFS", offset + UBERBLOCKS)));
        }
    }
    Ok(None)
}

/// A partition table of the old kind: its last two bytes, and four entries that make sense, not all empty.
fn mbr(source: &mut Source<'_>) -> Result<Option<Finding>> {
    let Some(sector) = source.at(0, 512)?.filter(|sector| sector.ends_with(b"\x55\xAA")) else {
        return Ok(None);
    };
    let mut entries = sector[446..510].chunks_exact(16);
    let sound = entries.clone().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.any(|entry| entry[4] != 0 && bytes::le32(entry, 12) != 0);
    Ok((sound && used).then(|| Finding::foreign("MBR partition table", 0)))
}
