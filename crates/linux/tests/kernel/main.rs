//! `Linux` on the real kernel: loop devices, mounts and file systems, one file for each topic. Needs root.

// Helpers of tests are tests: clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used)]

mod bench;
mod files;
mod filesystems;
mod freeze;
mod loops;
mod mounts;
mod ranges;
mod uuids;
