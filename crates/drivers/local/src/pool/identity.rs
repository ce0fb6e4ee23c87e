//! Which pool may be served, and when a new one is created.
//!
//! A pool is created on purpose: an empty directory may be the mount point of a disk that is not mounted (yet), and a driver
//! that serves a new pool there reports every volume of the old one as deleted. A driver with a pool-id file also notices
//! another pool at the same path: the file, which is on another file system, has the identity of the pool that it served
//! first.

use std::path::{Path, PathBuf};

use wharf_driver::backend::BackendError;
use wharf_linux::{Kernel, PathBeneath};

use super::{OpenError, PoolCore};

/// What to do at the start of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartAction {
    Serve,
    /// Serve it, and write its identity to the pool-id file.
    Remember,
    /// Create a pool, write its identity, and serve it.
    Create,
}

/// Why a driver must not serve a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdentityProblem {
    NoPool,
    /// The pool that was served before is not there.
    Lost,
    /// Another pool is there.
    Other,
}

/// `found` is the identity of the pool in the directory, `remembered` that of the pool served before.
pub(super) fn start_action(
    found: Option<&str>,
    remembered: Option<&str>,
    may_create: bool,
) -> Result<StartAction, IdentityProblem> {
    match (found, remembered) {
        (Some(found), Some(remembered)) if found == remembered => Ok(StartAction::Serve),
        (Some(_), Some(_)) => Err(IdentityProblem::Other),
        (Some(_), None) => Ok(StartAction::Remember),
        (None, Some(_)) => Err(IdentityProblem::Lost),
        (None, None) if may_create => Ok(StartAction::Create),
        (None, None) => Err(IdentityProblem::NoPool),
    }
}

/// A file that has the identity of the pool served before.
pub(super) struct PoolIdFile<'a> {
    kernel: &'a dyn Kernel,
    dir: PathBuf,
    name: PathBuf,
}

impl<'a> PoolIdFile<'a> {
    pub(super) fn new(kernel: &'a dyn Kernel, path: &Path) -> Result<Self, OpenError> {
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) if path.is_absolute() => {
                Ok(Self { kernel, dir: dir.to_owned(), name: name.into() })
            }
            _ => Err(OpenError::PoolIdFile {
                file: path.to_owned(),
                reason: "is not an absolute path of a file",
            }),
        }
    }

    /// The recorded identity; `None` if the file does not exist.
    pub(super) fn read(&self) -> Result<Option<String>, OpenError> {
        let file = PathBeneath::new(&self.dir, &self.name);
        if self.kernel.path_kind(&self.dir)?.is_none() {
            return Err(OpenError::PoolIdFile {
                file: file.display(),
                reason: "cannot be written, because its directory does not exist: create the directory",
            });
        }
        let Some(bytes) = self.kernel.read_file(&file)? else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map(str::trim).unwrap_or_default();
        match text.is_empty() {
            false => Ok(Some(text.to_owned())),
            true => Err(OpenError::PoolIdFile {
                file: file.display(),
                reason: "does not contain a pool's identity",
            }),
        }
    }

    pub(super) fn write(&self, uuid: &str) -> Result<(), OpenError> {
        let file = PathBeneath::new(&self.dir, &self.name);
        Ok(wharf_linux::write_durably(self.kernel, &file, format!("{uuid}\n").as_bytes())?)
    }
}

impl PoolCore {
    /// Before anything is created, and before a missing object is reported as deleted: the directory still shows this pool.
    /// It does not if its file system was unmounted, or another one was mounted over it.
    pub(super) fn check_identity(&self) -> Result<(), BackendError> {
        self.ready().map_err(BackendError::Unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_remembered_pool_is_served_and_none_is_created_in_its_place() {
        use IdentityProblem::{Lost, NoPool, Other};
        use StartAction::{Create, Remember, Serve};
        let table = [
            (Some("a"), Some("a"), Ok(Serve), Ok(Serve)),
            (Some("b"), Some("a"), Err(Other), Err(Other)),
            (Some("a"), None, Ok(Remember), Ok(Remember)),
            (None, Some("a"), Err(Lost), Err(Lost)),
            (None, None, Err(NoPool), Ok(Create)),
        ];
        for (found, remembered, without, with) in table {
            assert_eq!(start_action(found, remembered, false), without, "{found:?} {remembered:?}");
            assert_eq!(start_action(found, remembered, true), with, "{found:?} {remembered:?}");
        }
    }
}
