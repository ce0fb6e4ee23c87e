//! Decides whether the target of a volume's by-id link is a usable device.
//!
//! The existing driver (csi-digitalocean) mistakes a missing device for an unformatted one, and its check against
//! formatting a half-attached device never works. Here a device is usable only if it exists, the kernel reports it
//! as running, it has a size and it can be read. Otherwise the driver waits.
//!
//! A link alone does not prove which volume a device is: it can be stale while the kernel reused the device name for
//! another volume, or it can point to a partition. So the driver compares the volume's name with the identifiers that
//! the disk itself reports.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wharf_linux::{Kernel, PathKind};

use crate::names::LINK_PREFIX;
use crate::size::GIB;

/// Paths of links, devices and sysfs on this machine.
#[derive(Debug, Clone)]
pub(super) struct DevicePaths {
    /// The directory of udev's links: `/dev/disk/by-id`.
    pub(super) links: PathBuf,
    /// The directory of device nodes: the target of a link must be in it.
    pub(super) devices: PathBuf,
    /// The kernel's device attributes: `/sys`.
    pub(super) sysfs: PathBuf,
}

/// Bytes read to check whether a device can be read.
const SAMPLE: usize = 4096;

/// The target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Observed {
    /// No link, or a dangling link.
    Missing,
    /// It could not be inspected.
    Unknown(String),
    /// The link points to something that is not a block device of this machine.
    NotADevice(PathBuf),
    /// The link points to a device that does not belong to this volume; the reason.
    WrongDevice(String),
    /// A device node.
    Device(DeviceInfo),
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    /// Its device node.
    pub(super) path: PathBuf,
    /// The disk's state in sysfs, if it has one.
    pub(super) state: Option<String>,
    /// Its size in bytes.
    pub(super) size: Result<u64, String>,
    /// Whether its beginning can be read.
    pub(super) read: Result<(), String>,
    /// Whether it refuses writes.
    pub(super) read_only: bool,
}

/// Whether a device can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Assessment {
    /// It can be used; its size in bytes.
    Usable(u64),
    /// Not usable yet; it may become usable.
    NotReady(String),
    /// Smaller than the volume. The kernel may not have noticed an expansion yet.
    TooSmall(String),
    /// Not the device of a volume; waiting does not help.
    Invalid(String),
}

/// Assesses a device: only a fully attached one is usable.
pub(super) fn assess(seen: &Observed, at_least: u64) -> Assessment {
    let info = match seen {
        Observed::Missing => return Assessment::NotReady("there is no such device yet".into()),
        // udev may correct the link when the volume's own device appears.
        Observed::Unknown(reason) | Observed::WrongDevice(reason) => {
            return Assessment::NotReady(reason.clone());
        }
        Observed::NotADevice(path) => {
            return Assessment::Invalid(format!(
                "it leads to {}, which is not a block device",
                path.display()
            ));
        }
        Observed::Device(info) => info,
    };
    let device = info.path.display();
    if let Some(state) = info.state.as_deref().map(str::trim).filter(|state| *state != "running") {
        return Assessment::NotReady(format!("{device} is half attached: its kernel state is {state:?}"));
    }
    match (&info.size, &info.read) {
        (Err(reason), _) | (_, Err(reason)) => {
            Assessment::NotReady(format!("{device} cannot be read: {reason}"))
        }
        // The smallest volume has 1 GiB. `at_least` is 0 for attachments of the existing driver, which do not contain
        // the size.
        (Ok(size), _) if *size < GIB => {
            Assessment::NotReady(format!("{device} has {size} bytes, but a volume has at least 1 GiB"))
        }
        (Ok(size), _) if *size < at_least => {
            Assessment::TooSmall(format!("{device} has {size} bytes, but the volume has {at_least}"))
        }
        (Ok(size), _) => Assessment::Usable(*size),
    }
}

impl DevicePaths {
    /// The link of a volume, by its name.
    pub(super) fn link_of(&self, name: &str) -> PathBuf {
        self.links.join(format!("{LINK_PREFIX}{name}"))
    }

