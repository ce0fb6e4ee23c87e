//! The rules: what is done next for one claim.
//!
//! A claim has one actor, which does one step at a time, so expansion and modification never meet. If both could go
//! on, the expansion does: what a class may ask for often depends on the size. One that waits, for a pause or for
//! somebody else, never holds up the other.

use std::fmt;

use wharf_csi::ErrorClass;
use wharf_model::claim::ModifyStatus;
use wharf_model::names::annotation;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Quantity, Time, modify, resize};

use super::memory::{ClassQuestion, Expanded, Failed, Memory, SizeQuestion};
use super::view::{Users, View, Where};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until something changes or a pause ends.
    Wait(Waiting),
    /// The claim is gone, and with it what is remembered of it.
    Forget,
    /// Remove from the volume the size from before: the claim has caught up.
    Tidy,
    /// Write that an expansion to this size is in progress. Before the driver is asked.
    BeginExpansion {
        /// The size.
        size: Quantity,
        /// Whether it is another size than before.
        fresh: bool,
    },
    /// Ask the driver for this size.
    Expand {
        /// The size.
        size: Quantity,
    },
    /// Write that the driver refused.
    ReportExpansion,
    /// Write the volume's new size.
    Grow {
        /// The size.
        size: Quantity,
        /// Whether the node has its part to do.
        on_node: bool,
    },
    /// Write that it is the node's turn.
    HandToNode,
    /// Write the claim's new size.
    FinishExpansion {
        /// The size.
        size: Quantity,
    },
    /// Say that the expansion waits for pods to end.
    TellInUse,
    /// Write that the class asked for does not exist.
    MarkPending {
        /// The class.
        target: String,
    },
    /// Say that the class on its way does not exist.
    TellMissing {
        /// The class.
        target: String,
    },
    /// Write that the volume is being brought to this class. Before the driver is asked.
    BeginModification {
        /// The class.
        target: String,
    },
    /// Ask the driver for this class.
    Modify {
        /// The class.
        target: String,
    },
    /// Write how the call failed.
    ReportModification,
    /// Write in the volume that this class is in force.
    RecordClass {
        /// The class.
        target: String,
    },
    /// Write the same in the claim.
    CompleteModification {
        /// The class.
        target: String,
    },
    /// Write that the user gave it up.
    CancelModification,
}

/// Why nothing is done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Of the expansion.
    pub(crate) expansion: Reason,
    /// Of the modification.
    pub(crate) modification: Reason,
}

/// Why one of the two waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The driver cannot do it.
    Unable,
    /// The claim has no volume, or not one that we know.
    NoVolume,
    /// The volume is another node's.
    ElsewhereReached,
    /// The volume was made by an in-tree plugin and handed to this driver.
    InTree,
    /// No expansion is called for.
    NoExpansion(resize::Idle),
    /// No modification is called for.
    NoModification(modify::Idle),
    /// The driver wants it unused, and pods use it.
    InUse,
    /// We cannot see which classes there are.
    ClassesUnknown,
    /// The class does not exist.
    ClassMissing(String),
    /// The last attempt failed.
    Pause(Time),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unable => f.write_str("the driver cannot"),
            Self::NoVolume => f.write_str("there is no volume yet"),
            Self::ElsewhereReached => f.write_str("the volume is another node's"),
            Self::InTree => {
                f.write_str("the volume is an in-tree one, which only its driver's own resizer can translate")
            }
            Self::NoExpansion(idle) => write!(f, "{idle:?}"),
            Self::NoModification(idle) => write!(f, "{idle:?}"),
            Self::InUse => {
                f.write_str("pods use it, and the driver expands only volumes that are not in use")
            }
            Self::ClassesUnknown => f.write_str("VolumeAttributesClasses cannot be read"),
            Self::ClassMissing(class) => write!(f, "VolumeAttributesClass {class:?} does not exist"),
            Self::Pause(until) => write!(f, "again at {until}"),
        }
    }
}

impl Waiting {
    /// When to look again without being told.
    pub(crate) fn until(&self) -> Option<Time> {
        let pause = |reason: &Reason| match reason {
            Reason::Pause(until) => Some(*until),
            _ => None,
        };
        [pause(&self.expansion), pause(&self.modification)].into_iter().flatten().min()
    }
}

