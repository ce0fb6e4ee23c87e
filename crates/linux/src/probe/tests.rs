//! Tables over synthetic devices, and over images written by the real mkfs programs.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::Error;

const MIB: u64 = 1 << 20;
const UUID: &str = "6f0b1c3e-2d4a-4b5c-8d6e-7f8091a2b3c4";

/// Identifies a device of zeroes with some content.
fn identify_content(size: u64, content: &[(u64, &[u8])]) -> ProbeResult {
    identify(size, &mut |offset, buffer: &mut [u8]| {
        assert!(offset + buffer.len() as u64 <= size, "read beyond the end");
        buffer.fill(0);
        for (at, bytes) in content {
            for (i, byte) in bytes.iter().enumerate() {
                if let Some(target) =
                    (at + i as u64).checked_sub(offset).and_then(|p| buffer.get_mut(p as usize))
                {
                    *target = *byte;
                }
            }
        }
        Ok(())
    })
    .unwrap()
}

fn describe(probe: &ProbeResult) -> &str {
    match probe {
        ProbeResult::NoSignature => "nothing",
        ProbeResult::Filesystem { fs, .. } => fs.as_str(),
        ProbeResult::Foreign { what } | ProbeResult::Damaged { what, .. } => what,
    }
}

#[test]
fn zeroes_of_any_size_have_no_signature() {
    for size in [512, 1024, 4096, 65536, MIB - 512, MIB, 3 * MIB + 512, 300 * MIB, 1 << 40] {
        assert_eq!(identify_content(size, &[]), ProbeResult::NoSignature, "{size}");
    }
}

#[test]
fn every_foreign_signature_is_identified() {
    let size = 100 * MIB + 512;
    for (what, location, magic) in foreign::SIGNATURES {
        let probe = identify_content(size, &[(location.offset(size).unwrap(), magic)]);
        let ProbeResult::Foreign { what: found } = &probe else { panic!("{what}: {probe:?}") };
        assert!(found.contains(what), "{what}: {found}");
    }
}

#[test]
fn mbr_and_zfs_need_more_than_a_magic_number() {
    let mut mbr = [0; 512];
    mbr[510..].copy_from_slice(b"\x55\xAA");
    assert_eq!(identify_content(MIB, &[(0, &mbr)]), ProbeResult::NoSignature, "no partition");
    mbr[446 + 4] = 0x83;
    mbr[446 + 12] = 1;
    assert_eq!(describe(&identify_content(MIB, &[(0, &mbr)])), "MBR partition table");
    mbr[446] = 7;
    assert_eq!(identify_content(MIB, &[(0, &mbr)]), ProbeResult::NoSignature, "code, not a table");

    let size = 64 * MIB + 4096;
    for location in foreign::ZFS_LABELS {
        let at = location.offset(size).unwrap() + (128 << 10) + 5 * 1024;
        assert_eq!(describe(&identify_content(size, &[(at, &0x00BA_B10C_u64.to_le_bytes())])), "ZFS");
        assert_eq!(describe(&identify_content(size, &[(at, &0x00BA_B10C_u64.to_be_bytes())])), "ZFS");
    }
}

#[test]
fn read_error_at_any_location_is_returned() {
    let reads = std::cell::Cell::new(0);
    for failing in 0..100 {
        reads.set(0);
        let probe = identify(1 << 40, &mut |_, buffer: &mut [u8]| {
            reads.set(reads.get() + 1);
            if reads.get() > failing {
                return Err(Error::call(
                    "read",
                    Path::new("/dev/x"),
                    std::io::Error::from_raw_os_error(libc::EIO),
                ));
            }
            buffer.fill(0);
            Ok(())
        });
        if reads.get() <= failing {
            assert_eq!(probe.unwrap(), ProbeResult::NoSignature);
            assert!(failing > 20, "only {failing} reads on a large device");
            return;
        }
        assert_eq!(probe.unwrap_err().errno(), Some(libc::EIO), "read {failing}");
    }
    panic!("more than 100 reads");
}

/// An image formatted by a real mkfs.
struct Image(tempfile::NamedTempFile);

impl Image {
    fn blank(size: u64) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        Self(file)
    }

    fn made(size: u64, command: &[&str]) -> Self {
        let image = Self::blank(size);
        let output = Command::new(command[0]).args(&command[1..]).arg(image.0.path()).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        image
    }

    fn of(fs: FsType) -> Self {
        match fs {
            FsType::Ext4 => Self::made(16 * MIB, &["mkfs.ext4", "-q", "-F", "-U", UUID]),
            FsType::Xfs => Self::made(300 * MIB, &["mkfs.xfs", "-q", "-m", &format!("uuid={UUID}")]),
            FsType::Btrfs => Self::made(128 * MIB, &["mkfs.btrfs", "-q", "-U", UUID]),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.as_file().write_all_at(bytes, offset).unwrap();
    }

    fn flip(&self, offset: u64) {
        let mut byte = [0];
        self.0.as_file().read_exact_at(&mut byte, offset).unwrap();
        self.write(offset, &[!byte[0]]);
    }

    fn probe(&self) -> ProbeResult {
        let file = self.0.as_file();
        let size = file.metadata().unwrap().len();
        identify(size, &mut |offset, buffer: &mut [u8]| {
            file.read_exact_at(buffer, offset).map_err(|error| Error::call("read", Path::new("image"), error))
        })
        .unwrap()
    }
}

