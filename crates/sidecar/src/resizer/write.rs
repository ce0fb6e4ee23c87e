//! What each step writes and what it tells, word by word as upstream does.

use wharf_cluster::EventType;
use wharf_model::names::reason;
use wharf_model::patch::Patch;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Time, modify, resize};

use super::decide::{Step, told_as};
use super::memory::{Failure, Memory};
use crate::metrics::code_name;
use wharf_csi::ErrorClass;

/// A write to one of the two objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// To the claim's status.
    Claim(Patch),
    /// To the volume.
    Volume(Patch),
}

/// What a step writes; `None` if it writes nothing.
pub(crate) fn write(
    step: &Step,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    memory: &Memory,
    now: Time,
) -> Option<Write> {
    Some(match step {
        Step::Tidy => Write::Volume(resize::caught_up(claim, volume)?),
        Step::BeginExpansion { size, fresh } => Write::Claim(resize::begin(claim, *size, *fresh, now)),
        Step::ReportExpansion => {
            let failure = &memory.expansion.failed.as_ref()?.failure;
            let infeasible = failure.class == Some(ErrorClass::Infeasible);
            Write::Claim(resize::failed(claim, &failure.text(), infeasible, now))
        }
        Step::Grow { size, on_node } => Write::Volume(resize::grown(volume, claim, *size, *on_node)),
        Step::HandToNode => Write::Claim(resize::pending_on_node(claim, now)),
        Step::FinishExpansion { size } => Write::Claim(resize::finished(claim, *size)),
        Step::MarkPending { .. } => Write::Claim(modify::pending(claim)),
        Step::BeginModification { target } => Write::Claim(modify::begin(claim, target, now)),
        Step::ReportModification => {
            let failure = &memory.modification.failed.as_ref()?.failure;
            let (told, code) = (told_as(failure.class)?, code_name(failure.code));
            Write::Claim(modify::failed(claim, told, &code, &failure.message, now))
        }
        Step::RecordClass { target } => Write::Volume(modify::in_force(volume, target)),
        Step::CompleteModification { target } => Write::Claim(modify::completed(claim, target)),
        Step::CancelModification => Write::Claim(modify::cancelled(claim)),
        Step::Wait(_)
        | Step::Forget
        | Step::Expand { .. }
        | Step::TellInUse
        | Step::TellMissing { .. }
        | Step::Modify { .. } => return None,
    })
}

/// An event about the claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) kind: EventType,
    pub(crate) reason: &'static str,
    pub(crate) note: String,
}

