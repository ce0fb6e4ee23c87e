//! File operations beneath the root of a share. The kernel resolves every path from the root's descriptor (openat2):
//! beneath it, without symlinks, without crossing a mount. Calls that have no such option (mkdir, unlink, rename, link) work
//! on a parent directory that was opened that way.
//!
//! Each method of [`ShareFiles`] is one effect. The crash tests stop a share before and after each of them, and answer
//! `EEXIST` or `ENOENT` for a call that took effect, as NFSv3 and NFSv4.0 can.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags};
use rustix::io::Errno;

use super::CapacityInfo;

/// The type of an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symlink; never followed.
    Symlink,
    /// Anything else.
    Other,
}

/// The attributes of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The type.
    pub kind: EntryKind,
    /// The file ID (inode number).
    pub file_id: u64,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The modification time, by the server's clock.
    pub modified: SystemTime,
}

/// What [`ShareFiles::remove_entries`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemovedEntries {
    /// How many entries were removed.
    pub removed: u64,
    /// Directories that remain.
    pub directories: Vec<OsString>,
    /// Whether entries other than `directories` remain.
    pub more: bool,
}

/// File operations beneath the root of a share. Paths are relative to it.
pub trait ShareFiles: Send + Sync {
    /// Reads a whole small file; `None` if it does not exist.
    fn read(&self, file: &Path) -> io::Result<Option<Vec<u8>>>;
    /// Creates a file (0600) and writes it; an existing one is `EEXIST`. Not durable before [`Self::sync`].
    fn create_file(&self, file: &Path, bytes: &[u8]) -> io::Result<()>;
    /// fsync of a file or a directory.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Creates a hard link; an existing target is `EEXIST`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames. NFS has no RENAME_NOREPLACE: an existing file or empty directory at `to` is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Creates a directory (0700); an existing one is `EEXIST`.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Sets the owner and the group of a directory.
    fn set_owner(&self, dir: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;
    /// Sets the mode of a directory.
    fn set_mode(&self, dir: &Path, mode: u32) -> io::Result<()>;
    /// Sets the mode of a directory with this file ID; another one is `ENOENT`.
    fn set_mode_of(&self, dir: &Path, file_id: u64, mode: u32) -> io::Result<()>;
    /// Reads attributes; `None` if the path does not exist. A symlink is not followed.
    fn stat(&self, path: &Path) -> io::Result<Option<Entry>>;
    /// The names in a directory, sorted; `None` if it does not exist.
    fn list(&self, dir: &Path) -> io::Result<Option<Vec<OsString>>>;
    /// Removes a file or symlink.
    fn remove_file(&self, file: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes up to `max` entries of a directory that are not directories.
    fn remove_entries(&self, dir: &Path, max: u64) -> io::Result<RemovedEntries>;
    /// Sets the xattr `user.wharf.id` of a directory; false if the server has no user xattrs.
    fn set_id(&self, dir: &Path, id: &str) -> io::Result<bool>;
    /// Reads the xattr `user.wharf.id` of a directory; `None` if it has none. A mount without user xattrs is an error (see
    /// [`has_no_xattrs`]): it says nothing about the directory.
    fn id(&self, dir: &Path) -> io::Result<Option<String>>;
    /// Opens a directory, to work on its content with the copier.
    fn open_dir(&self, dir: &Path) -> io::Result<OwnedFd>;
    /// Opens a regular file for reading.
    fn open_file(&self, file: &Path) -> io::Result<File>;
    /// Creates a regular file (0600) and opens it for writing; an existing one is `EEXIST`.
    fn open_new_file(&self, file: &Path) -> io::Result<File>;
    /// The size of the share.
    fn capacity(&self) -> io::Result<CapacityInfo>;
}

/// The real file operations.
#[derive(Debug)]
pub struct LinuxFiles {
    root: OwnedFd,
}

/// Attribute under which a directory keeps its ID.
pub(crate) const ID_XATTR: &str = "user.wharf.id";

/// `RESOLVE_*` flags of every path resolution.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

impl LinuxFiles {
    /// Opens the root directory.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(root, flags, Mode::empty())? })
    }

    fn at(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        check(path)?;
        Ok(rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, RESOLVE)?)
    }

