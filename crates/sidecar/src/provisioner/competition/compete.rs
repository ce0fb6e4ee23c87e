//! Competes for a claim without a selected node: checks the driver's capacity, then writes the annotation. A claim
//! that changed since it was cached is never overwritten; it is decided again.

use serde_json::json;
use wharf_cluster::ApiError;
use wharf_csi::DeadlineChannel;
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_model::names::annotation;
use wharf_model::{Key, Kind, PersistentVolumeClaim, StorageClass};

use crate::context::{Context, LocalNode};
use crate::provisioner::request::capacity_request;
use crate::provisioner::view::ProvisionerConfig;

/// The result of competing for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompeteOutcome {
    /// This node is selected.
    Won,
    /// The driver has not enough capacity on this node.
    NoCapacity,
    /// The claim changed, or another node was faster: decide again.
    Conflict,
}

/// Why the node could not be selected.
#[derive(Debug, thiserror::Error)]
#[error("failed to select node {node} for claim {claim}: {source}")]
pub(crate) struct CompeteError {
    node: String,
    claim: Key,
    source: ApiError,
}

/// Selects this node for a claim, if the driver has capacity for it here.
pub(crate) async fn compete(
    context: &Context,
    config: &ProvisionerConfig,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &LocalNode,
) -> Result<CompeteOutcome, CompeteError> {
    if !has_capacity(context, config, claim, class, node).await {
        return Ok(CompeteOutcome::NoCapacity);
    }
    let key = claim.key();
    let failed = |source| CompeteError { node: node.name.clone(), claim: claim.key(), source };
    let read = context.cluster.get_raw(&PersistentVolumeClaim::API, &key).await.map_err(failed)?;
    let Some(mut raw) = read else { return Ok(CompeteOutcome::Conflict) };
    // The decision was made for this version only.
    let version = raw.pointer("/metadata/resourceVersion").and_then(|version| version.as_str());
    if version != Some(&claim.metadata.resource_version) {
        return Ok(CompeteOutcome::Conflict);
    }
    raw["metadata"]["annotations"][annotation::SELECTED_NODE] = json!(node.name);
    match context.cluster.update(&PersistentVolumeClaim::API, &key, None, &raw).await {
        Ok(_) => {
            tracing::info!(pvc = %key, node = node.name, "selected this node for the claim");
            Ok(CompeteOutcome::Won)
        }
        Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => Ok(CompeteOutcome::Conflict),
        Err(error) => Err(failed(error)),
    }
}

/// Whether the driver has capacity for a claim on this node. If it cannot report that, the node tries: then
/// CreateVolume fails and the error is reported.
async fn has_capacity(
    context: &Context,
    config: &ProvisionerConfig,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &LocalNode,
) -> bool {
    let required = claim.requested_storage().map_or(0, |size| size.bytes());
    if required == 0 || !context.driver.capabilities().get_capacity {
        return true;
    }
    let Ok(request) = capacity_request(config, claim, class, &node.topology) else { return true };
    let call =
        |mut client: ControllerClient<DeadlineChannel>| async move { client.get_capacity(request).await };
    let timeout = config.settings.worker_options.timeout;
    match context.driver.controller("GetCapacity", timeout, call).await {
        Ok(response) => required <= response.available_capacity,
        Err(status) => {
            tracing::debug!(pvc = %claim.key(), code = ?status.code(), "GetCapacity failed; competing anyway");
            true
        }
    }
}