    /// Follows a volume's link and inspects its target. Reads only.
    pub(super) fn inspect(&self, kernel: &dyn Kernel, name: &str) -> Observed {
        let path = match self.link_of(name).canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Observed::Missing,
            Err(error) => return Observed::Unknown(error.to_string()),
        };
        match kernel.path_kind(&path) {
            Ok(Some(PathKind::BlockDevice)) if path.starts_with(&self.devices) => {}
            Ok(None) => return Observed::Missing,
            Ok(Some(_)) => return Observed::NotADevice(path),
            Err(error) => return Observed::Unknown(error.to_string()),
        }
        match self.mismatch(&path, name) {
            Ok(None) => {}
            Ok(Some(reason)) => return Observed::WrongDevice(reason),
            Err(error) => return Observed::Unknown(format!("identifying {}: {error}", path.display())),
        }
        let state = match self.read_attribute(&path, "device/state") {
            Ok(state) => state,
            Err(error) => {
                return Observed::Unknown(format!("reading the state of {}: {error}", path.display()));
            }
        };
        let read = kernel.read_device(&path, 0, &mut [0; SAMPLE]);
        Observed::Device(DeviceInfo {
            state,
            size: kernel.device_size(&path).map_err(|error| error.to_string()),
            read: read.map_err(|error| error.to_string()),
            read_only: matches!(self.read_attribute(&path, "ro"), Ok(Some(ro)) if ro.trim() == "1"),
            path,
        })
    }

    /// Returns why a device cannot be the disk of the volume with this name, or `None` if it can be. If the disk
    /// reports no identifiers (a loop device), the link is trusted.
    fn mismatch(&self, device: &Path, name: &str) -> io::Result<Option<String>> {
        if self.read_attribute(device, "partition")?.is_some() {
            return Ok(Some(format!("{} is a partition, but a volume is a whole disk", device.display())));
        }
        let mut reported = Vec::new();
        for (file, read) in [("vpd_pg80", serial as fn(&[u8]) -> Vec<Vec<u8>>), ("vpd_pg83", designators)] {
            match fs::read(self.sysfs_path(device, "device").join(file)) {
                Ok(page) => reported.extend(read(&page)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if reported.is_empty() || reported.iter().any(|text| is_named(text, name)) {
            return Ok(None);
        }
        let reported: Vec<_> = reported.iter().map(|text| String::from_utf8_lossy(text)).collect();
        Ok(Some(format!("{} is another disk: it reports {reported:?}", device.display())))
    }

    /// The name of the volume whose link points to this device.
    pub(super) fn volume_name_of(&self, device: &Path) -> io::Result<Option<String>> {
        let device = device.canonicalize()?;
        for entry in fs::read_dir(&self.links)? {
            let entry = entry?;
            let points_to_device = || entry.path().canonicalize().is_ok_and(|path| path == device);
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_prefix(LINK_PREFIX))
                && points_to_device()
                && self.mismatch(&device, name)?.is_none()
            {
                return Ok(Some(name.to_owned()));
            }
        }
        Ok(None)
    }

    /// The disk's sequence number, unique since boot; `None` before kernel 5.15.
    pub(super) fn sequence_of(&self, device: &Path) -> Option<u64> {
        self.read_attribute(device, "diskseq").ok()??.trim().parse().ok()
    }

    /// Makes the kernel reread the disk's size. Not needed where the attribute does not exist (a loop device).
    pub(super) fn rescan(&self, device: &Path) {
        let file = self.sysfs_path(device, "device/rescan");
        if let Err(error) = fs::OpenOptions::new().write(true).open(&file).and_then(|mut file| {
            use io::Write as _;
            file.write_all(b"1")
        }) && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %file.display(), %error, "failed to rescan disk");
        }
    }

    fn read_attribute(&self, device: &Path, what: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.sysfs_path(device, what)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn sysfs_path(&self, device: &Path, what: &str) -> PathBuf {
        let name = device.file_name().unwrap_or_default();
        self.sysfs.join("class/block").join(name).join(what)
    }
}

/// Header length of both VPD pages.
const PAGE_HEADER: usize = 4;

/// The serial number of page 80, if it has one.
fn serial(page: &[u8]) -> Vec<Vec<u8>> {
    page.get(PAGE_HEADER..).map(plain).into_iter().filter(|text| !text.is_empty()).collect()
}

/// The designators of page 83. Each follows a four-byte header whose last byte is the designator's length.
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

/// Strips the trailing spaces and NULs of a fixed-length text.
fn plain(text: &[u8]) -> Vec<u8> {
    let end = text.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    text[..end].to_vec()
}

/// Whether a disk's identifier ends with this volume name, and not with a longer name that has it as a suffix.
fn is_named(text: &[u8], name: &str) -> bool {
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    text.strip_suffix(name.as_bytes()).is_some_and(|before| !before.last().is_some_and(goes_on))
}

#[cfg(test)]
mod tests {
    use wharf_linux::Mounts as _;

    use super::*;

    /// A VPD page as sysfs returns it: a four-byte header, then the content.
    fn page(number: u8, content: &[u8]) -> Vec<u8> {
        [&[0, number, 0, content.len() as u8], content].concat()
    }

    /// Page 83 with these designators, each with its type and text.
    fn names(entries: &[(u8, &[u8])]) -> Vec<u8> {
        let entry = |(kind, text): &(u8, &[u8])| [&[2, *kind, 0, text.len() as u8], *text].concat();
        page(0x83, &entries.iter().flat_map(entry).collect::<Vec<_>>())
    }

