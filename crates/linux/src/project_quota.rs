//! Project quotas: limits on directory trees of xfs and ext4.
//!
//! A directory tree belongs to a project by a number in each of its inodes. A directory with the inherit flag passes its
//! number on to what is created in it. The file system counts what each project uses and refuses to exceed its limit.
//! Every function takes an open file of the file system in question. Nothing here makes decisions.

use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// `FS_XFLAG_PROJINHERIT`: new entries of the directory get its project.
const INHERIT: u32 = 0x200;

/// `QIF_BLIMITS`: the limit on space is valid.
const SPACE_LIMITS: u32 = 1;

/// Limits on space are in units of this many bytes.
pub const QUOTA_BLOCK: u64 = 1024;

/// The project of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project {
    /// The number; 0 is none.
    pub id: u32,
    /// Whether new entries of the directory get the same project.
    pub inherit: bool,
}

/// What a project uses, and what it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProjectUsage {
    /// The limit in bytes; 0 is none.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Files and directories in use.
    pub inodes: u64,
}

/// What a file system does about project quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectQuotaState {
    /// It counts and enforces.
    Enforced,
    /// It counts, but enforces no limit.
    Counted,
    /// Neither.
    Off,
}

/// Reads the project of a file or directory. File systems without projects return ENOTTY or ENOTSUP.
pub fn project(file: impl AsFd) -> io::Result<Project> {
    let attributes = sys::fs_attributes(file)?;
    Ok(Project { id: attributes.project, inherit: attributes.flags & INHERIT != 0 })
}

/// Sets the project of a directory, and lets new entries inherit it.
pub fn set_project(directory: impl AsFd, id: u32) -> io::Result<()> {
    let mut attributes = sys::fs_attributes(&directory)?;
    attributes.project = id;
    attributes.flags |= INHERIT;
    sys::set_fs_attributes(directory, attributes)
}

/// What the file system does about project quotas.
pub fn project_quota_state(file: impl AsFd) -> io::Result<ProjectQuotaState> {
    const COUNTED: u16 = 1 << 4;
    const ENFORCED: u16 = 1 << 5;
    match sys::quota_flags(file) {
        Ok(flags) if flags & (COUNTED | ENFORCED) == COUNTED | ENFORCED => Ok(ProjectQuotaState::Enforced),
        Ok(flags) if flags & COUNTED != 0 => Ok(ProjectQuotaState::Counted),
        Ok(_) => Ok(ProjectQuotaState::Off),
        // ENOSYS: no quota of any kind is on, or the kernel has no quotactl_fd (before 5.14).
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ESRCH | libc::EINVAL)) => {
            Ok(ProjectQuotaState::Off)
        }
        Err(error) => Err(error),
    }
}

/// Reads the usage of a project. One that the file system does not know has no limit and uses nothing.
pub fn project_usage(file: impl AsFd, id: u32) -> io::Result<ProjectUsage> {
    match sys::quota_get(file, id) {
        Ok(quota) => Ok(usage(&quota)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(ProjectUsage::default()),
        Err(error) => Err(error),
    }
}

/// The first project with a number of at least `from` that the file system knows, with its usage.
pub fn next_project_usage(file: impl AsFd, from: u32) -> io::Result<Option<(u32, ProjectUsage)>> {
    match sys::quota_get_next(file, from) {
        Ok(next) => Ok(Some((next.id, usage(&next)))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the limit of a project in bytes, rounded down to [`QUOTA_BLOCK`]; 0 removes it.
pub fn set_project_limit(file: impl AsFd, id: u32, bytes: u64) -> io::Result<()> {
    let quota = sys::Quota { hard_limit: bytes / QUOTA_BLOCK, valid: SPACE_LIMITS, ..sys::Quota::default() };
    sys::quota_set(file, id, quota)
}

fn usage(quota: &sys::Quota) -> ProjectUsage {
    ProjectUsage {
        limit: quota.hard_limit.saturating_mul(QUOTA_BLOCK),
        used: quota.used,
        inodes: quota.inodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_converts_blocks_to_bytes() {
        for (hard_limit, limit) in [(0, 0), (1, 1024), (1 << 20, 1 << 30), (u64::MAX, u64::MAX)] {
            let quota = sys::Quota { hard_limit, used: 7, inodes: 2, ..sys::Quota::default() };
            assert_eq!(usage(&quota), ProjectUsage { limit, used: 7, inodes: 2 });
        }
    }

    /// /proc has neither projects nor quotas, on any kernel.
    #[test]
    fn file_systems_without_quotas_say_so() {
        let file = std::fs::File::open("/proc/self").unwrap();
        assert!(project(&file).is_err());
        assert_eq!(project_quota_state(&file).ok(), Some(ProjectQuotaState::Off));
        assert!(project_usage(&file, 1).is_err());
    }
}
