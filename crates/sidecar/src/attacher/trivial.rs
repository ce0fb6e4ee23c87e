//! The rules for drivers that do not publish volumes. Their attachments are marked as attached at once, since pods wait
//! for that. No finalizers are needed: there is nothing to undo.

use super::decide::AttachStep;
use super::patches;
use super::view::VolumeView;

/// Decides the next step.
pub(super) fn decide(view: &VolumeView<'_>) -> AttachStep {
    let waiting = view.attachments.iter().find(|inputs| !inputs.attachment.status.attached);
    match waiting {
        Some(inputs) => AttachStep::MarkAttached {
            attachment: inputs.attachment.metadata.name.clone(),
            patch: patches::trivially_attached(&inputs.attachment),
        },
        None => AttachStep::Idle,
    }
}
