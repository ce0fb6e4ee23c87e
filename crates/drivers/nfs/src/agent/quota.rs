//! Access to project quotas, as a seam: most file systems have none, also that of the tests.

use std::io;
use std::os::fd::BorrowedFd;

use wharf_linux::{Project, ProjectQuotaState, ProjectUsage};

/// Project quotas of the file system of an open file. See [`wharf_linux::project_usage`] and its neighbours.
pub trait Quotas: Send + Sync {
    /// What the file system does about them.
    fn state(&self, file: BorrowedFd<'_>) -> io::Result<ProjectQuotaState>;
    /// The project of a directory.
    fn project(&self, directory: BorrowedFd<'_>) -> io::Result<Project>;
    /// Sets the project of a directory, which its new entries inherit.
    fn set_project(&self, directory: BorrowedFd<'_>, id: u32) -> io::Result<()>;
    /// The usage of a project.
    fn usage(&self, file: BorrowedFd<'_>, id: u32) -> io::Result<ProjectUsage>;
    /// The first project with at least this number.
    fn next(&self, file: BorrowedFd<'_>, from: u32) -> io::Result<Option<(u32, ProjectUsage)>>;
    /// Sets the limit of a project; 0 removes it.
    fn set_limit(&self, file: BorrowedFd<'_>, id: u32, bytes: u64) -> io::Result<()>;
}

/// Quotas of the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinuxQuotas;

impl Quotas for LinuxQuotas {
    fn state(&self, file: BorrowedFd<'_>) -> io::Result<ProjectQuotaState> {
        wharf_linux::project_quota_state(file)
    }

    fn project(&self, directory: BorrowedFd<'_>) -> io::Result<Project> {
        wharf_linux::project(directory)
    }

    fn set_project(&self, directory: BorrowedFd<'_>, id: u32) -> io::Result<()> {
        wharf_linux::set_project(directory, id)
    }

    fn usage(&self, file: BorrowedFd<'_>, id: u32) -> io::Result<ProjectUsage> {
        wharf_linux::project_usage(file, id)
    }

    fn next(&self, file: BorrowedFd<'_>, from: u32) -> io::Result<Option<(u32, ProjectUsage)>> {
        wharf_linux::next_project_usage(file, from)
    }

    fn set_limit(&self, file: BorrowedFd<'_>, id: u32, bytes: u64) -> io::Result<()> {
        wharf_linux::set_project_limit(file, id, bytes)
    }
}

/// All projects that the file system knows, from a number on.
///
/// The file system must not lose one of them meanwhile, or the next ones can be missing: Linux searches the quota file of ext4
/// as a tree with 256 branches per level. Where it skips a branch that is empty, it keeps the lower digits of the number
/// instead of setting them to 0, and so skips projects of the next branch. This does not happen from a number whose lower
/// digits are 0, nor from the one after a project that exists.
pub(super) fn projects<'a>(
    quotas: &'a dyn Quotas,
    file: BorrowedFd<'a>,
    from: u32,
) -> impl Iterator<Item = io::Result<(u32, ProjectUsage)>> + 'a {
    const LOWER_DIGITS: u32 = 0x00ff_ffff;
    let mut next = Some(from & !LOWER_DIGITS);
    let all = std::iter::from_fn(move || {
        let found = quotas.next(file, next?).transpose();
        next = match &found {
            Some(Ok((id, _))) => id.checked_add(1),
            Some(Err(_)) | None => None,
        };
        found
    });
    all.filter(move |found| found.as_ref().map_or(true, |(id, _)| *id >= from))
}
