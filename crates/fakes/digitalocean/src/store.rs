//! The state file. Writes are atomic, so a crash leaves the old or the new state. A lock excludes a second fake.

use std::path::{Path, PathBuf};

use wharf_linux::{Files as _, Linux, PathBeneath, write_durably};

use crate::state::State;

const FILE: &str = "state.json";
const LOCK: &str = "lock";

/// The state directory.
pub(crate) struct Store {
    root: PathBuf,
    /// Held until the process ends or the store is dropped.
    _lock: Box<dyn Send + Sync>,
}

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory could not be created.
    #[error("failed to create the directory {}: {source}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another fake uses the directory.
    #[error("{} is in use by another fake: stop it, or use another directory", .0.display())]
    Locked(PathBuf),
    /// The file is not a valid state.
    #[error("{} is not the state of a fake: {source}; move it away to start with an empty state", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] wharf_linux::Error),
}

impl Store {
    /// Opens a directory, creating it if necessary, and reads its state.
    pub(crate) fn open(root: &Path) -> Result<(Self, State), StoreError> {
        std::fs::create_dir_all(root)
            .map_err(|source| StoreError::Create { path: root.to_owned(), source })?;
        let kernel = Linux::new();
        let lock = kernel
            .try_lock(&PathBeneath::new(root, Path::new(LOCK)))?
            .ok_or_else(|| StoreError::Locked(root.to_owned()))?;
        let state = match kernel.read_file(&PathBeneath::new(root, Path::new(FILE)))? {
            None => State::default(),
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| StoreError::Parse { path: root.join(FILE), source })?,
        };
        Ok((Self { root: root.to_owned(), _lock: lock }, state))
    }

    /// Replaces the saved state.
    pub(crate) fn save(&self, state: &State) -> Result<(), StoreError> {
        let path = Path::new(FILE);
        let bytes = serde_json::to_vec_pretty(state)
            .map_err(|source| StoreError::Parse { path: self.root.join(FILE), source })?;
        Ok(write_durably(&Linux::new(), &PathBeneath::new(&self.root, path), &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_saved_and_directory_is_locked() {
        let root = tempfile::tempdir().unwrap();
        let (store, mut state) = Store::open(root.path()).unwrap();
        assert_eq!(state, State::default());
        assert!(matches!(Store::open(root.path()), Err(StoreError::Locked(_))));
        state.tags.insert("k8s".into());
        store.save(&state).unwrap();
        drop(store);
        let (store, again) = Store::open(root.path()).unwrap();
        assert_eq!(again, state);
        drop(store);
        std::fs::write(root.path().join(FILE), "{").unwrap();
        assert!(matches!(Store::open(root.path()), Err(StoreError::Parse { .. })));
    }
}
