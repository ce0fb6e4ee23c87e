//! Layout of the data directory of `wharf up`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The data directory and the paths in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    /// Creates the directory if it does not exist. Only root can read it.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("create {}", dir.display()))?;
        // The mount table contains canonical paths.
        let dir = dir.canonicalize().with_context(|| format!("resolve {}", dir.display()))?;
        let data_dir = Self(dir);
        // Drivers may register before the node agent has started and created the registry directory.
        for dir in [data_dir.api(), data_dir.plugin_registry(), data_dir.run()] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(data_dir)
    }

    /// Opens an existing data directory.
    pub(crate) fn open(dir: &Path) -> anyhow::Result<Self> {
        let data_dir = Self(dir.canonicalize().with_context(|| format!("resolve {}", dir.display()))?);
        anyhow::ensure!(
            data_dir.api().is_dir(),
            "{} is not a data directory of `wharf up`: set --data-dir",
            dir.display()
        );
        Ok(data_dir)
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Objects and keys of the API server.
    pub(crate) fn api(&self) -> PathBuf {
        self.0.join("api")
    }

    /// An administrator's credentials.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// The equivalent of kubelet's root directory.
    pub(crate) fn kubelet_root(&self) -> PathBuf {
        self.0.join("kubelet")
    }

    /// Directory in which drivers register with the node agent.
    pub(crate) fn plugin_registry(&self) -> PathBuf {
        self.kubelet_root().join("plugins_registry")
    }

    /// Sockets and the PID file.
    pub(crate) fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The local driver's socket.
    pub(crate) fn local_driver_socket(&self) -> PathBuf {
        self.run().join("local.sock")
    }

    /// The NFS driver's socket.
    pub(crate) fn nfs_driver_socket(&self) -> PathBuf {
        self.run().join("nfs.sock")
    }

    /// Serves metrics and attempts.
    pub(crate) fn status_socket(&self) -> PathBuf {
        self.run().join("metrics.sock")
    }

    /// The process ID of the running `wharf up`, which holds a lock on this file.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.run().join("pid")
    }
}
