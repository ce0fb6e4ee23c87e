//! The snapshotter's rules: the one next thing to do for a content.
//!
//! - Before the driver is asked to make a snapshot, the content has our finalizer and the mark that says so. The mark
//!   goes when the content has the driver's name for the snapshot, or when the driver said, of this very version of
//!   the content, that it has made nothing. While it is there, nothing is deleted or let go: what goes is asked for
//!   once more, under the same name, to learn what there is to delete.
//! - The driver is not asked to make what our store alone believes in: the store may be behind, and what is made for a
//!   content that is gone is nobody's.
//! - "Not ready yet" is no failure: it is asked again at its own pace.
//! - Nothing is written that is there already.

use std::time::Duration;

use wharf_model::Time;
use wharf_model::patch::Patch;
use wharf_model::snapshot::DeletionPolicy;

use super::groups::Place;
use super::memory::{Doing, Failure, left};
use super::request::{self, Ask, Call, Deletion, Refusal};
use super::status;
use super::view::{Class, Object, Source, View, Which};

/// For classes, and for volumes of a group, to be shown to us.
const UNSEEN: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing until something changes.
    Done,
    /// Nothing for this long.
    Wait(Duration),
    /// The content shall say that it is this node's.
    Claim { patch: Patch },
    /// Finalizer and mark onto the content, if the secret of the call is there.
    Mark { patch: Patch, ask: Ask<Call> },
    /// Ask the server whether the content is as we see it.
    Confirm,
    /// Ask the driver to make it, or how it is.
    Ask { doing: Doing, ask: Ask<Call> },
    /// The status shall say what the driver said.
    Tell { patch: Patch },
    /// The mark off.
    Unmark { patch: Patch },
    /// Ask the driver to delete it.
    Delete { ask: Ask<Deletion> },
    /// The status shall say that there is no snapshot any more.
    Clear { patch: Patch },
    /// Our finalizer off.
    Release { patch: Patch },
    /// It cannot be seen to as things are.
    Refuse { doing: Doing, why: Refusal },
    /// The status and an event shall say what failed.
    Report { patch: Option<Patch> },
}

/// What to do next for a content.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    let object = view.object;
    if !view.is_of_driver() {
        return Step::Done;
    }
    if view.class == Class::Unknown {
        return Step::Wait(UNSEEN);
    }
    match &view.place {
        Place::Ours | Place::Across(_) => {}
        // No node has claimed it, so none has asked its driver for anything: whoever sees it may let it go.
        Place::Unclaimed | Place::Elsewhere | Place::Unknown if is_untouched(object) => {
            return release(object);
        }
        Place::Unclaimed => return claim(view),
        Place::Elsewhere => return Step::Done,
        Place::Unknown => return Step::Wait(UNSEEN),
    }
    if object.is_to_be_deleted() { delete(view, now) } else { make(view, now) }
}

/// Whether a group's content goes that nobody has begun with.
fn is_untouched(object: &Object) -> bool {
    let unlabelled = !object.meta().labels.contains_key(wharf_model::snapshot::names::MANAGED_BY);
    object.which() == Which::Group
        && unlabelled
        && matches!(object.source(), Source::Take(_))
        && object.is_to_be_deleted()
        && object.handle().is_none()
}

fn claim(view: &View<'_>) -> Step {
    match &view.rules.node {
        Some(node) => Step::Claim { patch: status::claimed(view.object, node) },
        None => Step::Done,
    }
}

/// sidecars.md 1.5 "Delete".
fn delete(view: &View<'_>, now: Time) -> Step {
    let (object, memory) = (view.object, view.memory);
    let deletes = *object.policy() == DeletionPolicy::Delete && object.group_handle().is_none();
    if let Some(handle) = object.handle().filter(|_| deletes && !memory.deleted) {
        if let Some(pause) = pause(view, Doing::Delete, now) {
            return Step::Wait(pause);
        }
        return match request::delete(object, handle) {
            Ok(ask) => Step::Delete { ask },
            Err(why) => Step::Refuse { doing: Doing::Delete, why },
        };
    }
    if memory.deleted && object.meta().finalizers.len() > 1 {
        // Others keep the content: it must not name a snapshot that is no more.
        if let Some(patch) = status::cleared(object) {
            return Step::Clear { patch };
        }
    }
    release(object)
}

