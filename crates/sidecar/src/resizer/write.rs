//! The writes and events of each step, identical to upstream's.

use wharf_cluster::EventType;
use wharf_model::names::reason;
use wharf_model::patch::Patch;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Time, modify, resize};

use super::decide::{ResizeStep, modify_failure};
use super::state::{Failure, ResizeState};
use wharf_csi::{ErrorClass, go_code_name};

/// A patch for the claim or the volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// To the claim's status.
    Claim(Patch),
    /// To the volume.
    Volume(Patch),
}

/// The write of a step. `None`: it writes nothing.
pub(crate) fn write(
    step: &ResizeStep,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    state: &ResizeState,
    now: Time,
) -> Option<Write> {
    Some(match step {
        ResizeStep::RemovePreResizeCapacity => {
            Write::Volume(resize::clear_pre_resize_capacity(claim, volume)?)
        }
        ResizeStep::BeginExpansion { size, fresh } => {
            Write::Claim(resize::mark_in_progress(claim, *size, *fresh, now))
        }
        ResizeStep::ReportExpansion => {
            let failure = &state.expansion.failed.as_ref()?.failure;
            let infeasible = failure.class == Some(ErrorClass::Infeasible);
            Write::Claim(resize::mark_failed(claim, &failure.text(), infeasible, now))
        }
        ResizeStep::UpdateVolumeSize { size, node_expansion_required } => {
            Write::Volume(resize::record_volume_size(volume, claim, *size, *node_expansion_required))
        }
        ResizeStep::MarkNodeExpansionPending => Write::Claim(resize::mark_node_pending(claim, now)),
        ResizeStep::FinishExpansion { size } => Write::Claim(resize::mark_finished(claim, *size)),
        ResizeStep::MarkPending { .. } => Write::Claim(modify::mark_pending(claim)),
        ResizeStep::BeginModification { target } => {
            Write::Claim(modify::mark_in_progress(claim, target, now))
        }
        ResizeStep::ReportModification => {
            let failure = &state.modification.failed.as_ref()?.failure;
            let (modify_failure_kind, code) = (modify_failure(failure.class)?, go_code_name(failure.code));
            Write::Claim(modify::mark_failed(claim, modify_failure_kind, code, &failure.message, now))
        }
        ResizeStep::RecordClass { target } => Write::Volume(modify::set_volume_class(volume, target)),
        ResizeStep::CompleteModification { target } => Write::Claim(modify::mark_completed(claim, target)),
        ResizeStep::CancelModification => Write::Claim(modify::mark_cancelled(claim)),
        ResizeStep::Wait(_)
        | ResizeStep::DropState
        | ResizeStep::Expand { .. }
        | ResizeStep::ReportInUse
        | ResizeStep::ReportMissingClass { .. }
        | ResizeStep::Modify { .. } => return None,
    })
}

/// An event about the claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EventRecord {
    pub(crate) kind: EventType,
    pub(crate) reason: &'static str,
    pub(crate) note: String,
}

