//! A disk image for a pool. Its file system supports reflinks, which snapshots and clones of volumes in use need, and nothing
//! but the pool uses its space.
//!
//! - An existing pool is used unchanged, or grown. A new disk image is created under a temporary name and renamed when
//!   it is complete, so a crash never leaves a partial image under the final name. An existing image is mounted and
//!   never recreated.
//! - All blocks of an image are allocated, so that a full host file system is no I/O error in a volume. Where that is
//!   not possible, the pool's account is limited by the free space of the host file system.

use std::io;
use std::path::{Path, PathBuf};

use wharf_linux::{
    Error, FileBeneath, FileStat, FsType, FsUsage, Kernel, LoopOptions, MakeFsRequest, MountRequest,
    PathBeneath, ProbeResult, random_uuid,
};

use crate::account::host_reserve;
use crate::store;

const IMAGE: &str = "pool.img";
const UNFINISHED: &str = "pool.img.new";
const MOUNT_POINT: &str = "pool";
/// The kernel stores it with the loop device and shows the owner, for example in `losetup`.
const LABEL: &str = "wharf-pool";

/// Where a pool's volumes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolStorage {
    /// In a directory of the host file system.
    Directory,
    /// In a disk image with its own file system.
    Disk,
}

/// What the pool's parent directory already contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Existing {
    disk: bool,
    pool: bool,
}

/// An existing pool keeps its storage. A new one is always a disk image, also where the host file system supports reflinks: in
/// a directory, every other program on the host would take the space that volumes were promised.
fn decide(found: Existing) -> PoolStorage {
    match found {
        Existing { disk: true, .. } => PoolStorage::Disk,
        Existing { pool: true, .. } => PoolStorage::Directory,
        Existing { .. } => PoolStorage::Disk,
    }
}

/// What to do with the size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizePlan {
    Keep,
    Grow(u64),
}

/// The size of an image: whole pages, and at least the file system's minimum.
fn image_size(requested: u64) -> u64 {
    requested.max(FsType::Xfs.minimum_size()) & !4095
}

/// The size of a new image: half of the free space by default. The host's reserve stays free.
fn new_size(requested: Option<u64>, host: &FsUsage) -> Result<u64, String> {
    let usable = host.available_bytes.saturating_sub(host_reserve(host));
    let size = image_size(requested.unwrap_or(host.available_bytes / 2));
    if size > usable {
        return Err(format!(
            "a pool of {size} bytes does not fit: {} bytes are free, and {} of them stay free for other programs; \
             use a smaller --pool-size, at least {}, or delete files",
            host.available_bytes,
            host_reserve(host),
            FsType::Xfs.minimum_size()
        ));
    }
    Ok(size)
}

/// Whether an existing image of `existing` bytes has to grow to the requested size. It never shrinks.
fn plan_size(existing: &FileStat, requested: Option<u64>, host: &FsUsage) -> Result<SizePlan, String> {
    let Some(size) = requested.map(image_size).filter(|size| *size != existing.size) else {
        return Ok(SizePlan::Keep);
    };
    if size < existing.size {
        return Err(format!(
            "has {} bytes and cannot shrink to {size}: request at least its size, or omit the size",
            existing.size
        ));
    }
    let more = size.saturating_sub(existing.allocated);
    let usable = host.available_bytes.saturating_sub(host_reserve(host));
    if more > usable {
        return Err(format!(
            "cannot grow to {size} bytes: that takes {more} bytes, of the {} free bytes of its disk {} stay free for \
             other programs; request less, or delete files",
            host.available_bytes,
            host_reserve(host)
        ));
    }
    Ok(SizePlan::Grow(size))
}

/// The requested size, unless the image is larger: it may have grown while it was in use.
fn at_least_existing(existing: &FileStat, requested: Option<u64>) -> Option<u64> {
    requested.filter(|size| image_size(*size) >= existing.size)
}

