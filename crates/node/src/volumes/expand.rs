//! Expansion on the node: whether, to which size, and what the driver's answer means. The states are those of
//! [`wharf_model::resize`]; what is written about them is there too.

use tonic::Code;
use wharf_model::claim::ResizeStatus;
use wharf_model::names::annotation::NODE_EXPANSION_NOT_REQUIRED;
use wharf_model::{AccessMode, PersistentVolume, PersistentVolumeClaim, Quantity};

use super::failure::{Class, class_of};
use super::world::Expansion;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing.
    Nothing,
    /// Nothing on this node: the size is known to be this from now on.
    Known {
        /// The size.
        size: Quantity,
    },
    /// It cannot, since the pod only reads: told once.
    ReadOnly {
        /// The size.
        size: Quantity,
    },
    /// NodeExpandVolume.
    Expand {
        /// To this size.
        size: Quantity,
        /// Whether the claim has it already, because another node was first: then nothing is written.
        told: bool,
    },
}

/// What the node has to do. `known` is the size this node knows it has; without one, the claim's.
pub(super) fn plan(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    known: Option<Quantity>,
    read_only: bool,
    expansion: Expansion,
) -> Plan {
    use ResizeStatus::{NodeResizeInProgress, NodeResizePending};

    let zero = Quantity::ZERO;
    let has = claim.status.capacity.storage.unwrap_or(zero);
    let wants = volume.spec.capacity.storage.unwrap_or(zero);
    if expansion.in_use || wants <= known.unwrap_or(has) {
        return Plan::Nothing;
    }
    if read_only {
        return match expansion.readers_told {
            Some(told) if told >= wants => Plan::Nothing,
            _ => Plan::ReadOnly { size: wants },
        };
    }
    let status = claim.status.allocated_resource_statuses.storage;
    let allocated = claim.status.allocated_resources.storage;
    if status.is_none() && allocated.is_none() {
        // A resizer that writes no states: the volume's size says it all.
        return Plan::Expand { size: wants, told: has >= wants };
    }
    let size = allocated.unwrap_or(wants);
    let told = status.is_none() && has >= size;
    let shared = claim.spec.access_modes.contains(&AccessMode::ReadWriteMany);
    match status {
        _ if told && shared && claim.metadata.annotation(NODE_EXPANSION_NOT_REQUIRED).is_none() => {
            Plan::Expand { size, told }
        }
        _ if told => Plan::Known { size: wants },
        Some(NodeResizePending | NodeResizeInProgress) => Plan::Expand { size, told },
        // The controller's turn, or the driver said that it never will.
        _ => Plan::Nothing,
    }
}

/// What a refusal of the driver means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It does not expand on nodes, and nothing is missing.
    NotNeeded,
    /// Not while it is in use: never again on this node, and the mount goes on.
    InUse,
    /// Never, for this size.
    Infeasible,
    /// It failed; it is tried again.
    Failed,
    /// It may be under way.
    Uncertain,
}

