//! Measures the disk usage of a directory that a pod can change at the same time, and may have made to defeat the
//! measurement.
//!
//! Guarantees: nothing outside the directory and its mount is counted, whatever is renamed meanwhile. Every name is
//! opened relative to the descriptor of its directory, so no path is too long. What cannot be read is skipped, and
//! the result is then a lower bound. However deep the tree is, at most four descriptors are open.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat};
use rustix::io::Errno;

/// The result of a measurement.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Allocated bytes, as far as they were counted.
    pub(super) bytes: u64,
    /// The first error, if something could not be counted.
    pub(super) skipped: Option<io::Error>,
}

/// Bytes allocated to the directory and everything in it, as `du -x` counts: a file with several names once, no symlink
/// is followed, and no other mount is entered. Files that disappear meanwhile are not counted. Stops as soon as the sum
/// exceeds `limit`.
pub(super) fn disk_usage(root: &Path, limit: u64) -> io::Result<Usage> {
    let how = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = match rustix::fs::open(root, how, Mode::empty()) {
        Ok(root) => root,
        Err(errno) if is_gone(errno) => return Ok(Usage::default()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = fstat(&root)?;
    let mut walk = Walk { root, device: stat.st_dev, linked: BTreeSet::new(), usage: Usage::default() };
    walk.add(&stat);
    walk.run(&stat, limit)?;
    Ok(walk.usage)
}

/// Whether a name no longer is what it was: removed, or replaced by another kind of file, a symlink or a mount.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}

/// A directory on the way from the root to the current one.
struct Level {
    /// Its name in the level before.
    name: CString,
    /// Identifies it when the walk returns to it.
    inode: u64,
    /// Directories in it that have not been visited.
    pending: Vec<CString>,
}

struct Walk {
    root: OwnedFd,
    device: u64,
    /// Files with several names that were counted.
    linked: BTreeSet<u64>,
    usage: Usage,
}

impl Walk {
    fn run(&mut self, root: &Stat, limit: u64) -> io::Result<()> {
        let mut current = self.root.try_clone()?;
        let pending = self.count_entries(&current, limit);
        let mut levels = vec![Level { name: c".".to_owned(), inode: root.st_ino, pending }];
        while let Some(level) = levels.last_mut() {
            if self.usage.bytes > limit {
                return Ok(());
            }
            if let Some(name) = level.pending.pop() {
                let opened = self.enter(&current, &name);
                let Some((directory, inode)) = self.keep(opened) else { continue };
                current = directory;
                let pending = self.count_entries(&current, limit);
                levels.push(Level { name, inode, pending });
            } else {
                levels.pop();
                // Directories may have been moved: the way back is right only if it leads to the same directory.
                let above = levels.last().map(|level| level.inode);
                let back =
                    above.and_then(|inode| self.enter(&current, c"..").ok().filter(|back| back.1 == inode));
                current = match back {
                    Some((directory, _)) => directory,
                    None => self.descend(&mut levels)?,
                };
            }
        }
        Ok(())
    }

    /// Opens the directory of the last level by the names that lead to it. Drops levels that are no longer there.
    fn descend(&mut self, levels: &mut Vec<Level>) -> io::Result<OwnedFd> {
        let mut current = self.root.try_clone()?;
        for depth in 1..levels.len() {
            match self.enter(&current, &levels[depth].name) {
                Ok((directory, inode)) if inode == levels[depth].inode => current = directory,
                other => {
                    self.keep(other);
                    levels.truncate(depth);
                    break;
                }
            }
        }
        Ok(current)
    }

    /// Opens a directory without leaving the mount. Returns its inode, too.
    fn enter(&self, above: &OwnedFd, name: &std::ffi::CStr) -> Result<(OwnedFd, u64), Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let same_mount = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let directory = match openat2(above, name, flags, Mode::empty(), same_mount) {
            // Before Linux 5.6, or forbidden by a filter of system calls.
            Err(Errno::NOSYS | Errno::PERM) => openat(above, name, flags, Mode::empty())?,
            opened => opened?,
        };
        let stat = fstat(&directory)?;
        if stat.st_dev == self.device { Ok((directory, stat.st_ino)) } else { Err(Errno::XDEV) }
    }

    /// Counts what is directly in a directory, and returns the names of the directories in it.
    fn count_entries(&mut self, directory: &OwnedFd, limit: u64) -> Vec<CString> {
        let mut pending = Vec::new();
        let Some(entries) = self.keep(Dir::read_from(directory)) else { return pending };
        for entry in entries {
            // After an error the kernel would return it again.
            let Some(entry) = self.keep(entry) else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
            let Some(stat) = self.keep(stat) else { continue };
            if self.add(&stat) {
                pending.push(name.to_owned());
            }
            if self.usage.bytes > limit {
                break;
            }
        }
        pending
    }

    /// Counts a file; returns whether it is a directory to visit.
    fn add(&mut self, stat: &Stat) -> bool {
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        if stat.st_dev != self.device
            || !is_directory && stat.st_nlink > 1 && !self.linked.insert(stat.st_ino)
        {
            return false;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.usage.bytes = self.usage.bytes.saturating_add(blocks.saturating_mul(512));
        is_directory
    }

    /// The value, or `None` after noting an error that is not a removal.
    fn keep<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        result
            .map_err(|errno| {
                if !is_gone(errno) {
                    self.usage.skipped.get_or_insert_with(|| errno.into());
                }
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{mkdirat, renameat};

    use super::*;

    fn used(path: &Path) -> u64 {
        let usage = disk_usage(path, u64::MAX).unwrap();
        assert!(usage.skipped.is_none(), "{usage:?}");
        usage.bytes
    }

    /// Writes a file whose blocks are allocated when this returns.
    fn write(path: &Path, bytes: usize) {
        fs::write(path, vec![1; bytes]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }

    #[test]
    fn usage_counts_blocks_once_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(used(&at("missing")), 0);
        let empty = used(dir.path());
        fs::create_dir(at("sub")).unwrap();
        write(&at("sub/file"), 1 << 20);
        fs::hard_link(at("sub/file"), at("again")).unwrap();
        symlink("/usr", at("usr")).unwrap();
        symlink(dir.path(), at("loop")).unwrap();
        fs::File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        let used_now = used(dir.path()) - empty;
        assert!(((1 << 20)..(1 << 20) + 65536).contains(&used_now), "{used_now}");
        assert_eq!(used(&at("sub/file")), 0, "not a directory");
        assert_eq!(used(&at("usr")), 0, "a symlink");
    }

    /// Nested directories, made relative to one another: their path is longer than any path may be.
    fn nest(top: &Path, depth: usize, name: &str) -> OwnedFd {
        let how = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut current = rustix::fs::open(top, how, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&current, name, Mode::from_raw_mode(0o755)).unwrap();
            current = openat(&current, name, how, Mode::empty()).unwrap();
        }
        current
    }

    #[test]
    fn paths_that_are_too_long_hide_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let bottom = nest(dir.path(), 17, &"d".repeat(250));
        write(&dir.path().join("top"), 2 << 20);
        assert!(used(dir.path()) >= 2 << 20);
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&bottom, "file", create, Mode::from_raw_mode(0o644)).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        rustix::fs::fsync(&file).unwrap();
        assert!(used(dir.path()) >= 3 << 20);
    }

    #[test]
    fn deep_and_wide_tree_is_counted() {
        /// More than the usual limit of open files.
        const LEVELS: u64 = 1200;
        let dir = tempfile::tempdir().unwrap();
        let (how, mode) = (OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::from_raw_mode(0o755));
        let mut current = rustix::fs::open(dir.path(), how, Mode::empty()).unwrap();
        for _ in 0..LEVELS {
            for name in ["a", "b", "c"] {
                mkdirat(&current, name, mode).unwrap();
            }
            let file =
                openat(&current, "f", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, mode).unwrap();
            rustix::io::write(&file, b"x").unwrap();
            current = openat(&current, "b", how, Mode::empty()).unwrap();
        }
        rustix::fs::syncfs(&current).unwrap();
        drop(current);
        let bytes = used(dir.path());
        // `remove_dir_all` of the standard library holds a descriptor for each level.
        assert!(std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap().success());
        assert!(bytes >= LEVELS * 512, "{bytes}");
    }

    #[test]
    fn walk_ends_as_soon_as_the_limit_is_exceeded() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "d"] {
            write(&dir.path().join(name), 1 << 20);
        }
        let bytes = disk_usage(dir.path(), 1 << 20).unwrap().bytes;
        assert!(bytes > 1 << 20 && bytes < 3 << 20, "{bytes}");
    }

    #[test]
    fn other_mounts_are_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::create_dir(&outside).unwrap();
        write(&outside.join("file"), 1 << 20);
        // A bind mount: the same file system.
        rustix::mount::mount_bind(&outside, volume.join("inside")).unwrap();
        let bytes = used(&volume);
        rustix::mount::unmount(volume.join("inside"), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(bytes < 1 << 20, "{bytes}");
    }

    /// While directories are swapped for symlinks and moved, the walk neither fails nor leaves the volume, and the file
    /// that stays is counted.
    #[test]
    fn swaps_and_moves_neither_fail_nor_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        for path in ["a/b/c", "d", "s"] {
            fs::create_dir_all(volume.join(path)).unwrap();
        }
        fs::create_dir(&outside).unwrap();
        write(&outside.join("file"), 16 << 20);
        write(&volume.join("stays"), 1 << 20);
        symlink(&outside, volume.join("link")).unwrap();
        let at = rustix::fs::open(&volume, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for (from, to) in [
                        ("s", "s.old"),
                        ("link", "s"),
                        ("s", "link"),
                        ("s.old", "s"),
                        ("a/b", "d/b"),
                        ("d/b", "a/b"),
                    ] {
                        renameat(&at, from, &at, to).unwrap();
                    }
                }
            });
            let is_expected = |usage: &io::Result<Usage>| {
                let Ok(Usage { bytes, skipped: None }) = usage else { return false };
                (1 << 20..16 << 20).contains(bytes)
            };
            let wrong = (0..2000).map(|_| disk_usage(&volume, u64::MAX)).find(|usage| !is_expected(usage));
            // Before a panic, or the thread would not end.
            done.store(true, Ordering::Relaxed);
            assert!(wrong.is_none(), "{wrong:?}");
        });
    }
}
