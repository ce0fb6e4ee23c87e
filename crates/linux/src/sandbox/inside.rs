//! Paths inside a root or a volume: looked up by the kernel in one go, so that no link, and nobody who swaps directories
//! meanwhile, leads out of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::process::umask;

/// Opens a path of the host as a place, not for reading.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the place is a directory.
pub fn is_directory(file: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_dir())
}

/// Whether the place is a block device.
pub fn is_block_device(file: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(file)?.st_mode).is_block_device())
}

/// Whether the kernel refuses writes to a block device, whoever opens it.
pub fn is_read_only_device(file: impl AsFd) -> io::Result<bool> {
    let device = fstat(file)?.st_rdev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))?.trim() == "1")
}

/// Opens `path` as a program sees it whose root is `root`: absolute links begin at `root`, `..` ends there.
pub fn open_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
}

/// Opens the directory `path` in `root`, and makes what is missing of it.
pub fn make_directory_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let mut so_far = PathBuf::from(".");
    let mut place = open_in_root(&root, &so_far)?;
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            Component::ParentDir => return Err(Errno::INVAL.into()),
            Component::Normal(name) => name,
        };
        so_far.push(name);
        place = match open_in_root(&root, &so_far) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&place, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                open_in_root(&root, &so_far)?
            }
            found => found?,
        };
    }
    if is_directory(&place)? { Ok(place) } else { Err(Errno::NOTDIR.into()) }
}

/// Opens the file `path` in `root`, and makes an empty one, and its directories, if it is missing.
pub fn make_file_in_root(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    match open_in_root(&root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let (parent, name) = split(path)?;
    let parent = make_directory_in_root(&root, parent)?;
    let how = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    drop(openat(&parent, name, how, Mode::from_raw_mode(0o644))?);
    open_in_root(&root, path)
}

/// Makes a link in a directory of `root`.
pub fn make_link_in_root(root: impl AsFd, to: &Path, path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    let parent = make_directory_in_root(&root, parent)?;
    Ok(symlinkat(to, &parent, name)?)
}

/// Opens a part of a volume. Links are followed as long as they stay in the volume, since config maps are made of them;
/// one that leads out of it is an error. If nothing is there, directories are made that have the volume's own mode.
pub fn open_part(volume: impl AsFd, part: &Path) -> io::Result<OwnedFd> {
    let open = |path: &Path| -> io::Result<OwnedFd> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&volume, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
    };
    match open(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let mode = Mode::from_raw_mode(fstat(&volume)?.st_mode & 0o7777);
    let mut so_far = PathBuf::from(".");
    let mut place = open(&so_far)?;
    for component in part.components() {
        let name = match component {
            Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(Errno::INVAL.into());
            }
        };
        so_far.push(name);
        place = match open(&so_far) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // By the umask, not by chmod: by then the name could be another pod's link.
                let umask = umask(Mode::empty());
                let made = mkdirat(&place, name, mode);
                rustix::process::umask(umask);
                match made {
                    Ok(()) | Err(Errno::EXIST) => open(&so_far)?,
                    Err(error) => return Err(error.into()),
                }
            }
            found => found?,
        };
    }
    Ok(place)
}

/// Opens what is at `part` in a directory, of which the mount table says that there are no links in it: a link is an
/// error, since somebody has put it there meanwhile.
pub fn open_without_links(directory: impl AsFd, part: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(directory, part, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?)
}

/// A path's directory and last name.
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

    /// A root with links that lead out of it, beside something that must not be reached.
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
    fn a_root_is_the_end_of_every_path() {
        let (_outside, root) = root();
        let place = open(&root).unwrap();
        for (path, expected) in [
            ("/absolute/deep", Some("real/deep")),
            ("absolute/../real", Some("real")),
            ("../../..", Some("")),
            ("real/up", None),
            ("out/secret", None),
        ] {
            let found = open_in_root(&place, Path::new(path)).ok().map(|file| name(&file));
            assert_eq!(found, expected.map(|expected| root.join(expected)), "{path}");
        }
    }

    #[test]
    fn what_is_made_is_made_in_the_root() {
        let (outside, root) = root();
        let place = open(&root).unwrap();
        make_directory_in_root(&place, Path::new("/absolute/new/deep")).unwrap();
        assert!(root.join("real/new/deep").is_dir());
        make_file_in_root(&place, Path::new("/absolute/new/file")).unwrap();
        assert!(root.join("real/new/file").is_file());
        make_file_in_root(&place, Path::new("/absolute/new/file")).unwrap();
        make_link_in_root(&place, Path::new("file"), Path::new("/real/new/link")).unwrap();
        assert!(root.join("real/new/link").is_file());
        for path in ["/dangling", "/dangling/x", "/../x", "/real/new/file/x"] {
            assert!(make_directory_in_root(&place, Path::new(path)).is_err(), "{path}");
        }
        // The link's target is looked for in the root, where it is not; what is made is made there.
        let _ = make_directory_in_root(&place, Path::new("/out/x"));
        assert!(!outside.path().join("x").exists());
    }

    #[test]
    fn a_part_cannot_leave_its_volume() {
        let (outside, root) = root();
        let place = open(&root).unwrap();
        assert_eq!(name(&open_part(&place, Path::new("real/deep")).unwrap()), root.join("real/deep"));
        open_part(&place, Path::new("new/deep")).unwrap();
        assert!(root.join("new/deep").is_dir());
        for path in ["absolute", "real/up", "out/secret", "out/new", "..", "/etc", "dangling"] {
            assert!(open_part(&place, Path::new(path)).is_err(), "{path}");
        }
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn where_no_link_should_be_none_is_followed() {
        let (_outside, root) = root();
        let place = open(&root).unwrap();
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
            let opened = open_without_links(&place, Path::new(part)).map(|file| name(&file));
            match error {
                None => assert_eq!(opened.unwrap(), root.join(part)),
                Some(_) => assert_eq!(Errno::from_io_error(&opened.unwrap_err()), error, "{part}"),
            }
        }
    }
}