impl Told {
    fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, note: note.into() }
    }

    fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, note: note.into() }
    }

    /// What the users are told of a step: of a call before it is made, of all else once it is done.
    pub(crate) fn of(
        step: &Step,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        driver: &str,
    ) -> Option<Self> {
        let (key, name) = (claim.metadata.key(), &claim.metadata.name);
        Some(match step {
            Step::Expand { .. } => Self::normal(
                reason::RESIZING,
                format!("External resizer is resizing volume {}", volume.metadata.name),
            ),
            Step::HandToNode => Self::normal(
                reason::FILE_SYSTEM_RESIZE_REQUIRED,
                "Require file system resize of volume on node",
            ),
            Step::FinishExpansion { .. } => {
                Self::normal(reason::VOLUME_RESIZE_SUCCESSFUL, "Resize volume succeeded")
            }
            Step::TellInUse => Self::warning(
                reason::VOLUME_RESIZE_FAILED,
                format!(
                    "Unable to expand {key} because CSI driver {driver} only supports offline expansion and volume is currently in-use"
                ),
            ),
            Step::MarkPending { target } | Step::TellMissing { target } => {
                Self::warning(reason::VOLUME_MODIFY_FAILED, format!("VAC {target:?} does not exist."))
            }
            Step::BeginModification { target } => Self::normal(
                reason::VOLUME_MODIFY,
                format!("external resizer is modifying volume {name} with vac {target}"),
            ),
            Step::CompleteModification { target } => Self::normal(
                reason::VOLUME_MODIFY_SUCCESSFUL,
                format!("external resizer modified volume {name} with vac {target} successfully"),
            ),
            Step::CancelModification => Self::normal(reason::VOLUME_MODIFY_CANCELED, "Cancelled modify."),
            Step::Wait(_)
            | Step::Forget
            | Step::Tidy
            | Step::BeginExpansion { .. }
            | Step::ReportExpansion
            | Step::Grow { .. }
            | Step::Modify { .. }
            | Step::ReportModification
            | Step::RecordClass { .. } => return None,
        })
    }

    /// What they are told of an expansion that failed.
    pub(crate) fn expansion_failed(volume: &PersistentVolume, driver: &str, failure: &Failure) -> Self {
        let note = format!(
            "resize volume {:?} by resizer {driver:?} failed: {}",
            volume.metadata.name,
            failure.text()
        );
        Self::warning(reason::VOLUME_RESIZE_FAILED, note)
    }

    /// What they are told of a modification that failed.
    pub(crate) fn modification_failed(target: &str, failure: &Failure) -> Self {
        let mut note = failure.text();
        if failure.class == Some(ErrorClass::StillRunning) {
            note.push_str(". Still modifying to VAC ");
            note.push_str(target);
        }
        Self::warning(reason::VOLUME_MODIFY_FAILED, note)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use wharf_model::{Meta, Quantity};

    use super::*;

    fn claim() -> PersistentVolumeClaim {
        let metadata = Meta { name: "data".into(), namespace: Some("shop".into()), ..Meta::default() };
        PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() }
    }

    fn volume() -> PersistentVolume {
        let metadata = Meta { name: "pv1".into(), ..Meta::default() };
        PersistentVolume { metadata, ..PersistentVolume::default() }
    }

    /// sidecars.md 1.3 "Events".
    #[test]
    fn upstreams_words() {
        let (size, target) = (Quantity::from_bytes(1), "gold".to_owned());
        for (step, reason, note) in [
            (Step::Expand { size }, "Resizing", "External resizer is resizing volume pv1"),
            (Step::HandToNode, "FileSystemResizeRequired", "Require file system resize of volume on node"),
            (Step::FinishExpansion { size }, "VolumeResizeSuccessful", "Resize volume succeeded"),
            (
                Step::BeginModification { target: target.clone() },
                "VolumeModify",
                "external resizer is modifying volume data with vac gold",
            ),
            (
                Step::CompleteModification { target: target.clone() },
                "VolumeModifySuccessful",
                "external resizer modified volume data with vac gold successfully",
            ),
            (Step::CancelModification, "VolumeModifyCanceled", "Cancelled modify."),
        ] {
            let told = Told::of(&step, &claim(), &volume(), "d.test");
            assert_eq!(told, Some(Told::normal(reason, note)), "{step:?}");
        }
        let in_use = "Unable to expand shop/data because CSI driver d.test only supports offline expansion and volume is currently in-use";
        for (step, reason, note) in [
            (Step::TellInUse, "VolumeResizeFailed", in_use),
            (
                Step::MarkPending { target: target.clone() },
                "VolumeModifyFailed",
                "VAC \"gold\" does not exist.",
            ),
            (Step::TellMissing { target }, "VolumeModifyFailed", "VAC \"gold\" does not exist."),
        ] {
            let told = Told::of(&step, &claim(), &volume(), "d.test");
            assert_eq!(told, Some(Told::warning(reason, note)), "{step:?}");
        }
    }

    /// sidecars.md 1.3 "Events": failures, in Go's words.
    #[test]
    fn failures() {
        let failure = |class, code| Failure { class, code, message: "no".into() };
        let gone = failure(Some(ErrorClass::StillRunning), Code::Cancelled);
        let refused = failure(Some(ErrorClass::Infeasible), Code::InvalidArgument);
        let unasked = failure(None, Code::Unknown);
        let expansion = |failure| Told::expansion_failed(&volume(), "d.test", failure).note;
        assert_eq!(
            expansion(&gone),
            "resize volume \"pv1\" by resizer \"d.test\" failed: rpc error: code = Canceled desc = no"
        );
        assert_eq!(expansion(&unasked), "resize volume \"pv1\" by resizer \"d.test\" failed: no");
        let modification = |failure| Told::modification_failed("gold", failure).note;
        assert_eq!(modification(&gone), "rpc error: code = Canceled desc = no. Still modifying to VAC gold");
        assert_eq!(modification(&refused), "rpc error: code = InvalidArgument desc = no");
        assert_eq!(modification(&unasked), "no");
    }
}
