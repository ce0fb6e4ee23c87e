//! The attacher's rules: the one next thing to do for a volume.
//!
//! - Before the driver is asked to publish, finalizers keep the volume and the attachment, and the attachment
//!   says by which name the driver knows the node: whatever happens, somebody can find out what to undo.
//! - An attachment that goes is unpublished before another one of the same volume is published. A detach that
//!   fails holds up nobody: the driver has the last word, as with upstream.
//! - A failed attempt makes its own attachment wait, and no other.

use std::time::Duration;

use wharf_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use wharf_model::access::AccessError;
use wharf_model::attachment::VolumeError;
use wharf_model::names::annotation::NODE_ID;
use wharf_model::patch::{Patch, add_finalizer, remove_finalizer};
use wharf_model::volume::{CsiSource, VolumeSpec};
use wharf_model::{SecretRef, Time, VolumeAttachment};

use super::view::{Doing, Failure, Seen, Subject, View};
use super::{patches, request, trivial};

/// The same failure is not written again sooner than this.
const REPORT_AGAIN: Duration = Duration::from_secs(60);
/// For attachments to be shown to us.
const INCOMPLETE: Duration = Duration::from_secs(30);

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing until something changes.
    Done,
    /// Nothing for this long.
    Wait(Duration),
    /// Our finalizer onto the volume, for this attachment.
    GuardVolume { attachment: String, patch: Patch },
    /// Our finalizer and the node's identity onto the attachment, if its secret is there.
    GuardAttachment { attachment: String, patch: Patch, secret: Option<SecretRef> },
    /// ControllerPublishVolume.
    Publish { attachment: String, request: Box<ControllerPublishVolumeRequest>, secret: Option<SecretRef> },
    /// The attachment shall say that it is attached.
    MarkAttached { attachment: String, patch: Patch },
    /// ControllerUnpublishVolume.
    Unpublish { attachment: String, request: ControllerUnpublishVolumeRequest, secret: Option<SecretRef> },
    /// Our finalizer off the attachment.
    ReleaseAttachment { attachment: String, patch: Patch },
    /// The attachment, which others still hold, shall say that it is detached.
    MarkDetached { attachment: String, patch: Patch },
    /// The attachment cannot be seen to as things are.
    Refuse { attachment: String, doing: Doing, why: Refusal },
    /// The attachment shall say what failed.
    Report { attachment: String, patch: Patch },
    /// Ask the server whether an attachment refers to the volume of this uid.
    AskReferences { uid: String },
    /// Our finalizer off the volume.
    ReleaseVolume { patch: Patch },
}

/// Why the driver is not even asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// Two sources.
    #[error(
        "the VolumeAttachment names a PersistentVolume and an inline volume: delete it, it must name one"
    )]
    BothSources,
    /// None.
    #[error("the VolumeAttachment names neither a PersistentVolume nor an inline volume: delete it")]
    NoSource,
    /// No CSI volume.
    #[error("the volume is not a CSI volume, and is not for driver {driver} to attach")]
    NotCsi { driver: String },
    /// Another driver's.
    #[error("PersistentVolume {volume:?} is of driver {of}, the VolumeAttachment asks {driver}: delete it")]
    OtherDriver { volume: String, of: String, driver: String },
    /// To attach, but not there.
    #[error("PersistentVolume {volume:?} not found: it is attached once it exists")]
    NoVolume { volume: String },
    /// To detach, but not there.
    #[error(
        "PersistentVolume {volume:?} not found, and with it the volume's handle: create it again with its \
         handle, or make sure that the volume is off node {node} and take finalizer {finalizer} off this \
         VolumeAttachment"
    )]
    NoVolumeToDetach { volume: String, node: String, finalizer: String },
    /// It is going.
    #[error("PersistentVolume {volume:?} is marked for deletion")]
    VolumeDeleting { volume: String },
    /// The driver is not on the node.
    #[error(
        "CSINode {node} does not contain driver {driver}: it is attached once the driver registers there"
    )]
    NotOnNode { node: String, driver: String },
    /// Nobody knows the node any more.
    #[error(
        "CSINode {node} does not contain driver {driver} and the VolumeAttachment has no annotation {NODE_ID}: \
         the driver has to register on the node, or the annotation be set to the driver's name for it"
    )]
    NodeUnknown { node: String, driver: String },
    /// CSI has no word for its access modes.
    #[error("the volume's access modes: {0}")]
    Access(#[from] AccessError),
}

/// What one attachment calls for.
enum Next {
    Nothing,
    Wait(Duration),
    Step(Step),
}

