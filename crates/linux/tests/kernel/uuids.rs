//! Copies with a new UUID, mounted together with their source.

use std::fs;
use std::path::{Path, PathBuf};

use wharf_linux::{Files as _, Filesystems as _, FsType, MountRequest, Mounts as _, ProbeResult};

use crate::bench::{ALL_FS_TYPES, Bench, new_uuid, run};

/// Copies an image, even while it is in use.
fn copy(bench: &Bench, from: &str, to: &str) -> PathBuf {
    let size = bench.linux.stat(&bench.file(from)).unwrap().unwrap().size;
    bench.image(to, size);
    bench.linux.copy_range(&bench.file(from), &bench.file(to), 0, size).unwrap();
    bench.attach(to)
}

fn uuid_of(bench: &Bench, device: &Path) -> String {
    match bench.linux.probe(device).unwrap() {
        ProbeResult::Filesystem { uuid, .. } => uuid,
        other => panic!("{other:?}"),
    }
}

fn check(fs: FsType, device: &Path) {
    let device = device.to_str().unwrap();
    match fs {
        FsType::Ext4 => run("e2fsck", &["-fn", device]),
        FsType::Xfs => run("xfs_repair", &["-n", device]),
        FsType::Btrfs => run("btrfs", &["check", device]),
    };
}

#[test]
fn source_and_copies_are_mounted_and_written_at_the_same_time() {
    for fs in ALL_FS_TYPES {
        let bench = Bench::new();
        let source = bench.formatted("source", fs);
        let source_target = bench.mount(&source, fs.as_str(), "source.mnt");
        fs::write(source_target.join("file"), "from the source").unwrap();

        // Frozen for the copy, as for a snapshot.
        let frozen = bench.linux.freeze(&[&source_target], std::time::Duration::from_secs(20)).unwrap();
        let copied = copy(&bench, "source", "copy");
        frozen.thaw().unwrap();
        let scratch = bench.target("scratch");
        let uuid = new_uuid();
        bench.linux.set_fs_uuid(&copied, fs, &uuid, &scratch).unwrap();
        assert_eq!(uuid_of(&bench, &copied), uuid);
        bench.linux.set_fs_uuid(&copied, fs, &uuid, &scratch).unwrap();
        check(fs, &copied);
        bench.linux.check_fs(&copied, fs, wharf_linux::FsCheck::BeforeMount).unwrap();
        let copy_target = bench.mount(&copied, fs.as_str(), "copy.mnt");
        assert_eq!(fs::read_to_string(copy_target.join("file")).unwrap(), "from the source");

        let frozen = bench.linux.freeze(&[&copy_target], std::time::Duration::from_secs(20)).unwrap();
        let third = copy(&bench, "copy", "third");
        frozen.thaw().unwrap();
        bench.linux.set_fs_uuid(&third, fs, &new_uuid(), &scratch).unwrap();
        check(fs, &third);
        let third_target = bench.mount(&third, fs.as_str(), "third.mnt");

        for (target, text) in [(&source_target, "1"), (&copy_target, "2"), (&third_target, "3")] {
            fs::write(target.join("file"), text).unwrap();
            flush(target);
        }
        for (target, text) in [(&source_target, "1"), (&copy_target, "2"), (&third_target, "3")] {
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), text, "{fs}");
        }
        let table = bench.linux.mount_table().unwrap();
        for (device, target) in [(&source, &source_target), (&copied, &copy_target), (&third, &third_target)]
        {
            assert_eq!(Path::new(&table.at(target).unwrap().source), device.as_path());
        }
    }
}

fn flush(target: &Path) {
    fs::File::open(target.join("file")).unwrap().sync_all().unwrap();
}