/// Prepares storage for a pool in `dir` and returns the pool's path. A new disk image gets `size` bytes (default: half
/// of the available space); an existing one grows to `size`, or keeps its size if that is larger. Without `may_create`, a missing pool is an error. Blocks.
pub fn prepare(
    kernel: &dyn Kernel,
    dir: &Path,
    size: Option<u64>,
    may_create: bool,
) -> wharf_linux::Result<(PathBuf, PoolStorage)> {
    let dir = dir.canonicalize().map_err(|error| Error::call("realpath", dir, error))?;
    let mount_point = dir.join(MOUNT_POINT);
    kernel.create_dir(&PathBeneath::new(&dir, Path::new(MOUNT_POINT)))?;
    let exists = |name: &str| Ok(kernel.stat(&PathBeneath::new(&dir, Path::new(name)))?.is_some());
    let disk = exists(IMAGE)?;
    let found = Existing { disk, pool: exists("pool/pool.json")? };
    if !may_create && !found.disk && !found.pool {
        let reason = format!(
            "contains neither {IMAGE} nor {MOUNT_POINT}/pool.json, but a pool was there before: restore it; if its \
             volumes are lost for good, remove the file pool-id in this directory"
        );
        return Err(Error::InvalidState { path: dir, reason });
    }
    let kept = decide(found);
    if kept == PoolStorage::Disk {
        let image = PathBeneath::new(&dir, Path::new(IMAGE));
        if let Some(stat) = kernel.stat(&image)? {
            let larger = at_least_existing(&stat, size);
            if let (Some(requested), None) = (size, larger) {
                tracing::warn!(
                    image = %image.display().display(), size = stat.size, requested,
                    "the pool keeps its size, which is larger than requested: `wharf local grow` has grown it"
                );
            }
            fit_image(kernel, &image, &stat, larger, &kernel.usage(&dir)?)?;
        } else {
            create_disk(kernel, &dir, size)?;
        }
        mount(kernel, &dir, &mount_point)?;
        if disk && size.is_some() {
            // Also if the image already has that size: growing may have been interrupted.
            grow(kernel, &mount_point, None)?;
        }
    }
    Ok((mount_point, kept))
}

/// Grows an image to the requested size, and allocates its missing blocks if the host has space for them.
fn fit_image(
    kernel: &dyn Kernel,
    image: &PathBeneath<'_>,
    stat: &FileStat,
    size: Option<u64>,
    host: &FsUsage,
) -> wharf_linux::Result<()> {
    let planned = plan_size(stat, size, host)
        .map_err(|reason| Error::InvalidState { path: image.display(), reason })?;
    if let SizePlan::Grow(size) = planned {
        // Blocks first: after a crash the image has its old size and more blocks.
        allocate(kernel, image, size)?;
        return kernel.set_size(image, size);
    }
    let missing = stat.size.saturating_sub(stat.allocated);
    if missing == 0 {
        return Ok(());
    }
    if missing <= host.available_bytes.saturating_sub(host_reserve(host)) {
        return allocate(kernel, image, stat.size);
    }
    tracing::warn!(
        image = %image.display().display(), missing, free = host.available_bytes,
        "failed to allocate all blocks of the pool's image: the disk has too little space; volumes may get I/O errors when it is full"
    );
    Ok(())
}

/// Allocates all blocks of an image. A file system that cannot leaves it sparse.
fn allocate(kernel: &dyn Kernel, image: &PathBeneath<'_>, size: u64) -> wharf_linux::Result<()> {
    match kernel.allocate(image, size) {
        Err(error) if error.errno().is_some_and(is_unsupported) => {
            tracing::warn!(%error, "failed to allocate the blocks of the pool's image: the file system cannot reserve blocks; the image stays sparse");
            Ok(())
        }
        result => result,
    }
}

fn is_unsupported(errno: i32) -> bool {
    io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::Unsupported
}

