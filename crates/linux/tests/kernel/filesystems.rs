//! Creating, checking, growing and monitoring file systems.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use wharf_linux::{
    BlockDevices as _, Error, Files as _, Filesystems as _, FsCheck, FsError, FsType, MakeFsRequest,
    Mounts as _, ProbeResult, check_mkfs_options,
};

use crate::bench::{ALL_FS_TYPES, Bench, MIB, new_uuid, run};

#[test]
fn minimum_size_can_be_formatted_mounted_and_written() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let device = bench.device(&format!("{fs}.img"), fs.minimum_size());
        let uuid = new_uuid();
        assert_eq!(bench.linux.probe(&device).unwrap(), ProbeResult::NoSignature);
        bench.linux.make_fs(&device, &MakeFsRequest { fs, uuid: &uuid, options: &[] }).unwrap();
        assert_eq!(bench.linux.probe(&device).unwrap(), ProbeResult::Filesystem { fs, uuid: uuid.clone() });
        bench.linux.check_fs(&device, fs, FsCheck::BeforeMount).unwrap();
        let target = bench.mount(&device, fs.as_str(), fs.as_str());
        fs::write(target.join("file"), vec![7; 256 << 10]).unwrap();

        let usage = bench.linux.usage(&target).unwrap();
        assert!(usage.total_bytes <= fs.minimum_size() && usage.total_bytes > 0, "{fs} {usage:?}");
        assert!(usage.used_bytes + usage.available_bytes <= usage.total_bytes, "{fs} {usage:?}");
        assert!(usage.used_inodes + usage.available_inodes == usage.total_inodes, "{fs} {usage:?}");
        assert!(!usage.read_only);
        assert_eq!(bench.linux.fs_error_count(&device, fs, &target).unwrap(), 0);

        // Durable when make_fs returns: the image contains it.
        bench.linux.unmount(&target).unwrap();
        bench.linux.loop_detach(&device, None).unwrap();
        let again = bench.attach(&format!("{fs}.img"));
        assert_eq!(bench.linux.probe(&again).unwrap(), ProbeResult::Filesystem { fs, uuid });
    }
}

#[test]
fn mkfs_options_are_applied_and_refused_options_change_nothing() {
    let bench = Bench::new();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let device = bench.device("image", 16 * MIB);
    let uuid = new_uuid();
    let options = words("-b 4096 -E stride=2 -O quota -L label");
    bench
        .linux
        .make_fs(&device, &MakeFsRequest { fs: FsType::Ext4, uuid: &uuid, options: &options })
        .unwrap();
    let created = run("dumpe2fs", &["-h", device.to_str().unwrap()]);
    for expected in [
        "metadata_csum_seed",
        "quota",
        "RAID stride:              2",
        "label",
        "Block size:               4096",
    ] {
        assert!(created.contains(expected), "{expected} in {created}");
    }

    fs::write(bench.path("data"), vec![0xA5; MIB as usize]).unwrap();
    let device = bench.attach("data");
    for (fs, text) in [
        (FsType::Ext4, "-n"),
        (FsType::Ext4, "-U random"),
        (FsType::Ext4, "/dev/null"),
        (FsType::Xfs, "-d name=/dev/null"),
        (FsType::Btrfs, "-r /etc"),
    ] {
        let options = words(text);
        assert!(check_mkfs_options(fs, &options).is_err());
        let created = bench.linux.make_fs(&device, &MakeFsRequest { fs, uuid: &uuid, options: &options });
        assert!(matches!(created, Err(Error::InvalidState { .. })), "{fs} {text}: {created:?}");
    }
    // Options that mkfs accepts but that change the result are an error, too.
    let options = words("-O ^extent,^64bit,^flex_bg,^metadata_csum,^huge_file,^dir_nlink,^extra_isize");
    let small = bench.device("small", 16 * MIB);
    let created =
        bench.linux.make_fs(&small, &MakeFsRequest { fs: FsType::Ext4, uuid: &uuid, options: &options });
    assert!(
        matches!(&created, Err(Error::InvalidState { reason, .. }) if reason.contains("ext3")),
        "{created:?}"
    );
    bench.linux.loop_detach(&device, None).unwrap();
    assert!(fs::read(bench.path("data")).unwrap().iter().all(|byte| *byte == 0xA5));
}

