//! A disk image for a pool, used where the host file system does not support reflinks. Snapshots and clones of
//! volumes in use need reflinks.
//!
//! An existing pool is used unchanged. A new disk image is created under a temporary name and renamed when it is
//! complete, so a crash never leaves a partial image under the final name. An existing image is mounted and never
//! recreated.

use std::path::{Path, PathBuf};

use wharf_linux::{
    Error, FsType, Kernel, LoopOptions, MakeFsRequest, MountRequest, PathBeneath, ProbeResult, random_uuid,
};

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

/// What the pool's parent directory already contains, and whether it supports reflinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Existing {
    disk: bool,
    pool: bool,
    reflink: bool,
}

/// An existing pool keeps its storage; the choice depends on reflink support only for a new pool.
fn decide(found: Existing) -> PoolStorage {
    match found {
        Existing { disk: true, .. } => PoolStorage::Disk,
        Existing { pool: true, .. } | Existing { reflink: true, .. } => PoolStorage::Directory,
        Existing { .. } => PoolStorage::Disk,
    }
}

/// Prepares storage for a pool in `dir` and returns the pool's path. A new disk image gets `size` bytes (default: all
/// available space) and is sparse: it allocates blocks only as they are written. Blocks.
pub fn prepare(
    kernel: &dyn Kernel,
    dir: &Path,
    size: Option<u64>,
) -> wharf_linux::Result<(PathBuf, PoolStorage)> {
    let dir = dir.canonicalize().map_err(|error| Error::call("realpath", dir, error))?;
    let mount_point = dir.join(MOUNT_POINT);
    kernel.create_dir(&PathBeneath::new(&dir, Path::new(MOUNT_POINT)))?;
    let exists = |name: &str| Ok(kernel.stat(&PathBeneath::new(&dir, Path::new(name)))?.is_some());
    let disk = exists(IMAGE)?;
    let found = Existing {
        disk,
        pool: exists("pool/pool.json")?,
        reflink: !disk && kernel.can_reflink(&mount_point)?,
    };
    let kept = decide(found);
    if kept == PoolStorage::Disk {
        if !disk {
            create_disk(kernel, &dir, size)?;
        }
        mount(kernel, &dir, &mount_point)?;
    }
    Ok((mount_point, kept))
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
    let size = match size {
        Some(size) => size,
        None => kernel.usage(dir)?.available_bytes,
    };
    // Whole pages, and at least the file system's minimum.
    let size = size.max(FsType::Xfs.minimum_size()) & !4095;
    kernel.set_size(&unfinished, size)?;
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

    use wharf_linux::{Linux, Mounts as _};

    use super::*;

    #[test]
    fn existing_storage_is_reused() {
        for (disk, pool, reflink, expected) in [
            (false, false, false, PoolStorage::Disk),
            (false, false, true, PoolStorage::Directory),
            (false, true, false, PoolStorage::Directory),
            (false, true, true, PoolStorage::Directory),
            (true, false, true, PoolStorage::Disk),
            (true, true, false, PoolStorage::Disk),
        ] {
            assert_eq!(decide(Existing { disk, pool, reflink }), expected, "{disk} {pool} {reflink}");
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
            options: &["size=600m".to_owned()],
            read_only: false,
        };
        kernel.mount(&request).unwrap();
        let tried = std::panic::catch_unwind(|| {
            std::fs::write(dir.join(UNFINISHED), b"half of one").unwrap();
            let (pool, kept) = prepare(&kernel, &dir, Some(400 << 20)).unwrap();
            assert_eq!((pool.as_path(), kept), (dir.join("pool").as_path(), PoolStorage::Disk));
            assert!(!dir.join(UNFINISHED).exists());
            std::fs::write(pool.join("file"), b"kept").unwrap();
            let image = std::fs::metadata(dir.join(IMAGE)).unwrap().ino();
            // Already mounted: a no-op. Then remounted, as after a reboot.
            prepare(&kernel, &dir, None).unwrap();
            close(&kernel, &dir).unwrap();
            assert!(kernel.mount_table().unwrap().at(&pool).is_none());
            prepare(&kernel, &dir, None).unwrap();
            assert_eq!(std::fs::read(pool.join("file")).unwrap(), b"kept");
            assert_eq!(std::fs::metadata(dir.join(IMAGE)).unwrap().ino(), image);
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
        let refused = prepare(&kernel, &dir, None);
        close(&kernel, &dir).unwrap();
        assert!(refused.is_err_and(|error| error.to_string().contains("nothing was changed")));
        assert_eq!(std::fs::read(dir.join(IMAGE)).unwrap(), vec![0; 1 << 20]);
    }
}
