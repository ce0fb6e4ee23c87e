//! The copier on a file system that can share blocks. Needs root, a loop device and xfs.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use wharf_driver_nfs::copy::{CopyOptions, CopyReport, Verify, copy_tree};

/// Unmounts when the test ends, whether it passes or fails.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0));
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success() || std::thread::panicking(), "{command:?}: {status}");
}

fn copy(from: &Path, to: &Path) -> CopyReport {
    fs::create_dir(to).unwrap();
    let (from, to) = (File::open(from).unwrap(), File::open(to).unwrap());
    let options = CopyOptions { verify: Verify::Contents, ..CopyOptions::default() };
    copy_tree(from.as_fd(), to.as_fd(), &options, &|_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn files_are_cloned_where_the_file_system_can() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    fs::create_dir(&mount).unwrap();
    run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image));
    run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount));
    let mounted = Mounted(&mount);
    let source = mount.join("source");
    fs::create_dir(&source).unwrap();
    // More than fits twice without sharing.
    fs::write(source.join("large"), vec![7; 200 << 20]).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    fs::write(source.join("empty"), "").unwrap();
    let report = copy(&source, &mount.join("copy"));
    assert_eq!((report.files, report.cloned), (3, 2), "an empty file has nothing to clone");
    assert_eq!(fs::metadata(mount.join("copy/large")).unwrap().len(), 200 << 20);
    // From another file system nothing can be cloned, and holes stay holes.
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let sparse = File::create(outside.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 500 << 20).unwrap();
    let report = copy(&outside, &mount.join("other"));
    assert_eq!((report.files, report.cloned), (1, 0));
    let copied = fs::metadata(mount.join("other/sparse")).unwrap();
    assert!(copied.len() == 1 << 30 && copied.blocks() * 512 < 1 << 20, "{} blocks", copied.blocks());
    drop(mounted);
}
