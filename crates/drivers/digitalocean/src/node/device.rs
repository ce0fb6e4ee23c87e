//! Whether what is found under a volume's by-id link is a device that can be used: what was seen, and the verdict.
//!
//! The existing driver takes a device that is missing for one that is not formatted (B6), and the check that
//! should keep it from formatting a half attached one never works (B2). Here only a device that is there, that
//! the kernel says is running, that has a size and that can be read is a device; anything else is waited for.
//!
//! A link alone is no proof of whose device it leads to: it may be left from before, while the kernel has given the
//! device's name to another volume, or be that of a partition. So the disk is asked for the name that it has itself.

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
    /// It leads to a device, but not to this volume's: why.
    Another(String),
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
        // The link may be put right when the volume's own device comes.
        Seen::Unknown(why) | Seen::Another(why) => return Verdict::NotYet(why.clone()),
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
        match self.another(&path, name) {
            Ok(None) => {}
            Ok(Some(why)) => return Seen::Another(why),
            Err(error) => return Seen::Unknown(format!("whose {} is: {error}", path.display())),
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

    /// Why a device is not the whole disk of the volume of this name; `None` if nothing speaks against it. A disk
    /// that says nothing of itself (a loop device) is believed to be what its link says.
    fn another(&self, device: &Path, name: &str) -> io::Result<Option<String>> {
        if self.told(device, "partition")?.is_some() {
            return Ok(Some(format!("{} is a partition, and a volume is a whole disk", device.display())));
        }
        let mut says = Vec::new();
        for (file, read) in [("vpd_pg80", serial as fn(&[u8]) -> Vec<Vec<u8>>), ("vpd_pg83", designators)] {
            match fs::read(self.of(device, "device").join(file)) {
                Ok(page) => says.extend(read(&page)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if says.is_empty() || says.iter().any(|text| is_named(text, name)) {
            return Ok(None);
        }
        let says: Vec<_> = says.iter().map(|text| String::from_utf8_lossy(text)).collect();
        Ok(Some(format!("{} is another disk: it says that it is {says:?}", device.display())))
    }

    /// Which of the volumes' links leads to this device, by the volume's name.
    pub(super) fn name_of(&self, device: &Path) -> io::Result<Option<String>> {
        let device = device.canonicalize()?;
        for entry in fs::read_dir(&self.links)? {
            let entry = entry?;
            let leads_there = || entry.path().canonicalize().is_ok_and(|path| path == device);
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_prefix(LINK_PREFIX))
                && leads_there()
                && self.another(&device, name)?.is_none()
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

/// What is before the text of both pages.
const PAGE_HEADER: usize = 4;

/// The serial number of page 80, if it has one.
fn serial(page: &[u8]) -> Vec<Vec<u8>> {
    page.get(PAGE_HEADER..).map(plain).into_iter().filter(|text| !text.is_empty()).collect()
}

/// The names of page 83: each behind four bytes, of which the last is its length.
fn designators(page: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = page.get(PAGE_HEADER..).unwrap_or_default();
    let mut found = Vec::new();
    while let [_, _, _, length, text @ ..] = rest {
        let (text, after) = text.split_at(text.len().min(usize::from(*length)));
        found.extend(Some(plain(text)).filter(|text| !text.is_empty()));
        rest = after;
    }
    found
}

/// Without what texts of a fixed length are filled up with.
fn plain(text: &[u8]) -> Vec<u8> {
    let end = text.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    text[..end].to_vec()
}

/// Whether a disk's text ends in this name, and not in one of which it is only the end.
fn is_named(text: &[u8], name: &str) -> bool {
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    text.strip_suffix(name.as_bytes()).is_some_and(|before| !before.last().is_some_and(goes_on))
}

#[cfg(test)]
mod tests {
    use wharf_linux::Mounts as _;

    use super::*;

    /// A page as the kernel has it: four bytes, then what is in it.
    fn page(number: u8, content: &[u8]) -> Vec<u8> {
        [&[0, number, 0, content.len() as u8], content].concat()
    }

    /// The entries of page 83, of kind and text.
    fn names(entries: &[(u8, &[u8])]) -> Vec<u8> {
        let entry = |(kind, text): &(u8, &[u8])| [&[2, *kind, 0, text.len() as u8], *text].concat();
        page(0x83, &entries.iter().flat_map(entry).collect::<Vec<_>>())
    }

    /// A link that was left, or that is a partition's, does not make a device the volume's.
    #[test]
    fn a_device_is_whose_it_says_it_is() {
        const NAME: &str = "pvc-0213d7f4-bf2c-4bf5-a9a4-7c2c8d7c9f11";
        type Files<'a> = &'a [(&'a str, Vec<u8>)];
        let named = |name: &str| names(&[(0, name.as_bytes())]);
        let short = page(0x80, &NAME.as_bytes()[..36]);
        let with_port = [named(NAME), vec![0x61, 0x93, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
        // what sysfs has of the device, whether it may be the volume's
        let table: [(Files<'_>, bool); 13] = [
            (&[], true),
            (&[("partition", b"1\n".to_vec())], false),
            (&[("partition", b"1\n".to_vec()), ("device/vpd_pg83", named(NAME))], false),
            (&[("device/vpd_pg83", named(NAME))], true),
            (&[("device/vpd_pg83", with_port)], true),
            (&[("device/vpd_pg83", named(&format!("DO      Volume          {NAME}  ")))], true),
            (&[("device/vpd_pg80", page(0x80, NAME.as_bytes()))], true),
            // QEMU cuts the serial number, but not the name.
            (&[("device/vpd_pg80", short.clone()), ("device/vpd_pg83", named(NAME))], true),
            (&[("device/vpd_pg80", short)], false),
            (&[("device/vpd_pg80", page(0x80, b"   ")), ("device/vpd_pg83", named(NAME))], true),
            (&[("device/vpd_pg83", named("pvc-another"))], false),
            (&[("device/vpd_pg83", named(&format!("{NAME}2")))], false),
            (&[("device/vpd_pg83", named(&format!("x-{NAME}")))], false),
        ];
        let devices: Vec<PathBuf> =
            fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path()).collect();
        let kernel = wharf_linux::Linux::new();
        let is_device = |path: &&PathBuf| matches!(kernel.path_kind(path), Ok(Some(PathKind::BlockDevice)));
        let device = devices.iter().find(is_device).expect("a machine has a block device");
        for (files, expected) in table {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            let places =
                Places { links: root.join("links"), devices: "/dev".into(), sysfs: root.join("sys") };
            fs::create_dir_all(&places.links).unwrap();
            std::os::unix::fs::symlink(device, places.link_of(NAME)).unwrap();
            for (file, content) in files {
                let file = places.of(device, file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, content).unwrap();
            }
            let seen = places.look(&kernel, NAME);
            assert_eq!(matches!(seen, Seen::Device(_)), expected, "{files:?} {seen:?}");
            assert_eq!(matches!(seen, Seen::Another(_)), !expected, "{files:?} {seen:?}");
            assert!(expected || matches!(judge(&seen, 0), Verdict::NotYet(_)), "it may come yet");
            assert_eq!(places.name_of(device).unwrap().is_some(), expected, "{files:?}");
        }
    }

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