/// What one of the two calls for.
type Next = Result<Step, Reason>;

/// Decides.
pub(crate) fn decide(view: &View<'_>, now: Time) -> Step {
    let wait = |reason: Reason| Step::Wait(Waiting { expansion: reason.clone(), modification: reason });
    let Some(claim) = view.claim else { return Step::Forget };
    let Some(volume) = view.volume else { return wait(Reason::NoVolume) };
    if !view.reached {
        return wait(Reason::ElsewhereReached);
    }
    let ours = volume.is_of(view.driver) && volume.is_bound_to(&claim.metadata);
    if ours && resize::caught_up(claim, volume).is_some() {
        return Step::Tidy;
    }
    match (expansion(view, claim, volume, now), modification(view, claim, volume, now)) {
        (Ok(step), _) | (Err(_), Ok(step)) => step,
        (Err(expansion), Err(modification)) => Step::Wait(Waiting { expansion, modification }),
    }
}

fn expansion(view: &View<'_>, claim: &PersistentVolumeClaim, volume: &PersistentVolume, now: Time) -> Next {
    let place = view.can.expand.ok_or(Reason::Unable)?;
    let memory = &view.memory.expansion;
    if memory.failed.as_ref().is_some_and(|failed| is_unreported(claim, failed)) {
        return Ok(Step::ReportExpansion);
    }
    let known = resize::Known { in_controller: place == Where::Controller, ended: memory.ended };
    let (size, fresh) = match resize::plan(claim, volume, view.driver, known) {
        resize::Plan::Expand { size, fresh } => (size, fresh),
        resize::Plan::Nothing(resize::Idle::NotOurs) if is_migrated(view, claim, volume) => {
            return Err(Reason::InTree);
        }
        resize::Plan::Nothing(idle) => return Err(Reason::NoExpansion(idle)),
    };
    if let Some(expanded) = memory.expanded.filter(|expanded| expanded.asked == size) {
        return Ok(write_down(volume, expanded));
    }
    if let Some(failed) = &memory.failed {
        if failed.failure.is_in_use() && view.users == Users::Some {
            return if memory.told_in_use { Err(Reason::InUse) } else { Ok(Step::TellInUse) };
        }
        let request = claim.requested().unwrap_or(Quantity::ZERO);
        if let Some(again) = failed.pause(&SizeQuestion { request, size, users: view.users }, now) {
            return Err(Reason::Pause(again));
        }
    }
    let status = claim.status.allocated_resource_statuses.storage;
    let infeasible = status == Some(wharf_model::claim::ResizeStatus::ControllerResizeInfeasible);
    // The same for what others began. And a size that was infeasible is in progress again: after a crash, the
    // earlier answer must not be taken for this call's.
    match memory.begun == Some(size) && !infeasible {
        true => Ok(Step::Expand { size }),
        false => Ok(Step::BeginExpansion { size, fresh }),
    }
}

/// The volume was handed to this driver, but is written as its in-tree plugin knew it.
fn is_migrated(view: &View<'_>, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    volume.spec.csi.is_none() && claim.metadata.annotation(annotation::STORAGE_RESIZER) == Some(view.driver)
}

/// Only final answers are written: whatever else failed may still succeed.
fn is_unreported(claim: &PersistentVolumeClaim, failed: &Failed<SizeQuestion>) -> bool {
    let infeasible = match failed.failure.class {
        Some(ErrorClass::Final) => false,
        Some(ErrorClass::Infeasible) => true,
        Some(ErrorClass::StillRunning) | None => return false,
    };
    !failed.reported && !resize::says(claim, &failed.failure.text(), infeasible)
}

/// The volume first, so that the claim never says more.
fn write_down(volume: &PersistentVolume, expanded: Expanded) -> Step {
    let Expanded { size, on_node, .. } = expanded;
    let unnoted = on_node && volume.metadata.annotation(annotation::PRE_RESIZE_CAPACITY).is_none();
    match volume.spec.capacity.storage == Some(size) && !unnoted {
        false => Step::Grow { size, on_node },
        true if on_node => Step::HandToNode,
        true => Step::FinishExpansion { size },
    }
}

