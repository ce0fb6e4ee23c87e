//! Writes drivers' node info to Node and CSINode: one writer at a time, each write computed from a fresh GET, repeated
//! immediately on a conflict.

use serde_json::Value;
use tokio::sync::Mutex;
use wharf_cluster::{ApiError, Cluster};
use wharf_model::Node;
use wharf_model::patch::Patch;
use wharf_model::{CSINode, Key, Kind as _};

use super::{Change, DriverNodeInfo, NodeInfoError};

/// Conflicts before the write fails and is retried with backoff.
const TRIES: usize = 16;

/// Why entries could not be written.
#[derive(Debug, thiserror::Error)]
pub(in crate::plugins) enum WriteError {
    /// The Node does not exist.
    #[error("Node {0} does not exist: it has to be registered first")]
    NoNode(String),
    /// The driver's info contradicts the Node.
    #[error("error updating Node object with CSI driver node info: {0}")]
    Info(#[from] NodeInfoError),
    /// The Node could not be written.
    #[error("error updating Node object with CSI driver node info: {0}")]
    Node(ApiError),
    /// Every attempt had to be repeated.
    #[error("CSINode {0} changes faster than it can be written; another writer may be updating it in a loop")]
    TooManyConflicts(String),
    /// The CSINode could not be written.
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    CsiNode(ApiError),
}

/// Writer of this node's Node and CSINode objects.
pub(in crate::plugins) struct NodeInfo {
    cluster: Cluster,
    key: Key,
    migrated: Vec<&'static str>,
    /// All drivers share both objects.
    writing: Mutex<()>,
}

impl NodeInfo {
    pub(in crate::plugins) fn new(cluster: Cluster, node: &str, migrated: Vec<&'static str>) -> Self {
        Self { cluster, key: Key::cluster(node), migrated, writing: Mutex::new(()) }
    }

    /// Creates the CSINode if it does not exist.
    pub(in crate::plugins) async fn prepare(&self) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let node = self.node().await?;
        self.change_csi_node(&node, |csi_node, _| match super::prepared(csi_node, &node, &self.migrated) {
            Some(ready) => Change::Update(ready),
            None => Change::Nothing,
        })
        .await
    }

    /// Adds the driver to both objects. First the Node: the topology labels that CSINode names must exist.
    pub(in crate::plugins) async fn install(
        &self,
        driver: &str,
        info: &DriverNodeInfo,
    ) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let node = self.change_node(|node| super::install_on_node(node, driver, info)).await?;
        self.change_csi_node(&node, |csi_node, in_place| {
            super::install_on_csi_node(csi_node, &node, driver, info, &self.migrated, in_place)
        })
        .await
    }

    /// Removes the driver from both objects. First CSINode: no new pod should be scheduled here.
    pub(in crate::plugins) async fn uninstall(&self, driver: &str) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let mut tries = 0;
        while let Some(csi_node) = self.csi_node().await? {
            let Change::Update(after) = super::uninstall_from_csi_node(&csi_node, driver) else { break };
            tries += 1;
            match self.put(&after).await {
                Ok(_) => break,
                Err(error) if is_stale(&error) && tries < TRIES => {}
                Err(error) => return Err(WriteError::CsiNode(error)),
            }
        }
        match self.change_node(|node| super::uninstall_from_node(node, driver)).await {
            // The Node was deleted, with all its entries.
            Ok(_) | Err(WriteError::NoNode(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn node(&self) -> Result<Node, WriteError> {
        let node = self.cluster.get::<Node>(&self.key).await.map_err(WriteError::Node)?;
        node.ok_or_else(|| WriteError::NoNode(self.key.name.clone()))
    }

    async fn csi_node(&self) -> Result<Option<Value>, WriteError> {
        self.cluster.get_raw(&CSINode::API, &self.key).await.map_err(WriteError::CsiNode)
    }

    /// Changes the Node if necessary, and returns the Node as read before the change: callers only need its identity.
    async fn change_node(
        &self,
        change: impl Fn(&Node) -> Result<Option<Patch>, NodeInfoError>,
    ) -> Result<Node, WriteError> {
        let mut tries = 0;
        loop {
            let node = self.node().await?;
            let Some(patch) = change(&node)? else { return Ok(node) };
            tries += 1;
            match self.cluster.patch(&Node::API, &self.key, Some("status"), patch).await {
                Ok(_) => return Ok(node),
                Err(error) if is_stale(&error) && tries < TRIES => {}
                Err(error) => return Err(WriteError::Node(error)),
            }
        }
    }

    /// Changes the CSINode; creates it first if it does not exist.
    async fn change_csi_node(
        &self,
        node: &Node,
        change: impl Fn(&Value, bool) -> Change,
    ) -> Result<(), WriteError> {
        let (mut tries, mut in_place) = (0, true);
        loop {
            let (written, last) = match self.csi_node().await? {
                None => {
                    let body = super::new_csi_node(node, &self.migrated);
                    (self.cluster.create(&CSINode::API, None, &body).await, false)
                }
                Some(csi_node) => match change(&csi_node, in_place) {
                    Change::Nothing => return Ok(()),
                    Change::Update(after) => (self.put(&after).await, true),
                    Change::RemoveEntry(without) => (self.put(&without).await, false),
                },
            };
            tries += 1;
            match written {
                Ok(_) if last => return Ok(()),
                // Created, or entry removed: the next iteration writes the rest.
                Ok(_) if tries < TRIES => {}
                // Servers without MutableCSINodeAllocatableCount reject a changed limit: remove the entry, then add
                // it again.
                Err(ApiError::Invalid(_)) if last && in_place => in_place = false,
                Err(error) if is_stale(&error) && tries < TRIES => {}
                Ok(_) => return Err(WriteError::TooManyConflicts(self.key.name.clone())),
                Err(error) => return Err(WriteError::CsiNode(error)),
            }
        }
    }

    async fn put(&self, csi_node: &Value) -> Result<Value, ApiError> {
        self.cluster.update(&CSINode::API, &self.key, None, csi_node).await
    }
}

/// Whether the write lost a race: nothing was written, and a fresh GET resolves it.
fn is_stale(error: &ApiError) -> bool {
    matches!(error, ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::NotFound(_))
}
