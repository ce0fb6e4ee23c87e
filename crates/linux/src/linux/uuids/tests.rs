//! UUID changes interrupted between any two writes, on the real kernel. Needs root.

use super::*;
use crate::{Files as _, LoopOptions, MakeFsRequest, PathBeneath};

/// Unique, because the btrfs programs search for devices with the same UUID.
fn random() -> String {
    crate::random_uuid().unwrap()
}

/// A file system with a file in it, on its own loop device.
struct TestVolume {
    kernel: Linux,
    device: std::path::PathBuf,
    dir: tempfile::TempDir,
    old: String,
    new: String,
}

impl TestVolume {
    fn new(fs: FsType) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Linux::new();
        let image = PathBeneath::new(dir.path(), Path::new("image"));
        kernel.set_size(&image, fs.minimum_size()).unwrap();
        let device = kernel.loop_attach(&image, &LoopOptions::default()).unwrap().path;
        let volume = Self { kernel, device, dir, old: random(), new: random() };
        kernel.create_target_dir(&volume.target()).unwrap();
        kernel.make_fs(&volume.device, &MakeFsRequest { fs, uuid: &volume.old, options: &[] }).unwrap();
        volume.mounted(fs, |target| std::fs::write(target.join("file"), "content").unwrap());
        volume
    }

    fn target(&self) -> std::path::PathBuf {
        self.dir.path().join("target")
    }

    fn mounted(&self, fs: FsType, work: impl FnOnce(&Path)) {
        replay_with(self, fs, work).unwrap();
    }

    fn set(&self, fs: FsType) {
        set(&self.kernel, &self.device, fs, &self.new, &self.target()).unwrap();
        assert!(has_uuid(&self.kernel, &self.device, fs, &self.new).unwrap());
        let check: &[&str] = match fs {
            FsType::Ext4 => &["e2fsck", "-fn"],
            FsType::Xfs => &["xfs_repair", "-n"],
            FsType::Btrfs => &["btrfs", "check"],
        };
        let output =
            std::process::Command::new(check[0]).args(&check[1..]).arg(&self.device).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.mounted(fs, |target| {
            assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "content");
            std::fs::write(target.join("more"), "content").unwrap();
        });
    }
}

fn replay_with(volume: &TestVolume, fs: FsType, work: impl FnOnce(&Path)) -> Result<()> {
    let target = volume.target();
    let source = utf8_path(&volume.device)?;
    let request =
        MountRequest { source, target: &target, fs_type: fs.as_str(), options: &[], read_only: false };
    volume.kernel.mount(&request)?;
    work(&target);
    volume.kernel.unmount(&target)
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        let _ = self.kernel.unmount(&self.target());
        self.kernel.loop_detach(&self.device, None).unwrap();
    }
}

#[test]
fn xfs_uuid_change_interrupted_after_each_write_is_completed_by_a_retry() {
    // The order of the writes is: the log record, the copies, the primary superblock. The test undoes them in reverse
    // order.
    for undone in ["nothing", "the primary superblock", "all superblocks"] {
        let volume = TestVolume::new(FsType::Xfs);
        volume.set(FsType::Xfs);
        // The volume was mounted and unmounted since then, so the last log record has the new UUID, as after the first
        // write.
        let found = read_xfs(&volume.device, 0).unwrap();
        let offsets: Vec<u64> = match undone {
            "nothing" => vec![],
            "the primary superblock" => vec![0],
            _ => found.superblock_offsets().collect(),
        };
        let old = parse(&volume.old).unwrap();
        let blocks =
            offsets.iter().map(|offset| (*offset, read_xfs(&volume.device, *offset).unwrap().with_uuid(old)));
        write_blocks(&volume.device, blocks.collect::<Vec<_>>()).unwrap();
        if undone != "nothing" {
            assert!(has_uuid(&volume.kernel, &volume.device, FsType::Xfs, &volume.old).unwrap());
            assert!(
                replay_with(&volume, FsType::Xfs, |_| ()).is_err(),
                "the kernel must notice that log and superblock differ"
            );
        }
        volume.set(FsType::Xfs);
    }
}

#[test]
fn btrfs_uuid_change_interrupted_by_us_or_btrfstune_is_completed_by_a_retry() {
    let volume = TestVolume::new(FsType::Btrfs);
    let found = read_btrfs(&volume.kernel, &volume.device).unwrap();
    let new = parse(&volume.new).unwrap();
    // Our own change: the copies are written, the primary superblock is not.
    assert_eq!(found.copies().collect::<Vec<_>>(), [64 << 20]);
    write_blocks(&volume.device, found.copies().map(|offset| (offset, found.with_uuid(new, offset))))
        .unwrap();
    volume.set(FsType::Btrfs);

    // A change by btrfstune: it set the flag for a UUID change and was killed.
    let volume = TestVolume::new(FsType::Btrfs);
    let mut block = vec![0; BtrfsSuper::LENGTH];
    volume.kernel.read_device(&volume.device, BtrfsSuper::OFFSET, &mut block).unwrap();
    block[0x38 + 4] |= 0x10;
    let checksum = crate::crc32c::crc32c(&block[0x20..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
    write_blocks(&volume.device, [(BtrfsSuper::OFFSET, block)]).unwrap();
    assert!(replay_with(&volume, FsType::Btrfs, |_| ()).is_err(), "the kernel must not mount this state");
    volume.set(FsType::Btrfs);
}

#[test]
fn btrfs_superblock_equals_the_result_of_btrfstune() {
    let (ours, theirs) = (TestVolume::new(FsType::Btrfs), TestVolume::new(FsType::Btrfs));
    ours.set(FsType::Btrfs);
    let output = std::process::Command::new("btrfstune")
        .args(["-f", "-M", &theirs.new])
        .arg(&theirs.device)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |volume: &TestVolume| {
        let mut block = vec![0; BtrfsSuper::LENGTH];
        volume.kernel.read_device(&volume.device, BtrfsSuper::OFFSET, &mut block).unwrap();
        assert_eq!(block[0x20..0x30], parse(&volume.new).unwrap());
        assert_eq!(block[0x23B..0x24B], parse(&volume.old).unwrap(), "the UUID of the metadata");
        // Flags and features.
        (block[0x38..0x40].to_vec(), block[0xAC..0xC6].to_vec())
    };
    assert_eq!(read(&ours), read(&theirs));
}

#[test]
fn ext4_gets_a_seed_only_if_it_has_checksums() {
    for features in ["^metadata_csum_seed", "^metadata_csum"] {
        let volume = TestVolume::new(FsType::Ext4);
        let output = std::process::Command::new("mkfs.ext4")
            .args(["-q", "-F", "-U", &volume.old, "-O", features])
            .arg(&volume.device)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        volume.mounted(FsType::Ext4, |target| std::fs::write(target.join("file"), "content").unwrap());
        volume.set(FsType::Ext4);
    }
}

#[test]
fn invalid_uuids_are_rejected() {
    let bytes = parse("00010203-0405-0607-0809-0a0b0c0d0eFF").unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
    for bad in ["", "00010203-0405-0607-0809-0a0b0c0d0e", "00010203-0405-0607-0809-0a0b0c0d0e0g", "--", "é"]
    {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
