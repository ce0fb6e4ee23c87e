//! In-process state of a claim between two steps. It can be lost at any time: a process without it treats a call in
//! progress as uncertain and repeats it.
//!
//! The state is valid only while no other process acts: it is cleared when the lease is lost.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Code;
use wharf_csi::{ErrorClass, go_error_text};
use wharf_model::{Key, Monotonic, Quantity};

use super::decide::ResizeStep;
use super::view::PodUse;

/// The state of one claim between two steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResizeState {
    pub(crate) expansion: ExpansionState,
    pub(crate) modification: ModificationState,
}

/// The state of an expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ExpansionState {
    /// The size that this process recorded as in progress.
    pub(crate) in_progress: Option<Quantity>,
    /// Whether the last call ended with a final error. Then no call can still be running in the driver.
    pub(crate) failed_finally: bool,
    /// The driver's result, until it is recorded.
    pub(crate) expanded: Option<Expanded>,
    /// The last failed call.
    pub(crate) failed: Option<FailedCall<ExpandRequest>>,
    /// Whether an event reported that the volume is in use.
    pub(crate) in_use_reported: bool,
}

/// The result of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// The requested size.
    pub(crate) requested: Quantity,
    /// The actual size.
    pub(crate) size: Quantity,
    /// Whether the node has to expand the volume as well.
    pub(crate) node_expansion_required: bool,
}

/// The state of a modification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModificationState {
    /// The class that this process recorded as in progress.
    pub(crate) in_progress: Option<String>,
    /// Whether the last call ended with success or a final error. Then no call can still be running in the driver.
    pub(crate) call_ended: bool,
    /// The class that the driver applied, until it is recorded.
    pub(crate) applied: Option<String>,
    /// The last failed call.
    pub(crate) failed: Option<FailedCall<ModifyRequest>>,
    /// The missing class that an event reported.
    pub(crate) missing_class_reported: Option<String>,
}

/// The inputs of a ControllerExpandVolume call. A call with other inputs need not wait for the backoff of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpandRequest {
    /// What the user requested.
    pub(crate) requested: Quantity,
    /// What was requested from the driver.
    pub(crate) size: Quantity,
    /// Whether pods used the volume.
    pub(crate) pod_use: PodUse,
}

/// The inputs of a ControllerModifyVolume call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModifyRequest {
    /// What the user requested.
    pub(crate) requested: Option<String>,
    /// What was requested from the driver.
    pub(crate) target: String,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedCall<Q> {
    pub(crate) request: Q,
    pub(crate) failure: Failure,
    /// Consecutive failures of the same request.
    pub(crate) failures: u32,
    /// The end of the backoff.
    pub(crate) retry_at: Monotonic,
    /// Whether the failure was reported in the claim's status.
    pub(crate) reported: bool,
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The error class. `None`: the driver was not called.
    pub(crate) class: Option<ErrorClass>,
    pub(crate) code: Code,
    /// The driver's message, or ours if it was not called.
    pub(crate) message: String,
}

impl Failure {
    /// The text as upstream writes it: a gRPC error in Go's format.
    pub(crate) fn text(&self) -> String {
        match self.class {
            Some(_) => go_error_text(self.code, &self.message),
            None => self.message.clone(),
        }
    }

    /// Whether the driver refused because the volume is in use.
    pub(crate) fn is_in_use(&self) -> bool {
        self.class.is_some() && self.code == Code::FailedPrecondition
    }
}

impl ExpansionState {
    /// A call is about to be sent: from now on it may run in the driver.
    pub(crate) fn call_started(&mut self) {
        self.failed_finally = false;
        self.in_use_reported = false;
    }

    /// Records a successful call.
    pub(crate) fn succeeded(&mut self, expanded: Expanded) {
        *self = Self { in_progress: self.in_progress, expanded: Some(expanded), ..Self::default() };
    }

    /// Records a failed call, or one that was not sent.
    pub(crate) fn failed(
        &mut self,
        request: ExpandRequest,
        failure: Failure,
        now: Monotonic,
        backoff: impl Fn(&Failure, u32) -> Duration,
    ) {
        if let Some(class) = failure.class {
            self.failed_finally = class != ErrorClass::StillRunning;
        }
        self.failed = Some(FailedCall::new(self.failed.take(), request, failure, now, backoff));
    }
}

impl ModificationState {
    /// A call is about to be sent: from now on it may run in the driver.
    pub(crate) fn call_started(&mut self) {
        self.call_ended = false;
    }

    /// Records a successful call.
    pub(crate) fn succeeded(&mut self, target: &str) {
        *self = Self {
            in_progress: self.in_progress.take(),
            call_ended: true,
            applied: Some(target.to_owned()),
            ..Self::default()
        };
    }

    /// Records a failed call, or one that was not sent.
    pub(crate) fn failed(
        &mut self,
        request: ModifyRequest,
        failure: Failure,
        now: Monotonic,
        backoff: impl Fn(&Failure, u32) -> Duration,
    ) {
        if let Some(class) = failure.class {
            self.call_ended = class != ErrorClass::StillRunning;
        }
        self.failed = Some(FailedCall::new(self.failed.take(), request, failure, now, backoff));
    }
}

impl<Q: PartialEq> FailedCall<Q> {
    fn new(
        before: Option<Self>,
        request: Q,
        failure: Failure,
        now: Monotonic,
        backoff: impl Fn(&Failure, u32) -> Duration,
    ) -> Self {
        let same = before.filter(|before| before.request == request);
        let failures = same.map_or(0, |same| same.failures);
        let retry_at = now.plus(backoff(&failure, failures));
        Self { request, failure, failures: failures.saturating_add(1), retry_at, reported: false }
    }

