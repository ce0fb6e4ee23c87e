//! Mounts: the table is read whole, targets are never symlinks, a read-only bind is never seen writable,
//! and an unmount is never lazy.

use std::ffi::CString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::Linux;
use crate::mount_options::{self, MountOptions};
use crate::{Devices as _, Error, MountRequest, MountTable, Mounts, PathKind, Result, sys};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// How often the table is read again because it changed meanwhile.
const TABLE_READS: u32 = 20;

/// How long an unmount is tried while it is busy: long enough for whoever was just told to stop, short
/// enough for the caller to be told what is the matter.
const BUSY_FOR: Duration = Duration::from_secs(2);

impl Mounts for Linux {
    fn mount_table(&self) -> Result<MountTable> {
        let path = Path::new(MOUNTINFO);
        let text = read_table().map_err(|source| Error::call("read", path, source))?;
        let table = MountTable::parse(&text)
            .map_err(|error| Error::State { path: path.to_owned(), reason: error.to_string() })?;
        // A source without a node here (another container's) keeps the number it has.
        Ok(table.with_device_numbers(|source| self.device_number(Path::new(source)).ok()))
    }

    fn mount(&self, request: &MountRequest<'_>) -> Result<()> {
        let MountOptions { mut flags, data } = mount_options::split(request.options);
        flags.set(MountFlags::RDONLY, request.read_only || flags.contains(MountFlags::RDONLY));
        let target = open_target(request.target)?;
        let data = CString::new(data.join(",")).map_err(|error| Error::State {
            path: request.target.to_owned(),
            reason: format!("the mount options are not a string: {error}"),
        })?;
        rustix::mount::mount(request.source, by_descriptor(&target), request.fs_type, flags, &*data)
            .map_err(|errno| Error::call("mount", request.target, errno))
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()> {
        let target_fd = open_target(target)?;
        match bind_detached(source, target, &target_fd, read_only) {
            // A kernel before 5.12, or a container's filter that does not know these calls.
            Err(error) if matches!(error.errno(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.bind_then_remount(source, target, &target_fd, read_only)
            }
            result => result,
        }
    }

    fn unmount(&self, target: &Path) -> Result<()> {
        let end = Instant::now() + BUSY_FOR;
        let mut pause = Duration::from_millis(10);
        loop {
            match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // "Not a mount point", but also "locked" and others: only the table tells.
                Err(Errno::INVAL) => {
                    let Some(path) = resolve(target)? else { return Ok(()) };
                    return match self.mount_table()?.at(&path) {
                        None => Ok(()),
                        Some(_) => Err(Error::call("umount", target, Errno::INVAL)),
                    };
                }
                Err(Errno::BUSY) if Instant::now() + pause < end => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(250));
                }
                Err(Errno::BUSY) => {
                    let reason = "is busy: a process has a file open or its working directory there, or \
                                  something is mounted beneath it; end that (`fuser -vm` shows it) and try again";
                    return Err(Error::State { path: target.to_owned(), reason: reason.to_owned() });
                }
                Err(errno) => return Err(Error::call("umount", target, errno)),
            }
        }
    }

    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>> {
        let kind = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::call("lstat", path, error)),
        };
        Ok(Some(if kind.is_symlink() {
            PathKind::Symlink
        } else if kind.is_dir() {
            PathKind::Directory
        } else if kind.is_file() {
            PathKind::File
        } else if kind.is_block_device() {
            PathKind::BlockDevice
        } else {
            PathKind::Other
        }))
    }

    fn create_target_dir(&self, path: &Path) -> Result<()> {
        let created = DirBuilder::new().recursive(true).mode(0o750).create(path);
        match self.path_kind(path)? {
            Some(PathKind::Directory) => Ok(()),
            Some(kind) => Err(wrong_kind(path, kind, "a directory")),
            None => {
                let source = created.err().unwrap_or_else(|| io::ErrorKind::NotFound.into());
                Err(Error::call("mkdir", path, source))
            }
        }
    }

    fn create_target_file(&self, path: &Path) -> Result<()> {
        match OpenOptions::new().write(true).create_new(true).mode(0o640).open(path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.path_kind(path)? {
                // A block device is what one sees here once the bind is made.
                Some(PathKind::File | PathKind::BlockDevice) => Ok(()),
                Some(kind) => Err(wrong_kind(path, kind, "a file")),
                None => Err(Error::call("open", path, error)),
            },
            Err(error) => Err(Error::call("open", path, error)),
        }
    }

    fn remove_target(&self, path: &Path) -> Result<()> {
        let removed = match self.path_kind(path)? {
            None => return Ok(()),
            Some(PathKind::Directory) => std::fs::remove_dir(path),
            Some(PathKind::File) => {
                let size = std::fs::symlink_metadata(path).map(|metadata| metadata.len());
                if !matches!(size, Ok(0)) {
                    let reason = "is a file with content, not a mount target; look what it is and remove it";
                    return Err(Error::State { path: path.to_owned(), reason: reason.to_owned() });
                }
                std::fs::remove_file(path)
            }
            Some(kind) => return Err(wrong_kind(path, kind, "an empty directory or file")),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::call("remove", path, error)),
            _ => Ok(()),
        }
    }
}