#[test]
fn device_too_small_returns_the_error_of_mkfs() {
    let bench = Bench::new();
    let device = bench.device("image", MIB);
    for fs in [FsType::Xfs, FsType::Btrfs] {
        let error =
            bench.linux.make_fs(&device, &MakeFsRequest { fs, uuid: &new_uuid(), options: &[] }).unwrap_err();
        let Error::ProgramFailed { program, stderr, .. } = &error else { panic!("{error}") };
        assert!(program.ends_with(fs.as_str()) && !stderr.is_empty(), "{error}");
        assert!(error.to_string().contains(device.to_str().unwrap()));
    }
}

/// As an interrupted resize2fs leaves it: marked, smaller than its device, and with a resize inode that `e2fsck -p` does
/// not repair. e2fsck itself leaves the same, so nothing on the device is evidence for a repair.
#[test]
fn ext4_is_repaired_only_on_request_even_if_it_looks_like_an_interrupted_growth() {
    let bench = Bench::new();
    let device = bench.device("image", 64 * MIB);
    let uuid = new_uuid();
    bench.linux.make_fs(&device, &MakeFsRequest { fs: FsType::Ext4, uuid: &uuid, options: &[] }).unwrap();
    let target = bench.mount(&device, "ext4", "t");
    fs::write(target.join("file"), "kept").unwrap();
    bench.linux.unmount(&target).unwrap();
    bench.linux.set_size(&bench.file("image"), 128 * MIB).unwrap();
    bench.linux.loop_refresh(&device).unwrap();
    let debugfs = |request: &str| run("debugfs", &["-w", "-R", request, device.to_str().unwrap()]);
    let check = |check| bench.linux.check_fs(&device, FsType::Ext4, check);
    debugfs("set_inode_field <7> block[DIND] 4294967295");

    // Clean according to its superblock. The full check finds the damage, and marks it.
    debugfs("set_super_value state 1");
    check(FsCheck::BeforeMount).unwrap();
    assert!(matches!(check(FsCheck::Full), Err(FsError::Damaged { .. })));
    for (state, errors) in [(None, 0), (Some(0), 0), (Some(2), 0), (Some(3), 0), (Some(3), 1)] {
        if let Some(state) = state {
            debugfs(&format!("set_super_value state {state}"));
        }
        debugfs(&format!("set_super_value error_count {errors}"));
        for _ in 0..2 {
            let refused = check(FsCheck::BeforeMount).unwrap_err();
            assert!(matches!(&refused, FsError::Damaged { .. }), "{state:?} {errors}: {refused}");
        }
    }
    check(FsCheck::Repair).unwrap();
    check(FsCheck::Full).unwrap();
    bench.linux.grow_fs(&device, FsType::Ext4, None).unwrap();
    let target = bench.mount(&device, "ext4", "t");
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
}

#[test]
fn journal_is_replayed_and_damage_is_reported_with_details() {
    let bench = Bench::new();
    let device = bench.formatted("image", FsType::Ext4);
    let target = bench.mount(&device, "ext4", "t");
    for i in 0..50 {
        fs::write(target.join(format!("file-{i}")), "x").unwrap();
    }
    fs::File::open(target.join("file-49")).unwrap().sync_all().unwrap();
    let size = bench.linux.stat(&bench.file("image")).unwrap().unwrap().size;
    bench.image("copy", size);
    bench.linux.copy_range(&bench.file("image"), &bench.file("copy"), 0, size).unwrap();
    let copy = bench.attach("copy");
    let before = run("dumpe2fs", &["-h", copy.to_str().unwrap()]);
    assert!(before.contains("needs_recovery"), "{before}");
    bench.linux.check_fs(&copy, FsType::Ext4, FsCheck::BeforeMount).unwrap();
    assert!(!run("dumpe2fs", &["-h", copy.to_str().unwrap()]).contains("needs_recovery"));
    bench.linux.check_fs(&copy, FsType::Ext4, FsCheck::BeforeMount).unwrap();

    // The root directory's inode is overwritten: e2fsck does not repair this automatically.
    let map = run("debugfs", &["-R", "imap <2>", copy.to_str().unwrap()]);
    let block: u64 =
        map.split("at block ").nth(1).unwrap().split(',').next().unwrap().trim().parse().unwrap();
    let raw = fs::OpenOptions::new().write(true).open(&copy).unwrap();
    raw.write_all_at(&[0xFF; 1024], block * 1024).unwrap();
    raw.sync_all().unwrap();
    run("debugfs", &["-w", "-R", "set_super_value state 2", copy.to_str().unwrap()]);
    let error = bench.linux.check_fs(&copy, FsType::Ext4, FsCheck::BeforeMount).unwrap_err();
    assert!(matches!(&error, FsError::Damaged { details, .. } if !details.trim().is_empty()), "{error}");

    for fs in [FsType::Xfs, FsType::Btrfs] {
        bench.linux.check_fs(&bench.formatted(&format!("{fs}.img"), fs), fs, FsCheck::BeforeMount).unwrap();
    }
    let blank = bench.device("blank", MIB);
    assert!(matches!(
        bench.linux.check_fs(&blank, FsType::Ext4, FsCheck::BeforeMount),
        Err(FsError::Check(_))
    ));
}

