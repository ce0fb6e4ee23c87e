//! Layout of the data directory of `wharf up`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wharf_linux::{Linux, PathBeneath, write_durably};

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
            .with_context(|| format!("failed to create {}", dir.display()))?;
        // The mount table contains canonical paths.
        let dir = dir.canonicalize().with_context(|| format!("failed to resolve {}", dir.display()))?;
        let data_dir = Self(dir);
        // Drivers may register before the node agent has started and created the registry directory.
        for dir in [data_dir.api(), data_dir.plugin_registry(), data_dir.run()] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .with_context(|| format!("failed to create {}", dir.display()))?;
        }
        Ok(data_dir)
    }

    /// Opens an existing data directory.
    pub(crate) fn open(dir: &Path) -> anyhow::Result<Self> {
        let data_dir =
            Self(dir.canonicalize().with_context(|| format!("failed to resolve {}", dir.display()))?);
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

    /// The name of the Node object: that of earlier starts, or else the requested one, or the host name. It is recorded at
    /// the first start. Pods and volumes are bound to the name, so that another one would leave them without a node.
    /// Call it while holding the lock of the directory.
    pub(super) fn node_name(&self, requested: Option<&str>, host: Option<&str>) -> anyhow::Result<String> {
        const FILE: &str = "node-name";
        let file = self.0.join(FILE);
        let recorded = match std::fs::read_to_string(&file) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("failed to read {}", file.display()));
            }
        };
        let requested = requested.map(str::to_ascii_lowercase);
        match (recorded, requested) {
            (Some(recorded), _) if recorded.is_empty() => {
                anyhow::bail!(
                    "{} is empty: write the node's name of earlier starts to it, or remove it if there were none",
                    file.display()
                )
            }
            (Some(recorded), Some(requested)) if recorded != requested => {
                let dir = self.0.display();
                anyhow::bail!(
                    "the pods and volumes in {dir} are bound to node {recorded}, and would have no node if this machine were \
                     {requested}: start without --node-name (or NODE_NAME) to continue as {recorded}, or use another --data-dir \
                     for {requested}"
                )
            }
            (Some(recorded), _) => Ok(recorded),
            (None, requested) => {
                let host = host.map(str::to_ascii_lowercase);
                let name = requested.or(host).context("cannot determine the host name: set --node-name")?;
                let path = PathBeneath::new(&self.0, Path::new(FILE));
                write_durably(&Linux::new(), &path, format!("{name}\n").as_bytes())
                    .with_context(|| format!("failed to write {}", file.display()))?;
                Ok(name)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// U-3: each row continues with the directory of the row before.
    #[test]
    fn data_directory_keeps_its_node_name() {
        let dir = tempfile::tempdir().unwrap();
        for (requested, host, expected) in [
            (None, None, Err("set --node-name")),
            (Some("Node-1"), Some("laptop"), Ok("node-1")),
            (Some("node-1"), Some("laptop"), Ok("node-1")),
            (Some("NODE-1"), None, Ok("node-1")),
            (None, Some("renamed"), Ok("node-1")),
            (
                Some("other"),
                Some("laptop"),
                Err("start without --node-name (or NODE_NAME) to continue as node-1"),
            ),
            (None, None, Ok("node-1")),
        ] {
            let name = DataDir::create(dir.path()).unwrap().node_name(requested, host);
            match (name, expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected, "{requested:?} {host:?}"),
                (Err(error), Err(expected)) => assert!(format!("{error:#}").contains(expected), "{error:#}"),
                (name, expected) => panic!("{requested:?} {host:?}: {name:?}, not {expected:?}"),
            }
        }
        std::fs::write(dir.path().join("node-name"), "").unwrap();
        let name = DataDir::create(dir.path()).unwrap().node_name(Some("node-1"), None);
        assert!(name.unwrap_err().to_string().contains("is empty"));
    }
}