/// What to do next for a volume.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    if !(view.rules.can.controller_service && view.rules.can.publish_unpublish_volume) {
        return trivial::decide(view);
    }
    let going = |seen: &&Seen| seen.attachment.metadata.is_deleting();
    let detach = view.attachments.iter().filter(going).map(|seen| detach(view, seen, now));
    let coming = view.attachments.iter().filter(|seen| !going(seen));
    let attach = coming.map(|seen| attach(view, seen, now));
    let mut wait: Option<Duration> = None;
    let mut first = None;
    for next in detach.chain(attach) {
        match next {
            Next::Nothing => {}
            Next::Wait(pause) => wait = Some(wait.map_or(pause, |wait| wait.min(pause))),
            // Somebody waits for what only has to be written down: that goes before calls.
            Next::Step(step) if step.only_writes() => return step,
            Next::Step(step) => first = first.or(Some(step)),
        }
    }
    first.or_else(|| release(view)).or(wait.map(Step::Wait)).unwrap_or(Step::Done)
}

impl Step {
    fn only_writes(&self) -> bool {
        match self {
            Self::MarkAttached { .. }
            | Self::ReleaseAttachment { .. }
            | Self::MarkDetached { .. }
            | Self::Refuse { .. }
            | Self::Report { .. } => true,
            Self::Done
            | Self::Wait(_)
            | Self::GuardVolume { .. }
            | Self::GuardAttachment { .. }
            | Self::Publish { .. }
            | Self::Unpublish { .. }
            | Self::AskReferences { .. }
            | Self::ReleaseVolume { .. } => false,
        }
    }
}

/// sidecars.md 1.2 "Attach order".
fn attach(view: &View<'_>, seen: &Seen, now: Time) -> Next {
    let attachment = &*seen.attachment;
    let name = || attachment.metadata.name.clone();
    let version = &attachment.metadata.resource_version;
    if let Some(published) = seen.memory.published.as_ref().filter(|published| published.version == *version)
    {
        let patch = patches::attached(attachment, &published.context);
        return Next::Step(Step::MarkAttached { attachment: name(), patch });
    }
    let failure = seen.failure(Doing::Attach);
    if let Some(step) = report(attachment, failure, attachment.status.attach_error.as_ref()) {
        return Next::Step(step);
    }
    if !seen.is_forced() {
        if attachment.status.attached {
            return Next::Nothing;
        }
        if let Some(pause) = pause(failure, now) {
            return Next::Wait(pause);
        }
    }
    let step = to_attach(view, seen);
    Next::Step(step.unwrap_or_else(|why| Step::Refuse { attachment: name(), doing: Doing::Attach, why }))
}

fn to_attach(view: &View<'_>, seen: &Seen) -> Result<Step, Refusal> {
    let (rules, attachment) = (view.rules, &*seen.attachment);
    let name = || attachment.metadata.name.clone();
    let (spec, csi) = match source(view, attachment)? {
        Source::Missing(volume) => return Err(Refusal::NoVolume { volume }),
        Source::There(spec, csi) => (spec, csi),
    };
    if let Some(volume) = &view.volume {
        let meta = &volume.metadata;
        if meta.is_deleting() {
            return Err(Refusal::VolumeDeleting { volume: meta.name.clone() });
        }
        if csi.driver != rules.driver {
            let (of, driver) = (csi.driver.clone(), rules.driver.clone());
            return Err(Refusal::OtherDriver { volume: meta.name.clone(), of, driver });
        }
        if let Some(patch) = add_finalizer(meta, &rules.finalizer) {
            return Ok(Step::GuardVolume { attachment: name(), patch });
        }
    }
    let Some(node_id) = &seen.node_id else {
        let node = attachment.spec.node_name.clone();
        return Err(Refusal::NotOnNode { node, driver: rules.driver.clone() });
    };
    let request = Box::new(request::publish(rules, spec, csi, node_id)?);
    let secret = csi.controller_publish_secret_ref.clone();
    Ok(match patches::guard(&attachment.metadata, &rules.finalizer, node_id) {
        Some(patch) => Step::GuardAttachment { attachment: name(), patch, secret },
        None => Step::Publish { attachment: name(), request, secret },
    })
}

/// sidecars.md 1.2 "Detach".
fn detach(view: &View<'_>, seen: &Seen, now: Time) -> Next {
    let attachment = &*seen.attachment;
    let name = || attachment.metadata.name.clone();
    let release = remove_finalizer(&attachment.metadata, &view.rules.finalizer);
    if seen.memory.unpublished {
        if let Some(patch) = release {
            return Next::Step(Step::ReleaseAttachment { attachment: name(), patch });
        }
        if attachment.status.attached {
            let patch = patches::detached(attachment);
            return Next::Step(Step::MarkDetached { attachment: name(), patch });
        }
    }
    let failure = seen.failure(Doing::Detach);
    if let Some(step) = report(attachment, failure, attachment.status.detach_error.as_ref()) {
        return Next::Step(step);
    }
    if !seen.is_forced() {
        if release.is_none() {
            // Without our finalizer it was never published by us, or is unpublished.
            return Next::Nothing;
        }
        if let Some(pause) = pause(failure, now) {
            return Next::Wait(pause);
        }
    }
    let step = to_detach(view, seen);
    Next::Step(step.unwrap_or_else(|why| Step::Refuse { attachment: name(), doing: Doing::Detach, why }))
}