fn release(object: &Object) -> Step {
    status::released(object).map_or(Step::Done, |patch| Step::Release { patch })
}

/// sidecars.md 1.5 "Create", "Pre-provisioned / group member".
fn make(view: &View<'_>, now: Time) -> Step {
    let (object, memory) = (view.object, view.memory);
    if let Some(patch) = memory.answer.as_ref().and_then(|answer| status::told(object, answer)) {
        return Step::Tell { patch };
    }
    let failure = memory.failure.as_ref().filter(|failure| failure.doing != Doing::Delete);
    if object.is_marked() {
        if object.handle().is_some() {
            return Step::Unmark { patch: status::unmarked(object, false) };
        }
        if failure.is_some_and(|failure| has_ended(object, failure)) {
            return Step::Unmark { patch: status::unmarked(object, true) };
        }
    }
    if object.is_ready() {
        return Step::Done;
    }
    if let Some(failure) = failure.filter(|failure| !failure.reported) {
        return Step::Report { patch: status::failed(object, failure) };
    }
    if let Some(pause) = pause(view, Doing::Check, now) {
        return Step::Wait(pause);
    }
    if let Some(looked) = memory.looked
        && let Some(pause) = left(looked.at, looked.next(), now)
    {
        return Step::Wait(pause);
    }
    let doing = if object.has_status() { Doing::Check } else { Doing::Create };
    match ask(view) {
        Ok(None) => Step::Done,
        Ok(Some(Making::Look(ask))) => Step::Ask { doing: Doing::Check, ask },
        Ok(Some(Making::Create(ask))) if object.is_marked() || object.handle().is_some() => {
            if view.confirmed { Step::Ask { doing, ask } } else { Step::Confirm }
        }
        Ok(Some(Making::Create(ask))) => {
            let finalizer = object.meta().has_finalizer(object.words().finalizer);
            match object.meta().is_deleting() && !finalizer {
                // Nothing would keep it until what is made is deleted.
                true => Step::Done,
                false => Step::Mark { patch: status::marked(object), ask },
            }
        }
        Err(why) => Step::Refuse { doing, why },
    }
}

enum Making {
    Create(Ask<Call>),
    Look(Ask<Call>),
}

fn ask(view: &View<'_>) -> Result<Option<Making>, Refusal> {
    let (object, rules) = (view.object, view.rules);
    if object.which() == Which::Group && !rules.can.group_snapshot {
        return Err(Refusal::NoGroups { driver: rules.driver.clone() });
    }
    if let Place::Across(volume) = &view.place {
        let node = rules.node.clone().unwrap_or_default();
        return Err(Refusal::AcrossNodes { volume: volume.clone(), node });
    }
    match object.source() {
        Source::There { handle, .. } => {
            let handle = object.handle().unwrap_or(handle);
            Ok(Some(Making::Look(request::look(view, handle)?)))
        }
        Source::Take(_) | Source::InGroup if object.group_handle().is_some() => match object.handle() {
            Some(handle) => Ok(Some(Making::Look(request::look(view, handle)?))),
            None => Ok(None),
        },
        Source::Take(_) => Ok(Some(Making::Create(request::create(view)?))),
        Source::InGroup | Source::Nowhere => Ok(None),
    }
}

/// Whether the driver said of this very version that it has made nothing and is not at it.
fn has_ended(object: &Object, failure: &Failure) -> bool {
    failure.ended.as_ref() == Some(&object.meta().resource_version)
}

fn pause(view: &View<'_>, doing: Doing, now: Time) -> Option<Duration> {
    let failure = view.memory.failure.as_ref()?;
    let same = (failure.doing == Doing::Delete) == (doing == Doing::Delete);
    failure.left(now).filter(|_| same)
}

#[cfg(test)]
mod tests;
