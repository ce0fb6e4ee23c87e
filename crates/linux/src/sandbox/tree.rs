//! Mounts that are made first and attached later. A mount that is attached nowhere is seen by nobody, and is gone when
//! its descriptor is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::sys;

/// What cannot be done through a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Write.
    pub read_only: bool,
    /// Open device nodes.
    pub no_dev: bool,
    /// Run programs.
    pub no_exec: bool,
    /// Gain rights by set-user-ID programs.
    pub no_suid: bool,
}

impl MountFlags {
    fn bits(self) -> MountAttrFlags {
        let mut bits = MountAttrFlags::empty();
        bits.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.read_only);
        bits.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.no_dev);
        bits.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, self.no_exec);
        bits.set(MountAttrFlags::MOUNT_ATTR_NOSUID, self.no_suid);
        bits
    }
}

/// A mount that is attached nowhere yet.
#[derive(Debug)]
pub struct Tree(OwnedFd);

impl Tree {
    /// A new mount of a file system, with its own options.
    pub fn new(fs_type: &str, options: &[(&str, &[u8])], flags: MountFlags) -> io::Result<Self> {
        let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        Ok(Self(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags.bits())?))
    }

    /// A copy of the one mount that `file` is on, with `file` as its root: what is mounted beneath is not copied. No
    /// mount that is made or taken away in the original later shows in the copy, or the other way round.
    pub fn copy(file: impl AsFd, flags: MountFlags) -> io::Result<Self> {
        let how =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = Self(open_tree(file.as_fd(), c"", how)?);
        sys::mount_set_attributes(&tree.0, u64::from(flags.bits().bits()), true)?;
        Ok(tree)
    }

    /// Forbids more, attached or not.
    pub fn restrict(&self, flags: MountFlags) -> io::Result<()> {
        sys::mount_set_attributes(&self.0, u64::from(flags.bits().bits()), false)
    }

    /// Attaches it over `target`, an open directory or file; a directory goes over a directory, a file over a file.
    pub fn attach(&self, target: impl AsFd) -> io::Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&self.0, c"", target.as_fd(), c"", how)?)
    }
}

/// The root of the mount, to look up paths in.
impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
