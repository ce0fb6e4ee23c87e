//! Files of a pool. Every path is resolved by the kernel beneath the pool's root (openat2), without symlinks;
//! what has no such call (mkdir, unlink, rename) works on a parent directory that was opened that way.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{Linux, extents};
use crate::{Beneath, Error, Extent, FileId, FileStat, Files, Result};

impl Files for Linux {
    fn read_file(&self, file: &Beneath<'_>) -> Result<Option<Vec<u8>>> {
        let Some(mut open) = found(open_regular(file, OFlags::RDONLY))? else { return Ok(None) };
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).map_err(failed("read", file))?;
        Ok(Some(bytes))
    }

    fn write_file(&self, file: &Beneath<'_>, bytes: &[u8]) -> Result<()> {
        let mut open = open_regular(file, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        open.write_all(bytes).map_err(failed("write", file))
    }

    fn sync(&self, path: &Beneath<'_>) -> Result<()> {
        let fd = open_beneath(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        rustix::fs::fsync(fd).map_err(failed("fsync", path))
    }

    fn rename(&self, from: &Beneath<'_>, to: &Beneath<'_>) -> Result<()> {
        if from.root != to.root {
            let reason = format!("cannot be renamed to {}: another root", to.display().display());
            return Err(Error::State { path: from.display(), reason });
        }
        let (from_parent, from_name) = open_parent(from)?;
        let (to_parent, to_name) = open_parent(to)?;
        rustix::fs::renameat(from_parent, from_name, to_parent, to_name).map_err(failed("rename", from))
    }

    fn create_dir(&self, dir: &Beneath<'_>) -> Result<()> {
        if dir.path == Path::new(".") {
            return open_beneath(dir, OFlags::PATH | OFlags::DIRECTORY).map(drop);
        }
        let (parent, name) = open_parent(dir)?;
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            // It exists, but only a directory will do.
            Err(Errno::EXIST) => open_beneath(dir, OFlags::PATH | OFlags::DIRECTORY).map(drop),
            Err(errno) => Err(failed("mkdir", dir)(errno)),
        }
    }

    fn list_dir(&self, dir: &Beneath<'_>) -> Result<Vec<String>> {
        let Some(fd) = found(open_beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in Dir::new(fd).map_err(failed("readdir", dir))? {
            let entry = entry.map_err(failed("readdir", dir))?;
            // A name that is not UTF-8 is not one of ours; spelled lossily it shows up as what does not
            // belong here, and cannot be taken for anything that does.
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove_file(&self, file: &Beneath<'_>) -> Result<()> {
        remove(file, AtFlags::empty(), "unlink")
    }

    fn remove_dir(&self, dir: &Beneath<'_>) -> Result<()> {
        remove(dir, AtFlags::REMOVEDIR, "rmdir")
    }

    fn stat(&self, file: &Beneath<'_>) -> Result<Option<FileStat>> {
        let Some(fd) = found(open_beneath(file, OFlags::PATH))? else { return Ok(None) };
        let stat = rustix::fs::fstat(fd).map_err(failed("fstat", file))?;
        Ok(Some(FileStat {
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            size: stat.st_size.unsigned_abs(),
            allocated: stat.st_blocks.unsigned_abs() * 512,
            is_dir: kind(&stat).is_dir(),
        }))
    }

    fn set_size(&self, file: &Beneath<'_>, bytes: u64) -> Result<()> {
        let open = open_regular(file, OFlags::WRONLY | OFlags::CREATE)?;
        rustix::fs::ftruncate(open, bytes).map_err(failed("ftruncate", file))
    }

    fn allocate(&self, file: &Beneath<'_>, bytes: u64) -> Result<()> {
        let open = open_regular(file, OFlags::WRONLY)?;
        rustix::fs::fallocate(open, FallocateFlags::KEEP_SIZE, 0, bytes).map_err(failed("fallocate", file))
    }

    fn can_reflink(&self, root: &Path) -> Result<bool> {
        // A number of its own for each try, so that two at once do not meet; both names are gone afterwards.
        static TRIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = TRIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = |what| format!(".reflink-{}-{number}-{what}.tmp", std::process::id());
        let (from, to) = (name("from"), name("to"));
        let (from, to) = (Beneath::new(root, Path::new(&from)), Beneath::new(root, Path::new(&to)));
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

    fn reflink(&self, from: &Beneath<'_>, to: &Beneath<'_>) -> Result<()> {
        let source = open_regular(from, OFlags::RDONLY)?;
        let target = open_regular(to, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        rustix::fs::ioctl_ficlone(target, source).map_err(failed("FICLONE", from))
    }

    fn copy_range(&self, from: &Beneath<'_>, to: &Beneath<'_>, offset: u64, length: u64) -> Result<u64> {
        extents::copy_range(from, to, offset, length)
    }

    fn extents(&self, file: &Beneath<'_>) -> Result<Vec<Extent>> {
        extents::of(file)
    }

    fn try_lock(&self, file: &Beneath<'_>) -> Result<Option<Box<dyn Send + Sync>>> {
        let open = open_regular(file, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(open))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed("flock", file)(errno)),
        }
    }
}

/// What a file system answers that cannot share extents, or not between these files.
const CANNOT: [i32; 5] = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTTY, libc::EXDEV, libc::ENOSYS];

/// Names a failed call on a file.
pub(super) fn failed<E: Into<io::Error>>(
    call: &'static str,
    file: &Beneath<'_>,
) -> impl Fn(E) -> Error + use<E> {
    let path = file.display();
    move |source| Error::call(call, &path, source)
}

/// Opens what is beneath the root. Files are created 0600.
fn open_beneath(file: &Beneath<'_>, flags: OFlags) -> Result<OwnedFd> {
    check(file)?;
    open_at(file, file.path, flags)
}

fn open_at(file: &Beneath<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let root = rustix::fs::open(file.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::State { path: file.root.to_owned(), reason: missing_root(errno) })?;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve).map_err(failed("open", file))
}

/// A root that is not there must not read as "the file does not exist": an unmounted pool is not an empty one.
fn missing_root(errno: Errno) -> String {
    format!("cannot be opened as the root of a pool: {}", io::Error::from(errno))
}

/// Opens a regular file and nothing else: a FIFO or a device at its place is an error, and does not block.
pub(super) fn open_regular(file: &Beneath<'_>, flags: OFlags) -> Result<File> {
    let fd = open_beneath(file, flags | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&fd).map_err(failed("fstat", file))?;
    if !kind(&stat).is_file() {
        return Err(Error::State { path: file.display(), reason: "is not a regular file".to_owned() });
    }
    rustix::fs::fcntl_setfl(&fd, flags - CREATION).map_err(failed("fcntl", file))?;
    Ok(File::from(fd))
}

/// Flags that matter while opening only.
const CREATION: OFlags = OFlags::CREATE.union(OFlags::TRUNC);

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The opened parent directory and the name in it.
fn open_parent<'a>(file: &Beneath<'a>) -> Result<(OwnedFd, &'a OsStr)> {
    check(file)?;
    let name = file.path.file_name().ok_or_else(|| refused(file, "names the root itself"))?;
    let parent = match file.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok((open_at(file, parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
}

fn remove(file: &Beneath<'_>, flags: AtFlags, call: &'static str) -> Result<()> {
    let Some((parent, name)) = found(open_parent(file))? else { return Ok(()) };
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(call, file)(errno)),
    }
}

/// "Does not exist" as `None`. A missing root is not that: it is [`Error::State`].
fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses what is not a plain relative path. The kernel would refuse most of it too, but calls that work on
/// a parent and a name never show it the whole path.
fn check(file: &Beneath<'_>) -> Result<()> {
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

fn refused(file: &Beneath<'_>, why: &str) -> Error {
    let reason = format!("is refused as a path beneath {}: it {why}", file.root.display());
    Error::State { path: file.path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_pass() {
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
            assert_eq!(check(&Beneath::new(Path::new("/pool"), Path::new(path))).is_ok(), passes, "{path:?}");
        }
    }
}