/// The size of a pool's file system before and after it has grown, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// Grows a pool while it is in use: its file to `size`, if it is in a file, then its file system to the size of the
/// device. Safe to repeat. Blocks.
pub fn grow(kernel: &dyn Kernel, pool: &Path, size: Option<u64>) -> wharf_linux::Result<Growth> {
    let pool = pool.canonicalize().map_err(|error| Error::call("realpath", pool, error))?;
    let table = kernel.mount_table()?;
    let invalid = |reason: String| Error::InvalidState { path: pool.clone(), reason };
    let mount = table.holding(&pool).ok_or_else(|| invalid("is not in the mount table".to_owned()))?;
    let fs: FsType = mount.fs_type.parse().map_err(|_| {
        invalid(format!("is on {}, which this command cannot grow: enlarge it by other means", mount.fs_type))
    })?;
    let before = kernel.usage(&pool)?.total_bytes;
    let device = PathBuf::from(&mount.source);
    match (kernel.file_beneath(&pool)?, size) {
        (Some(FileBeneath { path, stat, usage }), size) => {
            if let (Some(dir), Some(name)) = (path.parent(), path.file_name()) {
                fit_image(kernel, &PathBeneath::new(dir, Path::new(name)), &stat, size, &usage)?;
            }
            kernel.loop_refresh(&device)?;
        }
        (None, Some(_)) => {
            let reason =
                format!("is not in a file but on {}: enlarge that, then repeat without a size", mount.source);
            return Err(invalid(reason));
        }
        (None, None) => {}
    }
    kernel.grow_fs(&device, fs, Some(&mount.mount_point))?;
    Ok(Growth { before, after: kernel.usage(&pool)?.total_bytes })
}

/// [`grow`], for a directory that has to be a pool.
pub fn grow_pool(kernel: &dyn Kernel, pool: &Path, size: Option<u64>) -> wharf_linux::Result<Growth> {
    if kernel.stat(&PathBeneath::new(pool, Path::new(store::POOL)))?.is_none() {
        let reason = format!("is not a pool: it has no {}", store::POOL);
        return Err(Error::InvalidState { path: pool.to_owned(), reason });
    }
    grow(kernel, pool, size)
}

/// Unmounts the disk image of a pool in `dir` and detaches its loop device. Does nothing if there is no image. Blocks.
pub fn close(kernel: &dyn Kernel, dir: &Path) -> wharf_linux::Result<()> {
    let image = Path::new(IMAGE);
    let Some(stat) = kernel.stat(&PathBeneath::new(dir, image))? else { return Ok(()) };
    let dir = dir.canonicalize().map_err(|error| Error::call("realpath", dir, error))?;
    kernel.unmount(&dir.join(MOUNT_POINT))?;
    for device in kernel.loop_devices_of(&[stat.id], image)? {
        kernel.loop_detach(&device.path, Some(device.backing))?;
    }
    Ok(())
}

fn create_disk(kernel: &dyn Kernel, dir: &Path, size: Option<u64>) -> wharf_linux::Result<()> {
    let unfinished = PathBeneath::new(dir, Path::new(UNFINISHED));
    // Left by a start that crashed: it was never mounted.
    if let Some(stat) = kernel.stat(&unfinished)? {
        for device in kernel.loop_devices_of(&[stat.id], Path::new(UNFINISHED))? {
            kernel.loop_detach(&device.path, Some(device.backing))?;
        }
        kernel.remove_file(&unfinished)?;
    }
    let size = new_size(size, &kernel.usage(dir)?)
        .map_err(|reason| Error::InvalidState { path: dir.to_owned(), reason })?;
    // Empty at first: on btrfs it then gets the attribute that keeps its blocks, which must be set before the first one.
    kernel.create_reserved(&unfinished, 0)?;
    kernel.set_size(&unfinished, size)?;
    if let Err(error) = allocate(kernel, &unfinished, size) {
        kernel.remove_file(&unfinished)?;
        return Err(error);
    }
    let device = kernel.loop_attach(&unfinished, &label())?;
    let uuid = random_uuid()?;
    let made = kernel.make_fs(&device.path, &MakeFsRequest { fs: FsType::Xfs, uuid: &uuid, options: &[] });
    kernel.loop_detach(&device.path, Some(device.backing))?;
    made?;
    kernel.sync(&unfinished)?;
    kernel.rename(&unfinished, &PathBeneath::new(dir, Path::new(IMAGE)))?;
    kernel.sync(&PathBeneath::new(dir, Path::new(".")))
}

