//! A throwaway file system for a pool. Dropping it removes what a test left there (mounts, loop devices), whether
//! the test passed or failed.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;
use wharf_linux::{
    BlockDevices as _, FileId, FsType, Linux, LoopDevice, LoopOptions, Mount, MountRequest, Mounts as _,
    PathBeneath,
};

/// A file system in a sparse file, mounted on a loop device.
pub struct TestPool {
    mount_point: PathBuf,
    device: PathBuf,
    /// The file behind the device: its number may go to another test's image before it is cleaned up.
    image: FileId,
    /// Last field: the directory is removed after everything in it is unmounted.
    _dir: TempDir,
}

impl TestPool {
    /// Creates and mounts a file system of `size` bytes.
    pub fn new(fs: FsType, size: u64) -> Self {
        let dir = temporary_dir();
        let image = dir.path().join("disk");
        make_image(&image, fs, size);
        Self::mount(dir, &image, fs)
    }

    /// Creates and mounts a file system of `size` bytes in the new file `image`, which is not removed.
    pub fn create_in(image: &Path, fs: FsType, size: u64) -> Self {
        make_image(image, fs, size);
        Self::mount(temporary_dir(), image, fs)
    }

    /// Mounts the file system in `image`, which is not removed.
    pub fn open(image: &Path, fs: FsType) -> Self {
        Self::mount(temporary_dir(), image, fs)
    }

    fn mount(dir: TempDir, image: &Path, fs: FsType) -> Self {
        let mount_point = dir.path().join("pool");
        std::fs::create_dir(&mount_point).expect("failed to create the mount point");
        let options = LoopOptions { label: "wharf-testkit".to_owned(), ..LoopOptions::default() };
        let (parent, name) = (image.parent(), image.file_name());
        let (parent, name) = parent.zip(name).expect("the image has a parent and a name");
        let attached = Linux::new().loop_attach(&PathBeneath::new(parent, Path::new(name)), &options);
        let LoopDevice { path: device, backing: image, .. } =
            attached.expect("failed to attach a loop device");
        let pool = Self { mount_point, device, image, _dir: dir };
        let source = pool.device.display().to_string();
        Linux::new()
            .mount(&MountRequest {
                source: &source,
                target: &pool.mount_point,
                fs_type: fs.as_str(),
                options: &[],
                read_only: false,
            })
            .expect("failed to mount the pool");
        pool
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Makes an ext4 pool reject writes, as it does after a disk error.
    pub fn break_ext4(&self) {
        let remount = ["-o", "remount,errors=remount-ro"];
        let status =
            Command::new("mount").args(remount).arg(&self.mount_point).status().expect("failed to run mount");
        assert!(status.success(), "mount {remount:?}");
        let name = self.device.file_name().expect("the device path has a file name");
        let trigger = Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error");
        std::fs::write(trigger, "broken by a test").expect("failed to trigger an error");
    }

    /// Repairs an ext4 pool and remounts it. Neither the pool nor one of its volumes may be mounted elsewhere.
    pub fn repair_ext4(&self) {
        let device = std::fs::metadata(&self.mount_point).expect("failed to stat the pool").dev();
        let devices = Linux::new().loop_devices().expect("failed to list loop devices");
        for volume in devices.iter().filter(|volume| volume.backing.device == device) {
            detach_with_holders(&Linux::new(), volume).expect("failed to detach a volume's loop device");
        }
        Linux::new().unmount(&self.mount_point).expect("failed to unmount the pool");
        let repaired =
            Command::new("e2fsck").arg("-fy").arg(&self.device).output().expect("failed to run e2fsck");
        // 1: errors were corrected.
        assert!(repaired.status.code().is_some_and(|code| code <= 1), "{repaired:?}");
        let source = self.device.display().to_string();
        let request = MountRequest {
            source: &source,
            target: &self.mount_point,
            fs_type: FsType::Ext4.as_str(),
            options: &[],
            read_only: false,
        };
        Linux::new().mount(&request).expect("failed to mount the pool");
    }
}

fn temporary_dir() -> TempDir {
    tempfile::Builder::new().prefix("wharf-pool-").tempdir().expect("failed to create a temporary directory")
}

fn make_image(image: &Path, fs: FsType, size: u64) {
    File::create(image).and_then(|file| file.set_len(size)).expect("failed to create a sparse image");
    let mut mkfs = Command::new(format!("mkfs.{fs}"));
    match fs {
        FsType::Ext4 => mkfs.arg("-q"),
        FsType::Xfs => mkfs.args(["-q", "-m", "reflink=1"]),
        FsType::Btrfs => mkfs.arg("-q"),
    };
    let formatted = mkfs.arg(image).output().expect("failed to run mkfs");
    assert!(formatted.status.success(), "mkfs.{fs}: {}", String::from_utf8_lossy(&formatted.stderr));
}

/// Checks the file system in a volume's image, without changing it. An image of xfs must have been unmounted cleanly:
/// xfs_repair refuses a log that a mount has to replay.
pub fn check_image(fs: FsType, image: &Path) {
    let mut check = match fs {
        FsType::Ext4 => Command::new("e2fsck"),
        FsType::Xfs => Command::new("xfs_repair"),
        FsType::Btrfs => Command::new("btrfs"),
    };
    match fs {
        FsType::Ext4 => check.args(["-f", "-n"]),
        FsType::Xfs => check.args(["-n", "-f"]),
        FsType::Btrfs => check.args(["check", "--readonly"]),
    };
    let output = check.arg(image).output().expect("failed to run the check");
    assert!(
        output.status.success(),
        "{fs}: {}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Drop for TestPool {
    fn drop(&mut self) {
        // A device that another process is releasing takes a moment. A panic here would hide the test's own
        // failure.
        for _ in 0..50 {
            if let Ok(true) = clear(&self.mount_point, &self.device, self.image) {
                return;
            }
            sleep(Duration::from_millis(100));
        }
        eprintln!("{} could not be cleaned up", self.mount_point.display());
    }
}

/// Unmounts the volumes of the pool, detaches their devices, then releases the pool itself.
fn clear(pool: &Path, device: &Path, image: FileId) -> wharf_linux::Result<bool> {
    let kernel = Linux::new();
    if kernel.mount_table()?.at(pool).is_some() {
        let Ok(metadata) = std::fs::metadata(pool) else { return Ok(false) };
        for volume in kernel.loop_devices()?.iter().filter(|device| device.backing.device == metadata.dev()) {
            for mount in kernel.mount_table()?.mounts().iter().rev().filter(|mount| is_of(mount, volume)) {
                kernel.unmount(&mount.mount_point)?;
            }
            detach_with_holders(&kernel, volume)?;
        }
        kernel.unmount(pool)?;
    }
    kernel.loop_detach(device, Some(image))?;
    Ok(true)
}

/// Detaches a volume's device, and first the devices that hold it open.
fn detach_with_holders(kernel: &Linux, volume: &LoopDevice) -> wharf_linux::Result<()> {
    for holder in kernel.loop_devices()?.iter().filter(|device| device.backing_device == Some(volume.number))
    {
        kernel.loop_detach(&holder.path, Some(holder.backing))?;
    }
    kernel.loop_detach(&volume.path, Some(volume.backing))
}

/// Whether a mount belongs to this device: its file system, or a bind mount of the device node. btrfs uses a
/// synthetic device number, but every btrfs mount names the device as its source.
fn is_of(mount: &Mount, device: &LoopDevice) -> bool {
    let bound = mount.fs_type == "devtmpfs" && mount.root.file_name() == device.path.file_name();
    bound || Path::new(&mount.source) == device.path
}