#[test]
fn file_system_grows_to_its_device() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let name = format!("{fs}.img");
        let device = bench.formatted(&name, fs);
        let before = bench.linux.device_size(&device).unwrap();
        let target = bench.mount(&device, fs.as_str(), fs.as_str());
        let old = bench.linux.usage(&target).unwrap().total_bytes;
        bench.linux.set_size(&bench.file(&name), before + 200 * MIB).unwrap();
        bench.linux.loop_refresh(&device).unwrap();

        let online = bench.linux.can_grow_online(fs);
        let grown = bench.linux.grow_fs(&device, fs, Some(&target));
        assert_eq!(online.is_ok(), grown.is_ok(), "{fs}: {online:?}, {grown:?}");
        if let Err(why) = online {
            // As the message says, it grows while it is not mounted.
            assert!(fs == FsType::Ext4 && why.contains("CAP_SYS_RESOURCE"), "{why}");
            bench.linux.unmount(&target).unwrap();
            bench.linux.check_fs(&device, fs, FsCheck::Full).unwrap();
            bench.linux.grow_fs(&device, fs, None).unwrap();
            bench.mount(&device, fs.as_str(), fs.as_str());
        }
        let new = bench.linux.usage(&target).unwrap().total_bytes;
        assert!(new > old + 150 * MIB, "{fs} {old} {new}");
        fs::write(target.join("file"), vec![1; MIB as usize]).unwrap();
        if bench.linux.can_grow_online(fs).is_ok() {
            // A file system that already fills its device is success.
            bench.linux.grow_fs(&device, fs, Some(&target)).unwrap();
        }

        bench.linux.unmount(&target).unwrap();
        bench.linux.check_fs(&device, fs, FsCheck::Full).unwrap();
        let unmounted = bench.linux.grow_fs(&device, fs, None);
        match fs {
            FsType::Ext4 => unmounted.unwrap(),
            FsType::Xfs | FsType::Btrfs => {
                assert!(
                    matches!(unmounted, Err(Error::InvalidState { reason, .. }) if reason.contains("next mount"))
                );
            }
        }
    }
}

#[test]
fn kernel_error_counts_are_reported() {
    let bench = Bench::new();
    let device = bench.formatted("image", FsType::Ext4);
    let target = bench.mount_with(device.to_str().unwrap(), "ext4", "t", &["errors=continue"]);
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test of the error count").unwrap();
    // The kernel counts in the background.
    let counted = || bench.linux.fs_error_count(&device, FsType::Ext4, &target).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while counted() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(counted(), 1);
    bench.linux.unmount(&target).unwrap();
    assert!(bench.linux.fs_error_count(&device, FsType::Ext4, &target).is_err(), "not mounted");
    // The count is in the superblock, and a check resets it.
    bench.linux.check_fs(&device, FsType::Ext4, FsCheck::BeforeMount).unwrap();

    // A btrfs with corrupted data: the read fails and is counted.
    let device = bench.formatted("b.img", FsType::Btrfs);
    let target = bench.mount(&device, "btrfs", "b");
    let content = vec![0x5C; MIB as usize];
    fs::write(target.join("file"), &content).unwrap();
    bench.linux.unmount(&target).unwrap();
    let image = fs::read(bench.path("b.img")).unwrap();
    let at =
        image.windows(4096).step_by(4096).position(|block| block.iter().all(|byte| *byte == 0x5C)).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&device)
        .unwrap()
        .write_all_at(&[0; 4096], at as u64 * 4096)
        .unwrap();
    bench.mount(&device, "btrfs", "b");
    assert_eq!(bench.linux.fs_error_count(&device, FsType::Btrfs, &target).unwrap(), 0);
    assert!(fs::read(target.join("file")).is_err());
    assert!(bench.linux.fs_error_count(&device, FsType::Btrfs, &target).unwrap() > 0);
}
