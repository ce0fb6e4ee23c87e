//! The plain data types of the kernel traits: requests and results.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A file system type that Wharf creates and mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// The default type.
    Ext4,
    /// Needs at least 300 MiB.
    Xfs,
    /// Needs about 110 MiB.
    Btrfs,
}

impl FsType {
    /// The name that `mount` and `mkfs` use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest device its mkfs accepts with our options, in bytes.
    pub fn minimum_size(self) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Ext4 => 2 * MIB,
            Self::Xfs => 300 * MIB,
            Self::Btrfs => 114 * MIB,
        }
    }

    /// The smallest size that a file system of this type can be grown to: btrfs refuses to resize to less.
    pub fn minimum_grown_size(self) -> u64 {
        match self {
            Self::Ext4 | Self::Xfs => 0,
            Self::Btrfs => 256 << 20,
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A file system type that Wharf does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown file system type {0:?}: use ext4, xfs or btrfs")]
pub struct UnknownFsType(pub String);

impl FromStr for FsType {
    type Err = UnknownFsType;

    fn from_str(name: &str) -> Result<Self, UnknownFsType> {
        match name {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            "btrfs" => Ok(Self::Btrfs),
            other => Err(UnknownFsType(other.to_owned())),
        }
    }
}

/// A path that cannot leave its root directory: it is opened with `openat2` (RESOLVE_BENEATH, no symlinks).
#[derive(Debug, Clone, Copy)]
pub struct PathBeneath<'a> {
    /// The trusted root directory.
    pub root: &'a Path,
    /// The relative path within it; "." is the root itself.
    pub path: &'a Path,
}

impl<'a> PathBeneath<'a> {
    /// `path` beneath `root`.
    pub fn new(root: &'a Path, path: &'a Path) -> Self {
        Self { root, path }
    }

    /// The full path. For messages only: it is not resolved beneath the root.
    pub fn display(&self) -> PathBuf {
        self.root.join(self.path)
    }
}

/// The type of file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A block device node.
    BlockDevice,
    /// A symbolic link, not followed.
    Symlink,
    /// Anything else.
    Other,
}

/// A mount of a device or a pseudo file system.
#[derive(Clone, PartialEq, Eq)]
pub struct MountRequest<'a> {
    /// A device node, or a name such as `tmpfs`, or `server:/export`.
    pub source: &'a str,
    /// An existing directory.
    pub target: &'a Path,
    /// The kernel's name of the file system type.
    pub fs_type: &'a str,
    /// `mount -o` options: known flags become mount flags, the rest is passed to the file system. They can contain secrets,
    /// so they are never printed.
    pub options: &'a [String],
    /// Mount read-only.
    pub read_only: bool,
}

impl fmt::Debug for MountRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, target, fs_type, options, read_only } = self;
        f.debug_struct("MountRequest")
            .field("source", source)
            .field("target", target)
            .field("fs_type", fs_type)
            .field("options", &format_args!("{} options", options.len()))
            .field("read_only", read_only)
            .finish()
    }
}

/// Options of a loop device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoopOptions {
    /// No writes through this device.
    pub read_only: bool,
    /// At most 63 bytes that the kernel stores with the device (`lo_file_name`): the volume's id.
    pub label: String,
}

/// A configured loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// `/dev/loopN`.
    pub path: PathBuf,
    /// `(major, minor)` of the device.
    pub number: (u32, u32),
    /// Identity of the backing file that the kernel has open, even if it was renamed since. [`FileId::UNKNOWN`] if the
    /// device is `unreadable`.
    pub backing: FileId,
    /// `(major, minor)` of the backing file, if it is a device itself.
    pub backing_device: Option<(u32, u32)>,
    /// The label from [`LoopOptions::label`].
    pub label: String,
    /// Attached read-only.
    pub read_only: bool,
    /// Direct I/O: bypasses the page cache of the pool's file system.
    pub direct_io: bool,
    /// The kernel detaches the device when it is closed for the last time, and its number can then belong to another
    /// image. Do not hand out such a device.
    pub autoclear: bool,
    /// The device begins at this byte of its backing file.
    pub offset: u64,
    /// The device ends after so many bytes; 0: at the end of its backing file.
    pub size_limit: u64,
    /// The logical block size in bytes.
    pub sector_size: u32,
    /// Set if the device could not be opened or queried: only `path` and this field are known.
    pub unreadable: Option<UnreadableLoop>,
}