impl EventRecord {
    fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: EventType::Normal, reason, note: note.into() }
    }

    fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self { kind: EventType::Warning, reason, note: note.into() }
    }

    /// The event of a step: for a call before it is sent, for all other steps after they are done.
    pub(crate) fn of(
        step: &ResizeStep,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        driver: &str,
    ) -> Option<Self> {
        let (key, name) = (claim.metadata.key(), &claim.metadata.name);
        Some(match step {
            ResizeStep::Expand { .. } => Self::normal(
                reason::RESIZING,
                format!("External resizer is resizing volume {}", volume.metadata.name),
            ),
            ResizeStep::MarkNodeExpansionPending => Self::normal(
                reason::FILE_SYSTEM_RESIZE_REQUIRED,
                "Require file system resize of volume on node",
            ),
            ResizeStep::FinishExpansion { .. } => {
                Self::normal(reason::VOLUME_RESIZE_SUCCESSFUL, "Resize volume succeeded")
            }
            ResizeStep::ReportInUse => Self::warning(
                reason::VOLUME_RESIZE_FAILED,
                format!(
                    "Unable to expand {key} because CSI driver {driver} only supports offline expansion and volume is currently in-use"
                ),
            ),
            ResizeStep::MarkPending { target } | ResizeStep::ReportMissingClass { target } => {
                Self::warning(reason::VOLUME_MODIFY_FAILED, format!("VAC {target:?} does not exist."))
            }
            ResizeStep::BeginModification { target } => Self::normal(
                reason::VOLUME_MODIFY,
                format!("external resizer is modifying volume {name} with vac {target}"),
            ),
            ResizeStep::CompleteModification { target } => Self::normal(
                reason::VOLUME_MODIFY_SUCCESSFUL,
                format!("external resizer modified volume {name} with vac {target} successfully"),
            ),
            ResizeStep::CancelModification => {
                Self::normal(reason::VOLUME_MODIFY_CANCELED, "Cancelled modify.")
            }
            ResizeStep::Wait(_)
            | ResizeStep::DropState
            | ResizeStep::RemovePreResizeCapacity
            | ResizeStep::BeginExpansion { .. }
            | ResizeStep::ReportExpansion
            | ResizeStep::UpdateVolumeSize { .. }
            | ResizeStep::Modify { .. }
            | ResizeStep::ReportModification
            | ResizeStep::RecordClass { .. } => return None,
        })
    }

    /// The event of a failed expansion.
    pub(crate) fn expansion_failed(volume: &PersistentVolume, driver: &str, failure: &Failure) -> Self {
        let note = format!(
            "resize volume {:?} by resizer {driver:?} failed: {}",
            volume.metadata.name,
            failure.text()
        );
        Self::warning(reason::VOLUME_RESIZE_FAILED, note)
    }

    /// The event of a failed modification.
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
    fn events_match_upstream() {
        let (size, target) = (Quantity::from_bytes(1), "gold".to_owned());
        for (step, reason, note) in [
            (ResizeStep::Expand { size }, "Resizing", "External resizer is resizing volume pv1"),
            (
                ResizeStep::MarkNodeExpansionPending,
                "FileSystemResizeRequired",
                "Require file system resize of volume on node",
            ),
            (ResizeStep::FinishExpansion { size }, "VolumeResizeSuccessful", "Resize volume succeeded"),
            (
                ResizeStep::BeginModification { target: target.clone() },
                "VolumeModify",
                "external resizer is modifying volume data with vac gold",
            ),
            (
                ResizeStep::CompleteModification { target: target.clone() },
                "VolumeModifySuccessful",
                "external resizer modified volume data with vac gold successfully",
            ),
            (ResizeStep::CancelModification, "VolumeModifyCanceled", "Cancelled modify."),
        ] {
            let event = EventRecord::of(&step, &claim(), &volume(), "d.test");
            assert_eq!(event, Some(EventRecord::normal(reason, note)), "{step:?}");
        }
        let in_use = "Unable to expand shop/data because CSI driver d.test only supports offline expansion and volume is currently in-use";
        for (step, reason, note) in [
            (ResizeStep::ReportInUse, "VolumeResizeFailed", in_use),
            (
                ResizeStep::MarkPending { target: target.clone() },
                "VolumeModifyFailed",
                "VAC \"gold\" does not exist.",
            ),
            (ResizeStep::ReportMissingClass { target }, "VolumeModifyFailed", "VAC \"gold\" does not exist."),
        ] {
            let event = EventRecord::of(&step, &claim(), &volume(), "d.test");
            assert_eq!(event, Some(EventRecord::warning(reason, note)), "{step:?}");
        }
    }

    /// sidecars.md 1.3 "Events": failures, in Go's format.
    #[test]
    fn failure_events_match_upstream() {
        let failure = |class, code| Failure { class, code, message: "no".into() };
        let gone = failure(Some(ErrorClass::StillRunning), Code::Cancelled);
        let refused = failure(Some(ErrorClass::Infeasible), Code::InvalidArgument);
        let unasked = failure(None, Code::Unknown);
        let expansion = |failure| EventRecord::expansion_failed(&volume(), "d.test", failure).note;
        assert_eq!(
            expansion(&gone),
            "resize volume \"pv1\" by resizer \"d.test\" failed: rpc error: code = Canceled desc = no"
        );
        assert_eq!(expansion(&unasked), "resize volume \"pv1\" by resizer \"d.test\" failed: no");
        let modification = |failure| EventRecord::modification_failed("gold", failure).note;
        assert_eq!(modification(&gone), "rpc error: code = Canceled desc = no. Still modifying to VAC gold");
        assert_eq!(modification(&refused), "rpc error: code = InvalidArgument desc = no");
        assert_eq!(modification(&unasked), "no");
    }
}
