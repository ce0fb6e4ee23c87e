//! The effects of the old modes. Each has a deadline: the API's, or the driver's.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, Patch, Preconditions};
use wharf_csi::Client;
use wharf_model::names::annotation::LEGACY_NODE_ID;
use wharf_model::{CSIDriver, Key, Kind as _, Node};

use super::Mode;
use super::decide::{Malformed, with_node_id};
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::registrar::act::ask_node;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LegacyError {
    #[error("NodeGetInfo: {:?}: {}", .0.code(), .0.message())]
    Node(#[from] tonic::Status),
    #[error("the driver has no id for this node: NodeGetInfo left it empty")]
    NoId,
    #[error("node {0} is not there: KUBE_NODE_NAME has to be the name that Kubernetes has for it")]
    NoNode(String),
    #[error("node {node}: {source}")]
    Malformed { node: String, source: Malformed },
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// What is known of the driver, and of its entry.
pub(super) struct Known {
    pub(super) name: String,
    node_id: String,
    attaches: bool,
    /// The identity of the object that we made.
    made: Option<String>,
}

pub(super) struct Actor {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) metrics: Metrics,
    pub(super) timeout: Duration,
    pub(super) mode: Mode,
}

impl Actor {
    /// Waits for the driver, and asks what is to be kept of it.
    pub(super) async fn ask(&self, known: &mut Option<Known>) -> Result<(), LegacyError> {
        let driver = Driver::discover(&self.client, &self.metrics, false).await;
        let node_id = match &self.mode {
            Mode::Describe { .. } => String::new(),
            Mode::NodeId { .. } => ask_node(&self.client, self.timeout, &self.metrics).await?.node_id,
        };
        if matches!(self.mode, Mode::NodeId { .. }) && node_id.is_empty() {
            return Err(LegacyError::NoId);
        }
        let attaches = driver.can().publish_unpublish_volume;
        *known = Some(Known { name: driver.name().to_owned(), node_id, attaches, made: None });
        Ok(())
    }

    /// Makes sure that the entry is there.
    pub(super) async fn put(&self, known: Option<&mut Known>) -> Result<(), LegacyError> {
        let Some(known) = known else { return Ok(()) };
        match &self.mode {
            Mode::Describe { attach_required, pod_info_on_mount } => {
                let body = json!({
                    "apiVersion": CSIDriver::API.api_version(),
                    "kind": CSIDriver::API.kind,
                    "metadata": {"name": known.name},
                    "spec": {
                        "attachRequired": attach_required.unwrap_or(known.attaches),
                        "podInfoOnMount": pod_info_on_mount,
                    },
                });
                // Asked for without a look first: the old rules allow to make and to delete it, and no more.
                match self.cluster.create(&CSIDriver::API, None, &body).await {
                    Ok(made) => {
                        tracing::info!(driver = known.name, "made the CSIDriver object");
                        known.made = made.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
                    }
                    Err(ApiError::AlreadyExists(_)) => tracing::debug!(driver = known.name, "it is there"),
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            Mode::NodeId { node } => self.annotate(node, &known.name, Some(&known.node_id)).await,
        }
    }

    /// Takes the entry away.
    pub(super) async fn remove(&self, known: Option<&Known>) -> Result<(), LegacyError> {
        let Some(known) = known else { return Ok(()) };
        match &self.mode {
            Mode::Describe { .. } => {
                let key = Key::cluster(&known.name);
                let only = Preconditions { uid: known.made.clone(), resource_version: None };
                match self.cluster.delete(&CSIDriver::API, &key, only).await {
                    Ok(()) => tracing::info!(driver = known.name, "deleted the CSIDriver object"),
                    Err(ApiError::NotFound(_)) => {}
                    // Not ours any more: somebody made it anew.
                    Err(error @ ApiError::Conflict(_)) => {
                        tracing::warn!(%error, "left the CSIDriver object alone")
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            Mode::NodeId { node } => match self.annotate(node, &known.name, None).await {
                Err(LegacyError::NoNode(_)) => Ok(()),
                done => done,
            },
        }
    }

    async fn annotate(&self, node: &str, driver: &str, id: Option<&str>) -> Result<(), LegacyError> {
        let key = Key::cluster(node);
        let found = self.cluster.get_raw(&Node::API, &key).await?;
        let found = found.ok_or_else(|| LegacyError::NoNode(node.to_owned()))?;
        let metadata = &found["metadata"];
        let annotation = metadata["annotations"][LEGACY_NODE_ID].as_str();
        let changed = with_node_id(annotation, driver, id)
            .map_err(|source| LegacyError::Malformed { node: node.to_owned(), source })?;
        let Some(annotation) = changed else { return Ok(()) };
        // Only as it was seen: another driver's registrar may write its own id at the same time.
        let patch = Patch::Merge(json!({"metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {LEGACY_NODE_ID: annotation},
        }}));
        self.cluster.patch(&Node::API, &key, None, patch).await?;
        tracing::info!(node, driver, id, "wrote the node's annotation");
        Ok(())
    }
}
