//! Files of a pool. The kernel resolves every path beneath the pool's root (openat2) without symlinks. Calls without such
//! an option (mkdir, unlink, rename) work on a parent directory that was opened that way.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, RenameFlags, ResolveFlags,
    Stat,
};
use rustix::io::Errno;

use super::{Linux, extents};
use crate::{Error, Extent, FileId, FileStat, Files, PathBeneath, Result};

impl Files for Linux {
    fn read_file(&self, file: &PathBeneath<'_>) -> Result<Option<Vec<u8>>> {
        let Some(mut open) = none_if_missing(open_regular(file, OFlags::RDONLY))? else { return Ok(None) };
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).map_err(syscall_error("read", file))?;
        Ok(Some(bytes))
    }

    fn write_file(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
        let mut open = open_regular(file, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        open.write_all(bytes).map_err(syscall_error("write", file))
    }

    fn sync(&self, path: &PathBeneath<'_>) -> Result<()> {
        let fd = open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        rustix::fs::fsync(fd).map_err(syscall_error("fsync", path))
    }

    fn rename(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()> {
        if from.root != to.root {
            let reason = format!("cannot be renamed to {}: it has a different root", to.display().display());
            return Err(Error::InvalidState { path: from.display(), reason });
        }
        let (from_parent, from_name) = open_parent(from)?;
        let (to_parent, to_name) = open_parent(to)?;
        rustix::fs::renameat(from_parent, from_name, to_parent, to_name)
            .map_err(syscall_error("rename", from))
    }

    fn exchange(&self, one: &PathBeneath<'_>, other: &PathBeneath<'_>) -> Result<()> {
        if one.root != other.root {
            let reason =
                format!("cannot be exchanged with {}: it has a different root", other.display().display());
            return Err(Error::InvalidState { path: one.display(), reason });
        }
        let (one_parent, one_name) = open_parent(one)?;
        let (other_parent, other_name) = open_parent(other)?;
        rustix::fs::renameat_with(one_parent, one_name, other_parent, other_name, RenameFlags::EXCHANGE)
            .map_err(syscall_error("rename", one))
    }

    fn create_reserved(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        // A new file: the attribute of btrfs below can only be set on an empty file, and a truncated file may share
        // blocks.
        self.remove_file(file)?;
        let mut open = open_regular(file, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        // btrfs writes to new blocks, unless the file has this attribute. Other file systems do not have it.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&open) {
            let _ = rustix::fs::ioctl_setflags(&open, flags | IFlags::NOCOW);
        }
        // Written, not only allocated: the first write to allocated blocks may need space for metadata.
        io::copy(&mut io::repeat(b' ').take(bytes), &mut open).map_err(syscall_error("write", file))?;
        open.sync_all().map_err(syscall_error("fsync", file))
    }

    fn overwrite(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
        let open = open_regular(file, OFlags::WRONLY)?;
        let size = open.metadata().map_err(syscall_error("fstat", file))?.len();
        if (bytes.len() as u64) > size {
            let reason = format!("has {size} bytes and cannot be overwritten with {}", bytes.len());
            return Err(Error::InvalidState { path: file.display(), reason });
        }
        open.write_all_at(bytes, 0).map_err(syscall_error("write", file))
    }

    fn create_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        if dir.path == Path::new(".") {
            return open_beneath(dir, OFlags::PATH | OFlags::DIRECTORY).map(drop);
        }
        let (parent, name) = open_parent(dir)?;
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            // An existing path is success only if it is a directory.
            Err(Errno::EXIST) => open_beneath(dir, OFlags::PATH | OFlags::DIRECTORY).map(drop),
            Err(errno) => Err(syscall_error("mkdir", dir)(errno)),
        }
    }

    fn list_dir(&self, dir: &PathBeneath<'_>) -> Result<Vec<String>> {
        let Some(fd) = none_if_missing(open_beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in Dir::new(fd).map_err(syscall_error("readdir", dir))? {
            let entry = entry.map_err(syscall_error("readdir", dir))?;
            // Wharf never creates a name that is not UTF-8. Its lossy form is reported as an unknown file and cannot match
            // a known name.
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove_file(&self, file: &PathBeneath<'_>) -> Result<()> {
        remove(file, AtFlags::empty(), "unlink")
    }

    fn remove_dir(&self, dir: &PathBeneath<'_>) -> Result<()> {
        remove(dir, AtFlags::REMOVEDIR, "rmdir")
    }

    fn stat(&self, file: &PathBeneath<'_>) -> Result<Option<FileStat>> {
        let Some(fd) = none_if_missing(open_beneath(file, OFlags::PATH))? else { return Ok(None) };
        let stat = rustix::fs::fstat(fd).map_err(syscall_error("fstat", file))?;
        Ok(Some(FileStat {
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            size: stat.st_size.unsigned_abs(),
            allocated: stat.st_blocks.unsigned_abs() * 512,
            is_dir: kind(&stat).is_dir(),
        }))
    }

    fn set_size(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        let open = open_regular(file, OFlags::WRONLY | OFlags::CREATE)?;
        rustix::fs::ftruncate(open, bytes).map_err(syscall_error("ftruncate", file))
    }

    fn allocate(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()> {
        let open = open_regular(file, OFlags::WRONLY)?;
        rustix::fs::fallocate(open, FallocateFlags::KEEP_SIZE, 0, bytes)
            .map_err(syscall_error("fallocate", file))
    }

    fn can_reflink(&self, root: &Path) -> Result<bool> {
        // A unique number for each attempt, so that concurrent attempts do not collide. Both files are removed afterwards.
        static TRIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = TRIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = |what| format!(".reflink-{}-{number}-{what}.tmp", std::process::id());
        let (from, to) = (name("from"), name("to"));
        let (from, to) = (PathBeneath::new(root, Path::new(&from)), PathBeneath::new(root, Path::new(&to)));
        let tried = self
            .write_file(&from, &[1; 4096])
            .and_then(|()| self.sync(&from))
            .and_then(|()| self.reflink(&from, &to));
        self.remove_file(&from)?;
        self.remove_file(&to)?;
        match tried {
            Ok(()) => Ok(true),
            Err(error) if error.errno().is_some_and(|errno| CANNOT.contains(&errno)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn reflink(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()> {
        let source = open_regular(from, OFlags::RDONLY)?;
        let target = open_regular(to, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        rustix::fs::ioctl_ficlone(target, source).map_err(syscall_error("FICLONE", from))
    }

    fn copy_range(
        &self,
        from: &PathBeneath<'_>,
        to: &PathBeneath<'_>,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        extents::copy_range(from, to, offset, length)
    }

    fn extents(&self, file: &PathBeneath<'_>) -> Result<Vec<Extent>> {
        extents::list(file)
    }

    fn try_lock(&self, file: &PathBeneath<'_>) -> Result<Option<Box<dyn Send + Sync>>> {
        let open = open_regular(file, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(open))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(syscall_error("flock", file)(errno)),
        }
    }
}

/// The errors of file systems that cannot share extents, or not between these files.
const CANNOT: [i32; 5] = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTTY, libc::EXDEV, libc::ENOSYS];

/// Converts the error of a system call on a file.
pub(super) fn syscall_error<E: Into<io::Error>>(
    call: &'static str,
    file: &PathBeneath<'_>,
) -> impl Fn(E) -> Error + use<E> {
    let path = file.display();
    move |source| Error::call(call, &path, source)
}

/// Opens what is beneath the root. Files are created 0600.
fn open_beneath(file: &PathBeneath<'_>, flags: OFlags) -> Result<OwnedFd> {
    check(file)?;
    open_at(file, file.path, flags)
}

fn open_at(file: &PathBeneath<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let root = rustix::fs::open(file.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::InvalidState { path: file.root.to_owned(), reason: missing_root(errno) })?;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve)
        .map_err(syscall_error("open", file))
}

/// A missing root must not read as "the file does not exist": an unmounted pool is not an empty pool.
fn missing_root(errno: Errno) -> String {
    format!("cannot be opened as the root of a pool: {}", io::Error::from(errno))
}

/// Opens a regular file. A FIFO or device at the path is an error and does not block.
pub(super) fn open_regular(file: &PathBeneath<'_>, flags: OFlags) -> Result<File> {
    let fd = open_beneath(file, flags | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&fd).map_err(syscall_error("fstat", file))?;
    if !kind(&stat).is_file() {
        return Err(Error::InvalidState { path: file.display(), reason: "is not a regular file".to_owned() });
    }
    rustix::fs::fcntl_setfl(&fd, flags - CREATION).map_err(syscall_error("fcntl", file))?;
    Ok(File::from(fd))
}

/// Flags that apply only to the open call itself.
const CREATION: OFlags = OFlags::CREATE.union(OFlags::TRUNC);

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Opens the parent directory, and returns it with the file's name.
fn open_parent<'a>(file: &PathBeneath<'a>) -> Result<(OwnedFd, &'a OsStr)> {
    check(file)?;
    let name = file.path.file_name().ok_or_else(|| refused(file, "names the root itself"))?;
    let parent = match file.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok((open_at(file, parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
}

fn remove(file: &PathBeneath<'_>, flags: AtFlags, call: &'static str) -> Result<()> {
    let Some((parent, name)) = none_if_missing(open_parent(file))? else { return Ok(()) };
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(syscall_error(call, file)(errno)),
    }
}

/// Converts "does not exist" to `None`. A missing root is not converted: it is `Error::InvalidState`.
fn none_if_missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Rejects everything but plain relative paths. The kernel would reject most of them too, but calls on a parent and a
/// name never pass it the whole path.
fn check(file: &PathBeneath<'_>) -> Result<()> {
    if file.path == Path::new(".") {
        return Ok(());
    }
    let plain = file.path.components().all(|part| matches!(part, Component::Normal(_)));
    match file.path.as_os_str().as_bytes() {
        [] => Err(refused(file, "is empty")),
        bytes if bytes.contains(&0) => Err(refused(file, "contains a NUL")),
        _ if !plain => Err(refused(file, "is absolute or contains `.` or `..`")),
        _ => Ok(()),
    }
}

fn refused(file: &PathBeneath<'_>, problem: &str) -> Error {
    let reason = format!("is not allowed as a path beneath {}: it {problem}", file.root.display());
    Error::InvalidState { path: file.path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_accepted() {
        let table = [
            (".", true),
            ("a", true),
            ("a/b.c", true),
            ("a//b", true),
            ("...", true),
            ("", false),
            ("/a", false),
            ("/", false),
            ("..", false),
            ("a/../b", false),
            ("./a", false),
            ("a\0b", false),
        ];
        for (path, passes) in table {
            assert_eq!(
                check(&PathBeneath::new(Path::new("/pool"), Path::new(path))).is_ok(),
                passes,
                "{path:?}"
            );
        }
    }
}
