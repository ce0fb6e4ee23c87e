//! Loop devices: attached in one step, identified by their backing file, held open by a second device if processes may
//! reconfigure them, and detached before `detach` returns.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};

use super::files;
use crate::{Error, FileId, LoopDevice, LoopOptions, PathBeneath, Result, UnreadableLoop, sys};

const CONTROL: &str = "/dev/loop-control";
const SYS_BLOCK: &str = "/sys/block";

const SECTOR_SIZE: u64 = LoopDevice::SECTOR_SIZE as u64;

/// How often to replace a device whose discards an earlier user has disabled.
const REPLACEMENTS: u32 = 3;

/// The longest label: `lo_file_name` is 64 bytes with its NUL.
const MAX_LABEL: usize = 63;

/// How often to lose the race for a free device before giving up.
const ATTEMPTS: u32 = 200;

/// How long a device may stay in use after its unmount: a starting container briefly holds a copy of all mounts.
const UNMOUNT_GRACE: Duration = Duration::from_secs(2);

/// How long a detached device may take to release its image.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn attach(image: &PathBeneath<'_>, options: &LoopOptions) -> Result<LoopDevice> {
    let direct = sys::LO_FLAGS_DIRECT_IO;
    let info =
        info_of(options, direct).map_err(|reason| Error::InvalidState { path: image.display(), reason })?;
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let file = files::open_regular(image, access)?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::call("fstat", &image.display(), errno))?;
    let size = stat.st_size.unsigned_abs();
    if size == 0 || !size.is_multiple_of(SECTOR_SIZE) {
        let reason =
            format!("has {size} bytes, but the size of a device must be a multiple of {SECTOR_SIZE}");
        return Err(Error::InvalidState { path: image.display(), reason });
    }
    let (path, device) = configure(&file, info)?;
    let attached = describe(&path, &device).and_then(|found| {
        let seen = sys::block_size64(&device).map_err(|error| Error::call("BLKGETSIZE64", &path, error))?;
        if seen == size {
            return Ok(found);
        }
        let reason = format!("has {seen} bytes, but its image has {size}");
        Err(Error::InvalidState { path: path.clone(), reason })
    });
    if attached.is_err() {
        // Just configured and not in use yet: detach it, or it leaks.
        let _ = sys::loop_clear(&device);
    }
    attached
}

/// Finds a free device and configures it. If another process takes the device first, tries the next one.
fn configure(image: &File, info: sys::LoopInfo) -> Result<(PathBuf, File)> {
    let control = Path::new(CONTROL);
    let control_file = open(control, true)?;
    let mut replaced = 0;
    for _ in 0..ATTEMPTS {
        let number = sys::loop_free_number(&control_file)
            .map_err(|error| Error::call("LOOP_CTL_GET_FREE", control, error))?;
        let path = match ensure_node(number) {
            // Another process has removed it.
            Err(error) if error.errno() == Some(libc::ENOENT) => continue,
            result => result?,
        };
        let device = match open(&path, true) {
            Ok(device) => device,
            // Another process created it and has removed it again.
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV | libc::ENOENT)) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut configured = sys::loop_configure(&device, image, SECTOR_SIZE as u32, info);
        // Where the file system does not support direct I/O, some kernels fail and others ignore the flag.
        if matches!(&configured, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            let buffered = sys::LoopInfo { flags: info.flags & !sys::LO_FLAGS_DIRECT_IO, ..info };
            configured = sys::loop_configure(&device, image, SECTOR_SIZE as u32, buffered);
        }
        match configured {
            // Its last user crashed, or could not remove it.
            Ok(()) if replaced < REPLACEMENTS && is_discard_disabled(number) => {
                replaced += 1;
                sys::loop_clear(&device).map_err(|error| Error::call("LOOP_CLR_FD", &path, error))?;
                drop(device);
                remove(number);
            }
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Error::call("LOOP_CONFIGURE", &path, error)),
        }
    }
    let reason = format!("other processes took {ATTEMPTS} free loop devices first; try again");
    Err(Error::InvalidState { path: control.to_owned(), reason })
}