const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

#[test]
fn supported_file_systems_are_identified_with_their_uuid() {
    for fs in ALL {
        assert_eq!(Image::of(fs).probe(), ProbeResult::Filesystem { fs, uuid: UUID.to_owned() });
    }
}

#[test]
fn variants_are_supported_and_related_formats_are_foreign() {
    let table: &[(&str, u64, &[&str])] = &[
        ("ext4", 8, &["mkfs.ext4", "-q", "-F", "-O", "^has_journal"]),
        ("ext4", 8, &["mkfs.ext4", "-q", "-F", "-O", "^metadata_csum,^64bit"]),
        ("ext4", 8, &["mkfs.ext4", "-q", "-F", "-b", "4096"]),
        ("ext3", 8, &["mkfs.ext3", "-q", "-F"]),
        ("ext2", 8, &["mkfs.ext2", "-q", "-F"]),
        ("the journal of an ext4", 8, &["mkfs.ext4", "-q", "-F", "-O", "journal_dev"]),
        ("xfs", 300, &["mkfs.xfs", "-q", "-s", "size=4096"]),
        ("xfs", 300, &["mkfs.xfs", "-q", "-m", "crc=0"]),
        ("btrfs", 128, &["mkfs.btrfs", "-q", "--csum", "xxhash"]),
        ("btrfs", 128, &["mkfs.btrfs", "-q", "-M"]),
        ("swap", 8, &["mkswap"]),
    ];
    for (expected, size, command) in table {
        assert_eq!(describe(&Image::made(size * MIB, command).probe()), *expected, "{command:?}");
    }
}

#[test]
fn torn_superblock_is_damage() {
    let table = [
        (FsType::Ext4, 1024 + 200),
        (FsType::Ext4, 1024 + 104),
        (FsType::Xfs, 33),
        (FsType::Xfs, 300),
        (FsType::Btrfs, 65536 + 0x20),
        (FsType::Btrfs, 65536 + 4000),
    ];
    for (fs, offset) in table {
        let image = Image::of(fs);
        image.flip(offset);
        let probe = image.probe();
        assert!(
            matches!(&probe, ProbeResult::Damaged { what, .. } if what.contains("checksum")),
            "{fs} {offset}: {probe:?}"
        );
    }
}

#[test]
fn erased_superblock_is_detected_by_its_copies() {
    // Large enough for a second block group, and for the second superblock of btrfs.
    let sizes = [(FsType::Ext4, 160), (FsType::Xfs, 300), (FsType::Btrfs, 128)];
    for (fs, size) in sizes {
        let command: &[&str] = match fs {
            FsType::Ext4 => &["mkfs.ext4", "-q", "-F", "-b", "4096"],
            FsType::Xfs => &["mkfs.xfs", "-q"],
            FsType::Btrfs => &["mkfs.btrfs", "-q"],
        };
        let image = Image::made(size * MIB, command);
        image.write(0, &vec![0; 128 << 10]);
        let probe = image.probe();
        assert!(
            matches!(&probe, ProbeResult::Damaged { what, .. } if what.contains("copy")),
            "{fs}: {probe:?}"
        );
    }
    let small = Image::made(16 * MIB, &["mkfs.ext4", "-q", "-F", "-b", "1024"]);
    small.write(0, &vec![0; 64 << 10]);
    assert!(matches!(small.probe(), ProbeResult::Damaged { .. }));
}

#[test]
fn truncated_image_is_damage() {
    for fs in ALL {
        let image = Image::of(fs);
        let size = image.0.as_file().metadata().unwrap().len();
        image.0.as_file().set_len(size - MIB).unwrap();
        assert!(
            matches!(image.probe(), ProbeResult::Damaged { what, .. } if what.contains("cut off")),
            "{fs}"
        );
        image.0.as_file().set_len(size + MIB).unwrap();
        assert!(matches!(image.probe(), ProbeResult::Filesystem { .. }), "{fs} on a device that grew");
    }
}

#[test]
fn unfinished_mkfs_is_damage() {
    let btrfs = Image::of(FsType::Btrfs);
    btrfs.write(65536 + 0x40, b"!BHRfS_M");
    assert!(matches!(btrfs.probe(), ProbeResult::Damaged { what, .. } if what.contains("did not finish")));
    let xfs = Image::made(300 * MIB, &["mkfs.xfs", "-q", "-m", "crc=0"]);
    xfs.write(126, &[1]);
    assert!(matches!(xfs.probe(), ProbeResult::Damaged { what, .. } if what.contains("did not finish")));
}

