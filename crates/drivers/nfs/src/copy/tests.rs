//! Tests of the copier on real file systems. Owners need root.

use std::fs;
use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use super::testing::{assert_same, build, open_dir, tree};
use super::*;

fn copy(from: &Path, to: &Path, options: &CopyOptions) -> Result<CopyReport, CopyError> {
    copy_tree(open_dir(from).as_fd(), open_dir(to).as_fd(), options, &|_| ControlFlow::Continue(()))
}

fn copied(from: &Path) -> (TempDir, CopyReport) {
    let to = TempDir::new().unwrap();
    let report = copy(from, to.path(), &CopyOptions::default()).unwrap();
    (to, report)
}

fn mknod(path: &Path, kind: FileType, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::RUSR, device).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // B16
    #[test]
    fn random_tree_is_copied_exactly(items in tree(), threads in 1..9usize, contents: bool) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        build(from.path(), &items);
        let verify = if contents { Verify::Contents } else { Verify::Sizes };
        let options = CopyOptions { threads, verify, ..CopyOptions::default() };
        let report = copy(from.path(), to.path(), &options).unwrap();
        assert_same(from.path(), to.path());
        prop_assert_eq!(report.entries() as usize, testing::describe(from.path()).len() - 1);
        prop_assert_eq!((report.changed, report.vanished, report.not_kept), (0, 0, 0));
    }
}

// B16
#[test]
fn sockets_and_devices_are_skipped_and_counted() {
    let from = TempDir::new().unwrap();
    let _listener = UnixListener::bind(from.path().join("socket")).unwrap();
    mknod(&from.path().join("null"), FileType::CharacterDevice, 0x103);
    mknod(&from.path().join("disk"), FileType::BlockDevice, 0x700);
    mknod(&from.path().join("fifo"), FileType::Fifo, 0);
    fs::write(from.path().join("file"), "x").unwrap();
    let (to, report) = copied(from.path());
    let expected = CopyReport {
        files: 1,
        fifos: 1,
        bytes: 1,
        allocated: Some(1),
        sockets: 1,
        devices: 2,
        ..CopyReport::default()
    };
    assert_eq!(report, expected);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2);
}

/// Writes a file if there is one or none; never through a symlink.
fn overwrite(path: &Path, contents: &[u8]) {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let open = fs::File::options().write(true).create(true).truncate(true).custom_flags(no_follow).open(path);
    drop(open.and_then(|mut file| file.write_all(contents)));
}

// B16
#[test]
fn files_that_change_and_vanish_do_not_fail_the_copy() {
    let (from, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let canary = outside.path().join("canary");
    fs::write(&canary, "canary").unwrap();
    for i in 0..200 {
        fs::write(from.path().join(format!("{i}")), vec![1; 100_000]).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let churn = |first: usize| {
            let (from, stop, canary) = (&from, &stop, &canary);
            move || {
                for i in (first..).step_by(2).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let path = from.path().join(format!("{}", i % 200));
                    match i % 7 {
                        0 | 1 => drop(fs::remove_file(&path)),
                        2 => overwrite(&path, b"shorter"),
                        3 => drop(fs::create_dir(&path)),
                        4 => drop(fs::remove_dir(&path)),
                        5 => drop(symlink(canary, &path)),
                        _ => overwrite(&path, &[2; 300_000]),
                    }
                }
            }
        };
        scope.spawn(churn(0));
        scope.spawn(churn(1));
        for _ in 0..10 {
            let to = TempDir::new().unwrap();
            let result = copy(from.path(), to.path(), &CopyOptions::default());
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            let report = result.unwrap();
            // Whatever was read, nothing was read through the symlinks.
            for entry in fs::read_dir(to.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() && !path.is_symlink() {
                    let contents = fs::read(&path).unwrap();
                    assert!(!contents.starts_with(b"canary"), "{path:?}");
                }
            }
            assert!(report.entries() <= 200);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read(&canary).unwrap(), b"canary");
}

#[test]
fn modes_do_not_depend_on_umask_and_inherited_group() {
    let (from, parent) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let to = parent.path().join("to");
    fs::create_dir(&to).unwrap();
    std::os::unix::fs::chown(&to, None, Some(42)).unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o2777)).unwrap();
    for mode in [0o4777, 0o2777, 0o1777, 0o000, 0o666] {
        let file = from.path().join(format!("file-{mode:o}"));
        let dir = from.path().join(format!("dir-{mode:o}"));
        fs::write(&file, "").unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("inner"), "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    }
    copy(from.path(), &to, &CopyOptions::default()).unwrap();
    assert_same(from.path(), &to);
}

