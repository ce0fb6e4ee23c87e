//! Loop devices, and queries for any block device.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use wharf_linux::{
    BlockDevices as _, Error, Files as _, Filesystems as _, LoopOptions, Mounts as _, PathBeneath,
};

use crate::bench::{ALL_FS_TYPES, Bench, MIB, run};

fn labelled(label: &str) -> LoopOptions {
    LoopOptions { read_only: false, label: label.to_owned() }
}

#[test]
fn device_is_identified_by_its_backing_file_on_every_file_system() {
    let bench = Bench::new();
    let mut pools: Vec<_> = ALL_FS_TYPES.map(|fs| bench.pool(fs)).to_vec();
    pools.push(bench.mount_with("tmpfs", "tmpfs", "tmpfs", &[]));
    for pool in pools {
        let image = PathBeneath::new(&pool, Path::new("image"));
        bench.linux.set_size(&image, 4 * MIB).unwrap();
        let label = "vol-0123456789abcdef0123456789abcdef";
        let device = bench.linux.loop_attach(&image, &labelled(label)).unwrap();
        bench.detach_on_drop(&device.path);
        let id = bench.linux.stat(&image).unwrap().unwrap().id;
        assert_eq!(device.backing, id, "{}", pool.display());
        assert_eq!((device.label.as_str(), device.read_only), (label, false));
        // tmpfs supports direct I/O since Linux 6.6.
        assert!(device.direct_io || pool.ends_with("tmpfs"), "{}", pool.display());
        assert_eq!(bench.linux.device_size(&device.path).unwrap(), 4 * MIB);

        // Still identified after the image was renamed or unlinked.
        let renamed = PathBeneath::new(&pool, Path::new("renamed"));
        bench.linux.rename(&image, &renamed).unwrap();
        bench.linux.remove_file(&renamed).unwrap();
        let all = bench.linux.loop_devices().unwrap();
        assert_eq!(all.iter().filter(|other| other.backing == id).collect::<Vec<_>>(), [&device]);
        bench.linux.loop_detach(&device.path, None).unwrap();
        assert!(!bench.linux.loop_devices().unwrap().iter().any(|other| other.backing == id));
    }
}

#[test]
fn invalid_image_is_refused_and_nothing_is_attached() {
    let bench = Bench::new();
    bench.image("odd", 1000);
    bench.image("empty", 0);
    bench.image("good", MIB);
    symlink("good", bench.path("link")).unwrap();
    fs::create_dir(bench.path("dir")).unwrap();
    for name in ["odd", "empty", "link", "dir", "missing", "../etc/passwd"] {
        assert!(bench.linux.loop_attach(&bench.file(name), &labelled("")).is_err(), "{name}");
    }
    for label in ["x".repeat(64), "a\0b".to_owned()] {
        assert!(bench.linux.loop_attach(&bench.file("good"), &labelled(&label)).is_err());
    }
    let good = bench.linux.stat(&bench.file("good")).unwrap().unwrap().id;
    assert!(
        !bench
            .linux
            .loop_devices()
            .unwrap()
            .iter()
            .any(|device| device.backing.device == good.device && device.backing.inode == good.inode)
    );

    let longest = "x".repeat(63);
    let device = bench.linux.loop_attach(&bench.file("good"), &labelled(&longest)).unwrap();
    bench.detach_on_drop(&device.path);
    assert_eq!(device.label, longest);
}

