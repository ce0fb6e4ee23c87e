//! Changes the group of all files beneath a directory: children first, the root last, so that a matching root means
//! that everything matches.
//!
//! Guarantee: nothing outside the volume is changed, even if a pod modifies it concurrently. Every name is opened
//! without following symlinks, and changes apply to the open file. Files that already match are not written.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

/// Deeper trees are refused: each level holds a file descriptor.
const MAX_DEPTH: usize = 512;

/// Permissions that the group gets on files; directories also get search and setgid.
const FILES: RawMode = 0o660;
const FILES_READ_ONLY: RawMode = 0o440;
const SEARCH: RawMode = 0o110;
const SET_GID: RawMode = 0o2000;

/// Desired group and permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::volumes) struct Wanted {
    /// The group.
    pub(in crate::volumes) group: u32,
    /// Whether the group gets read permission only.
    pub(in crate::volumes) read_only: bool,
}

impl Wanted {
    fn bits(self, is_dir: bool) -> RawMode {
        let files = if self.read_only { FILES_READ_ONLY } else { FILES };
        if is_dir { files | SEARCH | SET_GID } else { files }
    }

    /// Whether a file with this group and mode matches.
    fn holds(self, group: u32, mode: RawMode, is_dir: bool) -> bool {
        let bits = self.bits(is_dir);
        group == self.group && mode & bits == bits
    }
}

/// Whether the root matches, from which OnRootMismatch concludes that everything does.
pub(in crate::volumes) fn root_matches(root: &Path, wanted: Wanted) -> io::Result<bool> {
    let stat = rustix::fs::stat(root)?;
    let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
    Ok(is_dir && wanted.holds(stat.st_gid, stat.st_mode, true))
}

/// Applies group and permissions; `files` counts progress. Files that vanish are ignored. Files that cannot be
/// changed are not an error, as upstream: the first such error is returned.
pub(in crate::volumes) fn apply(
    root: &Path,
    wanted: Wanted,
    files: &AtomicU64,
) -> io::Result<Option<io::Error>> {
    let open = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, root, open, Mode::empty())?;
    let mut walk = Walk { wanted, files, refused: None };
    let mut levels = vec![Level::new(top)?];
    while let Some(level) = levels.last_mut() {
        match level.entries.next() {
            Some(entry) => {
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                let dir = match rustix::fs::openat(&level.dir, name, open, Mode::empty()) {
                    Ok(dir) => dir,
                    // A symlink, or not a directory.
                    Err(Errno::LOOP | Errno::NOTDIR) => {
                        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        match rustix::fs::openat(&level.dir, name, flags, Mode::empty()) {
                            Ok(file) => walk.change(&file)?,
                            Err(Errno::NOENT) => {}
                            Err(errno) => return Err(errno.into()),
                        }
                        continue;
                    }
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno.into()),
                };
                if levels.len() >= MAX_DEPTH {
                    let reason = format!("{} has directories more than {MAX_DEPTH} deep", root.display());
                    return Err(io::Error::other(reason));
                }
                levels.push(Level::new(dir)?);
            }
            None => {
                if let Some(done) = levels.pop() {
                    walk.change(&done.dir)?;
                }
            }
        }
    }
    Ok(walk.refused)
}

struct Level {
    dir: OwnedFd,
    entries: Dir,
}

impl Level {
    fn new(dir: OwnedFd) -> io::Result<Self> {
        let entries = Dir::read_from(&dir)?;
        Ok(Self { dir, entries })
    }
}

struct Walk<'a> {
    wanted: Wanted,
    files: &'a AtomicU64,
    refused: Option<io::Error>,
}

