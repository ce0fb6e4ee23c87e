//! Rules for attach, detach and resize: the next step after each response. Pure.
//!
//! An operation succeeds only if the API showed the volume in the requested state (for a detach also: the volume or
//! droplet does not exist), or reported completion of an action that we started ourselves. An action is never started
//! twice while it may be running.

use super::goal::Goal;
use crate::api::{Action, ActionStatus, Droplet, Volume};
use crate::client::{ApiError, ApiErrorKind, UnprocessableReason};

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Start the action.
    Start,
    /// Wait for this action.
    Await(u64),
    /// Check whether the action is already running, perhaps from an earlier call.
    FindRunning(CheckReason),
    /// Get the volume's current state.
    GetVolume(CheckReason),
    /// Check whether the droplet exists.
    GetDroplet(ApiError),
    /// Wait, then start again.
    Pause(String),
    /// The goal is reached.
    Done(Option<Volume>),
    /// The operation failed.
    Fail(Failure),
}

/// Why the volume's state has to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckReason {
    /// The API reports that the action completed.
    Completed,
    /// The API no longer knows the action.
    Vanished,
    /// The action was requested, but it is unknown whether the request took effect.
    NoResponse(ApiError),
    /// The API refused with this error, which can mean that the goal is already reached.
    Refused(ApiError),
}

/// Why the operation failed permanently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    NoVolume,
    NoDroplet,
    AttachedElsewhere(u64),
    TooManyVolumes { attached: Option<usize>, message: String },
    Errored(u64),
    Api(ApiError),
}

/// The result of waiting for an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The volume is in the requested state.
    Reached(Volume),
    /// The API reports that the action completed.
    Completed,
    /// The API reports that the action failed.
    Errored,
    /// The API does not know the action.
    Vanished,
}

/// After the request to start the action.
pub(super) fn after_start(goal: Goal, response: Result<Action, ApiError>, searched: bool) -> Next {
    let error = match response {
        Ok(Action { id, status, .. }) => {
            return match status {
                ActionStatus::Completed => Next::GetVolume(CheckReason::Completed),
                ActionStatus::Errored => Next::Fail(Failure::Errored(id)),
                ActionStatus::InProgress | ActionStatus::Unknown => Next::Await(id),
            };
        }
        Err(error) => error,
    };
    match error.kind() {
        // The pending event may be the action we want, started by an interrupted call: search for it once.
        ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent) if !searched => {
            Next::FindRunning(CheckReason::Refused(error))
        }
        ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent) => Next::Pause(error.to_string()),
        // "Not attached" is also returned while an attach of the volume is running, which would complete after us.
        ApiErrorKind::Unprocessable(_) | ApiErrorKind::NotFound if matches!(goal, Goal::Detached(_)) => {
            Next::FindRunning(CheckReason::Refused(error))
        }
        ApiErrorKind::Unprocessable(_) | ApiErrorKind::NotFound => {
            Next::GetVolume(CheckReason::Refused(error))
        }
        _ if error.uncertain() => Next::FindRunning(CheckReason::NoResponse(error)),
        _ => Next::Fail(Failure::Api(error)),
    }
}

/// After searching for a running action; `None` if the volume does not exist.
pub(super) fn after_find_running(goal: Goal, actions: Option<&[Action]>, check: CheckReason) -> Next {
    let Some(actions) = actions else { return volume_gone(goal) };
    if let Some(ours) = actions.iter().find(|action| goal.is_served_by(action)) {
        return Next::Await(ours.id);
    }
    match actions.iter().find(|action| action.status == ActionStatus::InProgress) {
        Some(other) => {
            Next::Pause(format!("{} of the volume is in progress (action {})", other.kind, other.id))
        }
        None => Next::GetVolume(check),
    }
}

/// After waiting for an action. `ours` means that this operation started it, so its completion is conclusive.
pub(super) fn after_wait(goal: Goal, action: u64, outcome: Outcome, ours: bool) -> Next {
    match outcome {
        Outcome::Reached(volume) => Next::Done(Some(volume)),
        // Saves a request whose response is not needed.
        Outcome::Completed if ours && matches!(goal, Goal::Detached(_)) => Next::Done(None),
        Outcome::Completed => Next::GetVolume(CheckReason::Completed),
        Outcome::Errored => Next::Fail(Failure::Errored(action)),
        Outcome::Vanished => Next::GetVolume(CheckReason::Vanished),
    }
}

/// After getting the volume; `None` if it does not exist.
pub(super) fn after_get_volume(goal: Goal, volume: Option<Volume>, check: CheckReason) -> Next {
    let Some(volume) = volume else { return volume_gone(goal) };
    if goal.reached(&volume) {
        return match (goal, check) {
            // The pending event may be an attach of this volume. Once it has ended, the detach either starts or is
            // refused because nothing is attached.
            (Goal::Detached(_), CheckReason::Refused(error))
                if error.kind() == ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent) =>
            {
                Next::Pause(error.to_string())
            }
            _ => Next::Done(Some(volume)),
        };
    }
    if let (Goal::Attached(_), Some(other)) = (goal, volume.droplet_ids.first()) {
        return Next::Fail(Failure::AttachedElsewhere(*other));
    }
    match check {
        CheckReason::Completed => {
            Next::Pause("the action completed, but the volume does not show it yet".to_owned())
        }
        CheckReason::Vanished => Next::Pause("the API no longer knows the action".to_owned()),
        CheckReason::NoResponse(error) => Next::Pause(error.to_string()),
        CheckReason::Refused(error) => match error.kind() {
            ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent) => Next::Pause(error.to_string()),
            // The volume's state contradicts the refusal: one of the two is not up to date yet.
            ApiErrorKind::Unprocessable(
                UnprocessableReason::AttachmentNotFound | UnprocessableReason::AlreadyAttached,
            ) => Next::Pause(error.to_string()),
            ApiErrorKind::Unprocessable(UnprocessableReason::TooManyVolumes) | ApiErrorKind::NotFound
                if goal.droplet().is_some() =>
            {
                Next::GetDroplet(error)
            }
            _ => Next::Fail(Failure::Api(error)),
        },
    }
}

/// After getting the droplet: the volume exists, but is not in the requested state.
pub(super) fn after_get_droplet(goal: Goal, droplet: Option<&Droplet>, error: ApiError) -> Next {
    match (goal, droplet) {
        // A droplet that does not exist has no attachments.
        (Goal::Detached(_), None) => Next::Done(None),
        (_, None) => Next::Fail(Failure::NoDroplet),
        (_, Some(droplet))
            if error.kind() == ApiErrorKind::Unprocessable(UnprocessableReason::TooManyVolumes) =>
        {
            let attached = Some(droplet.volume_ids.len()).filter(|count| *count > 0);
            Next::Fail(Failure::TooManyVolumes { attached, message: error.message().to_owned() })
        }
        (_, Some(_)) => Next::Fail(Failure::Api(error)),
    }
}

fn volume_gone(goal: Goal) -> Next {
    match goal {
        Goal::Detached(_) => Next::Done(None),
        Goal::Attached(_) | Goal::Size(_) => Next::Fail(Failure::NoVolume),
    }
}

#[cfg(test)]
mod tests;
