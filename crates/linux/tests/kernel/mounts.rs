//! Mounts, binds, targets and the mount table.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use wharf_linux::{BlockDevices as _, Error, FsType, MountRequest, Mounts as _, PathKind};

use crate::bench::{ALL_FS_TYPES, Bench};

#[test]
fn mounted_device_is_in_the_table_with_its_number_and_options() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let device = bench.formatted(&format!("{fs}.img"), fs);
        let target = bench.mount_with(device.to_str().unwrap(), fs.as_str(), fs.as_str(), &["noatime,nodev"]);
        let table = bench.linux.mount_table().unwrap();
        let mount = table.at(&target).unwrap();
        assert_eq!((mount.fs_type.as_str(), Path::new(&mount.source)), (fs.as_str(), device.as_path()));
        assert!(mount.options.iter().any(|option| option == "noatime"), "{mount:?}");
        assert!(mount.options.iter().any(|option| option == "nodev"), "{mount:?}");
        assert!(!mount.is_read_only());
        let number = bench.linux.device_number(&device).unwrap();
        assert_eq!(table.of_device(number).count(), 1, "{fs}");

        bench.linux.unmount(&target).unwrap();
        assert!(bench.linux.mount_table().unwrap().at(&target).is_none());
        bench.linux.unmount(&target).unwrap();
    }
}

#[test]
fn mount_options_reach_the_file_system_and_invalid_ones_fail() {
    let bench = Bench::new();
    let target = bench.mount_with("tmpfs", "tmpfs", "t", &["size=1m", "mode=0700"]);
    let table = bench.linux.mount_table().unwrap();
    assert!(table.at(&target).unwrap().super_options.iter().any(|option| option == "size=1024k"));

    let other = bench.target("u");
    let options = ["no-such-option".to_owned()];
    let request = MountRequest {
        source: "tmpfs",
        target: &other,
        fs_type: "tmpfs",
        options: &options,
        read_only: false,
    };
    assert_eq!(bench.linux.mount(&request).unwrap_err().errno(), Some(libc::EINVAL));
    let nul = MountRequest { options: &["a\0b".to_owned()], ..request.clone() };
    assert!(bench.linux.mount(&nul).is_err());
    let read_only = MountRequest { options: &[], read_only: true, ..request };
    bench.linux.mount(&read_only).unwrap();
    bench.unmount_on_drop(&other);
    assert!(fs::write(other.join("x"), "x").is_err());
}

#[test]
fn symlink_target_is_refused() {
    let bench = Bench::new();
    let real = bench.target("real");
    let link = bench.path("link");
    symlink(&real, &link).unwrap();
    let request =
        MountRequest { source: "tmpfs", target: &link, fs_type: "tmpfs", options: &[], read_only: false };
    let error = bench.linux.mount(&request).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert!(bench.linux.bind(&bench.target("source"), &link, false).is_err());
    assert!(bench.linux.bind(&bench.path("source"), &bench.path("missing"), false).is_err());
    let table = bench.linux.mount_table().unwrap();
    assert!(!table.mounts().iter().any(|mount| mount.mount_point.starts_with(bench.root())));
}

#[test]
fn bind_shows_the_source_and_read_only_bind_rejects_writes() {
    let bench = Bench::new();
    let source = bench.mount_with("tmpfs", "tmpfs", "source", &[]);
    fs::write(source.join("file"), "1").unwrap();
    let (writable, fixed) = (bench.target("writable"), bench.target("fixed"));
    bench.linux.bind(&source, &writable, false).unwrap();
    bench.unmount_on_drop(&writable);
    bench.linux.bind(&source, &fixed, true).unwrap();
    bench.unmount_on_drop(&fixed);

    fs::write(writable.join("file"), "2").unwrap();
    assert_eq!(fs::read_to_string(fixed.join("file")).unwrap(), "2");
    let error = fs::write(fixed.join("file"), "3").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    fs::write(source.join("file"), "4").unwrap();
    let table = bench.linux.mount_table().unwrap();
    assert!(table.at(&fixed).unwrap().is_read_only() && !table.at(&writable).unwrap().is_read_only());
}

#[test]
fn device_node_is_bound_on_a_file() {
    let bench = Bench::new();
    let device = bench.device("raw.img", 1 << 20);
    let target = bench.path("raw");
    bench.linux.create_target_file(&target).unwrap();
    bench.linux.bind(&device, &target, false).unwrap();
    bench.unmount_on_drop(&target);
    assert_eq!(bench.linux.path_kind(&target).unwrap(), Some(PathKind::BlockDevice));
    assert_eq!(bench.linux.device_size(&target).unwrap(), 1 << 20);
    let table = bench.linux.mount_table().unwrap();
    let bound: Vec<_> = table.of_device_node(&device).map(|mount| mount.mount_point.clone()).collect();
    assert_eq!(bound, std::slice::from_ref(&target));
    bench.linux.create_target_file(&target).unwrap();

    bench.linux.unmount(&target).unwrap();
    bench.linux.remove_target(&target).unwrap();
    assert_eq!(bench.linux.path_kind(&target).unwrap(), None);
}

