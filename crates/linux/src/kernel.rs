//! The traits through which a driver uses the kernel and the disk.
//!
//! Each method is one effect. Crash safety is argued as "before this call" and "after this call", and the crash tests
//! kill a driver at exactly these points. So a method does one thing, and operations of several steps (a durable write,
//! a safe format) are composed of these methods outside of the traits.
//!
//! All methods can block: call them from a thread that may block, unless `Mounts::may_block` returns false.
//! [`crate::Linux`] is the real implementation.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{
    Error, Extent, FileBeneath, FileId, FileStat, FsCheck, FsError, FsType, FsUsage, LoopDevice, LoopOptions,
    MakeFsRequest, MountRequest, MountTable, PathBeneath, PathKind, ProbeResult, Result,
};

/// Everything that a driver needs from the kernel.
pub trait Kernel: Mounts + BlockDevices + Filesystems + Files + 'static {}

impl<T: Mounts + BlockDevices + Filesystems + Files + 'static> Kernel for T {}

/// Mounts and their target paths.
pub trait Mounts: Send + Sync {
    /// Whether calls can block. An in-memory implementation returns false: its methods are then called directly on the
    /// caller's thread, so that single-threaded tests are deterministic.
    fn may_block(&self) -> bool {
        true
    }
    /// Reads a complete and consistent `/proc/self/mountinfo`.
    fn mount_table(&self) -> Result<MountTable>;
    /// Mounts a device or a pseudo file system.
    fn mount(&self, request: &MountRequest<'_>) -> Result<()>;
    /// Bind-mounts `source` (a directory, a file or a device node) on `target`; not recursive.
    /// A read-only bind becomes read-only before it is visible, or is undone.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()>;
    /// Unmounts the topmost mount at `target`; "not mounted" is success. While the mount is busy, retries for a short
    /// time. Never lazy: a lazy unmount hides a device still in use.
    fn unmount(&self, target: &Path) -> Result<()>;
    /// `path` as it appears in the mount table: symlinks among its directories are followed, its last component is
    /// not. If the directory does not exist, nothing can be mounted there, and `path` is returned unchanged.
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path.to_owned());
        };
        match parent.canonicalize() {
            Ok(parent) => Ok(parent.join(name)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(path.to_owned())
            }
            Err(error) => Err(Error::call("realpath", parent, error)),
        }
    }
    /// The type of file at `path`, without following a final symlink; `None` if the path does not exist.
    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>>;
    /// Creates a directory to mount on, with its parents; an existing directory is success.
    fn create_target_dir(&self, path: &Path) -> Result<()>;
    /// Creates an empty file to bind a device on; an existing file is success.
    fn create_target_file(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory or an empty file that was a mount target. Never recursive; a missing path is success.
    fn remove_target(&self, path: &Path) -> Result<()>;
}

