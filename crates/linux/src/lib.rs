//! Mounts, loop devices, file systems, durable files: the machine as Wharf's drivers see it.
//!
//! Start at [`Kernel`], the trait that everything goes through.

mod error;
mod kernel;
mod mountinfo;
mod types;

pub use error::{Error, FsError, Result};
pub use kernel::{Devices, Files, Filesystems, Frozen, Kernel, Mounts};
pub use mountinfo::{Mount, MountTable, ParseError};
pub use types::{
    Beneath, Extent, FileId, FileStat, FsType, LoopDevice, LoopOptions, MakeFs, MountRequest, PathKind,
    Probe, UnknownFsType, Usage,
};
