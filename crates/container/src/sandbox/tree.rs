//! Detached mounts: created first and attached later. A detached mount is not visible in any namespace, and disappears
//! when its descriptor is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use wharf_linux::sandbox::set_mount_attributes;

/// Restrictions of a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MountFlags {
    /// Writes are not allowed.
    pub(crate) read_only: bool,
    /// Device nodes cannot be opened.
    pub(crate) no_dev: bool,
    /// Programs cannot be executed.
    pub(crate) no_exec: bool,
    /// Set-user-ID programs gain no privileges.
    pub(crate) no_suid: bool,
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

/// A mount that is not attached to any path yet.
#[derive(Debug)]
pub(crate) struct DetachedMount(OwnedFd);

impl DetachedMount {
    /// Mounts a new file system with the given options.
    pub(crate) fn new(fs_type: &str, options: &[(&str, &[u8])], flags: MountFlags) -> io::Result<Self> {
        let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        Ok(Self(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags.bits())?))
    }

    /// Clones the mount that `file` is on, with `file` as its root, without the mounts beneath it. Later mounts and
    /// unmounts do not propagate between the original and the clone.
    pub(crate) fn copy(file: impl AsFd, flags: MountFlags) -> io::Result<Self> {
        let how =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = Self(open_tree(file.as_fd(), c"", how)?);
        set_mount_attributes(&tree.0, u64::from(flags.bits().bits()), true)?;
        Ok(tree)
    }

    /// Adds restrictions, whether or not the mount is attached.
    pub(crate) fn restrict(&self, flags: MountFlags) -> io::Result<()> {
        set_mount_attributes(&self.0, u64::from(flags.bits().bits()), false)
    }

    /// Attaches the mount at `target`, an open directory or file. The root of the mount and the target must both be
    /// directories, or both be files.
    pub(crate) fn attach(&self, target: impl AsFd) -> io::Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&self.0, c"", target.as_fd(), c"", how)?)
    }
}

/// Borrows a descriptor of the mount's root, for path lookups.
impl AsFd for DetachedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
