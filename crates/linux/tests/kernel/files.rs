//! Files beneath a root: confinement, rejected paths, durable writes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use wharf_linux::{Error, Files as _, Mounts as _, PathBeneath, write_durably};

use crate::bench::{ALL_FS_TYPES, Bench, MIB, run};

#[test]
fn files_are_written_read_renamed_and_removed() {
    let bench = Bench::new();
    let linux = bench.linux;
    let file = bench.file("dir/file");
    assert_eq!(linux.read_file(&file).unwrap(), None);
    assert_eq!(linux.stat(&file).unwrap(), None);
    assert!(linux.write_file(&file, b"x").is_err(), "no directory");
    linux.create_dir(&bench.file("dir")).unwrap();
    linux.create_dir(&bench.file("dir")).unwrap();
    linux.create_dir(&bench.file(".")).unwrap();
    linux.write_file(&file, b"first and longer").unwrap();
    linux.write_file(&file, b"second").unwrap();
    assert_eq!(linux.read_file(&file).unwrap().unwrap(), b"second");
    let stat = linux.stat(&file).unwrap().unwrap();
    assert_eq!((stat.size, stat.is_dir), (6, false));
    assert!(linux.stat(&bench.file("dir")).unwrap().unwrap().is_dir);
    let mode = |path: &str| fs::metadata(bench.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("dir"), mode("dir/file")), (0o700, 0o600));

    linux.sync(&file).unwrap();
    linux.sync(&bench.file("dir")).unwrap();
    linux.sync(&bench.file(".")).unwrap();
    linux.write_file(&bench.file("other"), b"other").unwrap();
    linux.rename(&bench.file("other"), &file).unwrap();
    assert_eq!(linux.read_file(&file).unwrap().unwrap(), b"other");
    linux.create_dir(&bench.file("b")).unwrap();
    linux.rename(&bench.file("dir"), &bench.file("c")).unwrap();
    assert_eq!(linux.list_dir(&bench.file(".")).unwrap(), ["b", "c"]);
    assert_eq!(linux.list_dir(&bench.file("missing/deeper")).unwrap(), [""; 0]);

    assert!(linux.remove_dir(&bench.file("c")).is_err(), "not empty");
    assert!(linux.remove_file(&bench.file("c")).is_err(), "a directory");
    linux.remove_file(&bench.file("c/file")).unwrap();
    linux.remove_file(&bench.file("c/file")).unwrap();
    linux.remove_dir(&bench.file("c")).unwrap();
    linux.remove_dir(&bench.file("c")).unwrap();
    linux.remove_file(&bench.file("missing/file")).unwrap();
    assert_eq!(linux.list_dir(&bench.file(".")).unwrap(), ["b"]);
}

