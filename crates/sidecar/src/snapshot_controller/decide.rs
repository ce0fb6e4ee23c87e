//! What to do next for a snapshot: pure and exhaustive.
//!
//! - A snapshot gets its finalizer before anything is made for it: it cannot go unseen.
//! - A content is touched only if it says that it is this very snapshot's, or nobody's yet.
//! - A snapshot that was cut and whose content is gone is not cut anew: it would be another moment's data under the
//!   same name.
//! - Nothing follows from an object that is not in the store: the server is asked first.
//!
//! Making one is in [`create`], its end in [`delete`], its status in [`super::mirror`].

use wharf_model::snapshot::{DeletionPolicy, names};
use wharf_model::{SecretRef, VolumeSnapshot, VolumeSnapshotContent};

use super::mirror::{Mirrored, mirror};
use super::view::{
    Found, Parent, View, bound, is_created, is_named, is_ready, owner, points_back, pre_provisioned,
};

mod create;
mod delete;
#[cfg(test)]
mod tests;

/// What to do next. After each step the snapshot comes round again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is gone, or no affair of ours: nothing is to be remembered.
    Forget,
    /// Nothing more until something changes.
    Done,
    /// Something else has to happen first, and its change will wake us.
    Wait(Waiting),
    /// It cannot go on: tell, and try again later.
    Fail(Fault),
    /// Ask the server for the content of this name.
    AskContent(String),
    /// Ask the server for the claim's volume.
    AskVolume(String),
    /// Ask the server for the group snapshot.
    AskParent,
    /// Put these finalizers on it.
    Guard(Vec<&'static str>),
    /// Write down the default class.
    SetClass(String),
    /// Put the finalizer on the claim, before anything is taken of it.
    ProtectClaim,
    /// Make the content.
    CreateContent(Creation),
    /// Let the content that there was already point to it, and give it the class if it is named.
    BindContent {
        /// The class.
        class: Option<String>,
    },
    /// Write the content's status into it.
    Mirror(Mirrored),
    /// Name the group snapshot as its owner.
    Adopt,
    /// Tell the snapshotter that the content may go.
    MarkContent,
    /// Delete the content.
    DeleteContent,
    /// Take these finalizers off it.
    Release(Vec<&'static str>),
}

/// What a new content is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Creation {
    pub(crate) class: String,
    pub(crate) driver: String,
    pub(crate) policy: DeletionPolicy,
    pub(crate) volume_handle: String,
    pub(crate) volume_mode: Option<&'static str>,
    pub(crate) node: Option<String>,
    pub(crate) secret: Option<SecretRef>,
}

/// What has to happen first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The group's controller binds it to its content.
    Membership,
    /// A claim is being restored from it.
    Restore,
    /// Its group has to go, not it alone. The group's key.
    Group(String),
    /// The content goes.
    Content,
}

/// Why it cannot go on, in upstream's words: for its status and for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// One word.
    pub(crate) reason: &'static str,
    /// A sentence.
    pub(crate) message: String,
    /// Whether it also follows that one cannot restore from it.
    pub(crate) unready: bool,
    /// What upstream tells beside it: its reason and its note.
    pub(crate) beside: Option<(&'static str, String)>,
}

impl Fault {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), unready: true, beside: None }
    }

    /// The same, which says nothing of whether one can restore from it.
    pub(crate) fn aside(self) -> Self {
        Self { unready: false, ..self }
    }

    pub(crate) fn beside(self, reason: &'static str, note: String) -> Self {
        Self { beside: Some((reason, note)), ..self }
    }
}

/// What to do next.
pub(crate) fn decide(view: &View<'_>) -> Step {
    let Some(snapshot) = view.snapshot else { return Step::Forget };
    if snapshot.metadata.is_deleting() {
        return delete::decide(view, snapshot);
    }
    let source = &snapshot.spec.source;
    if source.persistent_volume_claim_name.is_some() == source.volume_snapshot_content_name.is_some() {
        return Step::Fail(Fault::new(
            "SnapshotValidationError",
            "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified",
        ));
    }
    if let Found::Here(content) = view.content
        && let Err(fault) = belongs(snapshot, content)
    {
        return Step::Fail(fault);
    }
    if let Some(step) = create::class(view, snapshot) {
        return step;
    }
    let mut guards = guards(view, snapshot);
    if guards.contains(&names::AS_SOURCE_PROTECTION)
        && create::is_new(view, snapshot)
        && pre_provisioned(snapshot).is_none()
        && let Some(class) = view.class
    {
        // In one write, if it is known that a content comes that will need both.
        match create::plan(view, snapshot, class) {
            step @ Step::AskVolume(_) => return step,
            Step::CreateContent(Creation { policy: DeletionPolicy::Delete, .. }) => {
                guards.push(names::BOUND_PROTECTION);
            }
            _ => {}
        }
    }
    if !guards.is_empty() {
        return Step::Guard(guards);
    }
    match is_ready(snapshot) && bound(snapshot).is_some() {
        true => verify(view, snapshot),
        false => advance(view, snapshot),
    }
}