fn info_of(options: &LoopOptions, flags: u32) -> Result<sys::LoopInfo, String> {
    let label = options.label.as_bytes();
    if label.len() > MAX_LABEL || label.contains(&0) {
        return Err(format!("cannot have a loop label of more than {MAX_LABEL} bytes or with a NUL"));
    }
    let mut info = sys::LoopInfo::ZERO;
    info.file_name[..label.len()].copy_from_slice(label);
    info.flags = flags | if options.read_only { sys::LO_FLAGS_READ_ONLY } else { 0 };
    Ok(info)
}

pub(super) fn list() -> Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    let sys_block = Path::new(SYS_BLOCK);
    let entries = std::fs::read_dir(sys_block).map_err(|error| Error::call("readdir", sys_block, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::call("readdir", sys_block, error))?;
        let Some(number) = entry.file_name().to_str().and_then(number_of) else { continue };
        if !has_backing(number) {
            continue;
        }
        // The device may have been detached or removed since the check: skip it.
        let described = ensure_node(number).and_then(|path| describe(&path, &open(&path, false)?));
        match described {
            Ok(device) => found.push((number, device)),
            // Detached or removed since the check.
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV | libc::ENOENT)) => {}
            Err(_) if !has_backing(number) => {}
            Err(error) => found.push((number, unreadable(number, &error))),
        }
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, device)| device).collect())
}

/// A device of which only the path of its backing file is known.
fn unreadable(number: u32, error: &Error) -> LoopDevice {
    let file = Path::new(SYS_BLOCK).join(format!("loop{number}/loop/backing_file"));
    let backing_path = std::fs::read_to_string(file).unwrap_or_default().trim_end().into();
    LoopDevice {
        path: PathBuf::from(format!("/dev/loop{number}")),
        number: (0, 0),
        backing: FileId::UNKNOWN,
        backing_device: None,
        label: String::new(),
        read_only: false,
        direct_io: false,
        autoclear: false,
        offset: 0,
        size_limit: 0,
        sector_size: 0,
        unreadable: Some(UnreadableLoop { backing_path, reason: error.to_string() }),
    }
}

fn describe(path: &Path, device: &File) -> Result<LoopDevice> {
    let info = sys::loop_status(device).map_err(|error| Error::call("LOOP_GET_STATUS64", path, error))?;
    let stat = rustix::fs::fstat(device).map_err(|errno| Error::call("fstat", path, errno))?;
    let sector_size =
        rustix::fs::ioctl_blksszget(device).map_err(|errno| Error::call("BLKSSZGET", path, errno))?;
    let number = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    let label = info.file_name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(LoopDevice {
        path: path.to_owned(),
        number: number(stat.st_rdev),
        // The kernel encodes the device numbers as it does for stat.
        backing: FileId { device: info.device, inode: info.inode },
        backing_device: (info.rdevice != 0).then(|| number(info.rdevice)),
        label: String::from_utf8_lossy(label).into_owned(),
        read_only: info.flags & sys::LO_FLAGS_READ_ONLY != 0,
        direct_io: info.flags & sys::LO_FLAGS_DIRECT_IO != 0,
        autoclear: info.flags & sys::LO_FLAGS_AUTOCLEAR != 0,
        offset: info.offset,
        size_limit: info.size_limit,
        sector_size,
        unreadable: None,
    })
}

pub(super) fn hold(device: &Path, label: &str) -> Result<LoopDevice> {
    let options = LoopOptions { read_only: true, label: label.to_owned() };
    let info =
        info_of(&options, 0).map_err(|reason| Error::InvalidState { path: device.to_owned(), reason })?;
    let (path, holder) = configure(&open(device, false)?, info)?;
    describe(&path, &holder).inspect_err(|_| {
        // Just configured: detach it, or it leaks.
        let _ = sys::loop_clear(&holder);
    })
}

