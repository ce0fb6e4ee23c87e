//! Opening entries of a directory: one name at a time, never through a symlink, never into another file system.
//!
//! A path is opened component by component, so its length has no limit and no component can be a symlink or `..`.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Maximum number of retries of an open that fails with EAGAIN because of a concurrent rename.
const MAX_RETRIES: usize = 8;

/// How long to wait for a file of the source that an NFS client has a delegation of: the server revokes it after 90 s.
const DELEGATION_TIMEOUT: Duration = Duration::from_secs(120);
/// The first and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Opens the entry `name` of `dir`. `name` is a single component.
pub(crate) fn open(dir: impl AsFd, name: &CStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    if !is_component(name.to_bytes()) {
        return Err(io::Error::from_raw_os_error(Errno::INVAL.raw_os_error()));
    }
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let mut attempt = 0;
    loop {
        match rustix::fs::openat2(&dir, name, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) if attempt < MAX_RETRIES => attempt += 1,
            result => return result.map_err(io::Error::from),
        }
    }
}

/// Opens the directory `name` of `dir`.
pub(crate) fn open_dir(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    open(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Opens a directory several levels beneath `root`.
pub(crate) fn open_dir_path(root: BorrowedFd<'_>, path: &[CString]) -> io::Result<OwnedFd> {
    let mut dir = root.try_clone_to_owned()?;
    for name in path {
        dir = open_dir(&dir, name)?;
    }
    Ok(dir)
}

/// Opens `name` for reading; it does not block on a FIFO. The caller checks what it has opened.
///
/// On the server itself, a file can be leased: a client that writes to it has a delegation (knfsd since Linux 6.6). An open
/// that must not block then fails with EAGAIN, and the server asks the client to write its data and to return the delegation.
pub(crate) fn open_for_reading(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let (started, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match open(&dir, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Err(error) if is_errno(&error, Errno::AGAIN) && started.elapsed() < DELEGATION_TIMEOUT => {}
            result => return result,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Creates the regular file `name`, open for reading and writing. An existing file is an error.
pub(crate) fn create_file(dir: impl AsFd, name: &CStr, mode: Mode) -> io::Result<OwnedFd> {
    open(dir, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
}

/// Creates and opens the directory `name`.
///
/// On NFSv3 and NFSv4.0 the response to a mkdir can be lost; the retransmitted call then fails with EEXIST. So an existing
/// directory is accepted if it is empty: no other process writes to a tree under construction.
pub(crate) fn create_dir(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
        Ok(()) => open_dir(dir, name),
        Err(Errno::EXIST) => {
            let found = open_dir(dir, name)?;
            if count_entries(found.as_fd())? == 0 { Ok(found) } else { Err(Errno::EXIST.into()) }
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Creates the symlink `name`. An existing symlink with the same target is accepted, see [`create_dir`].
pub(crate) fn create_symlink(dir: impl AsFd, name: &CStr, target: &CStr) -> io::Result<()> {
    match rustix::fs::symlinkat(target, &dir, name) {
        Err(Errno::EXIST) => match rustix::fs::readlinkat(dir, name, Vec::new()) {
            Ok(found) if found.as_c_str() == target => Ok(()),
            _ => Err(Errno::EXIST.into()),
        },
        result => result.map_err(io::Error::from),
    }
}

/// Creates and opens the FIFO `name`. An existing FIFO is accepted, see [`create_dir`].
pub(crate) fn create_fifo(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(&dir, name, FileType::Fifo, mode, 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let fd = open_for_reading(dir, name)?;
    if kind(&rustix::fs::fstat(&fd)?) != FileType::Fifo {
        return Err(Errno::EXIST.into());
    }
    Ok(fd)
}

/// Links `name` in `dir` to the entry `old_name` of `old_dir`. An existing link to it is accepted, see [`create_dir`].
pub(crate) fn create_link(
    old_dir: impl AsFd,
    old_name: &CStr,
    dir: impl AsFd,
    name: &CStr,
) -> io::Result<()> {
    match rustix::fs::linkat(&old_dir, old_name, &dir, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {
            let (old, new) = (stat(old_dir, old_name)?, stat(dir, name)?);
            let same = (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino);
            if same { Ok(()) } else { Err(Errno::EXIST.into()) }
        }
        result => result.map_err(io::Error::from),
    }
}

/// Reads the attributes of the entry `name`, not following a symlink.
pub(crate) fn stat(dir: impl AsFd, name: &CStr) -> io::Result<Stat> {
    Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The type of file.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Calls `each` with every entry's name and type (which can be unknown), except `.` and `..`.
pub(crate) fn each_entry<E: From<io::Error>>(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr, FileType) -> Result<(), E>,
) -> Result<(), E> {
    for entry in Dir::read_from(dir).map_err(io::Error::from)? {
        let entry = entry.map_err(io::Error::from)?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            each(name, entry.file_type())?;
        }
    }
    Ok(())
}

/// The number of entries of a directory.
pub(crate) fn count_entries(dir: BorrowedFd<'_>) -> io::Result<u64> {
    let mut count = 0;
    each_entry(dir, |_, _| {
        count += 1;
        Ok::<_, io::Error>(())
    })?;
    Ok(count)
}

/// Joins names to a path, for messages.
pub(crate) fn display_path<'a>(names: impl IntoIterator<Item = &'a CStr>) -> PathBuf {
    names.into_iter().map(|name| OsStr::from_bytes(name.to_bytes())).collect()
}

/// Whether these bytes name an entry of a directory, and not the directory itself, its parent or a path.
pub(crate) fn is_component(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// Whether an error says that an entry no longer exists. NFS answers ESTALE if another client removed an open file.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::STALE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether an error has this number.
pub(crate) fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_is_one_plain_name() {
        let table: [(&[u8], bool); 9] = [
            (b"a", true),
            (b"...", true),
            (b".wharf", true),
            (b"\xff", true),
            (b"", false),
            (b".", false),
            (b"..", false),
            (b"a/b", false),
            (b"a\0", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_component(name), expected, "{name:?}");
        }
    }
}
