//! Backup and restore. A backup is a store file with all objects of one revision and no history.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::dir_lock::DirLock;
use super::disk::{self, OpenError};
use super::{Revision, Shared};

/// Why a backup failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target exists.
    #[error("{} exists: choose another file name", .0.display())]
    Exists(PathBuf),
    /// The backup could not be written.
    #[error("backup: {0}")]
    Write(#[source] OpenError),
    /// The process is shutting down.
    #[error("the backup was stopped")]
    Stopped,
}

/// Why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory contains a store already.
    #[error("{} exists: restore into another directory, or move it away", .0.display())]
    Exists(PathBuf),
    /// The file is not a complete backup.
    #[error("backup: {0}")]
    Read(#[source] OpenError),
    /// The store could not be created.
    #[error(transparent)]
    Write(OpenError),
}

/// Writes continue during the backup: it copies handles to values under the lock.
pub(super) fn backup(shared: &Shared, to: &Path) -> Result<Revision, BackupError> {
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(to.into()));
    }
    let (revision, objects) = {
        let state = shared.read();
        (state.revision(), state.objects().clone())
    };
    disk::create(to, revision, &objects).map_err(BackupError::Write)?;
    Ok(revision)
}

pub(super) fn restore(from: &Path, dir: &Path) -> Result<Revision, RestoreError> {
    let backup = disk::read_backup(from).map_err(RestoreError::Read)?;
    let lock = DirLock::acquire(dir).map_err(RestoreError::Write)?;
    let path = disk::database_path(dir);
    if path.symlink_metadata().is_ok() {
        return Err(RestoreError::Exists(path));
    }
    // The revision acknowledged in this directory before does not apply to the restored file.
    lock.clear().map_err(|source| RestoreError::Write(OpenError::Io { path: path.clone(), source }))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let revision = revision_after_restore(backup.revision(), since.as_micros());
    disk::create(&path, revision, backup.objects()).map_err(RestoreError::Write)?;
    Ok(revision)
}

/// The first revision after a restore. It is unknown how far the lost store was ahead of its backup, and a client that
/// resumed a watch at one of those revisions would miss later writes. No store writes a million revisions per second,
/// so the clock in microseconds is above every earlier revision.
fn revision_after_restore(backup: Revision, micros: u128) -> Revision {
    // JavaScript clients cannot represent larger integers.
    let micros = u64::try_from(micros).unwrap_or(0).min(1 << 53);
    micros.max(backup.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::revision_after_restore;

    #[test]
    fn restored_revision_is_above_all_earlier_ones() {
        for (backup, micros, expected) in [
            (7, 1_763_000_000_000_000, 1_763_000_000_000_000),
            (1_763_000_000_000_007, 1_763_000_000_000_000, 1_763_000_000_000_008),
            (7, 0, 8),
            (7, u128::MAX, 8),
        ] {
            assert_eq!(revision_after_restore(backup, micros), expected, "{backup} {micros}");
        }
    }
}
