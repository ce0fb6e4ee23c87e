//! Paths inside a root or a volume. The kernel resolves each path in one system call, so neither a symlink nor a
//! concurrent swap of directories can lead out of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::process::umask;

/// Opens a path of the host as an `O_PATH` descriptor.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the file is a directory.
pub(crate) fn is_directory(file: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_dir())
}

/// Whether the file is a block device.
pub(crate) fn is_block_device(file: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_block_device())
}

/// Whether the kernel rejects all writes to a block device.
pub(crate) fn is_read_only_device(file: impl AsFd) -> io::Result<bool> {
    let device = fstat(file)?.st_rdev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))?.trim() == "1")
}

/// Opens `path` as seen by a program whose root is `root`: absolute symlinks start at `root`, and `..` stops there.
pub(crate) fn open_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
}

/// Opens the directory `path` in `root`, and creates missing directories.
pub(crate) fn create_directory_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let mut prefix = PathBuf::from(".");
    let mut directory = open_in_root(&root, &prefix)?;
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            Component::ParentDir => return Err(Errno::INVAL.into()),
            Component::Normal(name) => name,
        };
        prefix.push(name);
        directory = match open_in_root(&root, &prefix) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                open_in_root(&root, &prefix)?
            }
            found => found?,
        };
    }
    if is_directory(&directory)? { Ok(directory) } else { Err(Errno::NOTDIR.into()) }
}

/// Opens the file `path` in `root`. Creates an empty file and its directories if it is missing.
pub(crate) fn create_file_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    match open_in_root(&root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let (parent, name) = split(path)?;
    let parent = create_directory_in_root(&root, parent)?;
    let how = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    drop(openat(&parent, name, how, Mode::from_raw_mode(0o644))?);
    open_in_root(&root, path)
}

/// Creates a symlink in a directory of `root`.
pub(crate) fn create_symlink_in_root(root: impl AsFd, to: &Path, path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    let parent = create_directory_in_root(&root, parent)?;
    Ok(symlinkat(to, &parent, name)?)
}

/// Opens a subpath of a volume. Symlinks within the volume are followed, since ConfigMap volumes consist of them; a
/// symlink that leads out of the volume is an error. Missing directories are created with the mode of the volume.
pub(crate) fn open_subpath(volume: impl AsFd, part: &Path) -> io::Result<OwnedFd> {
    let open = |path: &Path| -> io::Result<OwnedFd> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&volume, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
    };
    match open(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let mode = Mode::from_raw_mode(fstat(&volume)?.st_mode & 0o7777);
    let mut prefix = PathBuf::from(".");
    let mut directory = open(&prefix)?;
    for component in part.components() {
        let name = match component {
            Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(Errno::INVAL.into());
            }
        };
        prefix.push(name);
        directory = match open(&prefix) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Through the umask, not with chmod: at that time another pod could have replaced the name with a symlink.
                let umask = umask(Mode::empty());
                let made = mkdirat(&directory, name, mode);
                rustix::process::umask(umask);
                match made {
                    Ok(()) | Err(Errno::EXIST) => open(&prefix)?,
                    Err(error) => return Err(error.into()),
                }
            }
            found => found?,
        };
    }
    Ok(directory)
}

/// Opens `part` in a directory. The path comes from the mount table and contains no symlinks, so a symlink is an error:
/// it was created since.
pub(crate) fn open_without_symlinks(directory: impl AsFd, part: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(directory, part, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
}

/// A path's directory and last component.
fn split(path: &Path) -> io::Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(Errno::INVAL.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root with symlinks that lead out of it, next to a file that must not be reachable.
    fn root() -> (tempfile::TempDir, PathBuf) {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        fs::create_dir_all(root.join("real/deep")).unwrap();
        fs::write(outside.path().join("secret"), "").unwrap();
        symlink("/real", root.join("absolute")).unwrap();
        symlink("../../../secret", root.join("real/up")).unwrap();
        symlink(outside.path(), root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        (outside, root)
    }

    fn name(file: &OwnedFd) -> PathBuf {
        use std::os::fd::AsRawFd as _;
        fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
    }

    #[test]
    fn paths_do_not_leave_the_root() {
        let (_outside, root) = root();
        let directory = open(&root).unwrap();
        for (path, expected) in [
            ("/absolute/deep", Some("real/deep")),
            ("absolute/../real", Some("real")),
            ("../../..", Some("")),
            ("real/up", None),
            ("out/secret", None),
        ] {
            let found = open_in_root(&directory, Path::new(path)).ok().map(|file| name(&file));
            assert_eq!(found, expected.map(|expected| root.join(expected)), "{path}");
        }
    }

    #[test]
    fn files_are_created_only_in_the_root() {
        let (outside, root) = root();
        let directory = open(&root).unwrap();
        create_directory_in_root(&directory, Path::new("/absolute/new/deep")).unwrap();
        assert!(root.join("real/new/deep").is_dir());
        create_file_in_root(&directory, Path::new("/absolute/new/file")).unwrap();
        assert!(root.join("real/new/file").is_file());
        create_file_in_root(&directory, Path::new("/absolute/new/file")).unwrap();
        create_symlink_in_root(&directory, Path::new("file"), Path::new("/real/new/link")).unwrap();
        assert!(root.join("real/new/link").is_file());
        for path in ["/dangling", "/dangling/x", "/../x", "/real/new/file/x"] {
            assert!(create_directory_in_root(&directory, Path::new(path)).is_err(), "{path}");
        }
        // The symlink's target is resolved in the root, where it does not exist; anything created is created there.
        let _ = create_directory_in_root(&directory, Path::new("/out/x"));
        assert!(!outside.path().join("x").exists());
    }

    #[test]
    fn subpath_cannot_leave_its_volume() {
        let (outside, root) = root();
        let directory = open(&root).unwrap();
        assert_eq!(name(&open_subpath(&directory, Path::new("real/deep")).unwrap()), root.join("real/deep"));
        open_subpath(&directory, Path::new("new/deep")).unwrap();
        assert!(root.join("new/deep").is_dir());
        for path in ["absolute", "real/up", "out/secret", "out/new", "..", "/etc", "dangling"] {
            assert!(open_subpath(&directory, Path::new(path)).is_err(), "{path}");
        }
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn open_without_symlinks_rejects_every_symlink() {
        let (_outside, root) = root();
        let directory = open(&root).unwrap();
        symlink("real", root.join("link")).unwrap();
        symlink("deep", root.join("real/link")).unwrap();
        for (part, error) in [
            ("real", None),
            ("real/deep", None),
            ("real/gone", Some(Errno::NOENT)),
            ("link/deep", Some(Errno::LOOP)),
            ("real/link", Some(Errno::LOOP)),
            ("out/secret", Some(Errno::LOOP)),
            ("dangling", Some(Errno::LOOP)),
            ("..", Some(Errno::XDEV)),
            ("/etc", Some(Errno::XDEV)),
        ] {
            let opened = open_without_symlinks(&directory, Path::new(part)).map(|file| name(&file));
            match error {
                None => assert_eq!(opened.unwrap(), root.join(part)),
                Some(_) => assert_eq!(Errno::from_io_error(&opened.unwrap_err()), error, "{part}"),
            }
        }
    }
}
