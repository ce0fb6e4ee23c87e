//! The real implementation: [`Linux`] implements the traits of [`crate::Kernel`] with system calls and programs.
//!
//! One module for each trait: `mounts`, `devices` (with `loops`), `filesystems` (with `freeze` and `uuids`) and `files`
//! (with `extents`). [`Linux`] holds no state and queries the kernel each time.

mod devices;
mod extents;
mod files;
mod filesystems;
mod freeze;
mod loops;
mod mounts;
mod uuids;

/// The Linux kernel and the programs of xfsprogs, btrfs-progs and e2fsprogs. Needs root.
#[derive(Debug, Clone, Copy, Default)]
pub struct Linux;

impl Linux {
    /// The kernel of this machine.
    pub fn new() -> Self {
        Self
    }
}
