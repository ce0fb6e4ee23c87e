//! Whose claim it is, where each node has a sidecar of its own: that of the node which the scheduler chose, or,
//! for claims that bind at once, of the node that is the first to say so.
//!
//! Nodes compete by writing the annotation that the scheduler would write. Each waits a while first, another while
//! on each node, and bids only if the driver has room, so that most claims see one bid.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use wharf_model::topology::{Ask, Selected, requirement};
use wharf_model::{PersistentVolumeClaim, StorageClass};

pub(crate) use self::bid::{BidOutcome, bid};
use super::ImmediateBinding;
use crate::context::OwnNode;

mod bid;

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
    if node.place.is_empty() {
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
    let mut hasher = DefaultHasher::new();
    (claim, node).hash(&mut hasher);
    let chance = hasher.finish() as f64 / u64::MAX as f64;
    *base_delay + max_delay.saturating_sub(*base_delay).mul_f64(chance)
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
        // A driver that does not say where it is may be anywhere.
        let nowhere = OwnNode { place: Segments::new(), ..own() };
        for zone in [None, Some("b")] {
            let found = claiming(&free(), &class(at_once, zone), Some(&nowhere), Some(&COMPETES), long);
            assert_eq!(found, Claiming::Bid, "{zone:?}");
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