#[test]
fn acls_inherited_by_the_target_are_not_given_to_the_copy() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    rustix::fs::setxattr(
        to.path(),
        "system.posix_acl_default",
        &testing::ACL,
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/file"), "").unwrap();
    copy(from.path(), to.path(), &CopyOptions::default()).unwrap();
    assert_same(from.path(), to.path());
}

#[test]
fn symlinks_are_copied_and_never_followed() {
    let (from, canary) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(canary.path().join("secret"), "secret").unwrap();
    symlink(canary.path(), from.path().join("out")).unwrap();
    symlink("..", from.path().join("up")).unwrap();
    let (to, report) = copied(from.path());
    assert_eq!((report.symlinks, report.entries()), (2, 2));
    assert!(to.path().join("out").is_symlink());
}

#[test]
fn target_with_content_is_refused() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(to.path().join("data"), "precious").unwrap();
    let error = copy(from.path(), to.path(), &CopyOptions::default()).unwrap_err();
    assert!(error.to_string().contains("empty directory"), "{error}");
    assert_eq!(fs::read(to.path().join("data")).unwrap(), b"precious");
}

#[test]
fn break_from_the_progress_callback_cancels_the_copy() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(from.path().join("file"), "x").unwrap();
    let result = copy_tree(
        open_dir(from.path()).as_fd(),
        open_dir(to.path()).as_fd(),
        &CopyOptions::default(),
        &|_| ControlFlow::Break(()),
    );
    assert!(matches!(result, Err(CopyError::Cancelled)), "{result:?}");
}

#[test]
fn deep_tree_is_copied() {
    let from = TempDir::new().unwrap();
    let mut path = from.path().to_owned();
    for _ in 0..300 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("file"), "deep").unwrap();
    fs::hard_link(path.join("file"), from.path().join("link")).unwrap();
    let (to, report) = copied(from.path());
    assert_eq!((report.directories, report.files, report.hard_links), (300, 1, 1));
    assert_same(from.path(), to.path());
}

/// Its users would otherwise end the process, whose stack and files are limited, and with it the copies of others.
#[test]
fn too_deep_tree_is_an_error_of_limited_length() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
    let from = TempDir::new().unwrap();
    let name = "d".repeat(255);
    let mut dir = open_dir(from.path());
    for _ in 0..2049 {
        rustix::fs::mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &*name, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let to = TempDir::new().unwrap();
    let error = copy(from.path(), to.path(), &CopyOptions::default()).unwrap_err().to_string();
    assert!(error.contains("deeper than 2048") && error.len() < 2000, "{} {error}", error.len());
    for root in [from, to] {
        // By its path, the tree is too deep to be removed.
        let mut dir = open_dir(root.path());
        while let Ok(next) = rustix::fs::openat(&dir, &*name, rustix::fs::OFlags::DIRECTORY, Mode::empty()) {
            dir = next;
        }
        drop(dir);
        let status = std::process::Command::new("rm").arg("-rf").arg(root.path()).status().unwrap();
        assert!(status.success());
    }
}

/// Of a directory with many directories, only those are open that are being copied.
#[test]
fn wide_tree_needs_few_open_files() {
    let from = TempDir::new().unwrap();
    for outer in 0..30 {
        for inner in 0..100 {
            fs::create_dir_all(from.path().join(format!("{outer}/{inner}/leaf"))).unwrap();
        }
    }
    let to = TempDir::new().unwrap();
    let (source, target) = (open_dir(from.path()), open_dir(to.path()));
    let inside = |fd: &fs::DirEntry| {
        let path = fs::read_link(fd.path()).unwrap_or_default();
        path.starts_with(from.path()) || path.starts_with(to.path())
    };
    let most = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter(inside).count();
                most.fetch_max(open, Ordering::Relaxed);
            }
        });
        let options = CopyOptions { threads: 2, ..CopyOptions::default() };
        let report = copy_tree(source.as_fd(), target.as_fd(), &options, &|_| ControlFlow::Continue(()));
        stop.store(true, Ordering::Relaxed);
        report.unwrap()
    });
    assert_eq!(report.directories, 6030);
    // Two threads, four levels, two files each, and those that are opened for a moment.
    assert!(most.load(Ordering::Relaxed) <= 64, "{most:?}");
}

