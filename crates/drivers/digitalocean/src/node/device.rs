//! Whether what is found under a volume's by-id link is a device that can be used: what was seen, and the verdict.
//!
//! The existing driver takes a device that is missing for one that is not formatted (B6), and the check that
//! should keep it from formatting a half attached one never works (B2). Here only a device that is there, that
//! the kernel says is running, that has a size and that can be read is a device; anything else is waited for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wharf_linux::{Kernel, PathKind};

use crate::names::LINK_PREFIX;
use crate::size::GIB;

/// Where things are on this machine.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Where udev puts its links: `/dev/disk/by-id`.
    pub(super) links: PathBuf,
    /// Where devices are: no link leads anywhere else.
    pub(super) devices: PathBuf,
    /// Where the kernel tells of them: `/sys`.
    pub(super) sysfs: PathBuf,
}

/// How much is read to see whether a device can be read.
const SAMPLE: usize = 4096;

/// What was seen under a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// No link, or one that leads nowhere.
    Missing,
    /// It could not be looked at.
    Unknown(String),
    /// It leads to something that is not a device of this machine.
    Astray(PathBuf),
    /// A device node.
    Device(Look),
}

/// What was seen of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Look {
    /// Its node.
    pub(super) path: PathBuf,
    /// What the kernel says of the disk behind it, where it says anything.
    pub(super) state: Option<String>,
    /// Its size in bytes.
    pub(super) size: Result<u64, String>,
    /// Whether its beginning can be read.
    pub(super) read: Result<(), String>,
    /// It takes no writes.
    pub(super) read_only: bool,
}

/// What is to be thought of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can be used, and has so many bytes.
    Usable(u64),
    /// Not now; it may come.
    NotYet(String),
    /// A device, but smaller than the volume. The kernel may not have been told of an expansion.
    TooSmall(String),
    /// Not a volume's device, and it will not become one.
    Never(String),
}

/// The rules. Nothing but a whole device is one.
pub(super) fn judge(seen: &Seen, at_least: u64) -> Verdict {
    let look = match seen {
        Seen::Missing => return Verdict::NotYet("there is no such device yet".into()),
        Seen::Unknown(why) => return Verdict::NotYet(why.clone()),
        Seen::Astray(path) => {
            return Verdict::Never(format!("it leads to {}, which is no block device", path.display()));
        }
        Seen::Device(look) => look,
    };
    let device = look.path.display();
    if let Some(state) = look.state.as_deref().map(str::trim).filter(|state| *state != "running") {
        return Verdict::NotYet(format!("{device} is half attached: the kernel says {state:?}"));
    }
    match (&look.size, &look.read) {
        (Err(why), _) | (_, Err(why)) => Verdict::NotYet(format!("{device} cannot be read: {why}")),
        // There is no smaller volume; and attachments of the existing driver do not say how large theirs is.
        (Ok(size), _) if *size < GIB => {
            Verdict::NotYet(format!("{device} has {size} bytes, and no volume has less than a GiB"))
        }
        (Ok(size), _) if *size < at_least => {
            Verdict::TooSmall(format!("{device} has {size} bytes, and the volume has {at_least}"))
        }
        (Ok(size), _) => Verdict::Usable(*size),
    }
}

impl Places {
    /// The link of a volume, by its name.
    pub(super) fn link_of(&self, name: &str) -> PathBuf {
        self.links.join(format!("{LINK_PREFIX}{name}"))
    }

