//! A disk for a pool in a file, where the machine's own file system cannot share blocks: snapshots and clones of volumes
//! in use need that.
//!
//! Promise: a pool that is there is used as it is. A disk is made under another name and gets its own when it is whole, so
//! a crash never leaves half of one; what is found under its name is mounted and never made anew.

use std::path::{Path, PathBuf};

use wharf_linux::{Beneath, Error, FsType, Kernel, LoopOptions, MakeFs, MountRequest, Probe, random_uuid};

const IMAGE: &str = "pool.img";
const UNFINISHED: &str = "pool.img.new";
const MOUNT_POINT: &str = "pool";
/// The kernel keeps it with the loop device, so that people see whose it is.
const LABEL: &str = "wharf-pool";

/// Where a pool's volumes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// In a directory of the machine's own file system.
    Directory,
    /// In a file with a file system of its own.
    Disk,
}

/// What is found in the directory that a pool is to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    disk: bool,
    pool: bool,
    reflink: bool,
}

/// What is there stays as it is; only where nothing is, there is a choice.
fn decide(found: Found) -> Kept {
    match found {
        Found { disk: true, .. } => Kept::Disk,
        Found { pool: true, .. } | Found { reflink: true, .. } => Kept::Directory,
        Found { .. } => Kept::Disk,
    }
}

/// Makes sure that there is a place for a pool in `dir`, and gives it. A disk that has to be made gets `size` bytes, or
/// without it what the file system has to give, and takes them up only as they are written. Blocks.
pub fn prepare(kernel: &dyn Kernel, dir: &Path, size: Option<u64>) -> wharf_linux::Result<(PathBuf, Kept)> {
    let dir = dir.canonicalize().map_err(|error| Error::call("realpath", dir, error))?;
    let mount_point = dir.join(MOUNT_POINT);
    kernel.create_dir(&Beneath::new(&dir, Path::new(MOUNT_POINT)))?;
    let there = |name: &str| Ok(kernel.stat(&Beneath::new(&dir, Path::new(name)))?.is_some());
    let disk = there(IMAGE)?;
    let found =
        Found { disk, pool: there("pool/pool.json")?, reflink: !disk && kernel.can_reflink(&mount_point)? };
    let kept = decide(found);
    if kept == Kept::Disk {
        if !disk {
            make(kernel, &dir, size)?;
        }
        mount(kernel, &dir, &mount_point)?;
    }
    Ok((mount_point, kept))
}

/// Unmounts the disk of a pool in `dir` and lets its device go; a pool that has none is left as it is. Blocks.
pub fn close(kernel: &dyn Kernel, dir: &Path) -> wharf_linux::Result<()> {
    let image = Path::new(IMAGE);
    let Some(stat) = kernel.stat(&Beneath::new(dir, image))? else { return Ok(()) };
    let dir = dir.canonicalize().map_err(|error| Error::call("realpath", dir, error))?;
    kernel.unmount(&dir.join(MOUNT_POINT))?;
    for device in kernel.loop_devices()?.iter().filter(|device| device.backing == stat.id) {
        kernel.loop_detach(&device.path)?;
    }
    Ok(())
}

fn make(kernel: &dyn Kernel, dir: &Path, size: Option<u64>) -> wharf_linux::Result<()> {
    let unfinished = Beneath::new(dir, Path::new(UNFINISHED));
    // Of a start that died: nobody has ever mounted it.
    if let Some(stat) = kernel.stat(&unfinished)? {
        for device in kernel.loop_devices()?.iter().filter(|device| device.backing == stat.id) {
            kernel.loop_detach(&device.path)?;
        }
        kernel.remove_file(&unfinished)?;
    }
    let size = match size {
        Some(size) => size,
        None => kernel.usage(dir)?.available_bytes,
    };
    // Whole pages, and not less than the file system takes.
    let size = size.max(FsType::Xfs.minimum_size()) & !4095;
    kernel.set_size(&unfinished, size)?;
    let device = kernel.loop_attach(&unfinished, &label())?;
    let uuid = random_uuid()?;
    let made = kernel.make_fs(&device.path, &MakeFs { fs: FsType::Xfs, uuid: &uuid, options: &[] });
    kernel.loop_detach(&device.path)?;
    made?;
    kernel.sync(&unfinished)?;
    kernel.rename(&unfinished, &Beneath::new(dir, Path::new(IMAGE)))?;
    kernel.sync(&Beneath::new(dir, Path::new(".")))
}

fn mount(kernel: &dyn Kernel, dir: &Path, mount_point: &Path) -> wharf_linux::Result<()> {
    let image = Beneath::new(dir, Path::new(IMAGE));
    let backing = kernel.stat(&image)?.map(|stat| stat.id);
    let attached =
        kernel.loop_devices()?.into_iter().find(|device| Some(device.backing) == backing && !device.going);
    let device = match attached {
        Some(device) => device,
        None => kernel.loop_attach(&image, &label())?,
    };
    let number = kernel.device_number(&device.path)?;
    match kernel.mount_table()?.at(mount_point) {
        Some(mount) if mount.device == number => return Ok(()),
        Some(mount) => {
            let reason = format!("{} is mounted there: unmount it, the pool's disk is {IMAGE}", mount.source);
            return Err(Error::State { path: mount_point.to_owned(), reason });
        }
        None => {}
    }
    let Probe::Filesystem { fs, .. } = kernel.probe(&device.path)? else {
        let reason =
            "there is no file system in it: it is damaged, or not the pool's disk; nothing was changed";
        return Err(Error::State { path: image.display(), reason: reason.to_owned() });
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
    fn what_is_there_stays_as_it_is() {
        for (disk, pool, reflink, expected) in [
            (false, false, false, Kept::Disk),
            (false, false, true, Kept::Directory),
            (false, true, false, Kept::Directory),
            (false, true, true, Kept::Directory),
            (true, false, true, Kept::Disk),
            (true, true, false, Kept::Disk),
        ] {
            assert_eq!(decide(Found { disk, pool, reflink }), expected, "{disk} {pool} {reflink}");
        }
    }

    /// On the real kernel; a tmpfs below it, since only there it is known that blocks are not shared.
    #[test]
    fn a_disk_is_made_once_and_found_again() {
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
            assert_eq!((pool.as_path(), kept), (dir.join("pool").as_path(), Kept::Disk));
            assert!(!dir.join(UNFINISHED).exists());
            std::fs::write(pool.join("file"), b"kept").unwrap();
            let image = std::fs::metadata(dir.join(IMAGE)).unwrap().ino();
            // Mounted already: nothing to do. Then as after a reboot.
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
    fn what_is_no_disk_is_left_alone() {
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
