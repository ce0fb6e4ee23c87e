//! Expansion on the node: whether and to which size to expand, and what the driver's error code means. The states are
//! those of [`wharf_model::resize`], which also computes the claim updates.

use tonic::Code;
use wharf_model::claim::ResizeStatus;
use wharf_model::names::annotation::NODE_EXPANSION_NOT_REQUIRED;
use wharf_model::{AccessMode, PersistentVolume, PersistentVolumeClaim, Quantity};

use super::failure::{Class, class_of};
use super::world::Expansion;

/// What to do for the expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing.
    Nothing,
    /// No call on this node: the volume is known to have this size from now on.
    Known {
        /// The size.
        size: Quantity,
    },
    /// Not possible because the mount is read-only; reported once.
    ReadOnly {
        /// The size.
        size: Quantity,
    },
    /// NodeExpandVolume.
    Expand {
        /// The new size.
        size: Quantity,
        /// Whether the claim's status already has this size because another node was first: then it is not updated.
        claim_updated: bool,
    },
}

/// Plans the expansion. `known` is the size this node knows the volume to have; the claim's capacity if `None`.
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
        return match expansion.reported_to_readers {
            Some(reported) if reported >= wants => Plan::Nothing,
            _ => Plan::ReadOnly { size: wants },
        };
    }
    let status = claim.status.allocated_resource_statuses.storage;
    let allocated = claim.status.allocated_resources.storage;
    if status.is_none() && allocated.is_none() {
        // An old resizer that sets no allocatedResourceStatuses: the PersistentVolume's capacity decides.
        return Plan::Expand { size: wants, claim_updated: has >= wants };
    }
    let size = allocated.unwrap_or(wants);
    let claim_updated = status.is_none() && has >= size;
    let shared = claim.spec.access_modes.contains(&AccessMode::ReadWriteMany);
    match status {
        _ if claim_updated && shared && claim.metadata.annotation(NODE_EXPANSION_NOT_REQUIRED).is_none() => {
            Plan::Expand { size, claim_updated }
        }
        _ if claim_updated => Plan::Known { size: wants },
        Some(NodeResizePending | NodeResizeInProgress) => Plan::Expand { size, claim_updated },
        // The controller has to expand first, or the driver reported the size as infeasible.
        _ => Plan::Nothing,
    }
}

/// What the driver's error means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpandOutcome {
    /// The driver does not expand on nodes, and nothing is missing.
    NotNeeded,
    /// Not while in use: do not retry on this node; the mount continues.
    InUse,
    /// Infeasible for this size.
    Infeasible,
    /// Failed; retry.
    Failed,
    /// The expansion may be in progress.
    Uncertain,
}