/// Why a configured loop device could not be opened or queried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableLoop {
    /// The path of its backing file according to sysfs: relative to this process's root, and the name at the time when
    /// it was opened.
    pub backing_path: PathBuf,
    /// The error.
    pub reason: String,
}

impl LoopDevice {
    /// The sector size of every device that [`crate::BlockDevices::loop_attach`] attaches, independent of the disk: an
    /// xfs created with one sector size does not mount with a larger one, and an image may move to another disk.
    pub const SECTOR_SIZE: u32 = 512;

    /// What a process with the device open has changed since it was attached with this label; `None` if nothing.
    /// [`crate::BlockDevices::loop_reset`] restores it.
    pub fn altered(&self, label: &str) -> Option<&'static str> {
        [
            (self.autoclear, "detaches at its last close"),
            (self.offset != 0, "does not begin at the start of its image"),
            (self.size_limit != 0, "has a size limit"),
            (self.sector_size != Self::SECTOR_SIZE, "has another sector size"),
            (self.label != label, "has another label"),
        ]
        .into_iter()
        .find_map(|(altered, how)| altered.then_some(how))
    }
}

/// Device and inode number: the identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl FileId {
    /// The identity of no file: no file has device and inode number 0.
    pub const UNKNOWN: Self = Self { device: 0, inode: 0 };
}

/// The result of `stat` on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Identity.
    pub id: FileId,
    /// Length in bytes.
    pub size: u64,
    /// Bytes allocated on disk.
    pub allocated: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// A run of written blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Offset on the pool's device: two files with the same physical offset share these blocks. `None` where the file
    /// system does not report it or offsets cannot be compared (inline, encoded).
    pub physical: Option<u64>,
}

/// Bytes and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsUsage {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes available to unprivileged users.
    pub available_bytes: u64,
    /// Total inodes; 0 for file systems without a fixed number (btrfs).
    pub total_inodes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Free inodes.
    pub available_inodes: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// The file of a loop device, and the file system that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBeneath {
    /// The file.
    pub path: PathBuf,
    /// Its size and allocation.
    pub stat: FileStat,
    /// The file system that holds it.
    pub usage: FsUsage,
}

/// What a probe found on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// All probed locations were readable and none has a known signature.
    NoSignature,
    /// A file system that Wharf can mount.
    Filesystem {
        /// The type of the file system.
        fs: FsType,
        /// Its UUID, lower case with dashes.
        uuid: String,
    },
    /// Something else: another file system, a partition table, LUKS, LVM, RAID, swap.
    Foreign {
        /// A description for the operator.
        what: String,
    },
    /// A signature with an inconsistent superblock, for example after a torn write.
    Damaged {
        /// The supported file system whose remains were found; `None` if anything else was found too.
        fs: Option<FsType>,
        /// A description for the operator.
        what: String,
    },
}

/// How a file system is checked, and what the check may repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsCheck {
    /// Replays the journal, and checks what the file system itself marks as damaged. Makes only repairs that are always safe.
    BeforeMount,
    /// Checks everything. Makes only repairs that are always safe.
    Full,
    /// Checks everything and repairs it, also where that discards data. Only with positive evidence that the damage is what
    /// an interrupted program of the caller left.
    Repair,
}

/// A request to create a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeFsRequest<'a> {
    /// The type of the file system.
    pub fs: FsType,
    /// The new UUID. The caller chooses and records it before the call.
    pub uuid: &'a str,
    /// Further arguments for mkfs.
    pub options: &'a [String],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_a_mount_has_no_options() {
        let options = ["password=hunter2".to_owned()];
        let (source, target) = ("//server/share", Path::new("/mnt"));
        let request = MountRequest { source, target, fs_type: "cifs", options: &options, read_only: false };
        let text = format!("{request:?}");
        assert!(text.contains("//server/share") && !text.contains("hunter2"), "{text}");
    }
}
