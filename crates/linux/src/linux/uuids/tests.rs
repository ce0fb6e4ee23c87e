//! Interrupted between any two of its writes, on the real kernel.

use super::*;
use crate::{Beneath, Files as _, LoopOptions, MakeFs};

/// The programs of btrfs look for others with the same.
fn random() -> String {
    crate::random_uuid().unwrap()
}

/// A file system with a file in it, on a device of its own.
struct Made {
    kernel: Linux,
    device: std::path::PathBuf,
    dir: tempfile::TempDir,
    old: String,
    new: String,
}

impl Made {
    fn new(fs: FsType) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Linux::new();
        let image = Beneath::new(dir.path(), Path::new("image"));
        kernel.set_size(&image, fs.minimum_size()).unwrap();
        let device = kernel.loop_attach(&image, &LoopOptions::default()).unwrap().path;
        let made = Self { kernel, device, dir, old: random(), new: random() };
        kernel.create_target_dir(&made.target()).unwrap();
        kernel.make_fs(&made.device, &MakeFs { fs, uuid: &made.old, options: &[] }).unwrap();
        made.mounted(fs, |target| std::fs::write(target.join("file"), "content").unwrap());
        made
    }

    fn target(&self) -> std::path::PathBuf {
        self.dir.path().join("target")
    }

    fn mounted(&self, fs: FsType, work: impl FnOnce(&Path)) {
        replay_with(self, fs, work).unwrap();
    }

    fn set(&self, fs: FsType) {
        set(&self.kernel, &self.device, fs, &self.new, &self.target()).unwrap();
        assert!(has(&self.kernel, &self.device, fs, &self.new).unwrap());
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

fn replay_with(made: &Made, fs: FsType, work: impl FnOnce(&Path)) -> Result<()> {
    let target = made.target();
    let source = text(&made.device)?;
    let request =
        MountRequest { source, target: &target, fs_type: fs.as_str(), options: &[], read_only: false };
    made.kernel.mount(&request)?;
    work(&target);
    made.kernel.unmount(&target)
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = self.kernel.unmount(&self.target());
        self.kernel.loop_detach(&self.device).unwrap();
    }
}

#[test]
fn xfs_interrupted_after_each_write_is_completed_by_a_retry() {
    // Written in this order: the log's record, the copies, the original. Undone from the end.
    for undone in ["nothing", "the original", "all superblocks"] {
        let made = Made::new(FsType::Xfs);
        made.set(FsType::Xfs);
        // Unmounted since: the record that ends the log now is of the new UUID, as after the first write.
        let found = read_xfs(&made.device, 0).unwrap();
        let places: Vec<u64> = match undone {
            "nothing" => vec![],
            "the original" => vec![0],
            _ => found.places().collect(),
        };
        let old = parse(&made.old).unwrap();
        let blocks =
            places.iter().map(|place| (*place, read_xfs(&made.device, *place).unwrap().with_uuid(old)));
        write_blocks(&made.device, blocks.collect::<Vec<_>>()).unwrap();
        if undone != "nothing" {
            assert!(has(&made.kernel, &made.device, FsType::Xfs, &made.old).unwrap());
            assert!(
                replay_with(&made, FsType::Xfs, |_| ()).is_err(),
                "the kernel sees that log and superblock differ"
            );
        }
        made.set(FsType::Xfs);
    }
}

#[test]
fn btrfs_interrupted_is_completed_by_a_retry_whoever_began_it() {
    let made = Made::new(FsType::Btrfs);
    let found = read_btrfs(&made.kernel, &made.device).unwrap();
    let new = parse(&made.new).unwrap();
    // Our own way: the copies are written, the original is not.
    assert_eq!(found.copies().collect::<Vec<_>>(), [64 << 20]);
    write_blocks(&made.device, found.copies().map(|place| (place, found.with_uuid(new, place)))).unwrap();
    made.set(FsType::Btrfs);

    // btrfstune's: it noted that it changes the UUID, and died.
    let made = Made::new(FsType::Btrfs);
    let mut block = vec![0; BtrfsSuper::LENGTH];
    made.kernel.read_device(&made.device, BtrfsSuper::OFFSET, &mut block).unwrap();
    block[0x38 + 4] |= 0x10;
    let checksum = crate::crc32c::crc32c(&block[0x20..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
    write_blocks(&made.device, [(BtrfsSuper::OFFSET, block)]).unwrap();
    assert!(replay_with(&made, FsType::Btrfs, |_| ()).is_err(), "no kernel mounts it like this");
    made.set(FsType::Btrfs);
}

#[test]
fn ours_is_what_btrfstune_would_have_written() {
    let (ours, theirs) = (Made::new(FsType::Btrfs), Made::new(FsType::Btrfs));
    ours.set(FsType::Btrfs);
    let output = std::process::Command::new("btrfstune")
        .args(["-f", "-M", &theirs.new])
        .arg(&theirs.device)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |made: &Made| {
        let mut block = vec![0; BtrfsSuper::LENGTH];
        made.kernel.read_device(&made.device, BtrfsSuper::OFFSET, &mut block).unwrap();
        assert_eq!(block[0x20..0x30], parse(&made.new).unwrap());
        assert_eq!(block[0x23B..0x24B], parse(&made.old).unwrap(), "the UUID of the metadata");
        // Flags and features.
        (block[0x38..0x40].to_vec(), block[0xAC..0xC6].to_vec())
    };
    assert_eq!(read(&ours), read(&theirs));
}

#[test]
fn ext4_without_a_seed_gets_one_and_without_checksums_needs_none() {
    for features in ["^metadata_csum_seed", "^metadata_csum"] {
        let made = Made::new(FsType::Ext4);
        let output = std::process::Command::new("mkfs.ext4")
            .args(["-q", "-F", "-U", &made.old, "-O", features])
            .arg(&made.device)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        made.mounted(FsType::Ext4, |target| std::fs::write(target.join("file"), "content").unwrap());
        made.set(FsType::Ext4);
    }
}

#[test]
fn uuids_are_parsed_or_refused() {
    let bytes = parse("00010203-0405-0607-0809-0a0b0c0d0eFF").unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
    for bad in ["", "00010203-0405-0607-0809-0a0b0c0d0e", "00010203-0405-0607-0809-0a0b0c0d0e0g", "--", "é"]
    {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
