//! In-process state of the snapshotter per content. All of it may be lost: then idempotent CSI calls are repeated
//! and backoffs are cut short.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_csi::{ErrorClass, Operation, classify, is_request_error};
use wharf_model::{Monotonic, Time};

use super::ContentKey;
use super::patches::SnapshotInfo;
use crate::doubt::Doubt;

/// Longest backoff while the driver is busy or unavailable: it may be ready at any moment.
const BUSY_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Shortest interval between two polls for readiness.
const POLL_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// A poll waits for this part of the time since the first one: a snapshot that takes an hour is noticed later than one
/// that takes a minute.
const POLL_SHARE: u32 = 4;

/// The state of one content.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ContentState {
    /// UID of the content, to tell it from another one of the same name.
    pub(super) uid: String,
    /// The driver's last response, until it is written to the status.
    pub(super) info: Option<SnapshotInfo>,
    /// The polls for readiness.
    pub(super) polls: Option<Polls>,
    /// The driver has deleted the snapshot.
    pub(super) deleted: bool,
    /// All create calls since the content was marked were ours and are known to have created nothing. If the mark
    /// was found, an earlier process may have made a successful call; a failure of our own call says nothing about
    /// that one.
    pub(super) exclusive: bool,
    /// The API server returned the content while we held the lease, and we have held it since. Only we remove our
    /// finalizer, so the content still exists if it had that.
    pub(super) held: bool,
    /// The inconclusive attempts to find out what an earlier call created, since the content is being deleted.
    pub(super) doubt: Option<Doubt>,
    /// What an earlier call created is not known and will not be.
    pub(super) unknown: bool,
    /// While `unknown`: what may exist was recorded as a suspect.
    pub(super) suspected: bool,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
    /// With one sidecar per node: the driver of this node knows the snapshot.
    pub(super) found: bool,
    /// When the driver of this node did not know the snapshot.
    pub(super) not_found: Option<Monotonic>,
}

/// The polls for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Polls {
    /// Time of the first poll.
    first: Monotonic,
    /// Time of the last poll; `None` if the next one is due at once.
    last: Option<Monotonic>,
}

impl Polls {
    /// How long to wait for the next poll. A backend that copies for an hour is not polled every second, and one that is
    /// ready after a second is noticed soon.
    pub(super) fn remaining(&self, max: Duration, now: Monotonic) -> Option<Duration> {
        let last = self.last?;
        let pause = (last.since(self.first) / POLL_SHARE).max(POLL_INTERVAL_MIN).min(max);
        remaining(last, pause, now)
    }
}

/// What an attempt does, for the choice of event reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The first attempt to create the snapshot.
    Create,
    /// A later attempt, or reading an existing snapshot.
    Check,
    /// Deleting the snapshot.
    Delete,
}

/// The last failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// What was attempted.
    pub(super) action: Action,
    /// The error message.
    pub(super) message: String,
    /// Wall time of the failure, for the status.
    pub(super) time: Time,
    /// Time of the failure.
    pub(super) at: Monotonic,
    /// Backoff before the next attempt.
    pub(super) pause: Duration,
    /// Number of failures in a row.
    pub(super) count: u32,
    /// The resourceVersion for which the driver reported that nothing was created and nothing is in progress. At
    /// any other version another process may have called it since.
    pub(super) final_at_version: Option<String>,
    /// Whether the failure was reported in the status, or need not be.
    pub(super) reported: bool,
}

impl Failure {
    /// Remaining backoff.
    pub(super) fn remaining(&self, now: Monotonic) -> Option<Duration> {
        remaining(self.at, self.pause, now)
    }
}

/// The rest of a pause; `None` if it is over.
pub(super) fn remaining(started: Monotonic, pause: Duration, now: Monotonic) -> Option<Duration> {
    pause.checked_sub(now.since(started)).filter(|left| !left.is_zero())
}

/// An attempt that just failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailedAttempt {
    /// What was attempted.
    pub(super) action: Action,
    /// The error message.
    pub(super) message: String,
    /// The driver's gRPC code, if the driver returned the error.
    pub(super) code: Option<tonic::Code>,
    /// Whether to retry soon for a reason other than the code.
    pub(super) retry_soon: bool,
    /// The resourceVersion of the content for a create call that proves something.
    pub(super) called_at_version: Option<String>,
    /// The time, if the attempt was only to find out what an earlier call created: the content is being deleted.
    pub(super) unwanted_at: Option<Monotonic>,
    /// The driver was not called because the API server failed. Such an attempt does not count towards the bound.
    pub(super) api_failed: bool,
}

impl FailedAttempt {
    fn class(&self) -> Option<ErrorClass> {
        self.code.map(|code| classify(Operation::Snapshot, code))
    }
}

impl ContentState {
    /// Records a response that describes the snapshot.
    pub(super) fn record_info(&mut self, info: SnapshotInfo, now: Monotonic) {
        let first = self.polls.map_or(now, |polls| polls.first);
        self.polls = Some(Polls { first, last: Some(now) });
        self.info = Some(info);
        self.failure = None;
        self.forget_doubt();
    }

    /// The response was written to the status.
    pub(super) fn info_written(&mut self) {
        self.info = None;
    }