    /// Opens the parent directory, and returns it with the last component.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        check(path)?;
        let name = path.file_name().ok_or_else(|| refused(path, "names the root itself"))?;
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        Ok((self.at(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Opens a regular file. A FIFO or device at the path is an error and does not block.
    fn regular(&self, file: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
        let file = File::from(self.at(file, flags | OFlags::NONBLOCK | OFlags::NOFOLLOW, mode)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    fn directory(&self, dir: &Path) -> io::Result<OwnedFd> {
        self.at(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }
}

impl ShareFiles for LinuxFiles {
    fn read(&self, file: &Path) -> io::Result<Option<Vec<u8>>> {
        let Some(mut open) = none_if_missing(self.regular(file, OFlags::RDONLY, Mode::empty()))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn create_file(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        self.open_new_file(file)?.write_all(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let fd = self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(rustix::fs::fsync(fd)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        Ok(rustix::fs::linkat(from_parent, from_name, to_parent, to_name, AtFlags::empty())?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        Ok(rustix::fs::renameat(from_parent, from_name, to_parent, to_name)?)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(dir)?;
        Ok(rustix::fs::mkdirat(parent, name, Mode::RWXU)?)
    }

    fn set_owner(&self, dir: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        Ok(rustix::fs::fchown(self.directory(dir)?, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?)
    }

    fn set_mode(&self, dir: &Path, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self.directory(dir)?, Mode::from_raw_mode(mode))?)
    }

    fn set_mode_of(&self, dir: &Path, file_id: u64, mode: u32) -> io::Result<()> {
        let dir = self.directory(dir)?;
        if rustix::fs::fstat(&dir)?.st_ino != file_id {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?)
    }

    fn stat(&self, path: &Path) -> io::Result<Option<Entry>> {
        let opened = self.at(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
        let Some(fd) = none_if_missing(opened)? else { return Ok(None) };
        let stat = rustix::fs::fstat(fd)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        Ok(Some(Entry {
            kind,
            file_id: stat.st_ino,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size.unsigned_abs(),
            modified: SystemTime::UNIX_EPOCH + Duration::from_secs(stat.st_mtime.max(0).unsigned_abs()),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Option<Vec<OsString>>> {
        let Some(fd) = none_if_missing(self.directory(dir))? else { return Ok(None) };
        let mut names = Vec::new();
        for entry in Dir::new(fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    fn remove_file(&self, file: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(file)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(dir)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn remove_entries(&self, dir: &Path, max: u64) -> io::Result<RemovedEntries> {
        let fd = self.directory(dir)?;
        let mut result = RemovedEntries::default();
        // The names are read before the first removal: removing while reading can skip names.
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                names.push((name, entry.file_type()));
            }
        }
        for (name, kind) in names {
            let kind = match kind {
                FileType::Unknown => {
                    match none_if_missing(
                        rustix::fs::statat(fd.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into),
                    )? {
                        Some(stat) => FileType::from_raw_mode(stat.st_mode),
                        None => continue,
                    }
                }
                kind => kind,
            };
            if kind == FileType::Directory {
                result.directories.push(name);
            } else if result.removed >= max {
                result.more = true;
            } else {
                none_if_missing(
                    rustix::fs::unlinkat(fd.as_fd(), &name, AtFlags::empty()).map_err(Into::into),
                )?;
                result.removed += 1;
                crate::worker::made_progress();
            }
        }
        Ok(result)
    }

    fn set_id(&self, dir: &Path, id: &str) -> io::Result<bool> {
        match rustix::fs::fsetxattr(self.directory(dir)?, ID_XATTR, id.as_bytes(), XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn id(&self, dir: &Path) -> io::Result<Option<String>> {
        let mut value = [0_u8; 128];
        match rustix::fs::fgetxattr(self.directory(dir)?, ID_XATTR, &mut value[..]) {
            Ok(length) => Ok(value.get(..length).map(|value| String::from_utf8_lossy(value).into_owned())),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_dir(&self, dir: &Path) -> io::Result<OwnedFd> {
        self.directory(dir)
    }

    fn open_file(&self, file: &Path) -> io::Result<File> {
        self.regular(file, OFlags::RDONLY, Mode::empty())
    }

    fn open_new_file(&self, file: &Path) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.regular(file, flags, Mode::RUSR | Mode::WUSR)
    }

    fn capacity(&self) -> io::Result<CapacityInfo> {
        let stat = rustix::fs::fstatvfs(&self.root)?;
        Ok(CapacityInfo {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

/// Converts "does not exist" to `None`.
pub(crate) fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a path failed because one of its parents is a symlink or a file: nothing of the share is there.
pub(super) fn is_beneath_other_type(error: &io::Error) -> bool {
    [Errno::LOOP, Errno::NOTDIR].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether a call failed because the mount has no user xattrs: NFSv4.2 has them, 4.1 does not.
pub(super) fn has_no_xattrs(error: &io::Error) -> bool {
    [Errno::OPNOTSUPP, Errno::NOSYS].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Rejects everything but plain relative paths. The kernel would reject most of them too, but calls on a parent and a
/// name never pass it the whole path.
fn check(path: &Path) -> io::Result<()> {
    if path == Path::new(".") {
        return Ok(());
    }
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    match path.as_os_str().as_bytes() {
        [] => Err(refused(path, "is empty")),
        bytes if bytes.contains(&0) => Err(refused(path, "contains a NUL")),
        _ if !plain => Err(refused(path, "is absolute or contains `.` or `..`")),
        _ => Ok(()),
    }
}

fn refused(path: &Path, problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("path {path:?} {problem}"))
}

#[cfg(test)]
mod tests;