fn mount(kernel: &dyn Kernel, dir: &Path, mount_point: &Path) -> wharf_linux::Result<()> {
    let image = PathBeneath::new(dir, Path::new(IMAGE));
    let backing = kernel.stat(&image)?.map(|stat| stat.id);
    let attached = kernel
        .loop_devices_of(backing.as_slice(), Path::new(IMAGE))?
        .into_iter()
        .find(|device| !device.autoclear);
    let device = match attached {
        Some(device) => device,
        None => kernel.loop_attach(&image, &label())?,
    };
    // fstrim must not free the allocated blocks.
    if let Err(error) = kernel.loop_disable_discard(&device.path) {
        tracing::warn!(%error, "failed to disable discards of the pool's disk; do not run fstrim on it");
    }
    let number = kernel.device_number(&device.path)?;
    match kernel.mount_table()?.at(mount_point) {
        Some(mount) if mount.device == number => return Ok(()),
        Some(mount) => {
            let reason =
                format!("{} is mounted there instead of the pool's disk {IMAGE}: unmount it", mount.source);
            return Err(Error::InvalidState { path: mount_point.to_owned(), reason });
        }
        None => {}
    }
    let ProbeResult::Filesystem { fs, .. } = kernel.probe(&device.path)? else {
        let reason = "it contains no file system: it is damaged, or is not a pool disk; nothing was changed";
        return Err(Error::InvalidState { path: image.display(), reason: reason.to_owned() });
    };
    kernel.mount(&MountRequest {
        source: &device.path.display().to_string(),
        target: mount_point,
        fs_type: fs.as_str(),
        options: &[],
        read_only: false,
    })
}