    /// Follows a volume's link and looks at what is there. Reads only.
    pub(super) fn look(&self, kernel: &dyn Kernel, name: &str) -> Seen {
        let path = match self.link_of(name).canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Seen::Missing,
            Err(error) => return Seen::Unknown(error.to_string()),
        };
        match kernel.path_kind(&path) {
            Ok(Some(PathKind::BlockDevice)) if path.starts_with(&self.devices) => {}
            Ok(None) => return Seen::Missing,
            Ok(Some(_)) => return Seen::Astray(path),
            Err(error) => return Seen::Unknown(error.to_string()),
        }
        let state = match self.told(&path, "device/state") {
            Ok(state) => state,
            Err(error) => return Seen::Unknown(format!("the state of {}: {error}", path.display())),
        };
        let read = kernel.read_device(&path, 0, &mut [0; SAMPLE]);
        Seen::Device(Look {
            state,
            size: kernel.device_size(&path).map_err(|error| error.to_string()),
            read: read.map_err(|error| error.to_string()),
            read_only: matches!(self.told(&path, "ro"), Ok(Some(ro)) if ro.trim() == "1"),
            path,
        })
    }

    /// Which of the volumes' links leads to this device, by the volume's name.
    pub(super) fn name_of(&self, device: &Path) -> io::Result<Option<String>> {
        let device = device.canonicalize()?;
        for entry in fs::read_dir(&self.links)? {
            let entry = entry?;
            let leads_there = || entry.path().canonicalize().is_ok_and(|path| path == device);
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_prefix(LINK_PREFIX))
                && leads_there()
            {
                return Ok(Some(name.to_owned()));
            }
        }
        Ok(None)
    }

    /// A number that no other disk has had since the machine was started, where the kernel tells it (5.15).
    pub(super) fn sequence_of(&self, device: &Path) -> Option<u64> {
        self.told(device, "diskseq").ok()??.trim().parse().ok()
    }

    /// Makes the kernel ask the disk for its size. Where there is nothing to write to (a loop device) there is no
    /// need.
    pub(super) fn rescan(&self, device: &Path) {
        let file = self.of(device, "device/rescan");
        if let Err(error) = fs::OpenOptions::new().write(true).open(&file).and_then(|mut file| {
            use io::Write as _;
            file.write_all(b"1")
        }) && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), %error, "the kernel cannot be made to look at the disk again");
        }
    }

    fn told(&self, device: &Path, what: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.of(device, what)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(&self, device: &Path, what: &str) -> PathBuf {
        let name = device.file_name().unwrap_or_default();
        self.sysfs.join("class/block").join(name).join(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_device_is_one() {
        let whole = Look {
            path: "/dev/sda".into(),
            state: Some("running\n".into()),
            size: Ok(10 * GIB),
            read: Ok(()),
            read_only: false,
        };
        let with = |change: &dyn Fn(&mut Look)| {
            let mut look = whole.clone();
            change(&mut look);
            Seen::Device(look)
        };
        let word = |seen: &Seen, at_least| match judge(seen, at_least) {
            Verdict::Usable(size) => format!("usable {}", size / GIB),
            Verdict::NotYet(_) => "not yet".into(),
            Verdict::TooSmall(_) => "too small".into(),
            Verdict::Never(_) => "never".into(),
        };
        for (seen, at_least, expected) in [
            (with(&|_| ()), 0, "usable 10"),
            (with(&|_| ()), 10 * GIB, "usable 10"),
            // An attachment from before an expansion.
            (with(&|_| ()), 7 * GIB, "usable 10"),
            (with(&|_| ()), 11 * GIB, "too small"),
            // Where the kernel says nothing of a state: loop devices, other buses.
            (with(&|look| look.state = None), 0, "usable 10"),
            (with(&|look| look.state = Some("offline\n".into())), 0, "not yet"),
            (with(&|look| look.state = Some(String::new())), 0, "not yet"),
            (with(&|look| look.size = Ok(0)), 0, "not yet"),
            (with(&|look| look.size = Ok(GIB - 1)), 0, "not yet"),
            (with(&|look| look.size = Ok(GIB)), 0, "usable 1"),
            (with(&|look| look.size = Err("no medium".into())), 0, "not yet"),
            (with(&|look| look.read = Err("I/O error".into())), 0, "not yet"),
            (Seen::Missing, 0, "not yet"),
            (Seen::Unknown("why".into()), 0, "not yet"),
            (Seen::Astray("/etc/passwd".into()), 0, "never"),
        ] {
            assert_eq!(word(&seen, at_least), expected, "{seen:?} {at_least}");
        }
    }

    #[test]
    fn links_are_followed_to_devices_alone() {
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().canonicalize().unwrap();
        let places =
            Places { links: links.clone(), devices: "/dev".into(), sysfs: dir.path().join("no-sysfs") };
        let kernel = wharf_linux::Linux::new();
        let link = |name: &str, to: &Path| {
            std::os::unix::fs::symlink(to, links.join(format!("{LINK_PREFIX}{name}"))).unwrap();
        };
        link("dangling", &links.join("nothing"));
        link("character", Path::new("/dev/null"));
        link("file", Path::new("/proc/version"));
        assert_eq!(places.look(&kernel, "none"), Seen::Missing);
        assert_eq!(places.look(&kernel, "dangling"), Seen::Missing);
        assert_eq!(places.look(&kernel, "character"), Seen::Astray("/dev/null".into()));
        assert_eq!(places.look(&kernel, "file"), Seen::Astray("/proc/version".into()));
        assert_eq!(places.name_of(Path::new("/dev/null")).unwrap().as_deref(), Some("character"));
        assert_eq!(places.name_of(Path::new("/dev/zero")).unwrap(), None);
    }
}