#[test]
fn read_only_device_rejects_writes() {
    let bench = Bench::new();
    bench.image("image", MIB);
    let options = LoopOptions { read_only: true, label: String::new() };
    let device = bench.linux.loop_attach(&bench.file("image"), &options).unwrap();
    bench.detach_on_drop(&device.path);
    assert!(device.read_only);
    let write = fs::OpenOptions::new().write(true).open(&device.path);
    assert!(write.and_then(|file| file.write_all_at(b"x", 0).and_then(|()| file.sync_all())).is_err());
    assert!(fs::read(bench.path("image")).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn refresh_updates_the_device_size() {
    let bench = Bench::new();
    let device = bench.device("image", MIB);
    bench.linux.set_size(&bench.file("image"), 3 * MIB + 512).unwrap();
    assert_eq!(bench.linux.device_size(&device).unwrap(), MIB);
    bench.linux.loop_refresh(&device).unwrap();
    assert_eq!(bench.linux.device_size(&device).unwrap(), 3 * MIB + 512);
}

#[test]
fn detach_fails_for_a_device_in_use_and_is_immediate_otherwise() {
    let bench = Bench::new();
    let device = bench.formatted("image", wharf_linux::FsType::Ext4);
    let target = bench.mount(&device, "ext4", "mounted");
    let error = bench.linux.loop_detach(&device, None).unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }), "{error}");
    fs::write(target.join("still"), "writable").unwrap();
    bench.linux.unmount(&target).unwrap();

    // A device that another process holds open stays attached, also after that process closes it: by then it may be in
    // use again.
    let open = fs::File::open(&device).unwrap();
    let error = bench.linux.loop_detach(&device, None).unwrap_err();
    assert!(matches!(&error, Error::InUse { .. }), "{error}");
    drop(open);
    std::thread::sleep(Duration::from_millis(200));
    let found = bench.linux.loop_devices().unwrap().into_iter().find(|other| other.path == device).unwrap();
    assert!(!found.autoclear, "{found:?}");

    // A process that opens the device briefly, as udev does, only delays the detach.
    let open = fs::File::open(&device).unwrap();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(open);
    });
    bench.linux.loop_detach(&device, None).unwrap();
    closing.join().unwrap();
    let id = bench.linux.stat(&bench.file("image")).unwrap().unwrap().id;
    assert!(!bench.linux.loop_devices().unwrap().iter().any(|other| other.backing == id));
    bench.linux.loop_detach(&bench.path("missing/loop4095"), None).unwrap();
    assert!(bench.linux.loop_detach(Path::new("/dev/null"), None).is_err());
}

#[test]
fn concurrent_attaches_get_distinct_devices() {
    let bench = Bench::new();
    let names: Vec<String> = (0..24).map(|i| format!("image-{i}")).collect();
    for name in &names {
        bench.image(name, MIB);
    }
    let linux = bench.linux;
    let root = bench.root();
    let devices: Vec<_> = std::thread::scope(|scope| {
        let attaching: Vec<_> = names
            .iter()
            .map(|name| {
                scope.spawn(move || {
                    let image = PathBeneath::new(root, Path::new(name));
                    linux.loop_attach(&image, &labelled(name)).map(|device| device.path)
                })
            })
            .collect();
        attaching.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let paths: BTreeSet<_> = devices.iter().flatten().cloned().collect();
    paths.iter().for_each(|path| bench.detach_on_drop(path));
    assert_eq!(paths.len(), names.len(), "{devices:?}");
}

/// As soon as a device is detached, another process may get its number, and keep it.
#[test]
fn device_is_detached_although_its_number_is_used_again() {
    let bench = Bench::new();
    ["mine", "theirs"].iter().for_each(|name| bench.image(name, MIB));
    let (linux, directory) = (&bench.linux, bench.path(""));
    let image = |name| PathBeneath::new(&directory, Path::new(name));
    let (mine, theirs) = (image("mine"), image("theirs"));
    let (number, done) = (AtomicU32::new(0), AtomicBool::new(false));
    let (result, (taken, taker_result)) = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut taken = Vec::new();
            let mut take = || {
                while !done.load(Ordering::Relaxed) {
                    let device = linux.loop_attach(&theirs, &labelled("theirs"))?;
                    if device.number.1 == number.load(Ordering::Relaxed) && taken.len() < 16 {
                        taken.push(device);
                    } else {
                        linux.loop_detach(&device.path, Some(device.backing))?;
                    }
                }
                Ok::<_, Error>(())
            };
            let result = take();
            (taken, result)
        });
        let result = (0..1000).try_for_each(|_| {
            let device = linux.loop_attach(&mine, &labelled("mine"))?;
            number.store(device.number.1, Ordering::Relaxed);
            linux.loop_detach(&device.path, Some(device.backing))
        });
        // Also after a failure, or the thread would not end.
        done.store(true, Ordering::Relaxed);
        (result, taker.join().unwrap())
    });
    for device in taken {
        linux.loop_detach(&device.path, Some(device.backing)).unwrap();
    }
    result.and(taker_result).unwrap();
}

