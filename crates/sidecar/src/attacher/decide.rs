//! The attacher's rules: the next step for a volume. No I/O.
//!
//! - Before ControllerPublishVolume, finalizers protect the volume and the attachment, and the attachment records the
//!   driver's node ID. So after any failure it is known what has to be undone.
//! - An attachment in deletion is unpublished before another attachment of the same volume is published. A detach that
//!   fails does not block the attach: the driver decides, as with upstream.
//! - A failed attempt delays only its own attachment.

use std::time::Duration;

use wharf_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use wharf_model::access::AccessError;
use wharf_model::attachment::VolumeError;
use wharf_model::migration::TranslationError;
use wharf_model::names::annotation::NODE_ID;
use wharf_model::patch::{Patch, add_finalizer, remove_finalizer};
use wharf_model::volume::{CsiVolumeSource, PersistentVolumeSpec};
use wharf_model::{Monotonic, SecretRef, VolumeAttachment};

use super::view::{AttachOperation, AttachmentInputs, Failure, Subject, VolumeView};
use super::{patches, request, trivial};

/// The same error is not reported again within this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Pause while the store of attachments is incomplete.
const INCOMPLETE_RETRY: Duration = Duration::from_secs(30);

/// The next step for a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AttachStep {
    /// Do nothing until something changes.
    Idle,
    /// Wait.
    Wait(Duration),
    /// Add our finalizer to the volume, for this attachment.
    AddVolumeFinalizer { attachment: String, patch: Patch },
    /// Add our finalizer and the node ID to the attachment, if its secret exists.
    PrepareAttachment { attachment: String, patch: Patch, secret: Option<SecretRef> },
    /// Call ControllerPublishVolume.
    Publish { attachment: String, request: Box<ControllerPublishVolumeRequest>, secret: Option<SecretRef> },
    /// Set `attached` in the attachment's status.
    MarkAttached { attachment: String, patch: Patch },
    /// Call ControllerUnpublishVolume.
    Unpublish { attachment: String, request: ControllerUnpublishVolumeRequest, secret: Option<SecretRef> },
    /// Remove our finalizer from the attachment.
    RemoveAttachmentFinalizer { attachment: String, patch: Patch },
    /// Clear `attached` in the status of an attachment that has other finalizers.
    MarkDetached { attachment: String, patch: Patch },
    /// The driver cannot be called for this attachment: record why.
    Refuse { attachment: String, operation: AttachOperation, reason: Refusal },
    /// Report an error in the attachment's status.
    ReportError { attachment: String, patch: Patch },
    /// Check on the server whether an attachment refers to the volume with this UID.
    CheckReferences { uid: String },
    /// Remove our finalizer from the volume.
    RemoveVolumeFinalizer { patch: Patch },
}

/// Why the driver is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "the VolumeAttachment names a PersistentVolume and an inline volume, but must name one: delete it"
    )]
    BothSources,
    #[error("the VolumeAttachment names neither a PersistentVolume nor an inline volume: delete it")]
    NoSource,
    #[error("the volume is not a CSI volume, so driver {driver} cannot attach it")]
    NotCsi { driver: String },
    #[error("failed to translate in tree pv to CSI: {0}")]
    NotTranslatable(TranslationError),
    #[error(
        "PersistentVolume {volume:?} belongs to driver {of}, but the VolumeAttachment names {driver}: delete the \
        VolumeAttachment"
    )]
    OtherDriver { volume: String, of: String, driver: String },
    #[error(
        "PersistentVolume {volume:?} belongs to driver {of}, so the handle of the volume that {driver} attached is \
         unknown: make sure that it is detached from node {node} and remove finalizer {finalizer} from this \
         VolumeAttachment"
    )]
    OtherDriverToDetach { volume: String, of: String, driver: String, node: String, finalizer: String },
    #[error("PersistentVolume {volume:?} not found: the volume is attached once it exists")]
    NoVolume { volume: String },
    #[error(
        "PersistentVolume {volume:?} not found, so the volume's handle is unknown: recreate it with the same \
         handle, or make sure that the volume is detached from node {node} and remove finalizer {finalizer} from this \
         VolumeAttachment"
    )]
    NoVolumeToDetach { volume: String, node: String, finalizer: String },
    #[error("PersistentVolume {volume:?} is marked for deletion")]
    VolumeDeleting { volume: String },
    #[error(
        "CSINode {node} does not contain driver {driver}: the volume is attached once the driver registers there"
    )]
    NotOnNode { node: String, driver: String },
    #[error(
        "CSINode {node} does not contain driver {driver} and the VolumeAttachment has no annotation {NODE_ID}: \
         register the driver on the node, or set the annotation to the driver's node ID"
    )]
    NodeUnknown { node: String, driver: String },
    #[error("the volume's access modes: {0}")]
    Access(#[from] AccessError),
}

