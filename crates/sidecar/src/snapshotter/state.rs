//! In-process state of the snapshotter per content. All of it may be lost: then idempotent CSI calls are repeated
//! and backoffs are cut short.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_csi::{ErrorClass, Operation, classify, is_request_error};
use wharf_model::Time;

use super::ContentKey;
use super::patches::SnapshotInfo;

/// Longest backoff while the driver is busy or unavailable: it may be ready at any moment.
const BUSY_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest interval between two polls for readiness.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(15);

/// The state of one content.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ContentState {
    /// UID of the content, to tell it from another one of the same name.
    pub(super) uid: String,
    /// The driver's last response, until it is written to the status.
    pub(super) info: Option<SnapshotInfo>,
    /// The last poll for readiness.
    pub(super) last_poll: Option<Poll>,
    /// The driver has deleted the snapshot.
    pub(super) deleted: bool,
    /// All create calls since the content was marked were ours and are known to have created nothing. If the mark
    /// was found, an earlier process may have made a successful call; a failure of our own call says nothing about
    /// that one.
    pub(super) exclusive: bool,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
}

/// A poll for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Poll {
    /// Time of the poll.
    pub(super) at: Time,
    /// Number of earlier polls.
    pub(super) count: u32,
}

impl Poll {
    /// Time of the next poll. A backend that copies for an hour is not polled every second, and one that is ready
    /// after a second is noticed soon.
    pub(super) fn next_at(&self) -> Time {
        self.at.plus(Duration::from_secs(1 << self.count.min(10)).min(POLL_INTERVAL_MAX))
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
    /// Time of the failure.
    pub(super) at: Time,
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
    /// Remaining backoff. A clock that went backwards does not extend it.
    pub(super) fn remaining(&self, now: Time) -> Option<Duration> {
        remaining(self.at, self.at.plus(self.pause), now)
    }
}

/// Time from now until `until`; `None` if it has passed or the clock went backwards.
pub(super) fn remaining(started: Time, until: Time, now: Time) -> Option<Duration> {
    let remaining = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|remaining| *remaining > 0)?;
    (now >= started).then(|| Duration::from_millis(remaining))
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
}

impl FailedAttempt {
    fn class(&self) -> Option<ErrorClass> {
        self.code.map(|code| classify(Operation::Snapshot, code))
    }
}

impl ContentState {
    /// Records a response that describes the snapshot.
    pub(super) fn record_info(&mut self, info: SnapshotInfo, now: Time) {
        let count = self.last_poll.map_or(0, |last_poll| last_poll.count.saturating_add(1));
        self.last_poll = Some(Poll { at: now, count });
        self.info = Some(info);
        self.failure = None;
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
    pub(super) fn record_failure(&mut self, failed: FailedAttempt, backoff: Backoff, now: Time) {
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
        let FailedAttempt { action, message, .. } = failed;
        let count = earlier.saturating_add(1);
        // Failed deletions are reported by events, not in the status.
        let reported = action == Action::Delete;
        self.failure = Some(Failure { action, message, at: now, pause, count, final_at_version, reported });
    }

    /// Ends the backoff after a change that may let the next attempt succeed.
    pub(super) fn reset_backoff(&mut self) {
        // Whether the driver's error was final does not depend on the backoff.
        if let Some(failure) = &mut self.failure {
            (failure.pause, failure.count) = (Duration::ZERO, 0);
        }
        self.last_poll = None;
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

    /// We lost the lease: from now on other replicas call the driver, too.
    pub(super) fn clear_exclusive(&self) {
        for state in self.lock().values_mut() {
            state.exclusive = false;
        }
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
