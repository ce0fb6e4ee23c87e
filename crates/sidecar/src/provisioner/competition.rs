//! Node deployment: decides which node provisions a claim. That is the node which the scheduler selected or, for
//! claims with immediate binding, the first node to claim it.
//!
//! Nodes compete by writing the selected-node annotation that the scheduler would write. Each node first waits for a
//! delay of its own and competes only if its driver has capacity, so most claims are written by one node only.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use wharf_model::topology::{RequirementInputs, SelectedNode, requirement};
use wharf_model::{PersistentVolumeClaim, StorageClass};

pub(crate) use self::compete::{CompeteOutcome, compete};
use super::ImmediateBinding;
use crate::context::LocalNode;

mod compete;

/// Whether this node provisions a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// This node provisions the claim.
    Ours,
    /// It does not, for this reason.
    NotOurs(&'static str),
    /// It may compete after this delay.
    Wait(Duration),
    /// It may compete now.
    Compete,
}

/// Whether this node provisions the claim. `waited` is how long the claim has waited for a node; `None` counts as zero.
pub(crate) fn ownership(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<&LocalNode>,
    immediate: Option<&ImmediateBinding>,
    waited: Option<Duration>,
) -> Ownership {
    let Some(node) = node else { return Ownership::Ours };
    match claim.selected_node() {
        Some(selected) if selected == node.name => return Ownership::Ours,
        Some(_) => return Ownership::NotOurs("another node is selected"),
        None => {}
    }
    if class.waits_for_first_consumer() {
        return Ownership::NotOurs("no node is selected yet");
    }
    let Some(immediate) = immediate else {
        return Ownership::NotOurs(
            "the class binds immediately and this node does not compete for such claims",
        );
    };
    if !is_allowed(claim, class, node) {
        return Ownership::NotOurs("the class does not allow this node's topology");
    }
    let delay = delay(immediate, &claim.metadata.uid, &node.name);
    match delay.checked_sub(waited.unwrap_or_default()) {
        None | Some(Duration::ZERO) => Ownership::Compete,
        Some(left) => Ownership::Wait(left),
    }
}

/// Whether the class's `allowedTopologies` include this node.
fn is_allowed(claim: &PersistentVolumeClaim, class: &StorageClass, node: &LocalNode) -> bool {
    if node.topology.is_empty() {
        return true;
    }
    let request = RequirementInputs {
        claim: &claim.metadata.name,
        allowed: &class.allowed_topologies,
        selected: Some(SelectedNode { node: &node.name, segments: &node.topology }),
        strict: false,
        immediate: true,
    };
    requirement(&request, || Ok(vec![node.topology.clone()])).is_ok()
}

/// How long a node waits before it competes: pseudorandom, but stable for the same claim and node.
fn delay(immediate: &ImmediateBinding, claim: &str, node: &str) -> Duration {
    let ImmediateBinding { base_delay, max_delay } = immediate;
    let mut hasher = DefaultHasher::new();
    (claim, node).hash(&mut hasher);
    let fraction = hasher.finish() as f64 / u64::MAX as f64;
    *base_delay + max_delay.saturating_sub(*base_delay).mul_f64(fraction)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::topology::Segments;

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

    fn config() -> LocalNode {
        LocalNode { name: "node-a".into(), topology: Segments::from([("zone".into(), "a".into())]) }
    }

    const COMPETES: ImmediateBinding =
        ImmediateBinding { base_delay: Duration::from_secs(20), max_delay: Duration::from_secs(60) };

    /// sidecars.md 1.1 "Node deployment": which node provisions the claim.
    #[test]
    fn selected_or_competing_node_owns_claim() {
        let selected = |node: &str| claim(json!({"volume.kubernetes.io/selected-node": node}));
        let alpha = claim(json!({"volume.alpha.kubernetes.io/selected-node": "node-a"}));
        let free = || claim(json!({}));
        let (later, at_once) = ("WaitForFirstConsumer", "Immediate");
        let (ours, another) = (Ownership::Ours, Ownership::NotOurs("another node is selected"));
        let disallowed = Ownership::NotOurs("the class does not allow this node's topology");
        let long = Some(Duration::from_secs(60));
        for (claim, mode, zone, competes, waited, expected) in [
            (selected("node-a"), later, None, false, None, ours),
            (selected("node-a"), at_once, None, false, None, ours),
            (selected("node-a"), at_once, Some("b"), true, None, ours),
            (alpha, later, None, false, None, ours),
            (selected("node-b"), later, None, true, long, another),
            (selected("node-b"), at_once, None, true, long, another),
            (free(), later, None, true, long, Ownership::NotOurs("no node is selected yet")),
            (selected(""), later, None, true, long, Ownership::NotOurs("no node is selected yet")),
            (
                free(),
                at_once,
                None,
                false,
                long,
                Ownership::NotOurs(
                    "the class binds immediately and this node does not compete for such claims",
                ),
            ),
            (free(), at_once, None, true, long, Ownership::Compete),
            (free(), at_once, Some("a"), true, long, Ownership::Compete),
            (free(), at_once, Some("b"), true, long, disallowed),
        ] {
            let class = class(mode, zone);
            let immediate = competes.then_some(&COMPETES);
            let found = ownership(&claim, &class, Some(&config()), immediate, waited);
            assert_eq!(found, expected, "{claim:?} {mode} {zone:?} {competes}");
            // Without node deployment there is no competition.
            assert_eq!(ownership(&claim, &class, None, immediate, waited), Ownership::Ours);
        }
        // A driver without topology is not restricted.
        let without_topology = LocalNode { topology: Segments::new(), ..config() };
        for zone in [None, Some("b")] {
            let found =
                ownership(&free(), &class(at_once, zone), Some(&without_topology), Some(&COMPETES), long);
            assert_eq!(found, Ownership::Compete, "{zone:?}");
        }
    }

    /// sidecars.md 1.1 "Node deployment": sleep between base and max.
    #[test]
    fn delays_are_spread_between_base_and_max() {
        let claim = claim(json!({}));
        let class = class("Immediate", None);
        let delay = |node: &str, waited| {
            let node = LocalNode { name: node.into(), topology: Segments::new() };
            ownership(&claim, &class, Some(&node), Some(&COMPETES), waited)
        };
        let mut times = Vec::new();
        for i in 0..100 {
            let node = format!("node-{i}");
            let Ownership::Wait(time) = delay(&node, None) else { panic!() };
            assert!(time >= COMPETES.base_delay && time <= COMPETES.max_delay, "{time:?}");
            let second = Duration::from_secs(1);
            assert_eq!(delay(&node, Some(second)), Ownership::Wait(time - second));
            assert_eq!(delay(&node, Some(time)), Ownership::Compete);
            times.push(time.as_millis() / 4000);
        }
        times.sort_unstable();
        times.dedup();
        assert!(times.len() >= 8, "not spread over the whole range: {times:?}");
    }
}