#[test]
fn log_is_replayed_before_the_uuid_changes() {
    for fs in ALL_FS_TYPES {
        let bench = Bench::new();
        let source = bench.formatted("source", fs);
        let target = bench.mount(&source, fs.as_str(), "source.mnt");
        fs::write(target.join("early"), "early").unwrap();
        run("sync", &["-f", target.to_str().unwrap()]);
        // Only fsync, no sync of the file system: the file is in the log and nowhere else.
        fs::write(target.join("late"), "late").unwrap();
        fs::File::open(target.join("late")).unwrap().sync_all().unwrap();
        let copied = copy(&bench, "source", "copy");
        let scratch = bench.target("scratch");
        // Simulates an earlier call that was killed and left its mount at the scratch path.
        bench.mount_with("tmpfs", "tmpfs", "scratch", &[]);
        bench.linux.set_fs_uuid(&copied, fs, &new_uuid(), &scratch).unwrap();
        assert!(bench.linux.mount_table().unwrap().at(&scratch).is_none(), "{fs}");
        check(fs, &copied);
        let copy_target = bench.mount(&copied, fs.as_str(), "copy.mnt");
        assert_eq!(fs::read_to_string(copy_target.join("late")).unwrap(), "late", "{fs}");
        // After the UUID change, an unclean log is still replayed.
        fs::write(copy_target.join("later"), "later").unwrap();
        fs::File::open(copy_target.join("later")).unwrap().sync_all().unwrap();
        let third = copy(&bench, "copy", "third");
        bench.linux.set_fs_uuid(&third, fs, &new_uuid(), &scratch).unwrap();
        check(fs, &third);
        let third_target = bench.mount(&third, fs.as_str(), "third.mnt");
        assert_eq!(fs::read_to_string(third_target.join("later")).unwrap(), "later", "{fs}");
    }
}

#[test]
fn file_system_variants_get_a_new_uuid() {
    let table: &[(FsType, &[&str])] = &[
        (FsType::Xfs, &["-s", "size=4096"]),
        (FsType::Xfs, &["-l", "size=70m"]),
        (FsType::Btrfs, &["--csum", "xxhash"]),
        (FsType::Btrfs, &["-M"]),
        (FsType::Ext4, &["-b", "4096"]),
    ];
    let bench = Bench::new();
    let scratch = bench.target("scratch");
    for (number, (fs, options)) in table.iter().enumerate() {
        let name = format!("image-{number}");
        let device = bench.device(&name, fs.minimum_size().max(16 << 20));
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let request = wharf_linux::MakeFsRequest { fs: *fs, uuid: &new_uuid(), options: &options };
        bench.linux.make_fs(&device, &request).unwrap();
        let uuid = new_uuid();
        bench.linux.set_fs_uuid(&device, *fs, &uuid, &scratch).unwrap();
        assert_eq!(uuid_of(&bench, &device), uuid, "{fs} {options:?}");
        check(*fs, &device);
        let target = bench.mount(&device, fs.as_str(), &format!("{name}.mnt"));
        fs::write(target.join("file"), "x").unwrap();
    }
}

#[test]
fn wrong_type_or_mounted_file_system_is_refused_and_unchanged() {
    let bench = Bench::new();
    let scratch = bench.target("scratch");
    let blank = bench.device("blank", 16 << 20);
    for fs in ALL_FS_TYPES {
        assert!(bench.linux.set_fs_uuid(&blank, fs, &new_uuid(), &scratch).is_err());
    }
    assert_eq!(bench.linux.probe(&blank).unwrap(), ProbeResult::NoSignature);

    for fs in ALL_FS_TYPES {
        let device = bench.formatted(&format!("{fs}.img"), fs);
        let before = uuid_of(&bench, &device);
        for bad in ["", "random", "generate", "clear", "nil", "0"] {
            assert!(bench.linux.set_fs_uuid(&device, fs, bad, &scratch).is_err(), "{fs} {bad}");
        }
        bench.mount(&device, fs.as_str(), fs.as_str());
        assert!(bench.linux.set_fs_uuid(&device, fs, &new_uuid(), &scratch).is_err(), "{fs} is mounted");
        assert_eq!(uuid_of(&bench, &device), before);
        assert!(bench.linux.mount_table().unwrap().at(&scratch).is_none());
    }
}

#[test]
fn copy_without_a_new_uuid_does_not_mount_with_its_source() {
    let bench = Bench::new();
    let source = bench.formatted("source", FsType::Xfs);
    let copied = copy(&bench, "source", "copy");
    bench.mount(&source, "xfs", "source.mnt");
    let target = bench.target("copy.mnt");
    let request = MountRequest {
        source: copied.to_str().unwrap(),
        target: &target,
        fs_type: "xfs",
        options: &[],
        read_only: false,
    };
    assert!(bench.linux.mount(&request).is_err());
    bench.linux.set_fs_uuid(&copied, FsType::Xfs, &new_uuid(), &target).unwrap();
    bench.linux.mount(&request).unwrap();
    bench.unmount_on_drop(&target);
}