    /// A stale link, or a link to a partition, does not prove that the device belongs to the volume.
    #[test]
    fn device_must_report_the_name_of_the_volume() {
        const NAME: &str = "pvc-0213d7f4-bf2c-4bf5-a9a4-7c2c8d7c9f11";
        type Files<'a> = &'a [(&'a str, Vec<u8>)];
        let named = |name: &str| names(&[(0, name.as_bytes())]);
        let short = page(0x80, &NAME.as_bytes()[..36]);
        let with_port = [named(NAME), vec![0x61, 0x93, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
        // (files of the device in sysfs, whether it can be the volume's device)
        let table: [(Files<'_>, bool); 13] = [
            (&[], true),
            (&[("partition", b"1\n".to_vec())], false),
            (&[("partition", b"1\n".to_vec()), ("device/vpd_pg83", named(NAME))], false),
            (&[("device/vpd_pg83", named(NAME))], true),
            (&[("device/vpd_pg83", with_port)], true),
            (&[("device/vpd_pg83", named(&format!("DO      Volume          {NAME}  ")))], true),
            (&[("device/vpd_pg80", page(0x80, NAME.as_bytes()))], true),
            // QEMU truncates the serial number, but not the designator.
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
            let paths =
                DevicePaths { links: root.join("links"), devices: "/dev".into(), sysfs: root.join("sys") };
            fs::create_dir_all(&paths.links).unwrap();
            std::os::unix::fs::symlink(device, paths.link_of(NAME)).unwrap();
            for (file, content) in files {
                let file = paths.sysfs_path(device, file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, content).unwrap();
            }
            let seen = paths.inspect(&kernel, NAME);
            assert_eq!(matches!(seen, Observed::Device(_)), expected, "{files:?} {seen:?}");
            assert_eq!(matches!(seen, Observed::WrongDevice(_)), !expected, "{files:?} {seen:?}");
            assert!(
                expected || matches!(assess(&seen, 0), Assessment::NotReady(_)),
                "the right device may still appear"
            );
            assert_eq!(paths.volume_name_of(device).unwrap().is_some(), expected, "{files:?}");
        }
    }

    #[test]
    fn only_a_fully_attached_device_is_usable() {
        let whole = DeviceInfo {
            path: "/dev/sda".into(),
            state: Some("running\n".into()),
            size: Ok(10 * GIB),
            read: Ok(()),
            read_only: false,
        };
        let with = |change: &dyn Fn(&mut DeviceInfo)| {
            let mut info = whole.clone();
            change(&mut info);
            Observed::Device(info)
        };
        let word = |seen: &Observed, at_least| match assess(seen, at_least) {
            Assessment::Usable(size) => format!("usable {}", size / GIB),
            Assessment::NotReady(_) => "not yet".into(),
            Assessment::TooSmall(_) => "too small".into(),
            Assessment::Invalid(_) => "never".into(),
        };
        for (seen, at_least, expected) in [
            (with(&|_| ()), 0, "usable 10"),
            (with(&|_| ()), 10 * GIB, "usable 10"),
            // An attachment from before an expansion.
            (with(&|_| ()), 7 * GIB, "usable 10"),
            (with(&|_| ()), 11 * GIB, "too small"),
            // The kernel has no state for loop devices and other buses.
            (with(&|info| info.state = None), 0, "usable 10"),
            (with(&|info| info.state = Some("offline\n".into())), 0, "not yet"),
            (with(&|info| info.state = Some(String::new())), 0, "not yet"),
            (with(&|info| info.size = Ok(0)), 0, "not yet"),
            (with(&|info| info.size = Ok(GIB - 1)), 0, "not yet"),
            (with(&|info| info.size = Ok(GIB)), 0, "usable 1"),
            (with(&|info| info.size = Err("no medium".into())), 0, "not yet"),
            (with(&|info| info.read = Err("I/O error".into())), 0, "not yet"),
            (Observed::Missing, 0, "not yet"),
            (Observed::Unknown("reason".into()), 0, "not yet"),
            (Observed::NotADevice("/etc/passwd".into()), 0, "never"),
        ] {
            assert_eq!(word(&seen, at_least), expected, "{seen:?} {at_least}");
        }
    }

    #[test]
    fn links_are_followed_only_to_block_devices() {
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().canonicalize().unwrap();
        let paths =
            DevicePaths { links: links.clone(), devices: "/dev".into(), sysfs: dir.path().join("no-sysfs") };
        let kernel = wharf_linux::Linux::new();
        let link = |name: &str, to: &Path| {
            std::os::unix::fs::symlink(to, links.join(format!("{LINK_PREFIX}{name}"))).unwrap();
        };
        link("dangling", &links.join("nothing"));
        link("character", Path::new("/dev/null"));
        link("file", Path::new("/proc/version"));
        assert_eq!(paths.inspect(&kernel, "none"), Observed::Missing);
        assert_eq!(paths.inspect(&kernel, "dangling"), Observed::Missing);
        assert_eq!(paths.inspect(&kernel, "character"), Observed::NotADevice("/dev/null".into()));
        assert_eq!(paths.inspect(&kernel, "file"), Observed::NotADevice("/proc/version".into()));
        assert_eq!(paths.volume_name_of(Path::new("/dev/null")).unwrap().as_deref(), Some("character"));
        assert_eq!(paths.volume_name_of(Path::new("/dev/zero")).unwrap(), None);
    }
}
