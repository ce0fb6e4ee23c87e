//! The pool on the real kernel: every operation on xfs, btrfs and ext4, each on a file system of its own.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod copies;
mod degraded;
mod devices;
mod expansion;
mod fixture;
mod groups;
mod opening;
mod ownership;
mod publishing;
mod recovery;
mod snapshots;
mod space;
mod volumes;