pub(super) fn reset(device: &Path, label: &str) -> Result<()> {
    // Without write access: a read-only device cannot be opened for writing.
    let file = open(device, false)?;
    let failed = |call| move |error: io::Error| Error::call(call, device, error);
    let mut info = sys::loop_status(&file).map_err(failed("LOOP_GET_STATUS64"))?;
    let wanted = LoopOptions { read_only: false, label: label.to_owned() };
    let wanted = info_of(&wanted, info.flags & !sys::LO_FLAGS_AUTOCLEAR)
        .map_err(|reason| Error::InvalidState { path: device.to_owned(), reason })?;
    (info.offset, info.size_limit, info.flags, info.file_name) = (0, 0, wanted.flags, wanted.file_name);
    sys::loop_set_status(&file, info).map_err(failed("LOOP_SET_STATUS64"))?;
    let sector_size =
        rustix::fs::ioctl_blksszget(&file).map_err(|errno| Error::call("BLKSSZGET", device, errno))?;
    if sector_size == LoopDevice::SECTOR_SIZE {
        return Ok(());
    }
    sys::loop_set_block_size(&file, LoopDevice::SECTOR_SIZE).map_err(failed("LOOP_SET_BLOCK_SIZE"))
}

pub(super) fn refresh(device: &Path) -> Result<()> {
    let file = open(device, true)?;
    sys::loop_set_capacity(&file).map_err(|error| Error::call("LOOP_SET_CAPACITY", device, error))
}

/// Without discards, `lo_fallocate` of the kernel also refuses to zero by deallocating: block layer and file systems then
/// write zeroes.
pub(super) fn disable_discard(device: &Path) -> Result<()> {
    let setting =
        Path::new(SYS_BLOCK).join(device.file_name().unwrap_or_default()).join("queue/discard_max_bytes");
    let current = std::fs::read_to_string(&setting).map_err(|error| Error::call("read", &setting, error))?;
    // sysfs may be read-only: write only a change.
    if current.trim() == "0" {
        return Ok(());
    }
    std::fs::write(&setting, "0").map_err(|error| Error::call("write", &setting, error))
}

/// Whether [`disable_discard`] has disabled the discards of a configured device. Linux 6.11 and later keep that when the device is
/// detached, and cannot enable them again.
fn is_discard_disabled(number: u32) -> bool {
    let queue = Path::new(SYS_BLOCK).join(format!("loop{number}/queue"));
    let is = |name: &str, wanted: fn(u64) -> bool| {
        let text = std::fs::read_to_string(queue.join(name)).unwrap_or_default();
        text.trim().parse().is_ok_and(wanted)
    };
    is("discard_max_bytes", |bytes| bytes == 0) && is("discard_max_hw_bytes", |bytes| bytes > 0)
}

/// Removes a detached device, so that its number gets a device with default settings. It stays if another process has
/// opened it: then the next attach replaces it.
fn remove(number: u32) {
    let removed = open(Path::new(CONTROL), true).and_then(|control| {
        sys::loop_remove(control, number)
            .map_err(|error| Error::call("LOOP_CTL_REMOVE", Path::new(CONTROL), error))
    });
    if let Err(error) = removed {
        tracing::debug!(number, %error, "failed to remove loop device");
    }
}