#[test]
fn read_only_bind_is_never_visible_as_writable() {
    let bench = Bench::new();
    let source = bench.mount_with("tmpfs", "tmpfs", "source", &[]);
    let target = bench.target("target");
    let done = AtomicBool::new(false);
    let seen = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let table = bench.linux.mount_table().unwrap();
                if let Some(mount) = table.at(&target) {
                    assert!(mount.is_read_only(), "{mount:?}");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(20);
        while seen.load(Ordering::Relaxed) < 50 && Instant::now() < end {
            bench.linux.bind(&source, &target, true).unwrap();
            bench.linux.unmount(&target).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen.load(Ordering::Relaxed) > 0, "the watcher never observed the bind");
}

#[test]
fn unmount_waits_for_short_use_and_reports_long_use() {
    let bench = Bench::new();
    let target = bench.mount_with("tmpfs", "tmpfs", "t", &[]);
    let file = fs::File::create(target.join("open")).unwrap();
    let before = Instant::now();
    let error = bench.linux.unmount(&target).unwrap_err();
    assert!(matches!(&error, Error::InvalidState { reason, .. } if reason.contains("busy")), "{error}");
    assert!((1..4).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    assert!(target.join("open").exists());

    let leaving = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(file);
    });
    bench.linux.unmount(&target).unwrap();
    leaving.join().unwrap();
    assert!(bench.linux.mount_table().unwrap().at(&target).is_none());
}

#[test]
fn unmount_removes_one_stacked_mount_and_not_mounted_is_success() {
    let bench = Bench::new();
    bench.linux.unmount(&bench.path("missing/deeper")).unwrap();
    bench.linux.unmount(&bench.target("empty")).unwrap();
    fs::write(bench.path("file"), "x").unwrap();
    bench.linux.unmount(&bench.path("file")).unwrap();

    let target = bench.mount_with("tmpfs", "tmpfs", "twice", &[]);
    fs::write(target.join("lower"), "").unwrap();
    bench.mount_with("tmpfs", "tmpfs", "twice", &[]);
    assert!(!target.join("lower").exists());
    bench.linux.unmount(&target).unwrap();
    assert!(target.join("lower").exists());

    // The parent directory may be a symlink, as /var/lib/kubelet often is.
    symlink(bench.root(), bench.path("again")).unwrap();
    bench.linux.unmount(&bench.path("again/twice")).unwrap();
    bench.linux.unmount(&bench.path("again/twice")).unwrap();
    assert!(bench.linux.mount_table().unwrap().at(&target).is_none());
    // If the last component is a symlink, it is never followed.
    let mounted = bench.mount_with("tmpfs", "tmpfs", "mounted", &[]);
    symlink(&mounted, bench.path("link")).unwrap();
    let _ = bench.linux.unmount(&bench.path("link"));
    assert!(bench.linux.mount_table().unwrap().at(&mounted).is_some());
}

#[test]
fn targets_are_created_and_removed_only_if_of_the_right_type() {
    let bench = Bench::new();
    let linux = bench.linux;
    let deep = bench.path("a/b/c");
    linux.create_target_dir(&deep).unwrap();
    linux.create_target_dir(&deep).unwrap();
    assert_eq!(linux.path_kind(&deep).unwrap(), Some(PathKind::Directory));

    let file = bench.path("a/file");
    linux.create_target_file(&file).unwrap();
    linux.create_target_file(&file).unwrap();
    assert!(linux.create_target_dir(&file).is_err());
    assert!(linux.create_target_file(&deep).is_err());
    let link = bench.path("a/link");
    symlink("b", &link).unwrap();
    assert!(linux.create_target_dir(&link).is_err());
    assert!(linux.create_target_file(&link).is_err());
    assert!(linux.remove_target(&link).is_err());
    assert_eq!(linux.path_kind(&link).unwrap(), Some(PathKind::Symlink));

    assert!(linux.remove_target(&bench.path("a")).is_err(), "not empty");
    fs::write(&file, "content").unwrap();
    assert!(linux.remove_target(&file).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    fs::write(&file, "").unwrap();
    linux.remove_target(&file).unwrap();
    linux.remove_target(&file).unwrap();
    linux.remove_target(&deep).unwrap();
    assert_eq!(linux.path_kind(&deep).unwrap(), None);

    let mounted = bench.mount_with("tmpfs", "tmpfs", "mounted", &[]);
    assert_eq!(linux.remove_target(&mounted).unwrap_err().errno(), Some(libc::EBUSY));
}

#[test]
fn mount_table_is_complete_during_concurrent_mounts() {
    let bench = Bench::new();
    let stays = bench.mount_with("tmpfs", "tmpfs", "stays", &[]);
    let targets: Vec<_> = (0..40).map(|i| bench.target(&format!("churn-{i}"))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                for target in &targets {
                    let request = MountRequest {
                        source: "tmpfs",
                        target,
                        fs_type: "tmpfs",
                        options: &[],
                        read_only: false,
                    };
                    bench.linux.mount(&request).unwrap();
                }
                for target in &targets {
                    bench.linux.unmount(target).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let table = bench.linux.mount_table().unwrap();
            assert_eq!(table.mounts().iter().filter(|mount| mount.mount_point == stays).count(), 1);
        }
    });
}

#[test]
fn xfs_on_a_read_only_loop_device_mounts_only_read_only() {
    let bench = Bench::new();
    let device = bench.formatted("x.img", FsType::Xfs);
    bench.linux.loop_detach(&device, None).unwrap();
    let options = wharf_linux::LoopOptions { read_only: true, label: String::new() };
    let device = bench.linux.loop_attach(&bench.file("x.img"), &options).unwrap();
    bench.detach_on_drop(&device.path);
    let target = bench.target("x");
    let mut request = MountRequest {
        source: device.path.to_str().unwrap(),
        target: &target,
        fs_type: "xfs",
        options: &[],
        read_only: false,
    };
    assert!(bench.linux.mount(&request).is_err());
    request.read_only = true;
    bench.linux.mount(&request).unwrap();
    bench.unmount_on_drop(&target);
}