#[test]
fn missing_device_node_is_created() {
    let bench = Bench::new();
    let device = bench.device("image", MIB);
    let id = bench.linux.stat(&bench.file("image")).unwrap().unwrap().id;
    fs::remove_file(&device).unwrap();
    let all = bench.linux.loop_devices().unwrap();
    assert!(all.iter().any(|other| other.backing == id && other.path == device));
    assert_eq!(bench.linux.device_size(&device).unwrap(), MIB);
}

#[test]
fn unaligned_reads_return_the_exact_bytes() {
    let bench = Bench::new();
    let size = 3 * MIB + 512;
    let content: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
    fs::write(bench.path("image"), &content).unwrap();
    let device = bench.attach("image");
    let ranges = [
        (0, 1),
        (0, 512),
        (1, 4096),
        (511, 2),
        (4095, 4098),
        (0, size),
        (size - 512, 512),
        (size - 1, 1),
        (MIB - 7, 2 * MIB),
        (size, 0),
    ];
    for (offset, length) in ranges {
        let mut buffer = vec![0; length as usize];
        bench.linux.read_device(&device, offset, &mut buffer).unwrap();
        assert!(buffer == content[offset as usize..(offset + length) as usize], "{offset}+{length}");
    }
    for (offset, length) in [(size - 1, 2), (size, 1), (u64::MAX, 1)] {
        assert!(bench.linux.read_device(&device, offset, &mut vec![0; length]).is_err(), "{offset}");
    }
    // Data written through the page cache is read, too.
    fs::OpenOptions::new().write(true).open(&device).unwrap().write_all_at(b"new", 5).unwrap();
    let mut buffer = [0; 3];
    bench.linux.read_device(&device, 5, &mut buffer).unwrap();
    assert_eq!(&buffer, b"new");
}

#[test]
fn file_that_is_not_a_block_device_is_an_error() {
    let bench = Bench::new();
    bench.image("image", MIB);
    for path in [bench.path("image"), "/dev/null".into(), "/".into()] {
        assert!(bench.linux.device_size(&path).is_err(), "{}", path.display());
        assert!(bench.linux.device_number(&path).is_err());
        assert!(bench.linux.probe(&path).is_err());
    }
    // A device without a backing file must not count as "no signature".
    let device = bench.attach("image");
    bench.linux.loop_detach(&device, None).unwrap();
    if bench.linux.device_size(&device).is_ok_and(|size| size == 0) {
        assert!(bench.linux.probe(&device).is_err());
    }
}