#[test]
fn signatures_inside_a_file_system_are_ignored_and_outside_are_not() {
    let magic = b"\xFC\x4E\x2B\xA9";
    for fs in ALL {
        let image = Image::of(fs);
        let size = image.0.as_file().metadata().unwrap().len();
        // The location of the RAID 1.0 superblock: inside the file system it is file data.
        image.write(size - 8192, magic);
        assert!(matches!(image.probe(), ProbeResult::Filesystem { .. }), "{fs}");
        // The device is larger than the file system: now the signature means that the device is a RAID member.
        image.0.as_file().set_len(size + MIB).unwrap();
        image.write(size + MIB - 8192, magic);
        let probe = image.probe();
        assert!(matches!(&probe, ProbeResult::Foreign { what } if what.contains("RAID")), "{fs}: {probe:?}");
    }
    // pvcreate on an ext4 leaves the ext4 superblock readable.
    let image = Image::of(FsType::Ext4);
    image.write(512, b"LABELONE");
    assert!(
        matches!(image.probe(), ProbeResult::Foreign { what } if what.contains("ext4") && what.contains("LVM2"))
    );
    // File data at the offset of another format's superblock does not change the result.
    let image = Image::of(FsType::Xfs);
    image.write(65536 + 0x40, b"_BHRfS_M");
    assert!(matches!(image.probe(), ProbeResult::Filesystem { fs: FsType::Xfs, .. }));
}

#[test]
fn findings_are_combined_to_one_result() {
    let ours = |fs, offset, covers| Finding {
        verdict: Verdict::Ours { fs, uuid: UUID.to_owned() },
        what: "ours".to_owned(),
        offset,
        covers,
    };
    let ext4 = ours(FsType::Ext4, 1024, 1024..1000 * MIB);
    let btrfs = ours(FsType::Btrfs, 65536, 65536..1000 * MIB);
    let inside = Finding::foreign("inside", 4096);
    let outside = Finding::foreign("outside", 0);
    let torn = Finding::damaged(FsType::Xfs, "torn", 0);
    let table: &[(&[&Finding], &str)] = &[
        (&[], "none"),
        (&[&ext4], "ext4"),
        (&[&ext4, &inside], "ext4"),
        (&[&ext4, &btrfs], "ext4"),
        (&[&btrfs, &inside], "ours, and inside"),
        (&[&ext4, &outside], "ours, and outside"),
        (&[&outside], "outside"),
        (&[&torn], "torn"),
        (&[&torn, &ext4], "torn, and ours"),
    ];
    for (findings, expected) in table {
        let findings: Vec<Finding> = findings.iter().map(|finding| (*finding).clone()).collect();
        let probe = decide(&findings);
        assert_eq!(probe.as_ref().map_or("none", describe), *expected);
    }
    // Remains of one type alone can be formatted again by the driver that started it; with any other finding they cannot.
    let remains = |findings: &[Finding]| match decide(findings) {
        Some(ProbeResult::Damaged { fs, .. }) => fs,
        other => panic!("{other:?}"),
    };
    assert_eq!(remains(std::slice::from_ref(&torn)), Some(FsType::Xfs));
    assert_eq!(remains(&[torn.clone(), outside.clone()]), None);
    assert_eq!(remains(&[torn.clone(), Finding::damaged(FsType::Ext4, "torn", 1024)]), None);
    assert_eq!(remains(&[torn.clone(), ext4.clone()]), None);
}

proptest! {
    /// Random bytes over a superblock result in a verdict, never in a panic or a valid file system.
    #[test]
    fn random_bytes_are_never_a_file_system(
        noise in proptest::collection::vec(any::<u8>(), 1..2048),
        at in 0_usize..1024,
        size in 1_u64..200_000,
    ) {
        let start = [0, 1024, 65536][at % 3];
        let mut content = noise;
        // The magic at its offset, the rest random.
        let (offset, magic): (usize, &[u8]) =
            [(0, b"XFSB".as_slice()), (56, b"\x53\xEF".as_slice()), (64, b"_BHRfS_M".as_slice())][at % 3];
        content.resize(content.len().max(offset + magic.len()), 0);
        content[offset..offset + magic.len()].copy_from_slice(magic);
        let probe = identify_content(size * 512, &[(start, &content)]);
        let btrfs = matches!(probe, ProbeResult::Filesystem { fs: FsType::Btrfs, .. });
        prop_assert!(!btrfs, "random bytes matched a checksum");
        if let ProbeResult::Filesystem { fs: FsType::Ext4, .. } = probe {
            prop_assert!(crate::bytes::le32(&content, 100) & 0x400 == 0, "random bytes matched a checksum");
        }
    }
}
