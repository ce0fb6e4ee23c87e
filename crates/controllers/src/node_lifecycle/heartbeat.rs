//! Which nodes are silent: for how long this process has seen no sign of life of a node.
//!
//! - A sign of life is a lease with another renew time, or a Ready condition that the node wrote. Times in objects are
//!   only compared for equality: the clocks of the nodes do not matter.
//! - The time is counted on the monotonic clock from when this process saw the last sign, and only while this process
//!   reads the leases without a gap. After a gap (the API server was down, the process was stopped, another replica
//!   led), counting starts again.
//! - When the first of several silent nodes shows a sign of life, counting starts again for all: what kept them silent
//!   was not the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wharf_model::{Monotonic, Node, Time};

/// Interval at which leases are read.
pub(super) const PERIOD: Duration = Duration::from_secs(5);
/// A longer time between two reads is a gap.
const LONGEST_GAP: Duration = Duration::from_secs(15);
/// How long a node may be silent: upstream's node-monitor-grace-period.
pub(super) const GRACE_PERIOD: Duration = Duration::from_secs(50);
/// How long a node that never reported may be silent: upstream's node-startup-grace-period.
const STARTUP_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// The signs of life of all nodes.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    nodes: BTreeMap<String, Heartbeat>,
    /// The last read of the leases.
    observed: Option<Monotonic>,
}

/// The last sign of life of a node.
#[derive(Debug)]
struct Heartbeat {
    uid: String,
    renewed: Option<Time>,
    ready: Option<Report>,
    /// When this process saw it.
    since: Monotonic,
    silent: bool,
    /// Uids of pods that were reported as not ready since the node is silent.
    reported_pods: BTreeSet<String>,
}

/// A Ready condition that a node wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    status: String,
    reason: String,
    message: String,
    since: Option<Time>,
}

/// What was read about the lease of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// It does not exist or was never renewed.
    Missing,
    /// Its last renewal.
    Renewed(Time),
    /// It exists and cannot be decoded: the node may have renewed it.
    Undecodable,
}

/// The Ready condition, unless a controller wrote it.
fn report(node: &Node) -> Option<Report> {
    let ready = node.status.conditions.iter().find(|condition| condition.kind == "Ready")?;
    (ready.status != "Unknown").then(|| Report {
        status: ready.status.clone(),
        reason: ready.reason.clone(),
        message: ready.message.clone(),
        since: ready.last_transition_time,
    })
}

impl Heartbeats {
    /// Takes all nodes and their leases, as read now. Returns the nodes that became silent.
    pub(super) fn observe<'a>(
        &mut self,
        now: Monotonic,
        nodes: impl IntoIterator<Item = (&'a Node, LeaseState)>,
    ) -> Vec<String> {
        let gap = self.is_gap(now);
        self.observed = Some(now);
        let all_were_silent = !self.nodes.is_empty() && self.nodes.values().all(|node| node.silent);
        let mut before = std::mem::take(&mut self.nodes);
        let (mut became_silent, mut sign_of_life) = (Vec::new(), false);
        for (node, lease) in nodes {
            let name = &node.metadata.name;
            let known = before.remove(name).filter(|known| known.uid == node.metadata.uid);
            let reported = report(node);
            let renewed = match lease {
                LeaseState::Renewed(time) => Some(time),
                LeaseState::Missing | LeaseState::Undecodable => None,
            };
            let Some(mut heartbeat) = known else {
                let (uid, reported_pods) = (node.metadata.uid.clone(), BTreeSet::new());
                let new =
                    Heartbeat { uid, renewed, ready: reported, since: now, silent: false, reported_pods };
                self.nodes.insert(name.clone(), new);
                continue;
            };
            let alive = lease == LeaseState::Undecodable
                || (renewed.is_some() && renewed != heartbeat.renewed)
                || (reported.is_some() && reported != heartbeat.ready);
            sign_of_life |= alive;
            heartbeat.renewed = renewed.or(heartbeat.renewed);
            heartbeat.ready = reported;
            if alive || gap {
                heartbeat.since = now;
            }
            let grace = if node.ready.is_some() { GRACE_PERIOD } else { STARTUP_GRACE_PERIOD };
            let silent = now.since(heartbeat.since) > grace;
            if silent && !heartbeat.silent {
                became_silent.push(name.clone());
            }
            if !silent {
                heartbeat.reported_pods.clear();
            }
            heartbeat.silent = silent;
            self.nodes.insert(name.clone(), heartbeat);
        }
        if all_were_silent && sign_of_life {
            for heartbeat in self.nodes.values_mut() {
                (heartbeat.since, heartbeat.silent) = (now, false);
                heartbeat.reported_pods.clear();
            }
            became_silent.clear();
        }
        became_silent
    }

