//! Layout of the data directory of `wharf up`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use wharf_linux::{Linux, PathBeneath, write_durably};
use wharf_model::names::is_dns_subdomain;

/// The file with the name of the Node.
const NODE_NAME: &str = "node-name";
/// The name of a Node is also the value of its label `kubernetes.io/hostname`.
const MAX_NODE_NAME: usize = 63;

/// The name of this machine's Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeName {
    pub(super) name: String,
    /// Whether an earlier start has recorded it.
    is_recorded: bool,
}

fn is_node_name(name: &str) -> bool {
    name.len() <= MAX_NODE_NAME && is_dns_subdomain(name)
}

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

    /// The recorded name of the Node object.
    pub(crate) fn recorded_node_name(&self) -> anyhow::Result<Option<String>> {
        let file = self.node_name_file();
        let recorded = match std::fs::read_to_string(&file) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", file.display())),
        };
        anyhow::ensure!(
            is_node_name(&recorded),
            "{} does not contain the name of a Node, but {recorded:?}: write the node's name of earlier starts to it, or remove \
             the file if there were none",
            file.display()
        );
        Ok(Some(recorded))
    }

    /// The name of the Node object: that of earlier starts, or else the requested one, or the host name. Call it while
    /// holding the lock of the directory.
    pub(super) fn node_name(&self, requested: Option<&str>, host: Option<&str>) -> anyhow::Result<NodeName> {
        let requested = requested.map(str::to_ascii_lowercase);
        if let Some(recorded) = self.recorded_node_name()? {
            if let Some(requested) = requested
                && requested != recorded
            {
                anyhow::bail!(
                    "{} records that this machine is node {recorded}. Pods and volumes that are bound to {recorded} would have no \
                     node if it were {requested}: start without --node-name (or NODE_NAME) to continue as {recorded}, or use \
                     another --data-dir for {requested}. If earlier starts used {requested}, correct the name in the file",
                    self.node_name_file().display()
                );
            }
            return Ok(NodeName { name: recorded, is_recorded: true });
        }
        let name = requested.or_else(|| host.map(str::to_ascii_lowercase));
        let name = name.context("cannot determine the host name: set --node-name")?;
        anyhow::ensure!(
            is_node_name(&name),
            "{name:?} cannot be the name of a Node: set --node-name to a name of at most {MAX_NODE_NAME} lower case letters, \
             digits, '-' and '.', with a letter or digit first and last"
        );
        Ok(NodeName { name, is_recorded: false })
    }

    /// Records the name at the first start. Pods and volumes are bound to it, so another one would leave them without a
    /// node. `nodes` are the names of all Nodes: earlier versions did not record the name.
    pub(super) fn record_node_name(&self, node: &NodeName, nodes: &[String]) -> anyhow::Result<()> {
        let (name, file) = (&node.name, self.node_name_file());
        if node.is_recorded {
            return Ok(());
        }
        anyhow::ensure!(
            nodes.is_empty() || nodes.contains(name),
            "the objects in {} were made with other nodes ({}), and pods and volumes that are bound to them would have no node if \
             this machine were {name}: pass --node-name with the name of this machine. If {name} is right, write it to {}",
            self.0.display(),
            nodes.join(", "),
            file.display()
        );
        write_durably(
            &Linux::new(),
            &PathBeneath::new(&self.0, Path::new(NODE_NAME)),
            format!("{name}\n").as_bytes(),
        )
        .with_context(|| format!("failed to write {}", file.display()))
    }

    fn node_name_file(&self) -> PathBuf {
        self.0.join(NODE_NAME)
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
            let data_dir = DataDir::create(dir.path()).unwrap();
            let name = data_dir.node_name(requested, host).and_then(|node| {
                data_dir.record_node_name(&node, &[])?;
                Ok(node.name)
            });
            match (name, expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected, "{requested:?} {host:?}"),
                (Err(error), Err(expected)) => assert!(format!("{error:#}").contains(expected), "{error:#}"),
                (name, expected) => panic!("{requested:?} {host:?}: {name:?}, not {expected:?}"),
            }
        }
        for recorded in ["", "my_host"] {
            std::fs::write(dir.path().join("node-name"), recorded).unwrap();
            let name = DataDir::create(dir.path()).unwrap().node_name(Some("node-1"), None);
            let error = name.unwrap_err().to_string();
            assert!(error.contains("/node-name does not contain the name of a Node"), "{error}");
        }
    }

    /// With an invalid name every write of the Node would fail, and the recorded name cannot be changed.
    #[test]
    fn invalid_node_name_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::create(dir.path()).unwrap();
        let long = "n".repeat(64);
        for (requested, host) in
            [(None, Some("my_host")), (Some("a b"), Some("ok")), (Some(""), None), (Some(&*long), None)]
        {
            let error = data_dir.node_name(requested, host).unwrap_err().to_string();
            assert!(error.contains("set --node-name"), "{error}");
        }
        assert_eq!(data_dir.recorded_node_name().unwrap(), None);
    }

    /// A data directory of a version that did not record the name.
    #[test]
    fn node_name_that_no_existing_node_has_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::create(dir.path()).unwrap();
        let nodes = ["a".to_owned(), "joined".to_owned()];
        let unflagged = data_dir.node_name(None, Some("b")).unwrap();
        let error = data_dir.record_node_name(&unflagged, &nodes).unwrap_err().to_string();
        assert!(error.contains("(a, joined)") && error.contains("pass --node-name"), "{error}");
        assert_eq!(data_dir.recorded_node_name().unwrap(), None);
        let flagged = data_dir.node_name(Some("a"), Some("b")).unwrap();
        data_dir.record_node_name(&flagged, &nodes).unwrap();
        assert_eq!(data_dir.recorded_node_name().unwrap().as_deref(), Some("a"));
        // A Node that was deleted is created again.
        let later = data_dir.node_name(None, Some("b")).unwrap();
        data_dir.record_node_name(&later, &["joined".to_owned()]).unwrap();
        assert_eq!(later.name, "a");
    }
}