/// Whether the content is one for this snapshot.
fn belongs(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Result<(), Fault> {
    let (key, name) = (snapshot.metadata.key(), &content.metadata.name);
    let failed = |fault: Fault, error: String| {
        fault.beside("SnapshotFinalizerError", format!("Failed to check and update snapshot: {error}"))
    };
    let source = &content.spec.source;
    if owner(snapshot).is_some() {
        // The group's controller binds the two.
        return match points_back(content, &snapshot.metadata) || !is_ready(snapshot) {
            true => Ok(()),
            false => Err(misbound()),
        };
    }
    let misplaced = || {
        let message = format!("VolumeSnapshotContent [{name}] is bound to a different snapshot");
        failed(Fault::new("SnapshotContentMisbound", &*message), message)
    };
    if pre_provisioned(snapshot).is_none() {
        if source.volume_handle.is_none() {
            let message = format!(
                "VolumeSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
            );
            let error = format!(
                "snapshot {key} expects a dynamically provisioned VolumeSnapshotContent {name} but gets a pre-provisioned one"
            );
            return Err(failed(Fault::new("SnapshotContentMismatch", message), error));
        }
        return match points_back(content, &snapshot.metadata) {
            true => Ok(()),
            false => Err(misplaced()),
        };
    }
    if source.snapshot_handle.is_none() {
        let message =
            "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        let error = format!(
            "snapshot {key} expects a pre-provisioned VolumeSnapshotContent {name} but gets a dynamically provisioned one"
        );
        return Err(failed(Fault::new("SnapshotContentMismatch", message), error));
    }
    let free = content.spec.volume_snapshot_ref.uid.is_empty() && is_named(content, &snapshot.metadata);
    match (points_back(content, &snapshot.metadata), free, is_ready(snapshot)) {
        (true, _, _) | (_, true, false) => Ok(()),
        (false, true, true) => Err(misbound()),
        (false, false, _) => Err(misplaced()),
    }
}

fn misbound() -> Fault {
    let message = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly";
    Fault::new("SnapshotMisbound", message)
}

/// The finalizers that it should have and has not.
fn guards(view: &View<'_>, snapshot: &VolumeSnapshot) -> Vec<&'static str> {
    let mut guards = vec![names::AS_SOURCE_PROTECTION];
    if let Found::Here(content) = view.content
        // A member goes with its group, which waits for the group's content.
        && (owner(snapshot).is_none() || pre_provisioned(snapshot).is_some())
        && bound(snapshot).is_some()
        && content.spec.deletion_policy == DeletionPolicy::Delete
    {
        guards.push(names::BOUND_PROTECTION);
    }
    guards.retain(|guard| !snapshot.metadata.has_finalizer(guard));
    guards
}

/// One that was ready: whether what it promises is still there.
fn verify(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    match view.content {
        Found::NotSeen => return Step::AskContent(super::view::content_of(snapshot)),
        Found::Gone => return Step::Fail(missing()),
        Found::Here(_) => {}
    }
    // Its members were there before the group snapshot: they get their owner only now.
    match (owner(snapshot), view.parent) {
        (Some(_), _) | (None, Parent::None) => Step::Done,
        (None, Parent::NotSeen) => Step::AskParent,
        (None, Parent::Gone) => Step::Done,
        (None, Parent::Here(_)) => Step::Adopt,
    }
}

fn missing() -> Fault {
    Fault::new("SnapshotContentMissing", "VolumeSnapshotContent is missing")
}

/// One that is not ready yet.
fn advance(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let is_member = owner(snapshot).is_some() && pre_provisioned(snapshot).is_none();
    if is_member && bound(snapshot).is_none() {
        return Step::Wait(Waiting::Membership);
    }
    let is_new = pre_provisioned(snapshot).is_none() && create::is_new(view, snapshot);
    match view.content {
        // Whoever makes one that is there is told so: it need not be asked for before.
        Found::NotSeen if is_new => create::decide(view, snapshot),
        Found::NotSeen => Step::AskContent(super::view::content_of(snapshot)),
        Found::Gone if is_member || pre_provisioned(snapshot).is_some() || is_created(snapshot) => {
            Step::Fail(missing())
        }
        Found::Gone => create::decide(view, snapshot),
        Found::Here(content) if is_member && !points_back(content, &snapshot.metadata) => {
            Step::Wait(Waiting::Membership)
        }
        Found::Here(content) => bind(view, snapshot, content),
    }
}

/// With a class of another driver no snapshotter would take it for its own.
fn of_other_driver(content: &VolumeSnapshotContent, class: &str, driver: &str) -> Fault {
    let (name, of) = (&content.metadata.name, &content.spec.driver);
    let message = format!(
        "Snapshot failed to bind VolumeSnapshotContent, content {name} is of driver {of} and class {class} of driver {driver}: name a class of the content's driver, or none"
    );
    Fault::new("SnapshotBindFailed", message)
}

fn bind(view: &View<'_>, snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Step {
    if pre_provisioned(snapshot).is_some() {
        let class = &snapshot.spec.volume_snapshot_class_name;
        let is_free = content.spec.volume_snapshot_ref.uid.is_empty();
        if is_free || (content.spec.volume_snapshot_class_name.is_none() && class.is_some()) {
            if let Some(class) = view.class.filter(|class| class.driver != content.spec.driver) {
                return Step::Fail(of_other_driver(content, &class.metadata.name, &class.driver));
            }
            return Step::BindContent { class: class.clone() };
        }
    }
    let handle = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_ref());
    if handle.is_some() && view.group_name.is_none() {
        let key = snapshot.metadata.key();
        let message = format!(
            "Snapshot status update failed, updateSnapshotStatus: cannot find the group snapshot for VolumeSnapshot [{key}], will not update snapshot status"
        );
        return Step::Fail(Fault::new("SnapshotStatusUpdateFailed", message).aside());
    }
    match mirror(snapshot, content, view.group_name) {
        Some(mirrored) => Step::Mirror(mirrored),
        None => Step::Done,
    }
}