/// The next step for one attachment.
enum Next {
    Nothing,
    Wait(Duration),
    Step(AttachStep),
}

/// Decides the next step for a volume.
pub(super) fn decide(view: &VolumeView<'_>, now: Monotonic) -> AttachStep {
    if !(view.config.capabilities.controller_service && view.config.capabilities.publish_unpublish_volume) {
        return trivial::decide(view);
    }
    let deleting = |inputs: &&AttachmentInputs| inputs.attachment.metadata.is_deleting();
    let detach = view.attachments.iter().filter(deleting).map(|inputs| detach(view, inputs, now));
    let attaching = view.attachments.iter().filter(|inputs| !deleting(inputs));
    let attach = attaching.map(|inputs| attach(view, inputs, now));
    let mut wait: Option<Duration> = None;
    let mut first = None;
    for next in detach.chain(attach) {
        match next {
            Next::Nothing => {}
            Next::Wait(pause) => wait = Some(wait.map_or(pause, |wait| wait.min(pause))),
            // A result that only has to be written goes before calls: pods wait for it.
            Next::Step(step) if step.only_writes() => return step,
            Next::Step(step) => first = first.or(Some(step)),
        }
    }
    first.or_else(|| release_volume(view)).or(wait.map(AttachStep::Wait)).unwrap_or(AttachStep::Idle)
}

impl AttachStep {
    fn only_writes(&self) -> bool {
        match self {
            Self::MarkAttached { .. }
            | Self::RemoveAttachmentFinalizer { .. }
            | Self::MarkDetached { .. }
            | Self::Refuse { .. }
            | Self::ReportError { .. } => true,
            Self::Idle
            | Self::Wait(_)
            | Self::AddVolumeFinalizer { .. }
            | Self::PrepareAttachment { .. }
            | Self::Publish { .. }
            | Self::Unpublish { .. }
            | Self::CheckReferences { .. }
            | Self::RemoveVolumeFinalizer { .. } => false,
        }
    }
}

/// sidecars.md 1.2 "Attach order".
fn attach(view: &VolumeView<'_>, inputs: &AttachmentInputs, now: Monotonic) -> Next {
    let attachment = &*inputs.attachment;
    let name = || attachment.metadata.name.clone();
    let version = &attachment.metadata.resource_version;
    if let Some(published) = inputs.state.published.as_ref().filter(|published| published.version == *version)
    {
        let patch = patches::attached(attachment, &published.context);
        return Next::Step(AttachStep::MarkAttached { attachment: name(), patch });
    }
    let failure = inputs.failure(AttachOperation::Attach);
    if let Some(step) = report(attachment, failure, attachment.status.attach_error.as_ref()) {
        return Next::Step(step);
    }
    if !inputs.is_forced() {
        if attachment.status.attached {
            return Next::Nothing;
        }
        if let Some(pause) = pause(failure, now) {
            return Next::Wait(pause);
        }
    }
    let step = attach_step(view, inputs);
    Next::Step(step.unwrap_or_else(|reason| AttachStep::Refuse {
        attachment: name(),
        operation: AttachOperation::Attach,
        reason,
    }))
}