impl Walk<'_> {
    /// Changes exactly the open file.
    fn change(&mut self, file: &OwnedFd) -> io::Result<()> {
        self.files.fetch_add(1, Ordering::Relaxed);
        let stat = rustix::fs::fstat(file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            if stat.st_gid != self.wanted.group {
                self.note(give(file, self.wanted.group));
            }
            return Ok(());
        }
        if self.wanted.holds(stat.st_gid, stat.st_mode, kind.is_dir()) {
            return Ok(());
        }
        if stat.st_gid != self.wanted.group {
            self.note(give(file, self.wanted.group));
        }
        // A change of group clears the set-id bits: restore them with the mode.
        self.note(permit(file, &stat, self.wanted.bits(kind.is_dir())));
        Ok(())
    }

    fn note(&mut self, result: Result<(), Errno>) {
        if let Err(errno) = result {
            self.refused.get_or_insert_with(|| errno.into());
        }
    }
}

fn give(file: &impl AsFd, group: u32) -> Result<(), Errno> {
    rustix::fs::chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)
}

/// Via /proc/self/fd: a descriptor opened with O_PATH does not allow fchmod.
fn permit(file: &OwnedFd, stat: &Stat, bits: RawMode) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | bits);
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

    use super::*;

    const GROUP: u32 = 4242;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn group(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().gid()
    }

    /// kubernetes.md 1.8 "Ownership": everything gets the group; files 0660, directories setgid and search; symlinks
    /// get the group only, and their targets nothing.
    #[test]
    fn ownership_applies_to_the_whole_volume_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/file"), "x").unwrap();
        fs::write(&outside, "secret").unwrap();
        fs::set_permissions(volume.join("a/b/file"), PermissionsExt::from_mode(0o4600)).unwrap();
        fs::set_permissions(&outside, PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        symlink(dir.path(), volume.join("up")).unwrap();
        let before = group(&outside);
        for (read_only, file, directory) in [(false, 0o4660, 0o2770), (true, 0o4660, 0o2770)] {
            let (wanted, files) = (Wanted { group: GROUP, read_only }, AtomicU64::new(0));
            assert!(apply(&volume, wanted, &files).unwrap().is_none());
            assert_eq!(files.into_inner(), 6, "volume, a, b, file and two links");
            assert_eq!(mode(&volume.join("a/b/file")), file);
            assert_eq!(mode(&volume.join("a/b")) & 0o2770, directory);
            for path in ["", "a", "a/b", "a/b/file", "link", "up"] {
                assert_eq!(group(&volume.join(path)), GROUP, "{path}");
            }
            assert_eq!((group(&outside), mode(&outside)), (before, 0o600));
        }
    }

    /// kubernetes.md 1.8 "Ownership": `OnRootMismatch` checks the root's group, permissions and setgid only.
    #[test]
    fn root_check_requires_group_permissions_and_setgid() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let wanted = Wanted { group: GROUP, read_only: false };
        assert!(!root_matches(&root, wanted).unwrap());
        apply(&root, wanted, &AtomicU64::new(0)).unwrap();
        assert!(root_matches(&root, wanted).unwrap());
        for (bits, matches) in
            [(0o2770, true), (0o2775, true), (0o0770, false), (0o2750, false), (0o2760, false)]
        {
            fs::set_permissions(&root, PermissionsExt::from_mode(bits)).unwrap();
            assert_eq!(root_matches(&root, wanted).unwrap(), matches, "{bits:o}");
        }
        assert!(!root_matches(&root, Wanted { group: GROUP + 1, ..wanted }).unwrap());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!root_matches(&file, wanted).unwrap());
    }

    /// kubernetes#69699: files that already match are not written again.
    #[test]
    fn second_run_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let wanted = Wanted { group: GROUP, read_only: false };
        apply(dir.path(), wanted, &AtomicU64::new(0)).unwrap();
        let changed = || {
            let stat = fs::metadata(dir.path().join("file")).unwrap();
            (stat.ctime(), stat.ctime_nsec())
        };
        let before = changed();
        std::thread::sleep(std::time::Duration::from_millis(20));
        apply(dir.path(), wanted, &AtomicU64::new(0)).unwrap();
        assert_eq!(changed(), before);
    }
}
