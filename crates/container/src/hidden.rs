//! Host paths that no pod may access (the data directory, pools, other pods' volumes, driver data), through the root
//! file system that all pods share or through a `hostPath`.
//!
//! A path is checked after it was opened, so symlinks cannot bypass the check. A hidden directory is identified by
//! its file system and the path within it, so a second mount of the same file system cannot bypass it either. Paths
//! in another mount namespace are refused: `/proc/PID/root` of another pod's process is that pod's view, with its
//! volumes. For the same reason no pod gets the host's `/proc`: the kernel lets root follow such a link to any
//! process that has no more privileges than itself, and all pods have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use wharf_linux::MountTable;

use crate::sandbox::scoped_path;

/// Why a pod cannot access a host path.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is hidden, or lies in a hidden directory.
    #[error(
        "hostPath {path:?} is refused: it leads into {place:?}, which holds data of Wharf or of a CSI driver, or swap or core dumps of the host, and is not accessible to pods"
    )]
    Hidden {
        /// As given in the pod.
        path: PathBuf,
        /// The hidden directory.
        place: PathBuf,
    },
    /// It is in procfs.
    #[error(
        "hostPath {path:?} is refused: it exposes the host's processes and, through them, paths that are not accessible to pods"
    )]
    Processes {
        /// As given in the pod.
        path: PathBuf,
    },
    /// It is in another mount namespace.
    #[error(
        "hostPath {path:?} is refused: it is not in the host's mount namespace but in another container's"
    )]
    Elsewhere {
        /// As given in the pod.
        path: PathBuf,
    },
    /// It could not be checked.
    #[error("hostPath {path:?}: {source}")]
    Unknown {
        /// As given in the pod.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// A location independent of the path that leads to it: the file system's device number, and the path within it.
type Spot = ((u32, u32), PathBuf);

/// The host's mounts, and which paths are hidden.
#[derive(Debug)]
pub struct Host {
    table: MountTable,
    /// The ids of all mounts of this mount namespace.
    numbers: BTreeSet<u64>,
    hidden: Vec<PathBuf>,
}

impl Host {
    /// Reads this namespace's mounts. `hidden` must be free of symlinks.
    pub fn read(hidden: &[PathBuf]) -> io::Result<Self> {
        Self::parse(&fs::read("/proc/self/mountinfo")?, hidden)
    }

    /// Like [`Self::read`], from the content of a mountinfo file.
    pub(crate) fn parse(mounts: &[u8], hidden: &[PathBuf]) -> io::Result<Self> {
        let table = MountTable::parse(mounts).map_err(io::Error::other)?;
        let number = |line: &[u8]| str::from_utf8(line.split(|&b| b == b' ').next()?).ok()?.parse().ok();
        let numbers = mounts.split(|&b| b == b'\n').filter_map(number).collect();
        Ok(Self { table, numbers, hidden: hidden.to_vec() })
    }

    /// All mounts.
    pub(crate) fn table(&self) -> &MountTable {
        &self.table
    }

    /// Checks whether a pod may access what was opened by `path`, or what is or would be at `rest` beneath it.
    /// Returns the path without symlinks.
    pub(crate) fn admit(&self, path: &Path, opened: impl AsFd, rest: &Path) -> Result<PathBuf, Refusal> {
        let unknown = |source| Refusal::Unknown { path: path.to_owned(), source };
        let number = opened.as_fd().as_raw_fd();
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).map_err(unknown)?;
        if !mount_of(&facts).is_some_and(|mount| self.numbers.contains(&mount)) {
            return Err(Refusal::Elsewhere { path: path.to_owned() });
        }
        let whole = path_of(&opened).map_err(unknown)?;
        // Collecting the components drops the trailing slash if `rest` is empty.
        let whole = whole.join(rest).components().collect::<PathBuf>();
        match self.holding(&whole) {
            Some(place) => Err(Refusal::Hidden { path: path.to_owned(), place: place.to_owned() }),
            None if shows_processes(&self.table, &whole) => Err(Refusal::Processes { path: path.to_owned() }),
            None => Ok(whole),
        }
    }

    /// Like [`Self::admit`], for a path whose last components may not exist yet.
    pub fn admit_path(&self, path: &Path) -> Result<PathBuf, Refusal> {
        for above in path.ancestors() {
            match scoped_path::open(above) {
                // A dangling symlink is refused: it would lead to its target as soon as that is created.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && above.symlink_metadata().is_err() => {}
                Err(source) => return Err(Refusal::Unknown { path: path.to_owned(), source }),
                Ok(opened) => {
                    let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
                    return self.admit(path, opened, rest);
                }
            }
        }
        Err(Refusal::Unknown { path: path.to_owned(), source: io::ErrorKind::NotFound.into() })
    }

    /// The hidden directory that contains `path` (which is free of symlinks) or is it.
    pub(crate) fn holding(&self, path: &Path) -> Option<&Path> {
        let spot = self.spot(path);
        let holds = |place: &&PathBuf| {
            let same = || Some(beneath(spot.as_ref()?, &self.spot(place)?).is_some());
            path.starts_with(place) || same().unwrap_or(false)
        };
        self.hidden.iter().find(holds).map(PathBuf::as_path)
    }

    /// The hidden directories beneath `path`, without those in other mounts beneath it: relative path to hidden
    /// directory.
    pub(crate) fn hidden_beneath(&self, path: &Path) -> BTreeMap<PathBuf, &Path> {
        let spot = self.spot(path);
        let mut found = BTreeMap::new();
        for place in &self.hidden {
            let by_name = place.strip_prefix(path).ok().map(Path::to_owned);
            let by_spot = || beneath(&self.spot(place)?, spot.as_ref()?);
            for part in by_name.into_iter().chain(by_spot()) {
                found.insert(part, place.as_path());
            }
        }
        found
    }

    fn spot(&self, path: &Path) -> Option<Spot> {
        let above = self.table.mounts().iter().filter(|mount| path.starts_with(&mount.mount_point));
        // Of two mounts at one mount point the later one is visible.
        let mount = above.max_by_key(|mount| mount.mount_point.components().count())?;
        let part = path.strip_prefix(&mount.mount_point).ok()?;
        Some((mount.device, mount.root.join(part).components().collect()))
    }
}

