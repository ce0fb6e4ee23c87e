//! Mounts, loop devices, file systems and durable files: everything that Wharf's drivers need from Linux.
//!
//! Start at [`Kernel`], the trait through which drivers make all these calls.

#![allow(unsafe_code, reason = "the one crate that calls the kernel directly")]

mod bytes;
mod command;
mod crc32c;
mod durable;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod kernel;
mod linux;
mod mkfs;
mod mount_options;
mod mountinfo;
mod new_uuid;
mod probe;
mod random_uuid;
pub mod sandbox;
mod sys;
mod types;

pub use durable::write_durably;
pub use error::{Error, FsError, Result};
pub use kernel::{BlockDevices, Files, Filesystems, Frozen, Kernel, Mounts};
pub use linux::Linux;
pub use mkfs::check_mkfs_options;
pub use mountinfo::{Mount, MountTable, ParseError};
pub use probe::signature_ranges;
pub use random_uuid::random_uuid;
pub use types::{
    Extent, FileId, FileStat, FsType, FsUsage, LoopDevice, LoopOptions, MakeFsRequest, MountRequest,
    PathBeneath, PathKind, ProbeResult, UnknownFsType,
};
