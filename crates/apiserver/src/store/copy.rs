//! Backup and restore: a backup is a store's file with all objects of one revision and no past.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::disk::{self, OpenError};
use super::guard::Guard;
use super::{Revision, Shared};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// It would replace something.
    #[error("{} exists: choose another name", .0.display())]
    Exists(PathBuf),
    /// It could not be written.
    #[error("backup: {0}")]
    Write(#[source] OpenError),
    /// The process is shutting down.
    #[error("the backup was stopped")]
    Stopped,
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is a store already.
    #[error("{} exists: restore into another directory, or move it away", .0.display())]
    Exists(PathBuf),
    /// The backup is not one, or not whole.
    #[error("backup: {0}")]
    Read(#[source] OpenError),
    /// The store could not be made.
    #[error(transparent)]
    Write(OpenError),
}

/// Writers go on meanwhile: what is copied is handles to values.
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
    let backup = disk::examine(from).map_err(RestoreError::Read)?;
    let guard = Guard::lock(dir).map_err(RestoreError::Write)?;
    let path = disk::file(dir);
    if path.symlink_metadata().is_ok() {
        return Err(RestoreError::Exists(path));
    }
    // What was acknowledged here before is not what this file is to be held to.
    guard.forget().map_err(|source| RestoreError::Write(OpenError::Io { path: path.clone(), source }))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let revision = next_life(backup.revision(), since.as_micros());
    disk::create(&path, revision, backup.objects()).map_err(RestoreError::Write)?;
    Ok(revision)
}

/// Where revisions go on after a restore. The lost store was ahead of its backup by nobody knows how much, and a
/// client that resumed a watch at one of its revisions would miss what this life did up to there. No store makes a
/// million revisions a second, so the microseconds of the clock are above all of any life before.
fn next_life(backup: Revision, micros: u128) -> Revision {
    // Within what clients in JavaScript can count.
    let micros = u64::try_from(micros).unwrap_or(0).min(1 << 53);
    micros.max(backup.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::next_life;

    #[test]
    fn revisions_go_on_above_all_before() {
        for (backup, micros, expected) in [
            (7, 1_763_000_000_000_000, 1_763_000_000_000_000),
            (1_763_000_000_000_007, 1_763_000_000_000_000, 1_763_000_000_000_008),
            (7, 0, 8),
            (7, u128::MAX, 8),
        ] {
            assert_eq!(next_life(backup, micros), expected, "{backup} {micros}");
        }
    }
}
