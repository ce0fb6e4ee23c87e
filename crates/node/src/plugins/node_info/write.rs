//! Writes what drivers say into Node and CSINode: one writer at a time, each write from a fresh look, at once again
//! when somebody else was quicker.

use serde_json::Value;
use tokio::sync::Mutex;
use wharf_cluster::{ApiError, Cluster};
use wharf_model::patch::Patch;
use wharf_model::whole::Node;
use wharf_model::{CSINode, Key, Kind as _};

use super::{Change, NodeAnswer, NodeInfoError};

/// So often somebody else may be quicker before the pause.
const TRIES: usize = 16;

/// Why entries are not as they should be.
#[derive(Debug, thiserror::Error)]
pub(in crate::plugins) enum WriteError {
    /// There is nothing to write into.
    #[error("Node {0} is not there: it has to be registered first")]
    NoNode(String),
    /// The Node says otherwise.
    #[error("error updating Node object with CSI driver node info: {0}")]
    Info(#[from] NodeInfoError),
    /// The Node was not written.
    #[error("error updating Node object with CSI driver node info: {0}")]
    Node(ApiError),
    /// Somebody else changes it all the time.
    #[error("CSINode {0} changes faster than it can be written")]
    Restless(String),
    /// The CSINode was not written.
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    CsiNode(ApiError),
}

/// The two objects of this node.
pub(in crate::plugins) struct NodeInfo {
    cluster: Cluster,
    key: Key,
    migrated: Vec<&'static str>,
    /// Drivers share both objects.
    writing: Mutex<()>,
}

impl NodeInfo {
    pub(in crate::plugins) fn new(cluster: Cluster, node: &str, migrated: Vec<&'static str>) -> Self {
        Self { cluster, key: Key::cluster(node), migrated, writing: Mutex::new(()) }
    }

    /// Makes the CSINode, if there is none.
    pub(in crate::plugins) async fn prepare(&self) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let node = self.node().await?;
        self.change_csi_node(&node, |csi_node, _| match super::prepared(csi_node, &node, &self.migrated) {
            Some(ready) => Change::Put(ready),
            None => Change::Nothing,
        })
        .await
    }

    /// Both know the driver. First the Node: what CSINode says where to look for must be there.
    pub(in crate::plugins) async fn install(
        &self,
        driver: &str,
        answer: &NodeAnswer,
    ) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let node = self.change_node(|node| super::install_on_node(node, driver, answer)).await?;
        self.change_csi_node(&node, |csi_node, in_place| {
            super::install_on_csi_node(csi_node, &node, driver, answer, &self.migrated, in_place)
        })
        .await
    }

    /// Neither knows the driver. First CSINode: no new pod shall come.
    pub(in crate::plugins) async fn uninstall(&self, driver: &str) -> Result<(), WriteError> {
        let _one = self.writing.lock().await;
        let mut tries = 0;
        while let Some(csi_node) = self.csi_node().await? {
            let Change::Put(after) = super::uninstall_from_csi_node(&csi_node, driver) else { break };
            tries += 1;
            match self.put(&after).await {
                Ok(_) => break,
                Err(error) if is_stale(&error) && tries < TRIES => {}
                Err(error) => return Err(WriteError::CsiNode(error)),
            }
        }
        match self.change_node(|node| super::uninstall_from_node(node, driver)).await {
            // It went, and all that it said with it.
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

    /// Changes the Node, if there is something to change, and gives what it was changed from: that it is the same
    /// one is all that is asked of it afterwards.
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

    /// Changes the CSINode; one that is not there is made first.
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
                    Change::Put(after) => (self.put(&after).await, true),
                    Change::TakeOut(without) => (self.put(&without).await, false),
                },
            };
            tries += 1;
            match written {
                Ok(_) if last => return Ok(()),
                // Made, or taken out: the rest comes now.
                Ok(_) if tries < TRIES => {}
                // Servers without MutableCSINodeAllocatableCount take no other limit: the entry goes and comes again.
                Err(ApiError::Invalid(_)) if last && in_place => in_place = false,
                Err(error) if is_stale(&error) && tries < TRIES => {}
                Ok(_) => return Err(WriteError::Restless(self.key.name.clone())),
                Err(error) => return Err(WriteError::CsiNode(error)),
            }
        }
    }

    async fn put(&self, csi_node: &Value) -> Result<Value, ApiError> {
        self.cluster.update(&CSINode::API, &self.key, None, csi_node).await
    }
}

/// Whether somebody else was quicker: nothing was written, and a fresh look will do.
fn is_stale(error: &ApiError) -> bool {
    matches!(error, ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::NotFound(_))
}
