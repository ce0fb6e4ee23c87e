//! The plain data of the seam: what is asked of the kernel, and what it answers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A file system that Wharf makes and mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// The default.
    Ext4,
    /// Wants 300 MiB at least.
    Xfs,
    /// Wants about 110 MiB at least.
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

/// A path beneath a root directory that it cannot leave: opened with `openat2` (RESOLVE_BENEATH, no symlinks).
#[derive(Debug, Clone, Copy)]
pub struct Beneath<'a> {
    /// The directory that is trusted.
    pub root: &'a Path,
    /// The relative path within it; "." is the root itself.
    pub path: &'a Path,
}

impl<'a> Beneath<'a> {
    /// `path` beneath `root`.
    pub fn new(root: &'a Path, path: &'a Path) -> Self {
        Self { root, path }
    }

    /// The full path, for messages only.
    pub fn display(&self) -> PathBuf {
        self.root.join(self.path)
    }
}

/// What a path names.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest<'a> {
    /// A device node, or a name such as `tmpfs`, or `server:/export`.
    pub source: &'a str,
    /// An existing directory.
    pub target: &'a Path,
    /// File system type as the kernel names it.
    pub fs_type: &'a str,
    /// `mount -o` options: those that are flags become flags, the rest goes to the file system.
    pub options: &'a [String],
    /// Mount read-only.
    pub read_only: bool,
}

/// Options of a loop device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoopOptions {
    /// No writes through this device.
    pub read_only: bool,
    /// At most 63 bytes that the kernel keeps with the device (`lo_file_name`): the volume's id.
    pub label: String,
}

/// A configured loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// `/dev/loopN`.
    pub path: PathBuf,
    /// Identity of the backing file: what the kernel has open, whatever its path is called by now.
    pub backing: FileId,
    /// See [`LoopOptions::label`].
    pub label: String,
    /// Attached read-only.
    pub read_only: bool,
    /// Past the page cache of the pool's file system.
    pub direct_io: bool,
    /// It goes away by itself when it is closed for the last time, and its number is then another image's: not
    /// to be handed out.
    pub going: bool,
}

/// Device and inode number: the identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// What `stat` says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Identity.
    pub id: FileId,
    /// Length in bytes.
    pub size: u64,
    /// Bytes really occupied.
    pub allocated: u64,
    /// A directory.
    pub is_dir: bool,
}

/// A run of written blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Where it lies on the pool's device; two files with the same bytes here share them. `None` where the
    /// file system does not tell or one place cannot be compared with another (inline, encoded).
    pub physical: Option<u64>,
}

/// Bytes and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes an ordinary user may still take.
    pub available_bytes: u64,
    /// Inodes in all; 0 where the file system has no such number (btrfs).
    pub total_inodes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Inodes free.
    pub available_inodes: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// What a probe found on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Read everywhere it looked, and no known signature.
    Nothing,
    /// A file system that we mount.
    Filesystem {
        /// Which.
        fs: FsType,
        /// Its UUID, lower case with dashes.
        uuid: String,
    },
    /// Something else: another file system, a partition table, LUKS, LVM, RAID, swap.
    Foreign {
        /// What, in words for the operator.
        what: String,
    },
    /// A signature that does not hold together: a torn superblock.
    Damaged {
        /// The file system of ours that these are remains of; `None` if anything else is there too.
        fs: Option<FsType>,
        /// What, in words for the operator.
        what: String,
    },
}

/// How to make a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeFs<'a> {
    /// Which.
    pub fs: FsType,
    /// Its UUID, chosen and recorded by the caller first.
    pub uuid: &'a str,
    /// Further options for mkfs, as words.
    pub options: &'a [String],
}