    /// Whether the last read is too long ago, so that nothing that was seen before proves anything.
    pub(super) fn is_gap(&self, now: Monotonic) -> bool {
        self.observed.is_none_or(|last| now.since(last) > LONGEST_GAP)
    }

    /// Whether the node was silent at the last read, and has not reported since.
    pub(super) fn is_silent(&self, node: &Node) -> bool {
        let heartbeat = self.nodes.get(&node.metadata.name);
        let heartbeat = heartbeat.filter(|heartbeat| heartbeat.uid == node.metadata.uid && heartbeat.silent);
        heartbeat.is_some_and(|heartbeat| report(node).is_none_or(|now| heartbeat.ready == Some(now)))
    }

    /// Whether this pod of a silent node was reported as not ready.
    pub(super) fn is_pod_reported(&self, node: &str, pod_uid: &str) -> bool {
        self.nodes.get(node).is_some_and(|heartbeat| heartbeat.reported_pods.contains(pod_uid))
    }

    /// Records that this pod of a silent node was reported as not ready.
    pub(super) fn pod_reported(&mut self, node: &str, pod_uid: &str) {
        if let Some(heartbeat) = self.nodes.get_mut(node) {
            heartbeat.reported_pods.insert(pod_uid.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, ready: Option<&str>) -> Node {
        let conditions = ready.map(|status| json!({"type": "Ready", "status": status}));
        let conditions: Vec<_> = conditions.into_iter().collect();
        let body = json!({"metadata": {"name": name, "uid": name}, "status": {"conditions": conditions}});
        serde_json::from_value(body).unwrap()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(0).plus(Duration::from_secs(seconds))
    }

    /// kubernetes.md 1.9 "Lost node": when the lease is read, its renew time, and whether the node is silent in the end.
    #[test]
    fn node_is_silent_after_the_grace_period_of_observed_silence() {
        use LeaseState::{Missing, Renewed, Undecodable};
        let old = Renewed(Time(1));
        let every_5_s = |until: u64, lease| (0..=until / 5).map(|read| (read * 5, lease)).collect::<Vec<_>>();
        let then = |mut reads: Vec<_>, more: &[_]| {
            reads.extend_from_slice(more);
            reads
        };
        for (rule, ready, reads, silent) in [
            ("an old lease at the first read proves nothing", Some("True"), vec![(0, old)], false),
            ("up to the grace period", Some("True"), every_5_s(50, old), false),
            ("after it", Some("True"), every_5_s(55, old), true),
            ("without a lease", Some("True"), every_5_s(55, Missing), true),
            ("not ready itself, then silent", Some("False"), every_5_s(55, old), true),
            ("a node that never reported has longer", None, every_5_s(60, old), false),
            ("and is silent then", None, every_5_s(65, old), true),
            ("renewed", Some("True"), then(every_5_s(50, old), &[(55, Renewed(Time(2)))]), false),
            (
                "renewed by a clock that was set back",
                Some("True"),
                then(every_5_s(50, old), &[(55, Renewed(Time(0)))]),
                false,
            ),
            (
                "a lease that cannot be decoded may be renewed",
                Some("True"),
                every_5_s(55, Undecodable),
                false,
            ),
            (
                "a deleted lease is not a renewal",
                Some("True"),
                then(every_5_s(50, old), &[(55, Missing), (60, old)]),
                true,
            ),
            (
                "after a gap counting starts again",
                Some("True"),
                then(every_5_s(50, old), &[(66, old), (71, old)]),
                false,
            ),
            ("a short gap is none", Some("True"), then(every_5_s(50, old), &[(65, old)]), true),
        ] {
            let (mut heartbeats, node) = (Heartbeats::default(), node("n", ready));
            let mut became = Vec::new();
            for (read, lease) in reads {
                became.extend(heartbeats.observe(at(read), [(&node, lease)]));
            }
            assert_eq!(heartbeats.is_silent(&node), silent, "{rule}");
            assert_eq!(became.len(), usize::from(silent), "{rule}: reported once");
        }
    }

    /// What a node writes itself is a sign of life, what a controller writes is none.
    #[test]
    fn report_of_the_node_ends_its_silence_at_once() {
        let mut heartbeats = Heartbeats::default();
        let (ready, unknown) = (node("n", Some("True")), node("n", Some("Unknown")));
        let lease = LeaseState::Renewed(Time(1));
        for read in 0..=11 {
            heartbeats.observe(at(read * 5), [(&ready, lease)]);
        }
        assert!(heartbeats.is_silent(&ready) && heartbeats.is_silent(&unknown));
        assert!(!heartbeats.is_silent(&node("n", Some("False"))), "reported since the last read");
        heartbeats.observe(at(60), [(&unknown, lease)]);
        assert!(heartbeats.is_silent(&unknown), "the condition that a controller wrote");
        assert!(!heartbeats.is_silent(&ready), "the same report again, after it was Unknown");
        heartbeats.observe(at(65), [(&ready, lease)]);
        for read in 14..=23 {
            heartbeats.observe(at(read * 5), [(&ready, lease)]);
        }
        assert!(!heartbeats.is_silent(&ready), "a full grace period after the report");
    }

    /// The API server was unreachable for the nodes, not for this process. The first node that comes back must not
    /// cost the others their pods.
    #[test]
    fn first_sign_of_life_after_total_silence_starts_all_counts_again() {
        let mut heartbeats = Heartbeats::default();
        let (one, two) = (node("one", Some("True")), node("two", Some("True")));
        let (old, new) = (LeaseState::Renewed(Time(1)), LeaseState::Renewed(Time(2)));
        for read in 0..=11 {
            heartbeats.observe(at(read * 5), [(&one, old), (&two, old)]);
        }
        assert!(heartbeats.is_silent(&one) && heartbeats.is_silent(&two));
        assert!(heartbeats.observe(at(60), [(&one, new), (&two, old)]).is_empty());
        assert!(!heartbeats.is_silent(&one) && !heartbeats.is_silent(&two));
        for (read, lease) in (13..=23).zip((3..).map(|time| LeaseState::Renewed(Time(time)))) {
            heartbeats.observe(at(read * 5), [(&one, lease), (&two, old)]);
        }
        assert!(!heartbeats.is_silent(&one) && heartbeats.is_silent(&two), "silent for itself");
    }

    #[test]
    fn another_node_of_the_same_name_starts_its_own_count() {
        let mut heartbeats = Heartbeats::default();
        let (first, mut second) = (node("n", Some("True")), node("n", Some("True")));
        second.metadata.uid = "second".to_owned();
        let lease = LeaseState::Renewed(Time(1));
        for read in 0..=11 {
            heartbeats.observe(at(read * 5), [(&first, lease)]);
        }
        assert!(heartbeats.is_silent(&first) && !heartbeats.is_silent(&second));
        heartbeats.observe(at(60), [(&second, lease)]);
        assert!(!heartbeats.is_silent(&second));
    }

    #[test]
    fn pod_is_reported_once_while_its_node_is_silent() {
        let (mut heartbeats, ready) = (Heartbeats::default(), node("n", Some("True")));
        heartbeats.observe(at(0), [(&ready, LeaseState::Missing)]);
        for read in 1..=11 {
            heartbeats.observe(at(read * 5), [(&ready, LeaseState::Missing)]);
        }
        heartbeats.pod_reported("n", "p");
        assert!(heartbeats.is_pod_reported("n", "p") && !heartbeats.is_pod_reported("n", "q"));
        heartbeats.observe(at(60), [(&ready, LeaseState::Renewed(Time(1)))]);
        assert!(!heartbeats.is_pod_reported("n", "p"), "the node came back");
    }
}
