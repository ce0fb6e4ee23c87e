//! Mounts, loop devices, file systems, durable files: the machine as Wharf's drivers see it.
//!
//! Start at [`Kernel`], the trait that everything goes through.

#![allow(unsafe_code, reason = "the one crate that speaks to the kernel directly")]

mod bytes;
mod command;
mod crc32c;
mod durable;
mod error;
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
pub use kernel::{Devices, Files, Filesystems, Frozen, Kernel, Mounts};
pub use linux::Linux;
pub use mkfs::check_mkfs_options;
pub use mountinfo::{Mount, MountTable, ParseError};
pub use probe::signature_offsets;
pub use random_uuid::random_uuid;
pub use types::{
    Beneath, Extent, FileId, FileStat, FsType, LoopDevice, LoopOptions, MakeFs, MountRequest, PathKind,
    Probe, UnknownFsType, Usage,
};
