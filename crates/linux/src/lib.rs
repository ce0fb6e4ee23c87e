//! Mounts, loop devices, file systems and durable files: everything that Wharf's drivers need from Linux.
//!
//! Start at [`Kernel`], the trait through which drivers make all these calls. [`Linux`] implements it.
//!
//! # Examples
//!
//! Find out what is mounted where:
//!
//! ```
//! use std::path::Path;
//! use wharf_linux::{Linux, Mounts as _};
//!
//! let table = Linux::new().mount_table()?;
//! let proc = table.at(Path::new("/proc")).ok_or("not mounted")?;
//! assert_eq!(proc.fs_type, "proc");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Write a file so that it is complete after a crash, or not there at all:
//!
//! ```
//! use std::path::Path;
//! use wharf_linux::{Files as _, Linux, PathBeneath, write_durably};
//!
//! # let dir = tempfile::tempdir()?;
//! # let root = dir.path();
//! let (kernel, file) = (Linux::new(), PathBeneath::new(root, Path::new("state.json")));
//! write_durably(&kernel, &file, b"{}")?;
//! assert_eq!(kernel.read_file(&file)?.as_deref(), Some(&b"{}"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod project_quota;
mod random_uuid;
pub mod sandbox;
mod sys;
mod types;

pub use durable::{replace_durably, write_durably};
pub use error::{Error, FsError, Result};
pub use kernel::{BlockDevices, Files, Filesystems, Frozen, Kernel, Mounts, check_readable};
pub use linux::Linux;
pub use mkfs::check_mkfs_options;
pub use mountinfo::{Mount, MountTable, ParseError};
pub use probe::signature_ranges;
pub use project_quota::{
    Project, ProjectQuotaState, ProjectUsage, QUOTA_BLOCK, next_project_usage, project, project_quota_state,
    project_usage, set_project, set_project_limit,
};
pub use random_uuid::random_uuid;
pub use types::{
    Extent, FileBeneath, FileId, FileStat, FsCheck, FsType, FsUsage, LoopDevice, LoopOptions, MakeFsRequest,
    MountRequest, PathBeneath, PathKind, ProbeResult, UnknownFsType, UnreadableLoop,
};