fn label() -> LoopOptions {
    LoopOptions { read_only: false, label: LABEL.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use wharf_linux::{Filesystems as _, Linux, Mounts as _};

    use super::*;

    #[test]
    fn existing_storage_is_reused() {
        for (disk, pool, expected) in [
            (false, false, PoolStorage::Disk),
            (false, true, PoolStorage::Directory),
            (true, false, PoolStorage::Disk),
            (true, true, PoolStorage::Disk),
        ] {
            assert_eq!(decide(Existing { disk, pool }), expected, "{disk} {pool}");
        }
    }

    #[test]
    fn size_of_an_image_leaves_the_hosts_reserve_and_never_shrinks() {
        const GIB: u64 = 1 << 30;
        let host = |total: u64, free: u64| FsUsage {
            total_bytes: total * GIB,
            available_bytes: free * GIB,
            ..FsUsage::default()
        };
        for (requested, total, free, expected) in [
            (None, 100, 60, Ok(30 * GIB)),
            (Some(50 * GIB), 100, 60, Ok(50 * GIB)),
            (Some(56 * GIB), 100, 60, Ok(56 * GIB)),
            (Some(57 * GIB), 100, 60, Err("use a smaller --pool-size")),
            (Some(1), 100, 60, Ok(300 << 20)),
            (None, 100, 1, Err("does not fit")),
        ] {
            let size = new_size(requested, &host(total, free));
            match (&size, expected) {
                (Ok(size), Ok(expected)) => assert_eq!(*size, expected, "{requested:?}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                _ => panic!("{requested:?}: {size:?}"),
            }
        }
        let id = wharf_linux::FileId { device: 1, inode: 1 };
        let existing =
            |allocated: u64| FileStat { id, size: 10 * GIB, allocated: allocated * GIB, is_dir: false };
        for (requested, allocated, expected) in [
            (None, 10, Ok(SizePlan::Keep)),
            (Some(10 * GIB), 10, Ok(SizePlan::Keep)),
            (Some(9 * GIB), 10, Err("cannot shrink")),
            (Some(20 * GIB), 10, Ok(SizePlan::Grow(20 * GIB))),
            (Some(40 * GIB), 10, Err("cannot grow")),
            // A sparse image has to get its missing blocks, too.
            (Some(20 * GIB), 0, Err("cannot grow")),
        ] {
            let planned = plan_size(&existing(allocated), requested, &host(100, 20));
            match (&planned, expected) {
                (Ok(planned), Ok(expected)) => assert_eq!(*planned, expected, "{requested:?}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                _ => panic!("{requested:?}: {planned:?}"),
            }
        }
    }

    /// Uses the real kernel, on a tmpfs because that certainly has no reflinks.
    #[test]
    fn disk_is_created_once_and_remounted() {
        let kernel = Linux::new();
        let around = tempfile::tempdir().unwrap();
        let dir = around.path().canonicalize().unwrap();
        let request = MountRequest {
            source: "tmpfs",
            target: &dir,
            fs_type: "tmpfs",
            options: &["size=700m".to_owned()],
            read_only: false,
        };
        kernel.mount(&request).unwrap();
        let tried = std::panic::catch_unwind(|| {
            assert!(
                prepare(&kernel, &dir, None, false).is_err_and(|error| error.to_string().contains("pool-id"))
            );
            assert!(!dir.join(IMAGE).exists());
            std::fs::write(dir.join(UNFINISHED), b"half of one").unwrap();
            let (pool, kept) = prepare(&kernel, &dir, Some(400 << 20), true).unwrap();
            assert_eq!((pool.as_path(), kept), (dir.join("pool").as_path(), PoolStorage::Disk));
            assert!(!dir.join(UNFINISHED).exists());
            std::fs::write(pool.join("file"), b"kept").unwrap();
            let image = std::fs::metadata(dir.join(IMAGE)).unwrap().ino();
            let blocks = || std::fs::metadata(dir.join(IMAGE)).unwrap().blocks() * 512;
            assert!(blocks() >= 400 << 20, "N-H2: all blocks are allocated");
            // Already mounted: a no-op. Then remounted, as after a reboot.
            prepare(&kernel, &dir, None, false).unwrap();
            close(&kernel, &dir).unwrap();
            assert!(kernel.mount_table().unwrap().at(&pool).is_none());
            prepare(&kernel, &dir, None, false).unwrap();
            assert_eq!(std::fs::read(pool.join("file")).unwrap(), b"kept");
            assert_eq!(std::fs::metadata(dir.join(IMAGE)).unwrap().ino(), image);
            // U-1: a larger size grows it, a smaller one is refused, and ignored at a start.
            let smaller = grow(&kernel, &pool, Some(350 << 20)).unwrap_err().to_string();
            assert!(smaller.contains("cannot shrink"), "{smaller}");
            prepare(&kernel, &dir, Some(350 << 20), false).unwrap();
            assert_eq!(std::fs::metadata(dir.join(IMAGE)).unwrap().len(), 400 << 20);
            let before = kernel.usage(&pool).unwrap().total_bytes;
            prepare(&kernel, &dir, Some(450 << 20), false).unwrap();
            assert!(kernel.usage(&pool).unwrap().total_bytes > before + (40 << 20));
            assert!(blocks() >= 450 << 20);
            let grown = grow(&kernel, &pool, Some(500 << 20)).unwrap();
            assert!(grown.after > grown.before + (40 << 20), "{grown:?}");
            assert!(grow(&kernel, &pool, Some(2 << 30)).is_err());
            // The start after a reboot has the old size.
            close(&kernel, &dir).unwrap();
            prepare(&kernel, &dir, Some(400 << 20), false).unwrap();
            assert_eq!(kernel.usage(&pool).unwrap().total_bytes, grown.after);
            assert!(grow_pool(&kernel, &pool, None).unwrap_err().to_string().contains("not a pool"));
            // An image that an earlier version created sparse gets its blocks.
            let punched = std::process::Command::new("fallocate")
                .args(["-p", "-o", "300MiB", "-l", "50MiB"])
                .arg(dir.join(IMAGE))
                .status();
            assert!(punched.unwrap().success() && blocks() < 500 << 20);
            prepare(&kernel, &dir, None, false).unwrap();
            assert!(blocks() >= 500 << 20);
            assert_eq!(std::fs::read(pool.join("file")).unwrap(), b"kept");
        });
        close(&kernel, &dir).unwrap();
        kernel.unmount(&dir).unwrap();
        tried.unwrap();
    }

    #[test]
    fn image_without_file_system_is_refused_and_unchanged() {
        let kernel = Linux::new();
        let around = tempfile::tempdir().unwrap();
        let dir = around.path().canonicalize().unwrap();
        std::fs::write(dir.join(IMAGE), vec![0; 1 << 20]).unwrap();
        let refused = prepare(&kernel, &dir, None, true);
        close(&kernel, &dir).unwrap();
        assert!(refused.is_err_and(|error| error.to_string().contains("nothing was changed")));
        assert_eq!(std::fs::read(dir.join(IMAGE)).unwrap(), vec![0; 1 << 20]);
    }
}