    /// The driver deleted the snapshot.
    pub(super) fn record_deletion(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), deleted: true, ..Self::default() };
    }

    /// Records a failed attempt.
    pub(super) fn record_failure(
        &mut self,
        failed: FailedAttempt,
        backoff: Backoff,
        time: Time,
        now: Monotonic,
    ) {
        let series = |action| action == Action::Delete;
        let before = self.failure.as_ref().filter(|before| series(before.action) == series(failed.action));
        let earlier = before.map_or(0, |before| before.count);
        let class = failed.class();
        let max = match class {
            Some(ErrorClass::StillRunning) => backoff.max.min(BUSY_BACKOFF_MAX),
            None if failed.retry_soon => backoff.max.min(BUSY_BACKOFF_MAX),
            Some(ErrorClass::Final | ErrorClass::Infeasible) | None => backoff.max,
        };
        let pause = Backoff { max, ..backoff }.delay(earlier);
        let conclusive = self.exclusive || failed.code.is_some_and(is_request_error);
        let final_at_version = match class {
            Some(ErrorClass::Final | ErrorClass::Infeasible) => {
                failed.called_at_version.filter(|_| conclusive)
            }
            Some(ErrorClass::StillRunning) | None => None,
        };
        self.exclusive &= class != Some(ErrorClass::StillRunning);
        let running = class.map_or(failed.retry_soon, |class| class == ErrorClass::StillRunning);
        let undecided_at = failed.unwanted_at.filter(|_| final_at_version.is_none());
        if !failed.api_failed {
            self.doubt = undecided_at.map(|at| Doubt::after(self.doubt, running, at));
            let is_over = |at| self.doubt.is_some_and(|doubt| doubt.is_over(at));
            (self.unknown, self.suspected) = (undecided_at.is_some_and(is_over), false);
        }
        let FailedAttempt { action, message, .. } = failed;
        let count = earlier.saturating_add(1);
        // Failed deletions are reported by events, not in the status.
        let reported = action == Action::Delete;
        self.failure =
            Some(Failure { action, message, time, at: now, pause, count, final_at_version, reported });
    }

    fn forget_doubt(&mut self) {
        (self.doubt, self.unknown, self.suspected) = (None, false, false);
    }

    /// From now on other replicas call the driver, write the status and delete contents, too.
    pub(super) fn lease_lost(&mut self) {
        (self.exclusive, self.held, self.info) = (false, false, None);
        self.forget_doubt();
        if let Some(failure) = &mut self.failure {
            // A call for a content that is marked already does not change its version.
            failure.final_at_version = None;
        }
    }

    /// Ends the backoff after a change that may let the next attempt succeed.
    pub(super) fn reset_backoff(&mut self) {
        // Whether the driver's error was final does not depend on the backoff.
        if let Some(failure) = &mut self.failure {
            (failure.pause, failure.count) = (Duration::ZERO, 0);
        }
        if let Some(polls) = &mut self.polls {
            polls.last = None;
        }
    }
}

/// The state of all contents.
#[derive(Default)]
pub(super) struct ContentStates {
    inner: Mutex<HashMap<ContentKey, ContentState>>,
}

impl ContentStates {
    fn lock(&self) -> MutexGuard<'_, HashMap<ContentKey, ContentState>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a content; empty if the stored state is of another object with the same name.
    pub(super) fn get(&self, content_key: &ContentKey, uid: &str) -> ContentState {
        let known = self.lock().get(content_key).filter(|state| state.uid == uid).cloned();
        known.unwrap_or_else(|| ContentState { uid: uid.to_owned(), ..ContentState::default() })
    }

    /// Changes the state of a content.
    pub(super) fn update(&self, content_key: &ContentKey, uid: &str, change: impl FnOnce(&mut ContentState)) {
        let mut inner = self.lock();
        let state = inner.entry(content_key.clone()).or_default();
        if state.uid != uid {
            *state = ContentState { uid: uid.to_owned(), ..ContentState::default() };
        }
        change(state);
    }

    /// We lost the lease.
    pub(super) fn lease_lost(&self) {
        self.lock().values_mut().for_each(ContentState::lease_lost);
    }

    /// Ends the backoff of a content after a relevant change.
    pub(super) fn reset_backoff(&self, content_key: &ContentKey) {
        if let Some(state) = self.lock().get_mut(content_key) {
            state.reset_backoff();
        }
    }

    /// Drops the state of a content.
    pub(super) fn remove(&self, content_key: &ContentKey) {
        self.lock().remove(content_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshotter::view::ContentKind;

    /// Another replica may have called the driver and deleted contents since.
    #[test]
    fn conclusions_from_holding_the_lease_end_with_it() {
        let states = ContentStates::default();
        let key = ContentKey { kind: ContentKind::Snapshot, name: "c".into() };
        let at = Monotonic(0);
        let failed = FailedAttempt {
            action: Action::Create,
            message: "no".into(),
            code: Some(tonic::Code::InvalidArgument),
            retry_soon: false,
            called_at_version: Some("7".into()),
            unwanted_at: None,
            api_failed: false,
        };
        states.update(&key, "u", |state| {
            (state.exclusive, state.held) = (true, true);
            state.record_info(SnapshotInfo { handle: "h".into(), ..SnapshotInfo::default() }, Monotonic(1));
            state.record_failure(failed, Backoff::default(), Time(1), Monotonic(1));
            assert_eq!(state.failure.as_ref().unwrap().final_at_version.as_deref(), Some("7"));
            (state.doubt, state.unknown, state.suspected) = (Some(Doubt::after(None, false, at)), true, true);
        });
        states.lease_lost();
        let state = states.get(&key, "u");
        let polls = state.polls;
        let failure = state.failure.clone().map(|failure| Failure { final_at_version: None, ..failure });
        assert!(polls.is_some() && failure.is_some());
        assert_eq!(state, ContentState { uid: "u".into(), polls, failure, ..ContentState::default() });
    }
}
