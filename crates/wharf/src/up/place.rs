//! Where `wharf up` keeps what it keeps: everything beneath one directory.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The data directory and what is where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// Makes the directory, which only root can look into, if it is not there.
    pub(super) fn make(dir: &Path) -> anyhow::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("make {}", dir.display()))?;
        // Mounts are known by their real paths.
        let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
        let place = Self(dir);
        // Drivers may want to register before the node's agent is there to make the place for it.
        for dir in [place.api(), place.registry(), place.sockets()] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .with_context(|| format!("make {}", dir.display()))?;
        }
        Ok(place)
    }

    /// One that is there.
    pub(crate) fn find(dir: &Path) -> anyhow::Result<Self> {
        let place = Self(dir.canonicalize().with_context(|| format!("find {}", dir.display()))?);
        anyhow::ensure!(
            place.api().is_dir(),
            "{} is not a directory of `wharf up`: name it with --data-dir",
            dir.display()
        );
        Ok(place)
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Objects and keys of the API.
    pub(crate) fn api(&self) -> PathBuf {
        self.0.join("api")
    }

    /// An administrator's credentials.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// What kubelet has in its root directory.
    pub(crate) fn kubelet(&self) -> PathBuf {
        self.0.join("kubelet")
    }

    /// Where drivers register with the node's agent.
    pub(crate) fn registry(&self) -> PathBuf {
        self.kubelet().join("plugins_registry")
    }

    /// Sockets of this process.
    pub(crate) fn sockets(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The local driver's socket.
    pub(crate) fn driver(&self) -> PathBuf {
        self.sockets().join("local.sock")
    }

    /// Metrics, and what was tried.
    pub(crate) fn pages(&self) -> PathBuf {
        self.sockets().join("metrics.sock")
    }

    /// Who runs here: the process id, while it runs.
    pub(crate) fn pid(&self) -> PathBuf {
        self.sockets().join("pid")
    }
}