fn attach_step(view: &VolumeView<'_>, inputs: &AttachmentInputs) -> Result<AttachStep, Refusal> {
    let (config, attachment) = (view.config, &*inputs.attachment);
    let name = || attachment.metadata.name.clone();
    let (spec, csi) = match source(view, attachment)? {
        Source::Missing(volume) => return Err(Refusal::NoVolume { volume }),
        Source::OfOtherDriver { volume, of } => {
            return Err(Refusal::OtherDriver { volume, of, driver: config.driver.clone() });
        }
        Source::Found(spec, csi) => (spec, csi),
    };
    if let Some(volume) = &view.volume {
        let meta = &volume.metadata;
        if meta.is_deleting() {
            return Err(Refusal::VolumeDeleting { volume: meta.name.clone() });
        }
        if let Some(patch) = add_finalizer(meta, &config.finalizer) {
            return Ok(AttachStep::AddVolumeFinalizer { attachment: name(), patch });
        }
    }
    let Some(node_id) = &inputs.node_id else {
        let node = attachment.spec.node_name.clone();
        return Err(Refusal::NotOnNode { node, driver: config.driver.clone() });
    };
    let request = Box::new(request::publish(config, spec, csi, node_id)?);
    let secret = csi.controller_publish_secret_ref.clone();
    Ok(match patches::prepare(&attachment.metadata, &config.finalizer, node_id) {
        Some(patch) => AttachStep::PrepareAttachment { attachment: name(), patch, secret },
        None => AttachStep::Publish { attachment: name(), request, secret },
    })
}

/// sidecars.md 1.2 "Detach".
fn detach(view: &VolumeView<'_>, inputs: &AttachmentInputs, now: Monotonic) -> Next {
    let attachment = &*inputs.attachment;
    let name = || attachment.metadata.name.clone();
    let release = remove_finalizer(&attachment.metadata, &view.config.finalizer);
    if inputs.state.unpublished {
        if let Some(patch) = release {
            return Next::Step(AttachStep::RemoveAttachmentFinalizer { attachment: name(), patch });
        }
        if attachment.status.attached {
            let patch = patches::detached(attachment);
            return Next::Step(AttachStep::MarkDetached { attachment: name(), patch });
        }
    }
    let failure = inputs.failure(AttachOperation::Detach);
    if let Some(step) = report(attachment, failure, attachment.status.detach_error.as_ref()) {
        return Next::Step(step);
    }
    if !inputs.is_forced() {
        if release.is_none() {
            // Without our finalizer it was never published here, or is already unpublished.
            return Next::Nothing;
        }
        if let Some(pause) = pause(failure, now) {
            return Next::Wait(pause);
        }
    }
    let step = detach_step(view, inputs);
    Next::Step(step.unwrap_or_else(|reason| AttachStep::Refuse {
        attachment: name(),
        operation: AttachOperation::Detach,
        reason,
    }))
}

fn detach_step(view: &VolumeView<'_>, inputs: &AttachmentInputs) -> Result<AttachStep, Refusal> {
    let attachment = &*inputs.attachment;
    let node = || attachment.spec.node_name.clone();
    let finalizer = || view.config.finalizer.clone();
    let driver = || view.config.driver.clone();
    let csi = match source(view, attachment)? {
        Source::Missing(volume) => {
            return Err(Refusal::NoVolumeToDetach { volume, node: node(), finalizer: finalizer() });
        }
        Source::OfOtherDriver { volume, of } => {
            let (driver, node, finalizer) = (driver(), node(), finalizer());
            return Err(Refusal::OtherDriverToDetach { volume, of, driver, node, finalizer });
        }
        Source::Found(_, csi) => csi,
    };
    // Also detach from a node that is gone or whose driver is not registered any more.
    let node_id = inputs.node_id.as_deref().or_else(|| attachment.metadata.annotation(NODE_ID));
    let Some(node_id) = node_id else {
        return Err(Refusal::NodeUnknown { node: node(), driver: driver() });
    };
    Ok(AttachStep::Unpublish {
        attachment: attachment.metadata.name.clone(),
        request: request::unpublish(csi, node_id),
        secret: csi.controller_publish_secret_ref.clone(),
    })
}

