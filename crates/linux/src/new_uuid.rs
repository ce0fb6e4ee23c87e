//! Superblocks with another UUID. Pure: bytes in, bytes out.
//!
//! By our own hand, because the programs for it cannot be interrupted: btrfstune takes two transactions, and
//! between them the file system neither mounts nor is accepted by btrfstune again; xfs_db overwrites the whole
//! log first, and until it is done with the superblock nothing mounts. Here it is a few single blocks, written
//! in an order in which every prefix of them is either the old state or one that a retry knows.

mod btrfs;
mod xfs;

pub(crate) use btrfs::BtrfsSuper;
pub(crate) use xfs::{LogRecord, XfsSuper};
