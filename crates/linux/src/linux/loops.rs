//! Loop devices: attached in one step, known by what backs them, and gone when detaching says so.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};

use super::files;
use crate::{Beneath, Error, FileId, LoopDevice, LoopOptions, Result, sys};

const CONTROL: &str = "/dev/loop-control";
const SYS_BLOCK: &str = "/sys/block";

/// The sector of all our devices, whatever the disk below has: an xfs made with one sector size does not
/// mount with a larger one, and an image must outlive the disk it began on.
const SECTOR: u64 = 512;

/// The longest label: `lo_file_name` is 64 bytes with its NUL.
const LABEL: usize = 63;

/// How often we lose the race for a free device before we say so.
const ATTEMPTS: u32 = 200;

/// How long a mount may outlive its unmount: a container that is being started has a copy of all mounts for a
/// moment, and with it a claim on the device.
const UNCLAIM: Duration = Duration::from_secs(2);

/// How long a detached device may take to let go of its image.
const DETACH: Duration = Duration::from_secs(5);

pub(super) fn attach(image: &Beneath<'_>, options: &LoopOptions) -> Result<LoopDevice> {
    let info = info_of(options).map_err(|reason| Error::State { path: image.display(), reason })?;
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let file = files::open_regular(image, access)?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::call("fstat", &image.display(), errno))?;
    let size = stat.st_size.unsigned_abs();
    if size == 0 || !size.is_multiple_of(SECTOR) {
        let reason = format!("has {size} bytes, and a device must be a multiple of {SECTOR}");
        return Err(Error::State { path: image.display(), reason });
    }
    let (path, device) = configure(&file, info)?;
    let attached = describe(&path, &device).and_then(|found| {
        let seen = sys::block_size64(&device).map_err(|error| Error::call("BLKGETSIZE64", &path, error))?;
        if seen == size {
            return Ok(found);
        }
        let reason = format!("shows {seen} bytes of an image that has {size}");
        Err(Error::State { path: path.clone(), reason })
    });
    if attached.is_err() {
        // Ours since a moment, and nobody can use it: better gone than leaked.
        let _ = sys::loop_clear(&device);
    }
    attached
}

/// Takes a free device and configures it; others may be faster, then with the next one.
fn configure(image: &File, info: sys::LoopInfo) -> Result<(PathBuf, File)> {
    let control = Path::new(CONTROL);
    let control_file = open(control, true)?;
    for _ in 0..ATTEMPTS {
        let number = sys::loop_free_number(&control_file)
            .map_err(|error| Error::call("LOOP_CTL_GET_FREE", control, error))?;
        let path = ensure_node(number)?;
        let device = match open(&path, true) {
            Ok(device) => device,
            // Removed again by whoever made it.
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV)) => continue,
            Err(error) => return Err(error),
        };
        let mut configured = sys::loop_configure(&device, image, SECTOR as u32, info);
        // Some kernels refuse direct I/O where the file system cannot do it, others ignore the wish.
        if matches!(&configured, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            let buffered = sys::LoopInfo { flags: info.flags & !sys::LO_FLAGS_DIRECT_IO, ..info };
            configured = sys::loop_configure(&device, image, SECTOR as u32, buffered);
        }
        match configured {
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Error::call("LOOP_CONFIGURE", &path, error)),
        }
    }
    let reason = format!("gave {ATTEMPTS} free devices which others took first; try again");
    Err(Error::State { path: control.to_owned(), reason })
}

fn info_of(options: &LoopOptions) -> Result<sys::LoopInfo, String> {
    let label = options.label.as_bytes();
    if label.len() > LABEL || label.contains(&0) {
        return Err(format!("cannot have a loop label of more than {LABEL} bytes or with a NUL"));
    }
    let mut info = sys::LoopInfo::ZERO;
    info.file_name[..label.len()].copy_from_slice(label);
    info.flags = sys::LO_FLAGS_DIRECT_IO | if options.read_only { sys::LO_FLAGS_READ_ONLY } else { 0 };
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
        let path = ensure_node(number)?;
        // Between the look and the call it may be let go: no device, then, and not an error.
        match open(&path, false).and_then(|device| describe(&path, &device)) {
            Ok(device) => found.push((number, device)),
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV)) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, device)| device).collect())
}

