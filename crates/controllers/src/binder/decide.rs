//! What to do next for a claim and the volumes that name it: one write, one question, or nothing.
//!
//! Promise: the same view gives the same step. A binding is four writes in one order, each only if it is needed, so a
//! binding that was interrupted anywhere goes on where it was. Nothing is lost, released or unbound before the server
//! was asked.
//!
//! Claims are decided in [`claim`], volumes in [`volume`], the four writes in [`bind`].

use wharf_cluster::EventType;
use wharf_model::claim::ClaimPhase;
use wharf_model::volume::VolumePhase;

use super::view::View;

mod bind;
mod claim;
mod volume;

pub(super) use bind::{capacity, modes};
pub(super) use volume::free;
pub use volume::no_deleter;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum About {
    /// The claim.
    Claim,
    /// A volume, by name.
    Volume(String),
}

/// An event, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) about: About,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

impl Told {
    fn normal(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, kind: EventType::Normal, reason, note: note.into() }
    }

    fn warning(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, kind: EventType::Warning, reason, note: note.into() }
    }
}

/// What keeps a claim from being seen to, and will not go away by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The API fills this in.
    #[error("VolumeBindingMode not set for StorageClass {0:?}: recreate the class with one")]
    NoBindingMode(String),
    /// The API does not let that in.
    #[error("PersistentVolume {0:?} is without a storage capacity: set spec.capacity.storage")]
    NoCapacity(String),
}

/// Nothing more to do until something changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// What to tell the users.
    pub(super) told: Vec<Told>,
    /// What was in the way.
    pub(super) problem: Option<Problem>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Rest(Rest),
    /// Ask the server for the claim.
    AskClaim,
    /// Ask the server for the volume that the claim names.
    AskVolume { name: String },
    /// Ask the server for the node that was chosen for the claim.
    AskNode { name: String },
    /// First write of a binding: the volume names the claim.
    BindVolume { volume: String },
    /// Second: the volume is bound. Also any other phase.
    VolumePhase { volume: String, phase: VolumePhase, told: Option<Told> },
    /// Third: the claim names the volume.
    BindClaim { volume: String },
    /// Fourth: the claim is bound, and says how large its volume is.
    ClaimBound { volume: String },
    /// The claim has no volume.
    ClaimPhase { phase: ClaimPhase, told: Option<Told> },
    /// The claim names no class: it gets the default one.
    AssignClass { class: String },
    /// The claim is a provisioner's to see to.
    HandOver { provisioner: String },
    /// The node that was chosen for the claim is gone: the scheduler has to choose again.
    ClearSelectedNode,
    /// The volume no longer names the claim.
    Unbind { volume: String },
    /// `migrated-to` of the claim.
    MigrateClaim { to: Option<&'static str> },
    /// `migrated-to` of a volume.
    MigrateVolume { volume: String, to: Option<&'static str> },
    /// No in-tree plugin holds the volume any more.
    FreeVolume { volume: String },
}

impl Step {
    fn rest() -> Self {
        Self::Rest(Rest::default())
    }

    fn tell(told: Told) -> Self {
        Self::Rest(Rest { told: vec![told], problem: None })
    }

    fn problem(problem: Problem) -> Self {
        Self::Rest(Rest { told: Vec::new(), problem: Some(problem) })
    }
}

/// The next step: the claim's first, since that is where bindings are made.
pub(super) fn decide(view: &View) -> Step {
    let mut all = Rest::default();
    let of_claim = view.claim.iter().map(|claim| claim::decide(view, claim));
    let of_volumes = view.volumes.iter().map(|volume| volume::decide(view, volume));
    for step in of_claim.chain(of_volumes) {
        match step {
            Step::Rest(Rest { told, problem }) => {
                all.told.extend(told);
                all.problem = all.problem.or(problem);
            }
            step => return step,
        }
    }
    Step::Rest(all)
}

#[cfg(test)]
mod tests;
