//! Computes superblocks with a new UUID. Pure: bytes in, bytes out.
//!
//! Wharf does this itself because the existing programs are not crash safe. btrfstune takes two transactions, and
//! between them neither a mount nor btrfstune accepts the file system. xfs_db overwrites the whole log first, and the
//! file system does not mount until the superblock is written. The code here changes only a few single blocks. The
//! writes are ordered so that a crash after any of them leaves either the old state or one that a retry recognizes.

mod btrfs;
mod xfs;

pub(crate) use btrfs::BtrfsSuper;
pub(crate) use xfs::{LogRecord, XfsSuper};
