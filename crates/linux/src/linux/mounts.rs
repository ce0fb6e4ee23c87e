//! Mounts: the table is read completely, targets are never symlinks, a read-only bind is never visible as writable, and
//! an unmount is never lazy.

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
use crate::{BlockDevices as _, Error, MountRequest, MountTable, Mounts, PathKind, Result, sys};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// How often to reread the table because it changed while it was read.
const TABLE_READS: u32 = 20;

/// How long to retry a busy unmount: long enough for a process that is stopping, short enough to report the cause to the
/// caller in time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

impl Mounts for Linux {
    fn mount_table(&self) -> Result<MountTable> {
        let path = Path::new(MOUNTINFO);
        let text = read_table().map_err(|source| Error::call("read", path, source))?;
        let table = MountTable::parse(&text)
            .map_err(|error| Error::InvalidState { path: path.to_owned(), reason: error.to_string() })?;
        // A source without a device node here (of another container) keeps its number.
        Ok(table.with_device_numbers(|source| self.device_number(Path::new(source)).ok()))
    }

    fn mount(&self, request: &MountRequest<'_>) -> Result<()> {
        let MountOptions { mut flags, data } = mount_options::split(request.options);
        flags.set(MountFlags::RDONLY, request.read_only || flags.contains(MountFlags::RDONLY));
        let target = open_target(request.target)?;
        let data = CString::new(data.join(",")).map_err(|error| Error::InvalidState {
            path: request.target.to_owned(),
            reason: format!("the mount options contain a NUL: {error}"),
        })?;
        rustix::mount::mount(request.source, proc_fd_path(&target), request.fs_type, flags, &*data)
            .map_err(|errno| Error::call("mount", request.target, errno))
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()> {
        let target_fd = open_target(target)?;
        match bind_detached(source, target, &target_fd, read_only) {
            // A kernel before 5.12, or a seccomp filter that blocks these calls.
            Err(error) if matches!(error.errno(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.bind_then_remount(source, target, &target_fd, read_only)
            }
            result => result,
        }
    }

    fn unmount(&self, target: &Path) -> Result<()> {
        let end = Instant::now() + BUSY_TIMEOUT;
        let mut pause = Duration::from_millis(10);
        loop {
            match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // "Not a mount point", but also "locked" and others: only the mount table distinguishes them.
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
                                  something is mounted beneath it; stop that (`fuser -vm` shows it) and try again";
                    return Err(Error::InvalidState { path: target.to_owned(), reason: reason.to_owned() });
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
                // After the bind the target appears as a block device.
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
                    let reason = "is a file with content, not a mount target; check the file and remove it";
                    return Err(Error::InvalidState { path: path.to_owned(), reason: reason.to_owned() });
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
    /// Removes the topmost mount at `target` from the mount table at once, even if it is busy; "not mounted" is success. The
    /// kernel ends the mount when its last user has ended, which nothing shows. Only for a mount whose server is gone:
    /// then no other way is left.
    pub fn unmount_lazily(&self, target: &Path) -> Result<()> {
        self.unmount_once(target, UnmountFlags::DETACH)
    }

    /// Unmounts, and aborts all requests to the server behind the mount (MNT_FORCE), also those of other mounts of the same
    /// export: their users get I/O errors. "Not mounted" is success. Can fail because the mount is busy, after it aborted
    /// the requests.
    pub fn unmount_forcibly(&self, target: &Path) -> Result<()> {
        self.unmount_once(target, UnmountFlags::FORCE)
    }

    fn unmount_once(&self, target: &Path, flags: UnmountFlags) -> Result<()> {
        match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::call("umount", target, errno)),
        }
    }

    /// The older method, where the bind is writable for an instant. Undone if it cannot be made read-only.
    fn bind_then_remount(
        &self,
        source: &Path,
        target: &Path,
        target_fd: &OwnedFd,
        read_only: bool,
    ) -> Result<()> {
        rustix::mount::mount_bind(source, proc_fd_path(target_fd))
            .map_err(|errno| Error::call("mount --bind", target, errno))?;
        if !read_only {
            return Ok(());
        }
        // The descriptor refers to the directory below the bind; the path refers to the bind.
        rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"").map_err(|errno| {
            // Return the error of the remount; a bind that could not be undone shows in the mount table.
            let _ = self.unmount(target);
            Error::call("remount read-only", target, errno)
        })
    }
}

/// Clones the source as a detached mount, makes it read-only, and only then attaches it.
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

/// Opens the mount target and rejects a symlink: a user who could place one there would otherwise choose where we mount.
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

/// A path by which mount(2) reaches exactly the opened file.
fn proc_fd_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The path as it appears in the mount table: symlinks among its directories are resolved, the last component is not.
/// `None` if a directory does not exist.
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
    Error::InvalidState { path: path.to_owned(), reason: format!("is {found}, where {wanted} is needed") }
}

/// The kernel returns the table one page at a time, so it can change between two reads. Poll reports such a change, and
/// we read again. If the table changes all the time, the last result is used: since Linux 5.8 it still contains every
/// mount that existed during the whole read.
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