impl Linux {
    /// The older way, where the bind is writable for an instant. Undone if it cannot be made read-only.
    fn bind_then_remount(
        &self,
        source: &Path,
        target: &Path,
        target_fd: &OwnedFd,
        read_only: bool,
    ) -> Result<()> {
        rustix::mount::mount_bind(source, by_descriptor(target_fd))
            .map_err(|errno| Error::call("mount --bind", target, errno))?;
        if !read_only {
            return Ok(());
        }
        // The descriptor names the directory below the bind, the path names the bind.
        rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"").map_err(|errno| {
            // The remount's error is the one to tell; a bind that stays is seen in the mount table.
            let _ = self.unmount(target);
            Error::call("remount read-only", target, errno)
        })
    }
}

/// Clones the source as a mount that is nowhere yet, makes it read-only, and only then puts it at its place.
fn bind_detached(source: &Path, target: &Path, target_fd: &OwnedFd, read_only: bool) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, source, flags)
        .map_err(|errno| Error::call("open_tree", source, errno))?;
    if read_only {
        sys::mount_set_read_only(&tree).map_err(|error| Error::call("mount_setattr", target, error))?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&tree, "", target_fd, "", flags)
        .map_err(|errno| Error::call("move_mount", target, errno))
}

/// Opens what will be mounted on, and refuses a symlink: whoever could plant one there would otherwise choose
/// where we mount.
fn open_target(target: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(target, flags, Mode::empty())
        .map_err(|errno| Error::call("open mount target", target, errno))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::call("fstat", target, errno))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
        return Err(wrong_kind(target, PathKind::Symlink, "a directory or file to mount on"));
    }
    Ok(fd)
}

/// A path by which mount(2) reaches exactly what was opened.
fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The path as the mount table spells it: symlinks on the way resolved, the last name as it is. `None` if the
/// way does not exist.
fn resolve(target: &Path) -> Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(Some(target.to_owned()));
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::call("realpath", parent, error)),
    }
}

fn wrong_kind(path: &Path, kind: PathKind, wanted: &str) -> Error {
    let found = match kind {
        PathKind::Directory => "a directory",
        PathKind::File => "a file",
        PathKind::BlockDevice => "a block device",
        PathKind::Symlink => "a symbolic link",
        PathKind::Other => "neither file nor directory",
    };
    Error::State { path: path.to_owned(), reason: format!("is {found}, where {wanted} is needed") }
}

/// The kernel hands the table out a page at a time, so it can change between two reads; it then says so
/// through poll, and we read again. On a machine where it never stands still the last reading is taken: since
/// Linux 5.8 such a reading still has every mount that was there all the while.
fn read_table() -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(64 << 10);
    for _ in 0..TABLE_READS {
        text.clear();
        let mut file = std::fs::File::open(MOUNTINFO)?;
        file.read_to_end(&mut text)?;
        if !changed_since_opened(&file)? {
            break;
        }
    }
    Ok(text)
}

fn changed_since_opened(table: &impl AsFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(table, PollFlags::PRI)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents().intersects(PollFlags::PRI | PollFlags::ERR))
}