/// Classifies an error code. `changed`: the user has requested another size since, and this one was refused before.
pub(super) fn classify(code: Code, claim_updated: bool, changed: bool) -> ExpandOutcome {
    match code {
        Code::Unimplemented if claim_updated => ExpandOutcome::NotNeeded,
        Code::FailedPrecondition => ExpandOutcome::InUse,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => ExpandOutcome::Infeasible,
        code => match class_of(code) {
            Class::Uncertain | Class::Transient => ExpandOutcome::Uncertain,
            Class::Final if changed => ExpandOutcome::Infeasible,
            Class::Final => ExpandOutcome::Failed,
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

    /// kubernetes.md 1.4 "Node expansion"; kubernetes#115294.
    #[test]
    fn plan_follows_claim_and_volume_sizes() {
        let none = Expansion::default();
        let expand = |size, claim_updated| Plan::Expand { size: gib(size), claim_updated };
        for (name, claim_status, pv, known, expected) in [
            ("already that large", status("1Gi", None, None), "1Gi", None, Plan::Nothing),
            ("pending", status("1Gi", Some("NodeResizePending"), Some("2Gi")), "2Gi", None, expand(2, false)),
            (
                "in progress",
                status("1Gi", Some("NodeResizeInProgress"), Some("2Gi")),
                "2Gi",
                None,
                expand(2, false),
            ),
            (
                "the allocated size, not the latest",
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
                "controller expansion in progress",
                status("1Gi", Some("ControllerResizeInProgress"), Some("2Gi")),
                "2Gi",
                None,
                Plan::Nothing,
            ),
            (
                "controller did everything; node has the old size",
                status("2Gi", None, Some("2Gi")),
                "2Gi",
                Some(gib(1)),
                Plan::Known { size: gib(2) },
            ),
            (
                "node resize pending, whatever the claim's capacity",
                status("2Gi", Some("NodeResizePending"), Some("2Gi")),
                "2Gi",
                Some(gib(1)),
                expand(2, false),
            ),
            ("allocated, no resize status", status("1Gi", None, Some("2Gi")), "2Gi", None, Plan::Nothing),
            (
                "done, driver created more than allocated",
                status("2Gi", None, Some("2Gi")),
                "3Gi",
                Some(gib(2)),
                Plan::Known { size: gib(3) },
            ),
            ("an old resizer", status("1Gi", None, None), "2Gi", None, expand(2, false)),
            (
                "already done on this node",
                status("1Gi", Some("NodeResizePending"), Some("2Gi")),
                "2Gi",
                Some(gib(2)),
                Plan::Nothing,
            ),
        ] {
            assert_eq!(plan(&claim(claim_status), &volume(pv), known, false, none), expected, "{name}");
        }
    }

    /// kubernetes.md 1.4 "Multi-node volumes".
    #[test]
    fn shared_volume_expands_on_every_node() {
        let mut claim = claim(status("2Gi", None, Some("2Gi")));
        claim.spec.access_modes = vec![AccessMode::ReadWriteMany];
        let go = |claim: &PersistentVolumeClaim| {
            plan(claim, &volume("2Gi"), Some(gib(1)), false, Expansion::default())
        };
        assert_eq!(go(&claim), Plan::Expand { size: gib(2), claim_updated: true });
        claim.metadata.annotations.insert(NODE_EXPANSION_NOT_REQUIRED, "true");
        assert_eq!(go(&claim), Plan::Known { size: gib(2) });
    }

    /// kubernetes.md 1.4 "Read-only", "Node errors": FailedPrecondition stops retries.
    #[test]
    fn read_only_and_in_use_volumes_are_not_expanded() {
        let pending = claim(status("1Gi", Some("NodeResizePending"), Some("2Gi")));
        let read_only = plan(&pending, &volume("2Gi"), None, true, Expansion::default());
        assert_eq!(read_only, Plan::ReadOnly { size: gib(2) });
        let claim_updated = Expansion { reported_to_readers: Some(gib(2)), ..Expansion::default() };
        assert_eq!(plan(&pending, &volume("2Gi"), None, true, claim_updated), Plan::Nothing, "reported once");
        let writes = plan(&pending, &volume("2Gi"), None, false, claim_updated);
        assert_eq!(writes, Plan::Expand { size: gib(2), claim_updated: false }, "a pod that writes follows");
        let in_use = Expansion { in_use: true, refused: true, ..Expansion::default() };
        assert_eq!(plan(&pending, &volume("2Gi"), None, false, in_use), Plan::Nothing);
    }

    /// kubernetes.md 1.4 "Node errors", "Changed request".
    #[test]
    fn driver_errors_are_classified() {
        for (code, plain, changed, claim_updated) in [
            (Code::FailedPrecondition, ExpandOutcome::InUse, ExpandOutcome::InUse, ExpandOutcome::InUse),
            (
                Code::InvalidArgument,
                ExpandOutcome::Infeasible,
                ExpandOutcome::Infeasible,
                ExpandOutcome::Infeasible,
            ),
            (
                Code::OutOfRange,
                ExpandOutcome::Infeasible,
                ExpandOutcome::Infeasible,
                ExpandOutcome::Infeasible,
            ),
            (Code::NotFound, ExpandOutcome::Infeasible, ExpandOutcome::Infeasible, ExpandOutcome::Infeasible),
            (Code::Internal, ExpandOutcome::Failed, ExpandOutcome::Infeasible, ExpandOutcome::Failed),
            (Code::Unimplemented, ExpandOutcome::Failed, ExpandOutcome::Infeasible, ExpandOutcome::NotNeeded),
            (Code::Unavailable, ExpandOutcome::Uncertain, ExpandOutcome::Uncertain, ExpandOutcome::Uncertain),
            (
                Code::DeadlineExceeded,
                ExpandOutcome::Uncertain,
                ExpandOutcome::Uncertain,
                ExpandOutcome::Uncertain,
            ),
            (Code::Aborted, ExpandOutcome::Uncertain, ExpandOutcome::Uncertain, ExpandOutcome::Uncertain),
        ] {
            assert_eq!(classify(code, false, false), plain, "{code:?}");
            assert_eq!(classify(code, false, true), changed, "{code:?}, changed");
            assert_eq!(classify(code, true, false), claim_updated, "{code:?}, claim updated");
        }
    }
}