/// sidecars.md 1.2 "PV finalizer removal".
///
/// The finalizer preserves the volume's handle for a later detach. It may be removed only if no attachment needs it.
/// Our store does not prove that: its watch may lag, and an earlier leader may have attached something that is not in
/// it yet. So the server is queried after the volume's deletion was observed. From then on nothing new is attached,
/// since this attacher and upstream refuse volumes in deletion.
fn release_volume(view: &VolumeView<'_>) -> Option<AttachStep> {
    let meta = &view.volume.as_ref()?.metadata;
    let patch = remove_finalizer(meta, &view.config.finalizer)?;
    if !meta.is_deleting() || view.has_foreign_attachments || !view.attachments.is_empty() {
        return None;
    }
    if !view.complete {
        return Some(AttachStep::Wait(INCOMPLETE_RETRY));
    }
    Some(match &view.unreferenced {
        Some(uid) if *uid == meta.uid => AttachStep::RemoveVolumeFinalizer { patch },
        _ => AttachStep::CheckReferences { uid: meta.uid.clone() },
    })
}

enum Source<'a> {
    /// The PersistentVolume with this name does not exist.
    Missing(String),
    /// The PersistentVolume belongs to another driver, for which this handle may name another volume.
    OfOtherDriver {
        volume: String,
        of: String,
    },
    Found(&'a PersistentVolumeSpec, &'a CsiVolumeSource),
}

fn source<'a>(view: &'a VolumeView<'_>, attachment: &'a VolumeAttachment) -> Result<Source<'a>, Refusal> {
    let source = &attachment.spec.source;
    let spec = match (&source.persistent_volume_name, &source.inline_volume_spec) {
        (Some(_), Some(_)) => return Err(Refusal::BothSources),
        (None, None) => return Err(Refusal::NoSource),
        (None, Some(inline)) => inline,
        (Some(name), None) => match &view.volume {
            Some(volume) => match volume.translation_error() {
                Some(error) => return Err(Refusal::NotTranslatable(error.clone())),
                None => volume.csi_spec(),
            },
            None => return Ok(Source::Missing(name.clone())),
        },
    };
    match &spec.csi {
        Some(csi) => match &source.persistent_volume_name {
            Some(name) if csi.driver != view.config.driver => {
                Ok(Source::OfOtherDriver { volume: name.clone(), of: csi.driver.clone() })
            }
            _ => Ok(Source::Found(spec, csi)),
        },
        None => Err(Refusal::NotCsi { driver: view.config.driver.clone() }),
    }
}

/// Reports the failure in the status, unless the status already has it.
fn report(
    attachment: &VolumeAttachment,
    failure: Option<&Failure>,
    written: Option<&VolumeError>,
) -> Option<AttachStep> {
    let failure = failure.filter(|failure| !failure.reported)?;
    let already_reported = written.is_some_and(|written| {
        // A detach error has no code, and not every server stores that of an attach error.
        let same_code = written.error_code.is_none() || written.error_code == failure.code;
        let recent = written
            .time
            // A clock that was set back does not suppress the report.
            .is_some_and(|time| time <= failure.time && failure.time < time.plus(REPORT_INTERVAL));
        written.message == failure.message && same_code && recent
    });
    (!already_reported).then(|| AttachStep::ReportError {
        attachment: attachment.metadata.name.clone(),
        patch: patches::error(attachment, failure),
    })
}

fn pause(failure: Option<&Failure>, now: Monotonic) -> Option<Duration> {
    failure?.remaining(now)
}

impl AttachmentInputs {
    /// The last attempt of this operation, if it failed.
    fn failure(&self, operation: AttachOperation) -> Option<&Failure> {
        self.state.failure.as_ref().filter(|failure| failure.operation == operation)
    }

    /// Whether the driver has to be called again. Void as soon as the attachment's version changes.
    fn is_forced(&self) -> bool {
        self.state.forced.as_ref() == Some(&self.attachment.metadata.resource_version)
    }
}

impl Subject {
    /// The name of the PersistentVolume.
    pub(super) fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name) => Some(name),
            Self::Inline(_) | Self::Attachment(_) | Self::References => None,
        }
    }
}

#[cfg(test)]
mod tests;
