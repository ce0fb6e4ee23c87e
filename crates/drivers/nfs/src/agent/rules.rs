//! The rules of quotas. Pure.
//!
//! The agent keeps no state of its own: the number of a directory's project is in its inode, and the limit in the file
//! system's quota file. A project is assigned before its limit is set, so a project with a limit and without any file is
//! left over from a directory that was removed.

use std::ops::RangeInclusive;

use sha2::{Digest as _, Sha256};
use wharf_linux::{Project, ProjectUsage, QUOTA_BLOCK};

/// The numbers of the agent's projects. Limits in this range belong to the agent; all others to the administrator.
pub const PROJECTS: RangeInclusive<u32> = 1_500_000_000..=1_999_999_999;

/// What to do about the project of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// It has none: assign an unused one.
    New,
    /// It has this one already.
    Keep(u32),
}

/// Why a directory cannot be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProjectRefusal {
    /// Its files would not be counted.
    #[error("it is not empty: a quota can be set on a new directory only")]
    NotEmpty,
    /// Somebody else manages it.
    #[error(
        "it belongs to project {0}, which the agent did not assign: remove the project from the export (xfs_quota -x -c \
         'project -C', chattr -p 0), because projects cannot be nested"
    )]
    Foreign(u32),
}

/// What to do about a directory with this project.
pub fn assignment(project: Project, empty: bool) -> Result<Assignment, ProjectRefusal> {
    match project {
        Project { id, inherit: true } if PROJECTS.contains(&id) => Ok(Assignment::Keep(id)),
        // The flag alone comes with a parent that passes on "no project".
        Project { id: 0, .. } if empty => Ok(Assignment::New),
        Project { id: 0, .. } => Err(ProjectRefusal::NotEmpty),
        Project { id, .. } => Err(ProjectRefusal::Foreign(id)),
    }
}

/// Numbers to try for a directory, most likely an unused one first.
pub fn candidates(share: &str, file_id: u64) -> impl Iterator<Item = u32> {
    let digest = Sha256::digest(format!("{share} {file_id}"));
    let seed = digest.iter().take(4).fold(0_u32, |seed, byte| seed << 8 | u32::from(*byte));
    let (first, count) = (*PROJECTS.start(), PROJECTS.end() - PROJECTS.start() + 1);
    (0..count).map(move |step| first + ((u64::from(seed) + u64::from(step)) % u64::from(count)) as u32)
}

/// Whether nothing has this project.
pub fn is_unused(usage: &ProjectUsage) -> bool {
    *usage == ProjectUsage::default()
}

/// Whether a project is left over from a directory that was removed.
pub fn is_left_over(id: u32, usage: &ProjectUsage) -> bool {
    PROJECTS.contains(&id) && usage.limit > 0 && usage.inodes == 0 && usage.used == 0
}

/// The limit to set for a requested size: full blocks, and never less than now. `None` if the size cannot be a limit.
pub fn next_limit(current: u64, requested: u64) -> Option<u64> {
    const MAX: u64 = i64::MAX.unsigned_abs() - QUOTA_BLOCK;
    (1..=MAX).contains(&requested).then(|| requested.next_multiple_of(QUOTA_BLOCK).max(current))
}

/// Whether the limit that was read back is the one that was set. xfs rounds it up to blocks of the file system, which have at
/// most 64 KiB.
pub fn is_set(limit: u64, found: u64) -> bool {
    const MAX_BLOCK: u64 = 64 * 1024;
    found.checked_sub(limit).is_some_and(|more| more < MAX_BLOCK)
}

