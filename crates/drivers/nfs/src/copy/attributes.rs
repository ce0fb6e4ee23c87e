//! Owner, mode, times and extended attributes of one file. Used by the copier and by archives.
//!
//! The order matters: a change of owner clears setuid, setgid and file capabilities, an access ACL changes the mode,
//! and only the times are changed by none of the others.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// The ACL that an NFSv4 server derives for every file. It is set only if the target's differs.
const NFS4_ACL: &[u8] = b"system.nfs4_acl";
const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// The largest value of an extended attribute that Linux allows.
const XATTR_SIZE_MAX: usize = 64 << 10;

/// Names and values of extended attributes, in the order of the names.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The attributes to give to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits, setuid, setgid and sticky.
    pub(crate) mode: u32,
    /// Time of last access: seconds and nanoseconds.
    pub(crate) atime: (i64, u32),
    /// Time of last modification.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Xattrs,
}

/// What could not be kept, and why.
#[derive(Debug)]
pub(crate) struct NotKept {
    pub(crate) what: &'static str,
    pub(crate) source: io::Error,
}

impl Attributes {
    /// The attributes in `stat`, without extended attributes.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            atime: (stat.st_atime, u32::try_from(stat.st_atime_nsec).unwrap_or(0)),
            mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            xattrs: Vec::new(),
        }
    }

    /// The mode to create a regular file with: the final one if possible, which saves a call, and always writable by
    /// the owner.
    pub(crate) fn creation_mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o777 | 0o600)
    }

    fn times(&self) -> Timestamps {
        let time = |(seconds, nanoseconds)| Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
        Timestamps { last_access: time(self.atime), last_modification: time(self.mtime) }
    }

    /// Gives these attributes to an open file. Continues after a failure, so that with best effort the rest is kept;
    /// `failed` is called for each.
    pub(crate) fn apply<E>(
        &self,
        file: BorrowedFd<'_>,
        mut failed: impl FnMut(NotKept) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut check = |what, result: io::Result<()>| match result {
            Ok(()) => Ok(()),
            Err(source) => failed(NotKept { what, source }),
        };
        check("owner", self.apply_owner(file))?;
        for (name, value) in self.xattrs.iter().filter(|(name, _)| name != NFS4_ACL) {
            let flags = XattrFlags::empty();
            check(
                "extended attribute",
                rustix::fs::fsetxattr(file, &name[..], value, flags).map_err(Into::into),
            )?;
        }
        check("mode", self.apply_mode(file))?;
        if let Some((_, acl)) = self.xattrs.iter().find(|(name, _)| name == NFS4_ACL) {
            check("NFSv4 ACL", apply_nfs4_acl(file, acl))?;
        }
        check("times", rustix::fs::futimens(file, &self.times()).map_err(Into::into))
    }

    /// Gives owner and times to a symlink.
    pub(crate) fn apply_to_symlink<E>(
        &self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        mut failed: impl FnMut(NotKept) -> Result<(), E>,
    ) -> Result<(), E> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let owner = || {
            let found = super::beneath::stat(dir, name)?;
            if (found.st_uid, found.st_gid) == (self.uid, self.gid) {
                return Ok(());
            }
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags)?)
        };
        if let Err(source) = owner() {
            failed(NotKept { what: "owner", source })?;
        }
        match rustix::fs::utimensat(dir, name, &self.times(), flags) {
            Ok(()) => Ok(()),
            Err(errno) => failed(NotKept { what: "times", source: errno.into() }),
        }
    }

    /// Under root_squash no client may change an owner. A file that has the right owner needs no change.
    fn apply_owner(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let found = rustix::fs::fstat(file)?;
        let uid = (found.st_uid != self.uid).then(|| Uid::from_raw(self.uid));
        let gid = (found.st_gid != self.gid).then(|| Gid::from_raw(self.gid));
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(file, uid, gid)?;
        }
        Ok(())
    }

    fn apply_mode(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        if rustix::fs::fstat(file)?.st_mode & 0o7777 != self.mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?;
        }
        Ok(())
    }
}

fn apply_nfs4_acl(file: BorrowedFd<'_>, acl: &[u8]) -> io::Result<()> {
    if read_xattr(file, NFS4_ACL)?.as_deref() != Some(acl) {
        rustix::fs::fsetxattr(file, NFS4_ACL, acl, XattrFlags::empty())?;
    }
    Ok(())
}

/// Reads the extended attributes that a copy keeps.
pub(crate) fn read_xattrs(file: BorrowedFd<'_>) -> io::Result<Xattrs> {
    let mut list = Vec::with_capacity(1 << 10);
    loop {
        list.clear();
        match rustix::fs::flistxattr(file, rustix::buffer::spare_capacity(&mut list)) {
            Ok(_) => break,
            Err(Errno::RANGE) => list.reserve(XATTR_SIZE_MAX),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut xattrs = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        if let Some(value) = read_xattr(file, name)? {
            xattrs.push((name.to_vec(), value));
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

/// Reads one extended attribute; `None` if it does not exist, or no longer.
fn read_xattr(file: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(256);
    loop {
        value.clear();
        match rustix::fs::fgetxattr(file, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => return Ok(Some(value)),
            Err(Errno::RANGE) if value.capacity() <= XATTR_SIZE_MAX => value.reserve(2 * XATTR_SIZE_MAX),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes ACLs that a new directory inherited from its parent: everything created in it would inherit them too.
pub(crate) fn remove_inherited_acls(dir: impl AsFd) -> io::Result<()> {
    for name in [DEFAULT_ACL, ACCESS_ACL] {
        match rustix::fs::fremovexattr(&dir, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Which extended attributes a copy keeps: data of users, ACLs and file capabilities. Security labels are left to the
/// policy of the place, and the ID of a volume's directory belongs to that directory alone.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    if name == crate::share::files::ID_XATTR.as_bytes() {
        return false;
    }
    let kept = [ACCESS_ACL.to_bytes(), DEFAULT_ACL.to_bytes(), NFS4_ACL, b"security.capability"];
    name.starts_with(b"user.") || name.starts_with(b"trusted.") || kept.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_attributes_acls_and_capabilities_are_kept_and_labels_are_not() {
        let table: [(&[u8], bool); 9] = [
            (b"user.a", true),
            (b"user.wharf.id", false),
            (b"trusted.a", true),
            (b"system.posix_acl_access", true),
            (b"system.posix_acl_default", true),
            (b"system.nfs4_acl", true),
            (b"security.capability", true),
            (b"security.selinux", false),
            (b"", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_kept(name), expected, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn created_file_is_writable_and_has_no_special_bits() {
        let mode = |mode| Attributes { mode, ..Attributes::default_for_test() }.creation_mode().as_raw_mode();
        assert_eq!((mode(0o6755), mode(0o444), mode(0)), (0o755, 0o644, 0o600));
    }

    impl Attributes {
        fn default_for_test() -> Self {
            Self { uid: 0, gid: 0, mode: 0, atime: (0, 0), mtime: (0, 0), xattrs: Vec::new() }
        }
    }
}
