//! Places of the host that no pod sees (the data directory, pools, other pods' volumes, what drivers keep), whichever way leads
//! to them: the root that all pods have, or a `hostPath`.
//!
//! A path is judged as it was opened, so links are no way in. A place is known by its file system and the path in it, so
//! neither is a second mount of the same file system. And what is mounted in somebody else's mount namespace is refused:
//! `/proc/PID/root` of another pod's process would be that pod's view, with its volumes. For the same reason no pod gets the
//! host's `/proc`: the kernel lets root follow such a link to any process that has no more rights than itself, and all pods
//! have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use wharf_linux::{MountTable, sandbox::inside};

/// Why a pod cannot have a path of the host.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is, or lies in, what no pod sees.
    #[error(
        "hostPath {path:?} is refused: it leads into {place:?}, which holds wharf's own data or a driver's and no pod may see"
    )]
    Hidden {
        /// As the pod has it.
        path: PathBuf,
        /// The hidden place.
        place: PathBuf,
    },
    /// It is of procfs.
    #[error(
        "hostPath {path:?} is refused: it shows the machine's processes, and by way of them what no pod may see"
    )]
    Processes {
        /// As the pod has it.
        path: PathBuf,
    },
    /// It is of another mount namespace.
    #[error("hostPath {path:?} is refused: it leads out of the host's own mounts, into another container's")]
    Elsewhere {
        /// As the pod has it.
        path: PathBuf,
    },
    /// It could not be found out.
    #[error("hostPath {path:?}: {source}")]
    Unknown {
        /// As the pod has it.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Where something is whatever path leads there: the file system's number, and the path in it.
type Spot = ((u32, u32), PathBuf);

/// The host's mounts, and what of them is hidden.
#[derive(Debug)]
pub(crate) struct Host {
    table: MountTable,
    /// The numbers of all mounts of this namespace.
    numbers: BTreeSet<u64>,
    hidden: Vec<PathBuf>,
}

impl Host {
    /// Looks at this namespace's mounts. The hidden places are without links.
    pub(crate) fn read(hidden: &[PathBuf]) -> io::Result<Self> {
        Self::parse(&fs::read("/proc/self/mountinfo")?, hidden)
    }

    /// The same of a table that was read.
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

    /// Whether a pod may have what was opened by `path`, or what is or would be at `rest` beneath it. Answers the path
    /// without links.
    pub(crate) fn admit(&self, path: &Path, opened: impl AsFd, rest: &Path) -> Result<PathBuf, Refusal> {
        let unknown = |source| Refusal::Unknown { path: path.to_owned(), source };
        let number = opened.as_fd().as_raw_fd();
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).map_err(unknown)?;
        if !mount_of(&facts).is_some_and(|mount| self.numbers.contains(&mount)) {
            return Err(Refusal::Elsewhere { path: path.to_owned() });
        }
        let whole = path_of(&opened).map_err(unknown)?;
        // Without a slash at the end, if there is no rest.
        let whole = whole.join(rest).components().collect::<PathBuf>();
        match self.holding(&whole) {
            Some(place) => Err(Refusal::Hidden { path: path.to_owned(), place: place.to_owned() }),
            None if shows_processes(&self.table, &whole) => Err(Refusal::Processes { path: path.to_owned() }),
            None => Ok(whole),
        }
    }

    /// The same for a path of which the end may be missing.
    pub(crate) fn admit_path(&self, path: &Path) -> Result<PathBuf, Refusal> {
        for above in path.ancestors() {
            match inside::open(above) {
                // A link that leads nowhere yet would lead there whoever makes what is missing.
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

    /// The hidden place that a path without links is, or lies in.
    pub(crate) fn holding(&self, path: &Path) -> Option<&Path> {
        let spot = self.spot(path);
        let holds = |place: &&PathBuf| {
            let same = || Some(beneath(spot.as_ref()?, &self.spot(place)?).is_some());
            path.starts_with(place) || same().unwrap_or(false)
        };
        self.hidden.iter().find(holds).map(PathBuf::as_path)
    }

    /// What of the hidden places lies beneath a directory, not counting what is mounted there: by the path relative to
    /// it, with the place that is meant.
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
        // Of two at one place the later one is seen.
        let mount = above.max_by_key(|mount| mount.mount_point.components().count())?;
        let part = path.strip_prefix(&mount.mount_point).ok()?;
        Some((mount.device, mount.root.join(part).components().collect()))
    }
}

/// The path of something opened, without links: that of the thing itself, whatever has its first name by now.
pub(crate) fn path_of(opened: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()))
}

/// Whether a path without links is, or lies in, procfs. What is mounted there in turn counts too: it has no place without it.
pub(crate) fn shows_processes(table: &MountTable, path: &Path) -> bool {
    let mut procfs = table.mounts().iter().filter(|mount| mount.fs_type == "proc");
    procfs.any(|mount| path.starts_with(&mount.mount_point))
}

/// The way from `above` to `spot`, if that is there or beneath.
fn beneath(spot: &Spot, above: &Spot) -> Option<PathBuf> {
    if spot.0 != above.0 {
        return None;
    }
    spot.1.strip_prefix(&above.1).ok().map(Path::to_owned)
}

/// The number of the mount that an open file is on.
fn mount_of(facts: &str) -> Option<u64> {
    facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The data directory on the root's disk; a disk of its own; a part of the root's disk bound elsewhere.
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
    fn what_lies_in_a_hidden_place() {
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
    fn what_shows_processes() {
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
    fn what_is_hidden_beneath_a_directory() {
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

    /// On real files: links are followed before anything is compared, also where the end is missing.
    #[test]
    fn a_path_counts_as_it_is_opened() {
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
            let answer = host.admit_path(&dir.join(path));
            assert_eq!(matches!(answer, Err(Refusal::Hidden { .. })), hidden, "{path}: {answer:?}");
            assert_eq!(answer.is_ok(), !hidden, "{path}: {answer:?}");
        }
        assert!(host.admit_path(&dir.join("free/dangling")).is_err());
        for path in ["/proc", "/proc/self", "/proc/self/fd", "/proc/self/root/proc/1", "/proc/not-yet"] {
            let answer = host.admit_path(Path::new(path));
            assert!(matches!(answer, Err(Refusal::Processes { .. })), "{path}: {answer:?}");
        }
        assert_eq!(host.admit_path(Path::new("/proc/self/root/etc")).unwrap(), Path::new("/etc"));
        assert_eq!(mount_of("pos:\t0\nflags:\t010000000\nmnt_id:\t29\nino:\t2\n"), Some(29));
    }
}
