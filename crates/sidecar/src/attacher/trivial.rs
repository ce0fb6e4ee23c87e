//! Drivers that have nothing to do for an attachment: somebody made one, so somebody waits for it to be attached.
//! No finalizers, for there is nothing to undo.

use super::decide::Step;
use super::patches;
use super::view::View;

/// What to do next.
pub(super) fn decide(view: &View<'_>) -> Step {
    let waiting = view.attachments.iter().find(|seen| !seen.attachment.status.attached);
    match waiting {
        Some(seen) => Step::MarkAttached {
            attachment: seen.attachment.metadata.name.clone(),
            patch: patches::trivially_attached(&seen.attachment),
        },
        None => Step::Done,
    }
}
