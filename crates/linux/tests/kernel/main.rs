//! `Linux` on the real kernel: loop devices, mounts and file systems, one file for each topic. Needs root.

// clippy's exception for tests does not cover test helpers.
#![allow(clippy::unwrap_used)]

mod bench;
mod files;
mod filesystems;
mod freeze;
mod loops;
mod mounts;
mod ranges;
mod uuids;
