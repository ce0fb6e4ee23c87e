//! The rules: what comes next after each answer, for attach, detach and resize alike.
//!
//! Promise: success only on what the API showed of the volume (or that it, or the droplet, is gone, for a
//! detach), or said of an action that we began ourselves; nothing is begun twice while it may be under way.

use super::goal::Goal;
use crate::api::{Action, ActionStatus, Droplet, Volume};
use crate::client::{ApiError, Kind, Refused};

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for the action.
    Start,
    /// Wait for this action.
    Await(u64),
    /// See whether the action runs already, perhaps from an earlier call.
    Find(Doubt),
    /// See how the volume is.
    Look(Doubt),
    /// See whether the droplet is there.
    LookAtDroplet(ApiError),
    /// Wait a little, then begin again.
    Pause(String),
    /// It is so.
    Done(Option<Volume>),
    /// It will not be so.
    Fail(Failure),
}

/// Why we have to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The action is said to have ended well.
    Completed,
    /// The action is no longer known.
    Vanished,
    /// Asked for it and do not know whether that was heard.
    Unheard(ApiError),
    /// The API refused with these words, which may mean that all is well already.
    Refused(ApiError),
}

/// Why it failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    NoVolume,
    NoDroplet,
    AttachedElsewhere(u64),
    TooManyVolumes { attached: Option<usize>, message: String },
    Errored(u64),
    Api(ApiError),
}

/// What waiting for an action came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The volume was seen as it is to be.
    Reached(Volume),
    /// The API says that the action is done.
    Completed,
    /// The API says that it failed.
    Errored,
    /// The API knows no such action.
    Vanished,
}

/// After asking for the action.
pub(super) fn after_start(goal: Goal, answer: Result<Action, ApiError>, searched: bool) -> Next {
    let error = match answer {
        Ok(Action { id, status, .. }) => {
            return match status {
                ActionStatus::Completed => Next::Look(Doubt::Completed),
                ActionStatus::Errored => Next::Fail(Failure::Errored(id)),
                ActionStatus::InProgress | ActionStatus::Unknown => Next::Await(id),
            };
        }
        Err(error) => error,
    };
    match error.kind() {
        // The event in the way may be the very one we want, begun by a call that was cut off: looked for once.
        Kind::Unprocessable(Refused::PendingEvent) if !searched => Next::Find(Doubt::Refused(error)),
        Kind::Unprocessable(Refused::PendingEvent) => Next::Pause(error.to_string()),
        // "Not attached" is also said while the volume's own attach is under way, which would end after us.
        Kind::Unprocessable(_) | Kind::NotFound if matches!(goal, Goal::Detached(_)) => {
            Next::Find(Doubt::Refused(error))
        }
        Kind::Unprocessable(_) | Kind::NotFound => Next::Look(Doubt::Refused(error)),
        _ if error.uncertain() => Next::Find(Doubt::Unheard(error)),
        _ => Next::Fail(Failure::Api(error)),
    }
}

/// After looking for an action that runs already; `None` if there is no such volume.
pub(super) fn after_find(goal: Goal, actions: Option<&[Action]>, doubt: Doubt) -> Next {
    let Some(actions) = actions else { return gone(goal) };
    if let Some(ours) = actions.iter().find(|action| goal.is_served_by(action)) {
        return Next::Await(ours.id);
    }
    match actions.iter().find(|action| action.status == ActionStatus::InProgress) {
        Some(other) => {
            Next::Pause(format!("{} of the volume is under way (action {})", other.kind, other.id))
        }
        None => Next::Look(doubt),
    }
}

/// After waiting for an action. `ours` says that we began it, so that its end is ours too.
pub(super) fn after_wait(goal: Goal, action: u64, outcome: Outcome, ours: bool) -> Next {
    match outcome {
        Outcome::Reached(volume) => Next::Done(Some(volume)),
        // One more request, for an answer nobody needs.
        Outcome::Completed if ours && matches!(goal, Goal::Detached(_)) => Next::Done(None),
        Outcome::Completed => Next::Look(Doubt::Completed),
        Outcome::Errored => Next::Fail(Failure::Errored(action)),
        Outcome::Vanished => Next::Look(Doubt::Vanished),
    }
}

/// After looking at the volume; `None` if the API says there is none.
pub(super) fn after_look(goal: Goal, volume: Option<Volume>, doubt: Doubt) -> Next {
    let Some(volume) = volume else { return gone(goal) };
    if goal.reached(&volume) {
        return match (goal, doubt) {
            // The event may be the volume's own attach. When it has ended, a detach is begun, or is refused since
            // there is nothing to detach.
            (Goal::Detached(_), Doubt::Refused(error))
                if error.kind() == Kind::Unprocessable(Refused::PendingEvent) =>
            {
                Next::Pause(error.to_string())
            }
            _ => Next::Done(Some(volume)),
        };
    }
    if let (Goal::Attached(_), Some(other)) = (goal, volume.droplet_ids.first()) {
        return Next::Fail(Failure::AttachedElsewhere(*other));
    }
    match doubt {
        Doubt::Completed => Next::Pause("the action is done, but the volume does not show it yet".to_owned()),
        Doubt::Vanished => Next::Pause("the action is no longer known".to_owned()),
        Doubt::Unheard(error) => Next::Pause(error.to_string()),
        Doubt::Refused(error) => match error.kind() {
            Kind::Unprocessable(Refused::PendingEvent) => Next::Pause(error.to_string()),
            // The volume says it is attached there, or that it is free: one of the two lags behind the other.
            Kind::Unprocessable(Refused::AttachmentNotFound | Refused::AlreadyAttached) => {
                Next::Pause(error.to_string())
            }
            Kind::Unprocessable(Refused::TooManyVolumes) | Kind::NotFound if goal.droplet().is_some() => {
                Next::LookAtDroplet(error)
            }
            _ => Next::Fail(Failure::Api(error)),
        },
    }
}

/// After looking at the droplet: the volume is there, and not as it is to be.
pub(super) fn after_droplet(goal: Goal, droplet: Option<&Droplet>, error: ApiError) -> Next {
    match (goal, droplet) {
        // A droplet that is gone holds nothing.
        (Goal::Detached(_), None) => Next::Done(None),
        (_, None) => Next::Fail(Failure::NoDroplet),
        (_, Some(droplet)) if error.kind() == Kind::Unprocessable(Refused::TooManyVolumes) => {
            let attached = Some(droplet.volume_ids.len()).filter(|count| *count > 0);
            Next::Fail(Failure::TooManyVolumes { attached, message: error.message().to_owned() })
        }
        (_, Some(_)) => Next::Fail(Failure::Api(error)),
    }
}

fn gone(goal: Goal) -> Next {
    match goal {
        Goal::Detached(_) => Next::Done(None),
        Goal::Attached(_) | Goal::Size(_) => Next::Fail(Failure::NoVolume),
    }
}

#[cfg(test)]
mod tests;
