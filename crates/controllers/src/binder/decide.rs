//! The next step for a claim and the volumes that reference it: one write, one live read, or nothing.
//!
//! Guarantees: the same view gives the same step. A binding is four writes in a fixed order, each skipped if it is not
//! needed, so an interrupted binding continues where it stopped. No claim is marked lost, and no volume released or
//! unbound, before the API server was read.
//!
//! [`claim`] has the rules for claims, [`volume`] those for volumes, [`bind`] the four writes.

use wharf_cluster::EventType;
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;

use super::view::View;

mod bind;
mod claim;
mod volume;

pub(super) use bind::{access_modes_to_report, capacity_to_report};
pub(super) use volume::decide_unclaimed;
pub use volume::missing_deleter_message;

/// The object an event is recorded for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventTarget {
    Claim,
    /// By name.
    Volume(String),
}

/// An event with upstream's reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventRecord {
    pub(super) target: EventTarget,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

impl EventRecord {
    fn normal(target: EventTarget, reason: &'static str, note: impl Into<String>) -> Self {
        Self { target, kind: EventType::Normal, reason, note: note.into() }
    }

    fn warning(target: EventTarget, reason: &'static str, note: impl Into<String>) -> Self {
        Self { target, kind: EventType::Warning, reason, note: note.into() }
    }
}

/// An invalid object that prevents binding until it is fixed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The API server sets a default.
    #[error("VolumeBindingMode not set for StorageClass {0:?}: recreate the class with one")]
    NoBindingMode(String),
    /// The API server rejects such a volume.
    #[error("PersistentVolume {0:?} has no storage capacity: set spec.capacity.storage")]
    NoCapacity(String),
}

/// Nothing more to do until something changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Idle {
    /// Events to record.
    pub(super) events: Vec<EventRecord>,
    /// Why the claim could not be bound.
    pub(super) problem: Option<Problem>,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to write.
    Idle(Idle),
    /// Read the claim from the API server.
    FetchClaim,
    /// Read the volume that the claim names from the API server.
    FetchVolume { name: String },
    /// Read the node that was selected for the claim from the API server.
    FetchNode { name: String },
    /// First write of a binding: the volume's `claimRef`.
    BindVolume { volume: String },
    /// Second: the volume's phase Bound. Also used for any other phase.
    SetVolumePhase { volume: String, phase: VolumePhase, event: Option<EventRecord> },
    /// Third: the claim's `volumeName`.
    BindClaim { volume: String },
    /// Fourth: the claim's phase Bound and its capacity.
    MarkClaimBound { volume: String },
    /// The claim has no volume: set this phase.
    SetClaimPhase { phase: ClaimPhase, event: Option<EventRecord> },
    /// The claim names no class: set the default class.
    AssignClass { class: String },
    /// Annotate the claim for its external provisioner.
    SetProvisioner { provisioner: String },
    /// The selected node was deleted: let the scheduler choose again.
    ClearSelectedNode,
    /// Remove the claim from the volume.
    Unbind { volume: String },
    /// Update `migrated-to` of the claim.
    MigrateClaim { to: Option<&'static str> },
    /// Update `migrated-to` of a volume.
    MigrateVolume { volume: String, to: Option<&'static str> },
    /// Remove the finalizer of an in-tree plugin that no longer manages the volume.
    RemoveInTreeFinalizer { volume: String },
}

impl Step {
    fn idle() -> Self {
        Self::Idle(Idle::default())
    }

    fn event(event: EventRecord) -> Self {
        Self::Idle(Idle { events: vec![event], problem: None })
    }

    fn problem(problem: Problem) -> Self {
        Self::Idle(Idle { events: Vec::new(), problem: Some(problem) })
    }
}

/// The next step. The claim's rules come first, since they choose the volume.
pub(super) fn decide(view: &View) -> Step {
    let mut all = Idle::default();
    let of_claim = view.claim.iter().map(|claim| claim::decide(view, claim));
    let of_volumes = view.volumes.iter().map(|volume| volume::decide(view, volume));
    for step in of_claim.chain(of_volumes) {
        match step {
            Step::Idle(Idle { events, problem }) => {
                all.events.extend(events);
                all.problem = all.problem.or(problem);
            }
            step => return step,
        }
    }
    Step::Idle(all)
}

#[cfg(test)]
mod tests;