/// As the agent copies a file to which an NFS client writes: knfsd has delegated it.
#[test]
fn leased_file_is_copied_when_the_lease_is_returned() {
    let from = TempDir::new().unwrap();
    fs::write(from.path().join("file"), "data").unwrap();
    let holder = r#"use Fcntl; $| = 1; open(my $f, "<", $ARGV[0]) or die; $SIG{IO} = sub { select(undef, undef, undef, 0.3); exit 0 };
        fcntl($f, 1024, F_WRLCK) or die "lease: $!"; print "leased\n"; sleep 60;"#;
    let mut holder = std::process::Command::new("perl")
        .args(["-e", holder])
        .arg(from.path().join("file"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 7];
    holder.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let (to, report) = copied(from.path());
    assert_eq!((report.files, report.bytes), (1, 4));
    assert_same(from.path(), to.path());
    assert!(holder.wait().unwrap().success());
}

#[test]
fn other_file_system_in_the_tree_fails_and_names_it() {
    let from = TempDir::new().unwrap();
    let nested = from.path().join("nested");
    fs::create_dir(&nested).unwrap();
    let status =
        std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&nested).status().unwrap();
    assert!(status.success());
    let to = TempDir::new().unwrap();
    let result = copy(from.path(), to.path(), &CopyOptions::default());
    // Lazily: a process that another test has forked may hold a copy of a descriptor until its exec.
    let status = std::process::Command::new("umount").arg("--lazy").arg(&nested).status().unwrap();
    assert!(status.success());
    assert!(
        matches!(&result, Err(CopyError::OtherFileSystem { path }) if path == Path::new("nested")),
        "{result:?}"
    );
}

// B17
#[test]
fn owner_that_cannot_be_set_fails_and_names_the_file() {
    let from = TempDir::new().unwrap();
    fs::write(from.path().join("file"), "x").unwrap();
    std::os::unix::fs::chown(from.path().join("file"), Some(7), Some(8)).unwrap();
    let to = TempDir::new().unwrap();
    for keep in [Keep::Exact, Keep::BestEffort] {
        let target = to.path().join(format!("{keep:?}"));
        fs::create_dir(&target).unwrap();
        // A thread without CAP_CHOWN is what a client of a root_squash export is.
        let result = thread::scope(|scope| {
            let run = || {
                let none = rustix::thread::CapabilitySet::CHOWN;
                let sets = rustix::thread::capabilities(None).unwrap();
                rustix::thread::set_capabilities(
                    None,
                    rustix::thread::CapabilitySets { effective: sets.effective - none, ..sets },
                )
                .unwrap();
                copy(from.path(), &target, &CopyOptions { keep, ..CopyOptions::default() })
            };
            scope.spawn(run).join().unwrap()
        });
        match keep {
            Keep::Exact => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("cannot keep the owner of file"), "{error}");
                assert!(error.contains("no_root_squash"), "{error}");
            }
            Keep::BestEffort => {
                assert_eq!(result.unwrap().not_kept, 1);
                assert_eq!(fs::metadata(target.join("file")).unwrap().uid(), 0);
            }
        }
    }
}

// B15
#[test]
fn full_file_system_fails_the_copy() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for i in 0..20 {
        fs::write(from.path().join(format!("{i}")), vec![1; 100_000]).unwrap();
    }
    let mount = |program: &str, args: &[&str]| {
        assert!(std::process::Command::new(program).args(args).arg(to.path()).status().unwrap().success());
    };
    mount("mount", &["-t", "tmpfs", "-o", "size=1m", "none"]);
    let result = copy(from.path(), to.path(), &CopyOptions::default());
    mount("umount", &["--lazy"]);
    let error = result.unwrap_err();
    assert_eq!(error.io().unwrap().kind(), io::ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("free space"), "{error}");
}