/// Block devices: loop devices, and queries for any block device.
pub trait BlockDevices: Send + Sync {
    /// Attaches an image to a free loop device in one step (LOOP_CONFIGURE). Attaching the same image twice results in
    /// two devices: check `loop_devices` first.
    fn loop_attach(&self, image: &PathBeneath<'_>, options: &LoopOptions) -> Result<LoopDevice>;
    /// All configured loop devices with the identity of their backing files. A device that cannot be opened or queried
    /// is listed as `unreadable`: it must not make the others unusable.
    fn loop_devices(&self) -> Result<Vec<LoopDevice>>;
    /// The loop devices of an image that has one of these identities. `name` is the end of the image's path: an
    /// unreadable device whose backing file has that name may be one of them, and is an error.
    fn loop_devices_of(&self, image: &[FileId], name: &Path) -> Result<Vec<LoopDevice>> {
        let mut devices = self.loop_devices()?;
        check_readable(&devices, name)?;
        devices.retain(|device| image.contains(&device.backing));
        Ok(devices)
    }
    /// Attaches a second, read-only loop device whose backing file is `device`. As long as it exists, the kernel has
    /// `device` open: no process can make the kernel release its image, and no other image can get its number.
    fn loop_hold(&self, device: &Path, label: &str) -> Result<LoopDevice>;
    /// Restores what a process that had the device open can change with LOOP_SET_STATUS64 and LOOP_SET_BLOCK_SIZE: see
    /// [`LoopDevice::altered`].
    fn loop_reset(&self, device: &Path, label: &str) -> Result<()>;
    /// Updates the device to the new size of its image (LOOP_SET_CAPACITY).
    fn loop_refresh(&self, device: &Path) -> Result<()>;
    /// Detaches the device now, not when its last user closes it: waits until the kernel has released the image.
    /// Fails while the device is mounted or open. A device that is not configured is success. So is one with another
    /// backing file than `image`, if that is set: its number belongs to another image now, which stays attached.
    fn loop_detach(&self, device: &Path, image: Option<FileId>) -> Result<()>;
    /// From now on discards of the device fail, and zeroes are written: neither frees blocks of its image. Lasts until
    /// `loop_detach`.
    fn loop_disable_discard(&self, device: &Path) -> Result<()>;
    /// The size in bytes of a block device.
    fn device_size(&self, device: &Path) -> Result<u64>;
    /// `(major, minor)` of a block device node.
    fn device_number(&self, device: &Path) -> Result<(u32, u32)>;
    /// Whether the kernel has a block device with this number. Without sysfs the result is an error, not `false`.
    fn device_exists(&self, (major, minor): (u32, u32)) -> Result<bool> {
        let all = Path::new("/sys/dev/block");
        let exists = |path: &Path| path.try_exists().map_err(|error| Error::call("stat", path, error));
        match exists(&all.join(format!("{major}:{minor}")))? {
            true => Ok(true),
            false if exists(all)? => Ok(false),
            false => Err(Error::call("stat", all, io::ErrorKind::NotFound)),
        }
    }
    /// Fills `buffer` from `offset`, bypassing the page cache where possible; a short read is an error.
    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// Fails if a device in the list cannot be queried and may be one of the image whose path ends with `name`.
pub fn check_readable(devices: &[LoopDevice], name: &Path) -> Result<()> {
    for device in devices {
        let Some(unreadable) = &device.unreadable else { continue };
        // The kernel appends this to the name of a removed file.
        let path = unreadable.backing_path.to_string_lossy();
        if Path::new(path.strip_suffix(" (deleted)").unwrap_or(&path)).ends_with(name) {
            let reason = format!(
                "cannot be queried ({}), and its backing file {path} may be the one that is needed: repair or \
                 detach it (losetup -d)",
                unreadable.reason
            );
            return Err(Error::InvalidState { path: device.path.clone(), reason });
        }
    }
    Ok(())
}

/// File systems on devices and at mount points.
pub trait Filesystems: Send + Sync {
    /// Searches for known signatures. A device that cannot be read is an error, never "no signature".
    fn probe(&self, device: &Path) -> Result<ProbeResult>;
    /// Creates a file system with the given UUID. The caller must have proven that no data can be overwritten.
    fn make_fs(&self, device: &Path, request: &MakeFsRequest<'_>) -> Result<()>;
    /// Checks an unmounted file system, and makes the repairs that `check` allows.
    fn check_fs(&self, device: &Path, fs: FsType, check: FsCheck) -> std::result::Result<(), FsError>;
    /// Grows the file system to the size of its device. `mounted_at` is its mount point, if it is mounted. If it is not,
    /// the caller must have checked it with [`FsCheck::Full`] first: growing a damaged file system damages it further.
    fn grow_fs(&self, device: &Path, fs: FsType, mounted_at: Option<&Path>) -> Result<()>;
    /// Whether this process can grow a mounted file system of this type; the error is the reason why not.
    fn can_grow_online(&self, fs: FsType) -> std::result::Result<(), String>;
    /// Sets the UUID of an unmounted copy of a file system. `scratch` is an empty directory for file systems whose log
    /// must first be replayed by a mount. Safe to repeat.
    fn set_fs_uuid(&self, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()>;
    /// Bytes and inodes of the file system at `path`.
    fn usage(&self, path: &Path) -> Result<FsUsage>;
    /// The file beneath the file system at `path`, if that is on a loop device; `None` if it is not, or if the file
    /// cannot be seen from here.
    fn file_beneath(&self, path: &Path) -> Result<Option<FileBeneath>>;
    /// The number of errors that the file system has recorded since it was created, where the kernel reports it
    /// (ext4, btrfs); else 0.
    fn fs_error_count(&self, device: &Path, fs: FsType, mounted_at: &Path) -> Result<u64>;
    /// Freezes the file systems at `mount_points`, all or none. A child process holds the freeze: it thaws when the
    /// guard is dropped, when this process exits for any reason, or when `at_most` has passed.
    fn freeze(&self, mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>>;
    /// Thaws one file system; a file system that is not frozen is success.
    fn thaw(&self, mount_point: &Path) -> Result<()>;
}

/// A guard for frozen file systems; dropping it thaws them.
pub trait Frozen: Send {
    /// Thaws. An error means that the freeze ended earlier, so data copied in the meantime may be inconsistent.
    fn thaw(self: Box<Self>) -> Result<()>;
}

/// Files of a pool. All paths are relative to the pool's root and cannot leave it; symlinks are not followed.
pub trait Files: Send + Sync {
    /// Reads a whole small file; `None` if it does not exist.
    fn read_file(&self, file: &PathBeneath<'_>) -> Result<Option<Vec<u8>>>;
    /// Creates or truncates a file (0600) and writes it. Not durable: see [`crate::write_durably`].
    fn write_file(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()>;
    /// fsync of a file or a directory.
    fn sync(&self, path: &PathBeneath<'_>) -> Result<()>;
    /// Renames within one root; replaces an existing file at `to`.
    fn rename(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()>;
    /// Exchanges two existing files within one root.
    fn exchange(&self, one: &PathBeneath<'_>, other: &PathBeneath<'_>) -> Result<()>;
    /// Creates or replaces a file (0600) of `bytes` spaces whose blocks are allocated, so that [`Self::overwrite`]
    /// needs no free space. Not durable.
    fn create_reserved(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()>;
    /// Overwrites the start of a file in place. Never extends it. Not durable.
    fn overwrite(&self, file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()>;
    /// Creates a directory (0700); an existing directory is success.
    fn create_dir(&self, dir: &PathBeneath<'_>) -> Result<()>;
    /// Names in a directory, sorted; empty if it does not exist.
    fn list_dir(&self, dir: &PathBeneath<'_>) -> Result<Vec<String>>;
    /// Removes a file; a missing file is success.
    fn remove_file(&self, file: &PathBeneath<'_>) -> Result<()>;
    /// Removes an empty directory; a missing directory is success.
    fn remove_dir(&self, dir: &PathBeneath<'_>) -> Result<()>;
    /// Size, allocation and identity; `None` if it does not exist.
    fn stat(&self, file: &PathBeneath<'_>) -> Result<Option<FileStat>>;
    /// Creates the file (0600) if it does not exist and sets its size; added bytes read as zeroes.
    fn set_size(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()>;
    /// Reserves blocks for the first `bytes` bytes of the file, without changing its content.
    fn allocate(&self, file: &PathBeneath<'_>, bytes: u64) -> Result<()>;
    /// Whether files beneath `root` can share extents. Tests it with temporary files.
    fn can_reflink(&self, root: &Path) -> Result<bool>;
    /// Makes `to` (created or truncated, 0600) share all extents of `from`.
    fn reflink(&self, from: &PathBeneath<'_>, to: &PathBeneath<'_>) -> Result<()>;
    /// Copies the data of `from` in `offset..offset + length` to the same offsets of `to`. Holes stay holes. Returns
    /// the number of data bytes copied. `to` must exist and be large enough.
    fn copy_range(
        &self,
        from: &PathBeneath<'_>,
        to: &PathBeneath<'_>,
        offset: u64,
        length: u64,
    ) -> Result<u64>;
    /// The file's extents, after flushing its data (FIEMAP): sorted, written extents only.
    fn extents(&self, file: &PathBeneath<'_>) -> Result<Vec<Extent>>;
    /// Takes an exclusive lock, released when the guard is dropped or the process exits; `None` if another process
    /// holds the lock.
    fn try_lock(&self, file: &PathBeneath<'_>) -> Result<Option<Box<dyn Send + Sync>>>;
}