#[test]
fn paths_cannot_leave_the_root() {
    let bench = Bench::new();
    let linux = bench.linux;
    fs::create_dir_all(bench.path("pool/dir")).unwrap();
    fs::write(bench.path("secret"), "secret").unwrap();
    fs::create_dir(bench.path("outside")).unwrap();
    let pool = bench.path("pool");
    symlink("../secret", pool.join("link")).unwrap();
    symlink("../outside", pool.join("linked")).unwrap();
    symlink("dir", pool.join("inside")).unwrap();
    symlink("nowhere", pool.join("dangling")).unwrap();
    let absolute = bench.path("secret");
    let paths = [
        "link",
        "linked/file",
        "inside/file",
        "dangling",
        "../secret",
        "dir/../../secret",
        "dir/..",
        "..",
        "",
        "a\0b",
        absolute.to_str().unwrap(),
    ];
    for path in paths {
        let file = PathBeneath::new(&pool, Path::new(path));
        let good = PathBeneath::new(&pool, Path::new("good"));
        linux.write_file(&good, b"good").unwrap();
        assert!(linux.read_file(&file).is_err(), "read {path:?}");
        assert!(linux.write_file(&file, b"x").is_err(), "write {path:?}");
        assert!(linux.stat(&file).is_err(), "stat {path:?}");
        assert!(linux.set_size(&file, 1).is_err(), "set_size {path:?}");
        assert!(linux.allocate(&file, 1).is_err(), "allocate {path:?}");
        assert!(linux.sync(&file).is_err(), "sync {path:?}");
        assert!(linux.list_dir(&file).is_err(), "list {path:?}");
        assert!(linux.create_dir(&file).is_err(), "mkdir {path:?}");
        assert!(linux.reflink(&good, &file).is_err() && linux.reflink(&file, &good).is_err());
        assert!(
            linux.copy_range(&file, &good, 0, 1).is_err() && linux.copy_range(&good, &file, 0, 1).is_err()
        );
        assert!(linux.extents(&file).is_err() && linux.try_lock(&file).is_err(), "{path:?}");
    }
    // Remove and rename act on the name: they can remove a symlink, but never its target or anything else.
    for path in &paths[1..] {
        let file = PathBeneath::new(&pool, Path::new(path));
        if *path == "dangling" {
            continue;
        }
        assert!(linux.remove_file(&file).is_err(), "unlink {path:?}");
        assert!(linux.remove_dir(&file).is_err(), "rmdir {path:?}");
        assert!(linux.rename(&PathBeneath::new(&pool, Path::new("good")), &file).is_err(), "rename {path:?}");
        assert!(linux.rename(&file, &PathBeneath::new(&pool, Path::new("new"))).is_err(), "rename {path:?}");
    }
    let elsewhere = bench.path("outside");
    let good = PathBeneath::new(&pool, Path::new("good"));
    assert!(linux.rename(&good, &PathBeneath::new(&elsewhere, Path::new("good"))).is_err(), "another root");
    linux.remove_file(&PathBeneath::new(&pool, Path::new("link"))).unwrap();
    assert_eq!(fs::read_to_string(bench.path("secret")).unwrap(), "secret");
    assert_eq!(fs::read_dir(bench.path("outside")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(pool.join("dir")).unwrap().count(), 0);
    assert_eq!(
        linux.list_dir(&PathBeneath::new(&pool, Path::new("."))).unwrap(),
        ["dangling", "dir", "good", "inside", "linked"]
    );
}

#[test]
fn missing_root_is_an_error_and_not_an_empty_directory() {
    let bench = Bench::new();
    let gone = bench.path("unmounted");
    let file = PathBeneath::new(&gone, Path::new("file"));
    assert!(matches!(bench.linux.read_file(&file), Err(Error::InvalidState { .. })));
    assert!(bench.linux.stat(&file).is_err());
    assert!(bench.linux.list_dir(&PathBeneath::new(&gone, Path::new("."))).is_err());
    assert!(bench.linux.remove_file(&file).is_err());
}

#[test]
fn only_regular_files_are_opened_and_a_fifo_does_not_block() {
    let bench = Bench::new();
    run("mkfifo", &[bench.path("fifo").to_str().unwrap()]);
    fs::create_dir(bench.path("dir")).unwrap();
    for name in ["fifo", "dir"] {
        let file = bench.file(name);
        assert!(bench.linux.read_file(&file).is_err(), "{name}");
        assert!(bench.linux.write_file(&file, b"x").is_err(), "{name}");
        assert!(bench.linux.set_size(&file, 1).is_err(), "{name}");
        assert!(bench.linux.try_lock(&file).is_err(), "{name}");
    }
    assert!(bench.linux.create_dir(&bench.file("fifo")).is_err());
}

#[test]
fn durable_write_replaces_the_file_and_leaves_no_temporary_file() {
    let bench = Bench::new();
    bench.linux.create_dir(&bench.file("dir")).unwrap();
    for name in ["file", "dir/file.json"] {
        let file = bench.file(name);
        for content in ["one", "two and longer", ""] {
            // A file that a crash can leave behind.
            fs::write(bench.path(&format!("{name}.tmp")), "remains of an earlier write").unwrap();
            write_durably(&bench.linux, &file, content.as_bytes()).unwrap();
            assert_eq!(bench.linux.read_file(&file).unwrap().unwrap(), content.as_bytes());
        }
    }
    assert_eq!(bench.linux.list_dir(&bench.file(".")).unwrap(), ["dir", "file"]);
    assert_eq!(bench.linux.list_dir(&bench.file("dir")).unwrap(), ["file.json"]);
    assert!(write_durably(&bench.linux, &bench.file("."), b"").is_err());
    assert!(write_durably(&bench.linux, &bench.file("../x"), b"").is_err());
}

#[test]
fn lock_excludes_a_second_lock_until_it_is_dropped() {
    let bench = Bench::new();
    let file = bench.file("lock");
    let first = bench.linux.try_lock(&file).unwrap();
    assert!(first.is_some());
    assert!(bench.linux.try_lock(&file).unwrap().is_none());
    // The lock also excludes other processes, and child processes do not inherit it.
    let path = bench.path("lock");
    let taken =
        std::process::Command::new("flock").args(["-n", path.to_str().unwrap(), "true"]).status().unwrap();
    assert!(!taken.success());
    drop(first);
    assert!(bench.linux.try_lock(&file).unwrap().is_some());
}

#[test]
fn allocation_reserves_blocks_keeps_content_and_fails_when_full() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let pool = bench.pool(fs);
        let file = PathBeneath::new(&pool, Path::new("image"));
        bench.linux.set_size(&file, 4 * MIB).unwrap();
        assert_eq!(bench.linux.stat(&file).unwrap().unwrap().allocated, 0, "{fs}");
        bench.linux.write_file(&PathBeneath::new(&pool, Path::new("small")), b"x").unwrap();
        bench.linux.allocate(&file, 4 * MIB).unwrap();
        let stat = bench.linux.stat(&file).unwrap().unwrap();
        assert!(stat.size == 4 * MIB && stat.allocated >= 4 * MIB, "{fs} {stat:?}");
        assert!(bench.linux.read_file(&file).unwrap().unwrap().iter().all(|byte| *byte == 0));
        let error = bench.linux.allocate(&file, 1 << 40).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{fs} {error}");
        assert_eq!(bench.linux.stat(&file).unwrap().unwrap().size, 4 * MIB);
    }
}

