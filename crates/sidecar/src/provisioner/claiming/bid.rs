//! Bids for a claim that is nobody's: asks the driver whether it has room, then writes the annotation. Nothing is
//! written over: a claim that has changed since it was looked at is looked at again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use wharf_cluster::ApiError;
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::{Calls, v1};
use wharf_model::names::annotation;
use wharf_model::parameters::Parameters;
use wharf_model::topology::Segments;
use wharf_model::{Key, Kind, PersistentVolumeClaim, StorageClass};

use crate::context::{Context, OwnNode};

/// What came of a bid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BidOutcome {
    /// The claim is ours.
    Won,
    /// The driver has no room for it here.
    NoRoom,
    /// It has changed, or somebody else was faster: look again.
    Changed,
}

/// Why there was no bid.
#[derive(Debug, thiserror::Error)]
#[error("cannot select node {node} for claim {claim}: {source}")]
pub(crate) struct BidError {
    node: String,
    claim: Key,
    source: ApiError,
}

/// Bids for a claim that is nobody's: if the driver has room here, our node becomes its selected one.
pub(crate) async fn bid(
    context: &Context,
    timeout: Duration,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &OwnNode,
) -> Result<BidOutcome, BidError> {
    if !has_room(context, timeout, claim, class, &node.place).await {
        return Ok(BidOutcome::NoRoom);
    }
    let key = claim.key();
    let failed = |source| BidError { node: node.name.clone(), claim: claim.key(), source };
    let read = context.cluster.get_raw(&PersistentVolumeClaim::API, &key).await.map_err(failed)?;
    let Some(mut raw) = read else { return Ok(BidOutcome::Changed) };
    // Only what we decided on: the version guards the rest.
    let version = raw.pointer("/metadata/resourceVersion").and_then(|version| version.as_str());
    if version != Some(&claim.metadata.resource_version) {
        return Ok(BidOutcome::Changed);
    }
    raw["metadata"]["annotations"][annotation::SELECTED_NODE] = json!(node.name);
    match context.cluster.update(&PersistentVolumeClaim::API, &key, None, &raw).await {
        Ok(_) => {
            tracing::info!(claim = %key, node = node.name, "the claim is ours");
            Ok(BidOutcome::Won)
        }
        Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => Ok(BidOutcome::Changed),
        Err(error) => Err(failed(error)),
    }
}

/// Whether the driver has room for a claim here. Where it cannot say, we find out by trying: then the failure has
/// somebody to report it.
async fn has_room(
    context: &Context,
    timeout: Duration,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    place: &Segments,
) -> bool {
    let wanted = claim.requested().map_or(0, |size| size.bytes());
    if wanted == 0 || !context.driver.can().get_capacity {
        return true;
    }
    let parameters: BTreeMap<String, String> = match Parameters::read(&class.parameters) {
        Ok(parameters) => parameters.driver,
        Err(_) => return true,
    };
    let request = v1::GetCapacityRequest {
        parameters: parameters.into_iter().collect(),
        accessible_topology: (!place.is_empty())
            .then(|| v1::Topology { segments: place.clone().into_iter().collect() }),
        ..Default::default()
    };
    let call = |mut client: ControllerClient<Calls>| async move { client.get_capacity(request).await };
    match context.driver.controller("GetCapacity", timeout, call).await {
        Ok(told) => wanted <= told.available_capacity,
        Err(status) => {
            tracing::debug!(claim = %claim.key(), code = ?status.code(), "the driver does not say whether it has room");
            true
        }
    }
}