/// What an answer means. `changed`: the user asks for another size than this one, and it was refused before.
pub(super) fn answer(code: Code, told: bool, changed: bool) -> Answer {
    match code {
        Code::Unimplemented if told => Answer::NotNeeded,
        Code::FailedPrecondition => Answer::InUse,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Answer::Infeasible,
        code => match class_of(code) {
            Class::Uncertain | Class::Transient => Answer::Uncertain,
            Class::Final if changed => Answer::Infeasible,
            Class::Final => Answer::Failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gib(n: i64) -> Quantity {
        Quantity::from_bytes(n << 30)
    }

    fn claim(status: Value) -> PersistentVolumeClaim {
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}, "status": status});
        serde_json::from_value(claim).unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        serde_json::from_value(json!({"spec": {"capacity": {"storage": size}}})).unwrap()
    }

    fn status(capacity: &str, state: Option<&str>, allocated: Option<&str>) -> Value {
        let mut status = json!({"capacity": {"storage": capacity}});
        if let Some(state) = state {
            status["allocatedResourceStatuses"] = json!({"storage": state});
        }
        if let Some(allocated) = allocated {
            status["allocatedResources"] = json!({"storage": allocated});
        }
        status
    }

    /// kubernetes.md 1.4 "Node side"; kubernetes#115294.
    #[test]
    fn when_and_to_which_size() {
        let none = Expansion::default();
        let expand = |size, told| Plan::Expand { size: gib(size), told };
        for (name, claim_status, pv, known, expected) in [
            ("as large as asked for", status("1Gi", None, None), "1Gi", None, Plan::Nothing),
            ("pending", status("1Gi", Some("NodeResizePending"), Some("2Gi")), "2Gi", None, expand(2, false)),
            (
                "begun",
                status("1Gi", Some("NodeResizeInProgress"), Some("2Gi")),
                "2Gi",
                None,
                expand(2, false),
            ),
            (
                "the size that was begun",
                status("1Gi", Some("NodeResizePending"), Some("2Gi")),
                "3Gi",
                None,
                expand(2, false),
            ),
            (
                "infeasible",
                status("1Gi", Some("NodeResizeInfeasible"), Some("2Gi")),
                "2Gi",
                None,
                Plan::Nothing,
            ),
            (
                "the controller's turn",
                status("1Gi", Some("ControllerResizeInProgress"), Some("2Gi")),
                "2Gi",
                None,
                Plan::Nothing,
            ),
            (
                "the controller did it all, and this node still has the old size",
                status("2Gi", None, Some("2Gi")),
                "2Gi",
                Some(gib(1)),
                Plan::Known { size: gib(2) },
            ),
            (
                "the node's turn, whatever the claim shows",
                status("2Gi", Some("NodeResizePending"), Some("2Gi")),
                "2Gi",
                Some(gib(1)),
                expand(2, false),
            ),
            ("allocated, and nobody's turn", status("1Gi", None, Some("2Gi")), "2Gi", None, Plan::Nothing),
            (
                "done, and the driver had made more than was allocated",
                status("2Gi", None, Some("2Gi")),
                "3Gi",
                Some(gib(2)),
                Plan::Known { size: gib(3) },
            ),
            ("an old resizer", status("1Gi", None, None), "2Gi", None, expand(2, false)),
            (
                "known on this node",
                status("1Gi", Some("NodeResizePending"), Some("2Gi")),
                "2Gi",
                Some(gib(2)),
                Plan::Nothing,
            ),
        ] {
            assert_eq!(plan(&claim(claim_status), &volume(pv), known, false, none), expected, "{name}");
        }
    }

    /// kubernetes.md 1.4 "Every node".
    #[test]
    fn shared_volumes_grow_on_every_node() {
        let mut claim = claim(status("2Gi", None, Some("2Gi")));
        claim.spec.access_modes = vec![AccessMode::ReadWriteMany];
        let go = |claim: &PersistentVolumeClaim| {
            plan(claim, &volume("2Gi"), Some(gib(1)), false, Expansion::default())
        };
        assert_eq!(go(&claim), Plan::Expand { size: gib(2), told: true });
        claim.metadata.annotations.insert(NODE_EXPANSION_NOT_REQUIRED, "true");
        assert_eq!(go(&claim), Plan::Known { size: gib(2) });
    }

    /// kubernetes.md 1.4 "Read-only", "Node errors": FailedPrecondition stops retries.
    #[test]
    fn what_does_not_grow() {
        let pending = claim(status("1Gi", Some("NodeResizePending"), Some("2Gi")));
        let read_only = plan(&pending, &volume("2Gi"), None, true, Expansion::default());
        assert_eq!(read_only, Plan::ReadOnly { size: gib(2) });
        let told = Expansion { readers_told: Some(gib(2)), ..Expansion::default() };
        assert_eq!(plan(&pending, &volume("2Gi"), None, true, told), Plan::Nothing, "once");
        let writes = plan(&pending, &volume("2Gi"), None, false, told);
        assert_eq!(writes, Plan::Expand { size: gib(2), told: false }, "a pod that writes comes later");
        let in_use = Expansion { in_use: true, refused: true, ..Expansion::default() };
        assert_eq!(plan(&pending, &volume("2Gi"), None, false, in_use), Plan::Nothing);
    }

    /// kubernetes.md 1.4 "Node errors", "Changed request".
    #[test]
    fn what_answers_mean() {
        for (code, plain, changed, told) in [
            (Code::FailedPrecondition, Answer::InUse, Answer::InUse, Answer::InUse),
            (Code::InvalidArgument, Answer::Infeasible, Answer::Infeasible, Answer::Infeasible),
            (Code::OutOfRange, Answer::Infeasible, Answer::Infeasible, Answer::Infeasible),
            (Code::NotFound, Answer::Infeasible, Answer::Infeasible, Answer::Infeasible),
            (Code::Internal, Answer::Failed, Answer::Infeasible, Answer::Failed),
            (Code::Unimplemented, Answer::Failed, Answer::Infeasible, Answer::NotNeeded),
            (Code::Unavailable, Answer::Uncertain, Answer::Uncertain, Answer::Uncertain),
            (Code::DeadlineExceeded, Answer::Uncertain, Answer::Uncertain, Answer::Uncertain),
            (Code::Aborted, Answer::Uncertain, Answer::Uncertain, Answer::Uncertain),
        ] {
            assert_eq!(answer(code, false, false), plain, "{code:?}");
            assert_eq!(answer(code, false, true), changed, "{code:?}, changed");
            assert_eq!(answer(code, true, false), told, "{code:?}, told");
        }
    }
}
