//! Whose claim it is, where each node has a sidecar of its own: that of the node which the scheduler chose, or,
//! for claims that bind at once, of the node that is the first to say so.
//!
//! Nodes compete by writing the annotation that the scheduler would write. Each waits a while first, another while
//! on each node, and bids only if the driver has room, so that most claims see one bid.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use wharf_cluster::ApiError;
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::{Calls, v1};
use wharf_model::names::annotation;
use wharf_model::parameters::Parameters;
use wharf_model::topology::{Ask, Segments, Selected, requirement};
use wharf_model::{Key, Kind, PersistentVolumeClaim, StorageClass};

use super::ImmediateBinding;
use crate::context::{Context, OwnNode};

/// Whether a claim is ours to provision for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claiming {
    /// It is.
    Ours,
    /// It is not, and why.
    NotOurs(&'static str),
    /// It may be, after this long.
    Wait(Duration),
    /// Anybody's: say that it is ours.
    Bid,
}

/// Whose claim it is. `waited` is for how long it has been nobody's: `None` counts as no time at all.
pub(crate) fn claiming(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<&OwnNode>,
    immediate: Option<&ImmediateBinding>,
    waited: Option<Duration>,
) -> Claiming {
    let Some(node) = node else { return Claiming::Ours };
    match claim.selected_node() {
        Some(selected) if selected == node.name => return Claiming::Ours,
        Some(_) => return Claiming::NotOurs("another node is selected"),
        None => {}
    }
    if class.waits_for_first_consumer() {
        return Claiming::NotOurs("no node is selected yet");
    }
    let Some(immediate) = immediate else {
        return Claiming::NotOurs("it binds at once, and this node does not compete for such claims");
    };
    if !is_allowed(claim, class, node) {
        return Claiming::NotOurs("the class does not allow this node's place");
    }
    let wait = delay(immediate, &claim.metadata.uid, &node.name);
    match wait.checked_sub(waited.unwrap_or_default()) {
        None | Some(Duration::ZERO) => Claiming::Bid,
        Some(left) => Claiming::Wait(left),
    }
}

/// Whether the class's `allowedTopologies` have a place for this node.
fn is_allowed(claim: &PersistentVolumeClaim, class: &StorageClass, node: &OwnNode) -> bool {
    if class.allowed_topologies.is_empty() || node.place.is_empty() {
        return true;
    }
    let ask = Ask {
        claim: &claim.metadata.name,
        allowed: &class.allowed_topologies,
        selected: Some(Selected { node: &node.name, place: &node.place }),
        strict: false,
        immediate: true,
    };
    requirement(&ask, || Ok(vec![node.place.clone()])).is_ok()
}

/// How long a node waits before it bids: by chance, but the same whenever it looks at the same claim.
fn delay(immediate: &ImmediateBinding, claim: &str, node: &str) -> Duration {
    let ImmediateBinding { base_delay, max_delay } = immediate;
    let hash =
        claim.bytes().chain(*b"/").chain(node.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    // Names that differ in their last letter alone would get nearly the same number: mix it well.
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let chance = f64::from((hash >> 32) as u32) / f64::from(u32::MAX);
    *base_delay + max_delay.saturating_sub(*base_delay).mul_f64(chance)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(annotations: serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "uid": "u", "annotations": annotations}}))
            .unwrap()
    }

    fn class(mode: &str, zone: Option<&str>) -> StorageClass {
        let allowed: Vec<_> = zone
            .map(|zone| json!({"matchLabelExpressions": [{"key": "zone", "values": [zone]}]}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({"volumeBindingMode": mode, "allowedTopologies": allowed})).unwrap()
    }

    fn own() -> OwnNode {
        OwnNode { name: "node-a".into(), place: Segments::from([("zone".into(), "a".into())]) }
    }

    const COMPETES: ImmediateBinding =
        ImmediateBinding { base_delay: Duration::from_secs(20), max_delay: Duration::from_secs(60) };

    /// sidecars.md 1.1 "Node deployment": whose claim it is.
    #[test]
    fn whose_it_is() {
        let selected = |node: &str| claim(json!({"volume.kubernetes.io/selected-node": node}));
        let alpha = claim(json!({"volume.alpha.kubernetes.io/selected-node": "node-a"}));
        let free = || claim(json!({}));
        let (later, at_once) = ("WaitForFirstConsumer", "Immediate");
        let (ours, another) = (Claiming::Ours, Claiming::NotOurs("another node is selected"));
        let place = Claiming::NotOurs("the class does not allow this node's place");
        let long = Some(Duration::from_secs(60));
        for (claim, mode, zone, competes, waited, expected) in [
            (selected("node-a"), later, None, false, None, ours),
            (selected("node-a"), at_once, None, false, None, ours),
            (selected("node-a"), at_once, Some("b"), true, None, ours),
            (alpha, later, None, false, None, ours),
            (selected("node-b"), later, None, true, long, another),
            (selected("node-b"), at_once, None, true, long, another),
            (free(), later, None, true, long, Claiming::NotOurs("no node is selected yet")),
            (selected(""), later, None, true, long, Claiming::NotOurs("no node is selected yet")),
            (
                free(),
                at_once,
                None,
                false,
                long,
                Claiming::NotOurs("it binds at once, and this node does not compete for such claims"),
            ),
            (free(), at_once, None, true, long, Claiming::Bid),
            (free(), at_once, Some("a"), true, long, Claiming::Bid),
            (free(), at_once, Some("b"), true, long, place),
        ] {
            let class = class(mode, zone);
            let immediate = competes.then_some(&COMPETES);
            let found = claiming(&claim, &class, Some(&own()), immediate, waited);
            assert_eq!(found, expected, "{claim:?} {mode} {zone:?} {competes}");
            // Without a node of our own there is nobody to compete with.
            assert_eq!(claiming(&claim, &class, None, immediate, waited), Claiming::Ours);
        }
    }

    /// sidecars.md 1.1 "Node deployment": sleep between base and max.
    #[test]
    fn nodes_wait_for_different_times() {
        let claim = claim(json!({}));
        let class = class("Immediate", None);
        let wait = |node: &str, waited| {
            let node = OwnNode { name: node.into(), place: Segments::new() };
            claiming(&claim, &class, Some(&node), Some(&COMPETES), waited)
        };
        let mut times = Vec::new();
        for i in 0..100 {
            let node = format!("node-{i}");
            let Claiming::Wait(time) = wait(&node, None) else { panic!() };
            assert!(time >= COMPETES.base_delay && time <= COMPETES.max_delay, "{time:?}");
            let second = Duration::from_secs(1);
            assert_eq!(wait(&node, Some(second)), Claiming::Wait(time - second));
            assert_eq!(wait(&node, Some(time)), Claiming::Bid);
            times.push(time.as_millis() / 4000);
        }
        times.sort_unstable();
        times.dedup();
        assert!(times.len() >= 8, "spread over the whole time: {times:?}");
    }
}