fn modification(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    now: Time,
) -> Next {
    if !view.can.modify {
        return Err(Reason::Unable);
    }
    let memory = &view.memory.modification;
    let status = claim.status.modify_volume_status.as_ref();
    let under_way = status
        .filter(|status| status.status == ModifyStatus::InProgress)
        .map(|status| status.target_volume_attributes_class_name.as_str());
    // What the driver has done is written down before anything else, whatever the user wants by now.
    if let Some(applied) = memory.applied.as_deref().filter(|applied| under_way == Some(applied)) {
        let target = applied.to_owned();
        let recorded = volume.spec.volume_attributes_class_name.as_deref() == Some(applied);
        return Ok(if recorded {
            Step::CompleteModification { target }
        } else {
            Step::RecordClass { target }
        });
    }
    if let Some(failed) = &memory.failed
        && under_way == Some(&failed.question.target)
        && is_unsaid(claim, failed)
    {
        return Ok(Step::ReportModification);
    }
    let exists = |class: &str| view.classes.get(class).is_some();
    let told = |target: &str| memory.told_missing.as_deref() == Some(target);
    let target = match modify::plan(claim, volume, view.driver, !memory.certain, exists) {
        modify::Plan::Nothing(idle) => return Err(Reason::NoModification(idle)),
        modify::Plan::Cancel => return Ok(Step::CancelModification),
        modify::Plan::Pending { .. } | modify::Plan::Stuck { .. } if !view.classes.known => {
            return Err(Reason::ClassesUnknown);
        }
        modify::Plan::Pending { target, unwritten: true } => return Ok(Step::MarkPending { target }),
        modify::Plan::Pending { target, unwritten: false } | modify::Plan::Stuck { target } => {
            return if told(&target) {
                Err(Reason::ClassMissing(target))
            } else {
                Ok(Step::TellMissing { target })
            };
        }
        modify::Plan::Begin { target } | modify::Plan::Continue { target } => target,
    };
    if let Some(failed) = &memory.failed {
        let asked = claim.spec.volume_attributes_class_name.clone();
        if let Some(again) = failed.pause(&ClassQuestion { asked, target: target.clone() }, now) {
            return Err(Reason::Pause(again));
        }
    }
    // What others began is begun again, so that the server agrees that nothing else has been begun since.
    match under_way == Some(&target) && memory.begun.as_ref() == Some(&target) {
        true => Ok(Step::Modify { target }),
        false => Ok(Step::BeginModification { target }),
    }
}

/// What is still to be written in the volume of a claim that went while the driver was at it: nobody will come back to
/// it, and whoever gets the volume next would not know what it is.
pub(crate) fn outliving(memory: &Memory, volume: &PersistentVolume) -> Option<Step> {
    let smaller = |size: Quantity| volume.spec.capacity.storage.is_none_or(|now| now < size);
    if let Some(Expanded { size, on_node, .. }) = memory.expansion.expanded
        && smaller(size)
    {
        return Some(Step::Grow { size, on_node });
    }
    let target = memory.modification.applied.clone()?;
    let recorded = volume.spec.volume_attributes_class_name.as_ref() == Some(&target);
    (!recorded).then_some(Step::RecordClass { target })
}

/// How a failure is told in the claim's status; `None`: the driver was not asked, so there is nothing to tell.
pub(crate) fn told_as(class: Option<ErrorClass>) -> Option<modify::Failure> {
    Some(match class? {
        ErrorClass::StillRunning => modify::Failure::StillRunning,
        ErrorClass::Final => modify::Failure::Final,
        ErrorClass::Infeasible => modify::Failure::Infeasible,
    })
}

fn is_unsaid(claim: &PersistentVolumeClaim, failed: &Failed<ClassQuestion>) -> bool {
    let Some(told) = told_as(failed.failure.class) else { return false };
    let code = crate::metrics::code_name(failed.failure.code);
    !failed.reported && !modify::says(claim, told, &code, &failed.failure.message)
}

#[cfg(test)]
mod tests;