#[test]
fn reflink_support_is_detected_per_file_system() {
    let bench = Bench::new();
    let tmpfs = bench.mount_with("tmpfs", "tmpfs", "tmpfs", &[]);
    let pools = ALL_FS_TYPES.map(|fs| (bench.pool(fs), fs != wharf_linux::FsType::Ext4));
    for (pool, can) in pools.iter().chain([&(tmpfs, false)]) {
        let before = bench.linux.list_dir(&PathBeneath::new(pool, Path::new("."))).unwrap();
        assert_eq!(bench.linux.can_reflink(pool).unwrap(), *can, "{}", pool.display());
        assert_eq!(bench.linux.list_dir(&PathBeneath::new(pool, Path::new("."))).unwrap(), before);
    }
    assert!(bench.linux.can_reflink(&bench.path("missing")).is_err());
    bench.linux.unmount(&pools[0].0).unwrap();
}

/// U-1: on every file system a file with reserved blocks can be replaced when there is no free space.
#[test]
fn reserved_file_is_replaced_on_a_full_file_system() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let pool = bench.pool(fs);
        let at = |name: &'static str| PathBeneath::new(&pool, Path::new(name));
        for name in ["file", "spare"] {
            bench.linux.create_reserved(&at(name), 4096).unwrap();
        }
        let (mut ballast, chunk) = (fs::File::create(pool.join("ballast")).unwrap(), vec![1; 1 << 20]);
        for size in [1 << 20, 4096, 512] {
            while ballast.write_all(&chunk[..size]).and_then(|()| ballast.sync_all()).is_ok() {}
        }
        assert!(fs::write(pool.join("new"), &chunk[..65536]).is_err(), "{fs}");
        for round in 0..50u8 {
            let bytes = vec![round; 4096];
            wharf_linux::replace_durably(&bench.linux, &at("file"), &at("spare"), &bytes).unwrap();
            assert_eq!(bench.linux.read_file(&at("file")).unwrap().unwrap(), bytes, "{fs}");
        }
        assert!(bench.linux.overwrite(&at("file"), &[0; 4097]).is_err());
    }
}