/// Free bytes that no limit promises to a project.
pub fn unpromised(free: u64, projects: impl IntoIterator<Item = ProjectUsage>) -> u64 {
    let promised = |usage: ProjectUsage| usage.limit.saturating_sub(usage.used);
    projects.into_iter().fold(free, |free, usage| free.saturating_sub(promised(usage)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = *PROJECTS.start();

    #[test]
    fn project_decides_whether_a_directory_can_be_limited() {
        let table = [
            ((0, false, true), Ok(Assignment::New)),
            ((0, true, true), Ok(Assignment::New)),
            ((0, false, false), Err(ProjectRefusal::NotEmpty)),
            ((OWN, true, true), Ok(Assignment::Keep(OWN))),
            ((OWN, true, false), Ok(Assignment::Keep(OWN))),
            ((*PROJECTS.end(), true, false), Ok(Assignment::Keep(*PROJECTS.end()))),
            // Its files are not counted.
            ((OWN, false, false), Err(ProjectRefusal::Foreign(OWN))),
            ((42, true, true), Err(ProjectRefusal::Foreign(42))),
            ((42, false, false), Err(ProjectRefusal::Foreign(42))),
            ((OWN - 1, true, true), Err(ProjectRefusal::Foreign(OWN - 1))),
            ((u32::MAX, true, true), Err(ProjectRefusal::Foreign(u32::MAX))),
        ];
        for ((id, inherit, empty), expected) in table {
            assert_eq!(assignment(Project { id, inherit }, empty), expected, "{id} {inherit} {empty}");
        }
    }

    #[test]
    fn candidates_are_in_the_range_differ_and_repeat() {
        let some = |share, file_id| candidates(share, file_id).take(1000).collect::<Vec<_>>();
        let one = some("a", 1);
        assert_eq!(one, some("a", 1));
        assert_ne!(one, some("b", 1));
        assert_ne!(one, some("a", 2));
        assert!(one.iter().all(|id| PROJECTS.contains(id)));
        assert_eq!(one.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }

    #[test]
    fn only_own_projects_without_files_are_left_over() {
        let usage = |limit, used, inodes| ProjectUsage { limit, used, inodes };
        for (id, usage, expected) in [
            (OWN, usage(1024, 0, 0), true),
            (OWN, usage(0, 0, 0), false),
            (OWN, usage(1024, 0, 1), false),
            (OWN, usage(1024, 4096, 0), false),
            (OWN - 1, usage(1024, 0, 0), false),
            (0, usage(1024, 0, 0), false),
        ] {
            assert_eq!(is_left_over(id, &usage), expected, "{id} {usage:?}");
        }
        assert!(is_unused(&usage(0, 0, 0)) && !is_unused(&usage(0, 0, 1)) && !is_unused(&usage(1, 0, 0)));
    }

    #[test]
    fn limits_are_full_blocks_and_never_shrink() {
        for (current, requested, expected) in [
            (0, 0, None),
            (4096, 0, None),
            (0, 1, Some(1024)),
            (0, 1024, Some(1024)),
            (0, 1025, Some(2048)),
            (4096, 1024, Some(4096)),
            (1024, 4096, Some(4096)),
            (0, u64::MAX, None),
            (0, 1 << 62, Some(1 << 62)),
        ] {
            assert_eq!(next_limit(current, requested), expected, "{current} {requested}");
        }
    }

    #[test]
    fn limits_may_be_rounded_up_but_not_down() {
        for (limit, found, expected) in [
            (5120, 5120, true),
            (5120, 8192, true),
            (1024, 65536, true),
            (1024, 1024 + 65536, false),
            (5120, 4096, false),
            (5120, 0, false),
            (5120, u64::MAX, false),
        ] {
            assert_eq!(is_set(limit, found), expected, "{limit} {found}");
        }
    }

    #[test]
    fn unused_parts_of_limits_are_promised() {
        let usage = |limit, used| ProjectUsage { limit, used, inodes: 1 };
        for (free, projects, expected) in [
            (100, vec![], 100),
            (100, vec![usage(50, 20)], 70),
            // No limit promises nothing; a project above its limit neither.
            (100, vec![usage(0, 20), usage(10, 20)], 100),
            (100, vec![usage(60, 0), usage(60, 0)], 0),
        ] {
            assert_eq!(unpromised(free, projects.clone()), expected, "{projects:?}");
        }
    }
}
