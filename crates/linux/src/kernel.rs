//! The seam between Wharf and the machine: every way in which a driver touches the kernel or the disk.
//!
//! Each method is one boundary. Whoever reasons about crashes reasons about "before this call" and "after
//! this call", and the crash tests kill a driver at exactly those places; so a method does one thing, and
//! what takes several steps (a durable write, a safe format) is composed of them above this trait.
//!
//! All methods block: call them from a thread that may, unless [`Mounts::waits`] says no. [`crate::Linux`] is the real
//! thing.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{
    Beneath, Error, Extent, FileStat, FsError, FsType, LoopDevice, LoopOptions, MakeFs, MountRequest,
    MountTable, PathKind, Probe, Result, Usage,
};

/// Everything a driver asks of the machine.
pub trait Kernel: Mounts + Devices + Filesystems + Files + 'static {}

impl<T: Mounts + Devices + Filesystems + Files + 'static> Kernel for T {}

/// Mounts and the paths they are made on.
pub trait Mounts: Send + Sync {
    /// Whether calls of this kernel may wait for a machine. One that is all in memory says no: then they are made where
    /// they are asked for, so that what runs on one thread runs the same way twice.
    fn waits(&self) -> bool {
        true
    }
    /// Reads `/proc/self/mountinfo`, whole and consistent.
    fn mount_table(&self) -> Result<MountTable>;
    /// Mounts a device or a pseudo file system.
    fn mount(&self, request: &MountRequest<'_>) -> Result<()>;
    /// Bind-mounts `source` (a directory, a file or a device node) on `target`; not recursive.
    /// Read-only binds are made read-only before they become visible, or undone.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> Result<()>;
    /// Unmounts what is mounted topmost at `target`; "not mounted" is success. The ladder: plain, then again
    /// for a short while as long as it is busy. Never lazy: a lazy unmount hides a device still in use.
    fn unmount(&self, target: &Path) -> Result<()>;
    /// `path` as the mount table spells it: symlinks among its directories are followed, its last name is
    /// not. Where the directory does not exist, nothing can be mounted, and `path` is answered as it is.
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
    /// What is at `path`, without following a final symlink; `None` if nothing is.
    fn path_kind(&self, path: &Path) -> Result<Option<PathKind>>;
    /// Creates the directory to mount on, its parents too; existing is success.
    fn create_target_dir(&self, path: &Path) -> Result<()>;
    /// Creates the empty file to bind a device on; existing is success.
    fn create_target_file(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory or an empty file that was a mount target. Never recursive; gone is success.
    fn remove_target(&self, path: &Path) -> Result<()>;
}

/// Block devices: loop devices, and what can be asked of any device.
pub trait Devices: Send + Sync {
    /// Attaches an image to a free loop device in one step (LOOP_CONFIGURE). The same image attached twice
    /// gives two devices: look with [`Devices::loop_devices`] first.
    fn loop_attach(&self, image: &Beneath<'_>, options: &LoopOptions) -> Result<LoopDevice>;
    /// All configured loop devices with the identity of what backs them.
    fn loop_devices(&self) -> Result<Vec<LoopDevice>>;
    /// Makes the device see its image's new size (LOOP_SET_CAPACITY).
    fn loop_refresh(&self, device: &Path) -> Result<()>;
    /// Releases the device at once, not when its last opener closes: waits until the kernel has let go.
    /// Fails while it is mounted or open. Not configured is success.
    fn loop_detach(&self, device: &Path) -> Result<()>;
    /// The size in bytes of a block device.
    fn device_size(&self, device: &Path) -> Result<u64>;
    /// `(major, minor)` of a block device node.
    fn device_number(&self, device: &Path) -> Result<(u32, u32)>;
    /// Whether the kernel has a block device of this number. Gone is only what it says is gone: without sysfs it is an
    /// error.
    fn device_exists(&self, (major, minor): (u32, u32)) -> Result<bool> {
        let all = Path::new("/sys/dev/block");
        let exists = |path: &Path| path.try_exists().map_err(|error| Error::call("stat", path, error));
        match exists(&all.join(format!("{major}:{minor}")))? {
            true => Ok(true),
            false if exists(all)? => Ok(false),
            false => Err(Error::call("stat", all, io::ErrorKind::NotFound)),
        }
    }
    /// Fills `buffer` from `offset`, past the page cache where that is possible; a short read is an error.
    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// File systems on devices and under mount points.
pub trait Filesystems: Send + Sync {
    /// Looks for any known signature. A device that cannot be read is an error, never "nothing found".
    fn probe(&self, device: &Path) -> Result<Probe>;
    /// Makes a file system with the UUID it is given. Decides nothing: proving that this is safe is the caller's.
    fn make_fs(&self, device: &Path, request: &MakeFs<'_>) -> Result<()>;
    /// Checks an unmounted file system before a mount, repairing what is always safe (journal replay).
    fn check_fs(&self, device: &Path, fs: FsType) -> std::result::Result<(), FsError>;
    /// Grows the file system to its device. `mounted_at` is where it is mounted, if it is.
    fn grow_fs(&self, device: &Path, fs: FsType, mounted_at: Option<&Path>) -> Result<()>;
    /// Whether this process could grow such a file system while it is mounted, and if not, why.
    fn can_grow_online(&self, fs: FsType) -> std::result::Result<(), String>;
    /// Gives an unmounted copy of a file system the UUID `uuid`. `scratch` is an empty directory of the
    /// caller's, for the file systems that must replay their log by a mount first. Repeating it is safe.
    fn set_fs_uuid(&self, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()>;
    /// Bytes and inodes of the file system at `path`.
    fn usage(&self, path: &Path) -> Result<Usage>;
    /// Errors that the file system on a device has counted since it was made, where the kernel tells
    /// (ext4, btrfs); 0 where it does not.
    fn fs_error_count(&self, device: &Path, fs: FsType, mounted_at: &Path) -> Result<u64>;
    /// Freezes the file systems at `mount_points`, all or none. A child process holds the freeze: it thaws
    /// when the guard is dropped, when this process dies however it dies, or when `at_most` has passed.
    fn freeze(&self, mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>>;
    /// Thaws one file system; not frozen is success.
    fn thaw(&self, mount_point: &Path) -> Result<()>;
}

/// Frozen file systems; dropping it thaws them.
pub trait Frozen: Send {
    /// Thaws, and says whether the freeze held all the while: an error means that it ran out before, and
    /// that what was copied meanwhile may be torn.
    fn thaw(self: Box<Self>) -> Result<()>;
}

/// Files of a pool, each named beneath the pool's root: no path leaves it, no symlink is followed.
pub trait Files: Send + Sync {
    /// Reads a small file whole; `None` if it does not exist.
    fn read_file(&self, file: &Beneath<'_>) -> Result<Option<Vec<u8>>>;
    /// Creates or truncates a file (0600) and writes it. Not durable by itself: see [`crate::write_durably`].
    fn write_file(&self, file: &Beneath<'_>, bytes: &[u8]) -> Result<()>;
    /// fsync of a file or a directory.
    fn sync(&self, path: &Beneath<'_>) -> Result<()>;
    /// Renames within one root; an existing file at `to` is replaced.
    fn rename(&self, from: &Beneath<'_>, to: &Beneath<'_>) -> Result<()>;
    /// Creates a directory (0700); existing is success.
    fn create_dir(&self, dir: &Beneath<'_>) -> Result<()>;
    /// Names in a directory, sorted; empty if it does not exist.
    fn list_dir(&self, dir: &Beneath<'_>) -> Result<Vec<String>>;
    /// Removes a file; gone is success.
    fn remove_file(&self, file: &Beneath<'_>) -> Result<()>;
    /// Removes an empty directory; gone is success.
    fn remove_dir(&self, dir: &Beneath<'_>) -> Result<()>;
    /// Size, allocation and identity; `None` if it does not exist.
    fn stat(&self, file: &Beneath<'_>) -> Result<Option<FileStat>>;
    /// Creates the file (0600) if need be and sets its size; what is added reads as zeroes.
    fn set_size(&self, file: &Beneath<'_>, bytes: u64) -> Result<()>;
    /// Reserves blocks for the file's first `bytes` bytes, without changing what it reads as.
    fn allocate(&self, file: &Beneath<'_>, bytes: u64) -> Result<()>;
    /// Whether files beneath `root` can share extents. Found out by trying it.
    fn can_reflink(&self, root: &Path) -> Result<bool>;
    /// Makes `to` (created or truncated, 0600) share all of `from`'s extents.
    fn reflink(&self, from: &Beneath<'_>, to: &Beneath<'_>) -> Result<()>;
    /// Copies the data of `from` that lies in `offset..offset + length` to the same place of `to`, holes
    /// staying holes; answers how many bytes of data were copied. `to` must exist and be large enough.
    fn copy_range(&self, from: &Beneath<'_>, to: &Beneath<'_>, offset: u64, length: u64) -> Result<u64>;
    /// Where the file's data lies, after flushing it (FIEMAP): sorted, written extents only.
    fn extents(&self, file: &Beneath<'_>) -> Result<Vec<Extent>>;
    /// Takes an exclusive lock that ends with the guard or with the process; `None` if another holds it.
    fn try_lock(&self, file: &Beneath<'_>) -> Result<Option<Box<dyn Send + Sync>>>;
}
