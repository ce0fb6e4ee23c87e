//! The real machine: [`Linux`] does with the kernel what the traits promise.
//!
//! One file for each room: `mounts`, `loops` and `devices` (block devices), `filesystems` with `freeze`
//! and `uuids`, `files` with `extents`. It keeps no state: whatever must be known is asked of the kernel each time.

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
    /// The machine we run on.
    pub fn new() -> Self {
        Self
    }
}
