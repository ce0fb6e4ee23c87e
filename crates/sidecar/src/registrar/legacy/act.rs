//! I/O of the legacy modes. Every call to the API server or the driver has a deadline.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, Patch, Preconditions};
use wharf_csi::Client;
use wharf_model::names::annotation::LEGACY_NODE_ID;
use wharf_model::{CSIDriver, Key, Kind as _, Node};

use super::Mode;
use super::decide::{MalformedAnnotation, with_node_id};
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::registrar::act::get_node_info;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LegacyError {
    #[error("NodeGetInfo: {:?}: {}", .0.code(), .0.message())]
    Node(#[from] tonic::Status),
    #[error("the driver has no ID for this node: NodeGetInfo returned an empty node_id")]
    NoNodeId,
    #[error("node {0} does not exist: set KUBE_NODE_NAME to the name of the Node object")]
    NodeNotFound(String),
    #[error("node {node}: {source}")]
    MalformedAnnotation { node: String, source: MalformedAnnotation },
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// What the registrar maintains for the driver: its CSIDriver object, or its node ID in the annotation of the Node.
pub(super) struct DriverEntry {
    pub(super) name: String,
    node_id: String,
    requires_attach: bool,
    /// UID of the CSIDriver object, if this process created it.
    created_uid: Option<String>,
}

/// Performs the steps of a legacy mode.
pub(super) struct Actor {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) metrics: Metrics,
    pub(super) timeout: Duration,
    pub(super) mode: Mode,
}

impl Actor {
    /// Waits for the driver, and reads its name, its capabilities and, for the annotation, its node ID.
    pub(super) async fn discover(&self, entry: &mut Option<DriverEntry>) -> Result<(), LegacyError> {
        let driver = Driver::discover(&self.client, &self.metrics, false).await;
        let node_id = match &self.mode {
            Mode::CsiDriverObject { .. } => String::new(),
            Mode::NodeAnnotation { .. } => {
                get_node_info(&self.client, self.timeout, &self.metrics).await?.node_id
            }
        };
        if matches!(self.mode, Mode::NodeAnnotation { .. }) && node_id.is_empty() {
            return Err(LegacyError::NoNodeId);
        }
        let requires_attach = driver.capabilities().publish_unpublish_volume;
        *entry =
            Some(DriverEntry { name: driver.name().to_owned(), node_id, requires_attach, created_uid: None });
        Ok(())
    }

    /// Creates the entry if it is missing.
    pub(super) async fn ensure(&self, entry: Option<&mut DriverEntry>) -> Result<(), LegacyError> {
        let Some(entry) = entry else { return Ok(()) };
        match &self.mode {
            Mode::CsiDriverObject { attach_required, pod_info_on_mount } => {
                let body = json!({
                    "apiVersion": CSIDriver::API.api_version(),
                    "kind": CSIDriver::API.kind,
                    "metadata": {"name": entry.name},
                    "spec": {
                        "attachRequired": attach_required.unwrap_or(entry.requires_attach),
                        "podInfoOnMount": pod_info_on_mount,
                    },
                });
                // Created without reading it first: the legacy RBAC rules allow only create and delete.
                match self.cluster.create(&CSIDriver::API, None, &body).await {
                    Ok(created) => {
                        tracing::info!(driver = entry.name, "created CSIDriver object");
                        entry.created_uid =
                            created.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
                    }
                    Err(ApiError::AlreadyExists(_)) => {
                        tracing::debug!(driver = entry.name, "CSIDriver object exists")
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            Mode::NodeAnnotation { node } => self.annotate(node, &entry.name, Some(&entry.node_id)).await,
        }
    }

    /// Removes the entry.
    pub(super) async fn remove(&self, entry: Option<&DriverEntry>) -> Result<(), LegacyError> {
        let Some(entry) = entry else { return Ok(()) };
        match &self.mode {
            Mode::CsiDriverObject { .. } => {
                let key = Key::cluster(&entry.name);
                let preconditions = Preconditions { uid: entry.created_uid.clone(), resource_version: None };
                match self.cluster.delete(&CSIDriver::API, &key, preconditions).await {
                    Ok(()) => tracing::info!(driver = entry.name, "deleted CSIDriver object"),
                    Err(ApiError::NotFound(_)) => {}
                    Err(error @ ApiError::Conflict(_)) => {
                        tracing::warn!(
                            driver = entry.name,
                            %error,
                            "did not delete CSIDriver object: another client has re-created it"
                        )
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            Mode::NodeAnnotation { node } => match self.annotate(node, &entry.name, None).await {
                Err(LegacyError::NodeNotFound(_)) => Ok(()),
                done => done,
            },
        }
    }

    /// Sets the driver's node ID in the annotation of the Node, or removes it.
    async fn annotate(&self, node: &str, driver: &str, node_id: Option<&str>) -> Result<(), LegacyError> {
        let key = Key::cluster(node);
        let found = self.cluster.get_raw(&Node::API, &key).await?;
        let found = found.ok_or_else(|| LegacyError::NodeNotFound(node.to_owned()))?;
        let metadata = &found["metadata"];
        let annotation = metadata["annotations"][LEGACY_NODE_ID].as_str();
        let changed = with_node_id(annotation, driver, node_id)
            .map_err(|source| LegacyError::MalformedAnnotation { node: node.to_owned(), source })?;
        let Some(annotation) = changed else { return Ok(()) };
        // The resourceVersion makes concurrent writes fail: another driver's registrar may write its ID at the same time.
        let patch = Patch::Merge(json!({"metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {LEGACY_NODE_ID: annotation},
        }}));
        self.cluster.patch(&Node::API, &key, None, patch).await?;
        tracing::info!(node, driver, node_id, "updated node ID annotation");
        Ok(())
    }
}