fn to_detach(view: &View<'_>, seen: &Seen) -> Result<Step, Refusal> {
    let attachment = &*seen.attachment;
    let node = || attachment.spec.node_name.clone();
    let csi = match source(view, attachment)? {
        Source::Missing(volume) => {
            let finalizer = view.rules.finalizer.clone();
            return Err(Refusal::NoVolumeToDetach { volume, node: node(), finalizer });
        }
        Source::There(_, csi) => csi,
    };
    // A node that is gone, or whose driver is, has to be detached from all the more.
    let node_id = seen.node_id.as_deref().or_else(|| attachment.metadata.annotation(NODE_ID));
    let Some(node_id) = node_id else {
        return Err(Refusal::NodeUnknown { node: node(), driver: view.rules.driver.clone() });
    };
    Ok(Step::Unpublish {
        attachment: attachment.metadata.name.clone(),
        request: request::unpublish(csi, node_id),
        secret: csi.controller_publish_secret_ref.clone(),
    })
}

/// sidecars.md 1.2 "PV finalizer removal".
///
/// The finalizer keeps the volume's handle for those who have to detach it. Taking it off needs proof that nobody
/// has to, and our store is none: its watch may be behind, and another attacher that led before us may have
/// attached something that we are not shown yet. So the server is asked, after we saw the volume's deletion. From
/// then on nothing new is attached, since a volume that is being deleted is refused, by us and by upstream.
fn release(view: &View<'_>) -> Option<Step> {
    let meta = &view.volume.as_ref()?.metadata;
    let patch = remove_finalizer(meta, &view.rules.finalizer)?;
    if !meta.is_deleting() || view.elsewhere || !view.attachments.is_empty() {
        return None;
    }
    if !view.complete {
        return Some(Step::Wait(INCOMPLETE));
    }
    Some(match &view.unreferenced {
        Some(uid) if *uid == meta.uid => Step::ReleaseVolume { patch },
        _ => Step::AskReferences { uid: meta.uid.clone() },
    })
}

enum Source<'a> {
    /// The PersistentVolume of this name is not there.
    Missing(String),
    There(&'a VolumeSpec, &'a CsiSource),
}

fn source<'a>(view: &'a View<'_>, attachment: &'a VolumeAttachment) -> Result<Source<'a>, Refusal> {
    let source = &attachment.spec.source;
    let spec = match (&source.persistent_volume_name, &source.inline_volume_spec) {
        (Some(_), Some(_)) => return Err(Refusal::BothSources),
        (None, None) => return Err(Refusal::NoSource),
        (None, Some(inline)) => inline,
        (Some(name), None) => match &view.volume {
            Some(volume) => &volume.spec,
            None => return Ok(Source::Missing(name.clone())),
        },
    };
    match &spec.csi {
        Some(csi) => Ok(Source::There(spec, csi)),
        None => Err(Refusal::NotCsi { driver: view.rules.driver.clone() }),
    }
}

/// Whether the failure has to be written, which is when it says something new.
fn report(
    attachment: &VolumeAttachment,
    failure: Option<&Failure>,
    written: Option<&VolumeError>,
) -> Option<Step> {
    let failure = failure.filter(|failure| !failure.reported)?;
    let said = written.is_some_and(|written| {
        // A detach error has no code, and not every server keeps that of an attach error.
        let same_code = written.error_code.is_none() || written.error_code == failure.code;
        let recent = written.time.is_some_and(|time| failure.at < time.plus(REPORT_AGAIN));
        written.message == failure.message && same_code && recent
    });
    (!said).then(|| Step::Report {
        attachment: attachment.metadata.name.clone(),
        patch: patches::error(attachment, failure),
    })
}

fn pause(failure: Option<&Failure>, now: Time) -> Option<Duration> {
    let failure = failure.filter(|failure| !failure.is_over(now))?;
    let left = failure.at.plus(failure.pause).0 - now.0;
    Some(Duration::from_millis(u64::try_from(left).unwrap_or_default()))
}

impl Seen {
    /// The last attempt at this very thing, if it failed.
    fn failure(&self, doing: Doing) -> Option<&Failure> {
        self.memory.failure.as_ref().filter(|failure| failure.doing == doing)
    }

    /// Whether the driver is to be called once more. Void as soon as the attachment is another.
    fn is_forced(&self) -> bool {
        self.memory.forced.as_ref() == Some(&self.attachment.metadata.resource_version)
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