    /// The end of the backoff for this request, if it is in the future.
    pub(crate) fn backoff_end(&self, request: &Q, now: Monotonic) -> Option<Monotonic> {
        (self.request == *request && now < self.retry_at).then_some(self.retry_at)
    }
}

impl ResizeState {
    /// Updates the state after a step other than a call.
    pub(crate) fn apply(&mut self, step: &ResizeStep) {
        let Self { expansion, modification } = self;
        match step {
            ResizeStep::BeginExpansion { size, .. } => {
                expansion.in_progress = Some(*size);
                // The failure of another size must not be reported for this one.
                expansion.failed = expansion.failed.take().filter(|failed| failed.request.size == *size);
            }
            ResizeStep::ReportExpansion => {
                if let Some(failed) = &mut expansion.failed {
                    failed.reported = true;
                }
            }
            ResizeStep::ReportInUse => expansion.in_use_reported = true,
            ResizeStep::MarkNodeExpansionPending | ResizeStep::FinishExpansion { .. } => {
                *expansion = ExpansionState::default()
            }
            ResizeStep::BeginModification { target } => modification.in_progress = Some(target.clone()),
            ResizeStep::ReportModification => {
                if let Some(failed) = &mut modification.failed {
                    failed.reported = true;
                }
            }
            ResizeStep::MarkPending { target } | ResizeStep::ReportMissingClass { target } => {
                modification.missing_class_reported = Some(target.clone());
            }
            ResizeStep::CompleteModification { .. } => *modification = ModificationState::default(),
            ResizeStep::Wait(_)
            | ResizeStep::DropState
            | ResizeStep::RemovePreResizeCapacity
            | ResizeStep::Expand { .. }
            | ResizeStep::UpdateVolumeSize { .. }
            | ResizeStep::Modify { .. }
            | ResizeStep::RecordClass { .. }
            | ResizeStep::CancelModification => {}
        }
    }
}

/// The state of all claims.
#[derive(Default)]
pub(crate) struct ResizeStates {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Incremented when the state is cleared. State that was read in an earlier epoch is not stored.
    epoch: u64,
    by_claim: HashMap<Key, (String, ResizeState)>,
}

/// The epoch in which a state was read; see [`ResizeStates::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl ResizeStates {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the claim with this UID.
    pub(crate) fn get(&self, key: &Key, uid: &str) -> (Epoch, ResizeState) {
        let inner = self.lock();
        let known = inner.by_claim.get(key).filter(|(known, _)| known == uid);
        (Epoch(inner.epoch), known.map(|(_, state)| state.clone()).unwrap_or_default())
    }

    /// Stores the state, unless everything was cleared since `epoch`.
    pub(crate) fn put(&self, key: &Key, uid: &str, epoch: Epoch, state: ResizeState) {
        let mut inner = self.lock();
        if Epoch(inner.epoch) != epoch {
            return;
        }
        match state == ResizeState::default() {
            true => inner.by_claim.remove(key),
            false => inner.by_claim.insert(key.clone(), (uid.to_owned(), state)),
        };
    }

    /// Whether a claim of this name has state.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.lock().by_claim.contains_key(key)
    }

    /// Removes the state of a deleted claim.
    pub(crate) fn remove(&self, key: &Key) {
        self.lock().by_claim.remove(key);
    }

    /// Clears everything: another process may have acted.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.by_claim.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_belongs_to_one_uid_and_lease_term() {
        let states = ResizeStates::default();
        let key = Key::namespaced("shop", "data");
        let stored = ResizeState {
            expansion: ExpansionState { failed_finally: true, ..ExpansionState::default() },
            ..ResizeState::default()
        };
        let (epoch, nothing) = states.get(&key, "u");
        assert_eq!(nothing, ResizeState::default());
        states.put(&key, "u", epoch, stored.clone());
        assert_eq!(states.get(&key, "u"), (epoch, stored.clone()));
        assert_eq!(states.get(&key, "another").1, ResizeState::default(), "another claim of the same name");
        assert!(states.contains(&key));

        states.clear();
        assert!(!states.contains(&key));
        states.put(&key, "u", epoch, stored.clone());
        assert!(!states.contains(&key), "read before the lease was lost");

        let (epoch, _) = states.get(&key, "u");
        states.put(&key, "u", epoch, stored);
        states.put(&key, "u", epoch, ResizeState::default());
        assert!(!states.contains(&key), "the default state is not stored");
    }

    /// sidecars.md 1.3 "Errors": the backoff grows for the same request only.
    #[test]
    fn backoff_grows_for_same_request_only() {
        let backoff = |_: &Failure, failures: u32| Duration::from_secs(1 << failures);
        let failure = || Failure {
            class: Some(ErrorClass::StillRunning),
            code: Code::Unavailable,
            message: "no".into(),
        };
        let request = |size| ExpandRequest {
            requested: Quantity::from_bytes(9),
            size: Quantity::from_bytes(size),
            pod_use: PodUse::Unknown,
        };
        let mut expansion = ExpansionState { failed_finally: true, ..ExpansionState::default() };
        expansion.failed(request(9), failure(), Monotonic(0), backoff);
        assert!(!expansion.failed_finally);
        expansion.failed(request(9), failure(), Monotonic(1000), backoff);
        let failed = expansion.failed.clone().unwrap();
        assert_eq!((failed.failures, failed.retry_at), (2, Monotonic(3000)));
        assert_eq!(failed.backoff_end(&request(9), Monotonic(2999)), Some(Monotonic(3000)));
        assert_eq!(failed.backoff_end(&request(9), Monotonic(3000)), None);
        assert_eq!(failed.backoff_end(&request(8), Monotonic(2000)), None);
        expansion.failed(request(8), failure(), Monotonic(4000), backoff);
        assert_eq!(expansion.failed.unwrap().retry_at, Monotonic(5000));
    }
}