fn describe(path: &Path, device: &File) -> Result<LoopDevice> {
    let info = sys::loop_status(device).map_err(|error| Error::call("LOOP_GET_STATUS64", path, error))?;
    let label = info.file_name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(LoopDevice {
        path: path.to_owned(),
        // The kernel encodes the device number as it does for stat.
        backing: FileId { device: info.device, inode: info.inode },
        label: String::from_utf8_lossy(label).into_owned(),
        read_only: info.flags & sys::LO_FLAGS_READ_ONLY != 0,
        direct_io: info.flags & sys::LO_FLAGS_DIRECT_IO != 0,
        going: info.flags & sys::LO_FLAGS_AUTOCLEAR != 0,
    })
}

pub(super) fn refresh(device: &Path) -> Result<()> {
    let file = open(device, true)?;
    sys::loop_set_capacity(&file).map_err(|error| Error::call("LOOP_SET_CAPACITY", device, error))
}

pub(super) fn detach(device: &Path) -> Result<()> {
    let Some(number) = device.file_name().and_then(|name| name.to_str()).and_then(number_of) else {
        return Err(Error::State { path: device.to_owned(), reason: "is not a loop device".to_owned() });
    };
    let in_use = |how: &str| Error::InUse {
        path: device.to_owned(),
        reason: format!("is in use: {how}; end that and try again"),
    };
    // Exclusively: a mount, a device mapper or a RAID on top holds the same claim, and the kernel would
    // otherwise only note that the device is to go when they close it.
    let exclusive = OFlags::EXCL | OFlags::CLOEXEC;
    let patience = Instant::now() + UNCLAIM;
    let file = loop {
        match rustix::fs::open(device, exclusive | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => break fd,
            Err(rustix::io::Errno::BUSY) if Instant::now() < patience => {
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
    match sys::loop_clear(&file) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(in_use("open elsewhere")),
        Err(error) => return Err(Error::call("LOOP_CLR_FD", device, error)),
    }
    drop(file);
    let end = Instant::now() + DETACH;
    while has_backing(number) {
        if Instant::now() >= end {
            // Else it would go at some later moment, perhaps when it is in use again.
            keep(device)?;
            return Err(in_use("a process has it open"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Takes back that the device goes away when it is closed; gone already is success.
fn keep(device: &Path) -> Result<()> {
    let kept = open(device, false).and_then(|file| {
        let mut info =
            sys::loop_status(&file).map_err(|error| Error::call("LOOP_GET_STATUS64", device, error))?;
        info.flags &= !sys::LO_FLAGS_AUTOCLEAR;
        sys::loop_set_status(&file, info).map_err(|error| Error::call("LOOP_SET_STATUS64", device, error))
    });
    match kept {
        Err(error) if !matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV)) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the device is configured, without opening it.
fn has_backing(number: u32) -> bool {
    Path::new(SYS_BLOCK).join(format!("loop{number}/loop/backing_file")).exists()
}

fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("loop")?.parse().ok()
}

/// The device node, made if it is missing: in a container whose /dev is its own, the kernel's new devices do
/// not appear.
fn ensure_node(number: u32) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if path.exists() {
        return Ok(path);
    }
    // Not computed from the number: `max_part` may leave gaps between minors.
    let dev = Path::new(SYS_BLOCK).join(format!("loop{number}/dev"));
    let text = std::fs::read_to_string(&dev).map_err(|error| Error::call("read", &dev, error))?;
    let numbers = text.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let Some((major, minor)) = numbers else {
        return Err(Error::State { path: dev, reason: format!("is not a device number: {text:?}") });
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