/// N-L2: a foreign device must not make all others unusable. It can be one of ours only if its file has that name.
#[test]
fn device_that_cannot_be_queried_is_listed_as_unreadable() {
    const DIR: &str = "WHARF_TEST_UNREADABLE_LOOP";
    if let Some(dir) = std::env::var_os(DIR) {
        return check_unreadable(Path::new(&dir));
    }
    let bench = Bench::new();
    bench.image("foreign", MIB);
    bench.image("own", MIB);
    let (foreign, own) = (bench.attach("foreign"), bench.attach("own"));
    symlink(&foreign, bench.path("foreign-device")).unwrap();
    symlink(&own, bench.path("own-device")).unwrap();
    // In a mount namespace of its own, since other tests list loop devices, too.
    let script = "mount --bind \"$1/own\" \"$2\" && shift 2 && exec \"$@\"";
    let mut inner = std::process::Command::new("unshare");
    inner
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(bench.root())
        .arg(&foreign);
    inner.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture"]);
    inner.arg("loops::device_that_cannot_be_queried_is_listed_as_unreadable").env(DIR, bench.root());
    let output = inner.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn check_unreadable(dir: &Path) {
    let linux = wharf_linux::Linux::new();
    let device = |name: &str| fs::read_link(dir.join(name)).unwrap();
    let own = linux.stat(&PathBeneath::new(dir, Path::new("own"))).unwrap().unwrap().id;
    let listed = linux.loop_devices().unwrap();
    let foreign = listed.iter().find(|listed| listed.path == device("foreign-device")).unwrap();
    assert_eq!(foreign.backing, wharf_linux::FileId::UNKNOWN);
    let found = linux.loop_devices_of(&[own], Path::new("own")).unwrap();
    assert_eq!(found.iter().map(|device| &device.path).collect::<Vec<_>>(), [&device("own-device")]);
    let error = linux.loop_devices_of(&[own], Path::new("foreign")).unwrap_err().to_string();
    assert!(error.contains("cannot be queried") && error.contains("foreign"), "{error}");
}

/// N-H1, on the kernel's level.
#[test]
fn held_device_keeps_its_image_and_detach_checks_the_image() {
    let bench = Bench::new();
    bench.image("image", MIB);
    let device = bench.attach("image");
    let id = bench.linux.stat(&bench.file("image")).unwrap().unwrap().id;
    let holder = bench.linux.loop_hold(&device, "holder").unwrap();
    let listed =
        |path: &Path| bench.linux.loop_devices().unwrap().into_iter().find(|found| found.path == path);
    assert_eq!(holder.backing_device, Some(listed(&device).unwrap().number));
    assert!(holder.read_only);
    assert!(std::process::Command::new("losetup").arg("-d").arg(&device).status().unwrap().success());
    assert_eq!(listed(&device).unwrap().altered("image"), Some("detaches at its last close"));
    bench.linux.loop_reset(&device, "image").unwrap();
    assert_eq!(listed(&device).unwrap().altered("image"), None);
    assert_eq!(listed(&device).unwrap().backing, id);
    bench.linux.loop_detach(&holder.path, Some(holder.backing)).unwrap();
    // The number belongs to another image: that one stays attached.
    bench.linux.loop_detach(&device, Some(wharf_linux::FileId { inode: id.inode + 1, ..id })).unwrap();
    assert!(listed(&device).is_some());
    bench.linux.loop_detach(&device, Some(id)).unwrap();
    assert!(listed(&device).is_none_or(|found| found.backing != id));
}

/// N-M1. The next device with the number can discard again, also if the setting outlived its user.
#[test]
fn disabled_discards_end_with_the_attachment() {
    let bench = Bench::new();
    bench.image("image", 4 * MIB);
    let limit = |device: &Path| {
        let setting =
            Path::new("/sys/block").join(device.file_name().unwrap()).join("queue/discard_max_bytes");
        fs::read_to_string(&setting).unwrap().trim().parse::<u64>().unwrap()
    };
    for _ in 0..3 {
        let device = bench.linux.loop_attach(&bench.file("image"), &labelled("")).unwrap().path;
        bench.detach_on_drop(&device);
        assert!(limit(&device) > 0);
        for _ in 0..2 {
            bench.linux.loop_disable_discard(&device).unwrap();
            assert_eq!(limit(&device), 0);
        }
        // As a crash leaves it.
        run("losetup", &["-d", device.to_str().unwrap()]);
        let device = bench.linux.loop_attach(&bench.file("image"), &labelled("")).unwrap().path;
        assert!(limit(&device) > 0);
        bench.linux.loop_disable_discard(&device).unwrap();
        bench.linux.loop_detach(&device, None).unwrap();
    }
}