/// The current path of an open file, without symlinks, even if it was renamed after it was opened.
pub(crate) fn path_of(opened: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()))
}

/// Whether a path without symlinks is in procfs. File systems mounted beneath procfs count too.
pub(crate) fn shows_processes(table: &MountTable, path: &Path) -> bool {
    let mut procfs = table.mounts().iter().filter(|mount| mount.fs_type == "proc");
    procfs.any(|mount| path.starts_with(&mount.mount_point))
}

/// The path of `spot` relative to `above`, if it is there or beneath.
fn beneath(spot: &Spot, above: &Spot) -> Option<PathBuf> {
    if spot.0 != above.0 {
        return None;
    }
    spot.1.strip_prefix(&above.1).ok().map(Path::to_owned)
}

/// The id of the mount that an open file is on.
fn mount_of(facts: &str) -> Option<u64> {
    facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The data directory on the root disk; a second disk; a directory of the root disk bind-mounted elsewhere.
    const MOUNTS: &str = "\
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 8:2 / /disk rw - ext4 /dev/sdb rw
3 1 8:1 /var/lib /bound rw - ext4 /dev/sda1 rw
4 1 8:2 / /again rw - ext4 /dev/sdb rw
5 1 7:0 / /var/lib/wharf/pool rw - xfs /dev/loop0 rw
6 1 0:5 / /proc rw - proc proc rw
7 6 0:6 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
8 1 0:5 /1 /srv/one rw - proc proc rw
";

    fn host(hidden: &[&str]) -> Host {
        Host::parse(MOUNTS.as_bytes(), &hidden.iter().map(PathBuf::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn paths_in_hidden_directories_are_recognized() {
        let host = host(&["/var/lib/wharf", "/disk/pool"]);
        for (path, hidden) in [
            ("/", false),
            ("/var/lib", false),
            ("/var/lib/wharf", true),
            ("/var/lib/wharf/kubeconfig", true),
            ("/var/lib/wharf/pool/volume", true),
            ("/var/lib/wharfs", false),
            ("/bound", false),
            ("/bound/other", false),
            ("/bound/wharf", true),
            ("/bound/wharf/kubeconfig", true),
            ("/disk", false),
            ("/again/pool/x", true),
            ("/again/pools", false),
        ] {
            assert_eq!(host.holding(Path::new(path)).is_some(), hidden, "{path}");
        }
    }

    #[test]
    fn paths_in_procfs_are_recognized() {
        let host = host(&[]);
        for (path, shows) in [
            ("/", false),
            ("/proc", true),
            ("/proc/1/root", true),
            ("/proc/sys/fs/binfmt_misc/status", true),
            ("/srv", false),
            ("/srv/one/environ", true),
            ("/process", false),
        ] {
            assert_eq!(shows_processes(host.table(), Path::new(path)), shows, "{path}");
        }
    }

    #[test]
    fn hidden_directories_beneath_a_path_are_listed() {
        let host = host(&["/var/lib/wharf", "/disk/pool"]);
        let cases: [(&str, &[&str]); 7] = [
            ("/", &["disk/pool", "var/lib/wharf"]),
            ("/var", &["lib/wharf"]),
            ("/var/lib/other", &[]),
            ("/bound", &["wharf"]),
            ("/disk", &["pool"]),
            ("/again", &["pool"]),
            ("/home", &[]),
        ];
        for (path, expected) in cases {
            let found: Vec<PathBuf> = host.hidden_beneath(Path::new(path)).into_keys().collect();
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{path}");
        }
    }

    /// On real files: symlinks are resolved before anything is compared, also where the last components do not exist.
    #[test]
    fn symlinks_do_not_bypass_the_check() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let data = dir.join("data");
        fs::create_dir_all(data.join("deep")).unwrap();
        fs::create_dir(dir.join("free")).unwrap();
        symlink(&data, dir.join("link")).unwrap();
        symlink("../data/deep", dir.join("free/link")).unwrap();
        symlink("../data/new", dir.join("free/dangling")).unwrap();
        let host = Host::read(std::slice::from_ref(&data)).unwrap();
        for (path, hidden) in [
            ("", false),
            ("free", false),
            ("free/not/yet", false),
            ("data", true),
            ("data/not/yet", true),
            ("link", true),
            ("link/deep", true),
            ("free/link/not-yet", true),
            ("free/../data", true),
        ] {
            let result = host.admit_path(&dir.join(path));
            assert_eq!(matches!(result, Err(Refusal::Hidden { .. })), hidden, "{path}: {result:?}");
            assert_eq!(result.is_ok(), !hidden, "{path}: {result:?}");
        }
        assert!(host.admit_path(&dir.join("free/dangling")).is_err());
        for path in ["/proc", "/proc/self", "/proc/self/fd", "/proc/self/root/proc/1", "/proc/not-yet"] {
            let result = host.admit_path(Path::new(path));
            assert!(matches!(result, Err(Refusal::Processes { .. })), "{path}: {result:?}");
        }
        assert_eq!(host.admit_path(Path::new("/proc/self/root/etc")).unwrap(), Path::new("/etc"));
        assert_eq!(mount_of("pos:\t0\nflags:\t010000000\nmnt_id:\t29\nino:\t2\n"), Some(29));
    }
}