/// The path and the identity of the file of the loop device.
pub(super) fn backing(device: &Path) -> Result<Option<(PathBuf, FileId)>> {
    let name = device.file_name().unwrap_or_default();
    let file = Path::new(SYS_BLOCK).join(name).join("loop/backing_file");
    let path = match std::fs::read(&file) {
        Ok(bytes) => PathBuf::from(std::ffi::OsStr::from_bytes(bytes.strip_suffix(b"\n").unwrap_or(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::call("read", &file, error)),
    };
    Ok(Some((path, describe(device, &open(device, false)?)?.backing)))
}

pub(super) fn detach(device: &Path, image: Option<FileId>) -> Result<()> {
    let Some(number) = device.file_name().and_then(|name| name.to_str()).and_then(number_of) else {
        return Err(Error::InvalidState {
            path: device.to_owned(),
            reason: "is not a loop device".to_owned(),
        });
    };
    let in_use = |user: &str| Error::InUse {
        path: device.to_owned(),
        reason: format!("is in use: {user}; stop that and try again"),
    };
    // O_EXCL: a mount, device mapper or RAID on top also opens the device exclusively. Without it the kernel would only
    // schedule the detach for the time when they close the device.
    let exclusive = OFlags::EXCL | OFlags::CLOEXEC;
    let grace_end = Instant::now() + UNMOUNT_GRACE;
    let no_discards = is_discard_disabled(number);
    let file = loop {
        match rustix::fs::open(device, exclusive | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => break File::from(fd),
            Err(rustix::io::Errno::BUSY) if Instant::now() < grace_end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::BUSY) => {
                return Err(in_use(
                    "mounted (perhaps in another mount namespace), or claimed by another driver",
                ));
            }
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {
                return Ok(());
            }
            Err(errno) => return Err(Error::call("open", device, errno)),
        }
    };
    // While it is open here, it cannot get another backing file.
    let backing = match describe(device, &file) {
        Ok(found) if image.is_none_or(|image| image == found.backing) => found.backing,
        Ok(_) => return Ok(()),
        Err(error) if error.errno() == Some(libc::ENXIO) => return Ok(()),
        Err(error) => return Err(error),
    };
    match sys::loop_clear(&file) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(in_use("open elsewhere")),
        Err(error) => return Err(Error::call("LOOP_CLR_FD", device, error)),
    }
    drop(file);
    let end = Instant::now() + DETACH_TIMEOUT;
    while let Some(file) = open_backed(device, number, backing)? {
        if Instant::now() >= end {
            // Otherwise the kernel would detach it at a later time, perhaps when it is in use again.
            unset_autoclear(device, &file)?;
            return Err(in_use("another process has it open"));
        }
        drop(file);
        std::thread::sleep(Duration::from_millis(5));
    }
    if no_discards {
        remove(number);
    }
    Ok(())
}

/// Opens the device if it still has this backing file. As soon as it is released, another process may get its number for
/// another file.
fn open_backed(device: &Path, number: u32, backing: FileId) -> Result<Option<File>> {
    if !has_backing(number) {
        return Ok(None);
    }
    let opened = open(device, false).and_then(|file| Ok((describe(device, &file)?.backing, file)));
    match opened {
        Ok((found, file)) => Ok(Some(file).filter(|_| found == backing)),
        // Detached or removed since the check.
        Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Cancels the detach on last close.
fn unset_autoclear(device: &Path, file: &File) -> Result<()> {
    let mut info = sys::loop_status(file).map_err(|error| Error::call("LOOP_GET_STATUS64", device, error))?;
    info.flags &= !sys::LO_FLAGS_AUTOCLEAR;
    sys::loop_set_status(file, info).map_err(|error| Error::call("LOOP_SET_STATUS64", device, error))
}

/// Whether the device is configured, without opening it.
fn has_backing(number: u32) -> bool {
    Path::new(SYS_BLOCK).join(format!("loop{number}/loop/backing_file")).exists()
}

fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("loop")?.parse().ok()
}

/// Returns the device node, and creates it if it is missing: in a container with its own /dev, new devices of the kernel
/// do not appear.
fn ensure_node(number: u32) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if path.exists() {
        return Ok(path);
    }
    // The minor is not computed from the number: `max_part` can leave gaps between minors.
    let dev = Path::new(SYS_BLOCK).join(format!("loop{number}/dev"));
    let text = std::fs::read_to_string(&dev).map_err(|error| Error::call("read", &dev, error))?;
    let numbers = text.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let Some((major, minor)) = numbers else {
        return Err(Error::InvalidState { path: dev, reason: format!("is not a device number: {text:?}") });
    };
    let device = rustix::fs::makedev(major, minor);
    match rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::BlockDevice, Mode::from(0o660), device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(path),
        Err(errno) => Err(Error::call("mknod", &path, errno)),
    }
}

fn open(path: &Path, write: bool) -> Result<File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(write).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|error: io::Error| Error::call("open", path, error))
}
