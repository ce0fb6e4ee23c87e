//! Failures of volume operations: their class and their backoff.

use std::time::Duration;

use tonic::Code;
use wharf_cluster::Backoff;
use wharf_model::{Monotonic, Time};

/// What a failure means for the state of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// The operation may have happened, or may still happen: the volume is cleaned up unless it is repeated.
    Uncertain,
    /// The driver was not called: nothing has changed.
    Transient,
    /// The operation did not happen.
    Final,
}

/// The class of a gRPC code. [`wharf_csi::Client`] returns UNAVAILABLE if there was no gRPC response.
pub(super) fn class_of(code: Code) -> Class {
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => Class::Uncertain,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Class::Final,
    }
}

/// An operation. Each has its own backoff: a failing publish does not delay an unpublish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// Reading the attachment.
    Verify,
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume and its preconditions.
    Publish,
    /// Applying the pod's fsGroup.
    SetOwnership,
    /// NodeExpandVolume.
    Expand,
    /// NodeUnpublishVolume.
    Unpublish,
    /// NodeUnstageVolume.
    Unstage,
}

/// A failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// What it means for the volume.
    pub(super) class: Class,
    /// The error, without secrets.
    pub(super) message: String,
    /// Wall time of the failure, for `/debug/attempts`.
    pub(super) time: Time,
    /// When it failed.
    pub(super) at: Monotonic,
    /// Delay before the next attempt.
    pub(super) pause: Duration,
    /// Number of consecutive failures, including this one.
    pub(super) count: u32,
}

impl Failure {
    /// Remaining delay.
    pub(super) fn left(&self, now: Monotonic) -> Option<Duration> {
        self.pause.checked_sub(now.since(self.at)).filter(|left| !left.is_zero())
    }

    /// The failure that follows `before`.
    pub(super) fn after(
        before: Option<&Self>,
        class: Class,
        message: String,
        time: Time,
        at: Monotonic,
        backoff: &Backoff,
    ) -> Self {
        let count = before.map_or(0, |before| before.count);
        Self { class, message, time, at, pause: backoff.delay(count), count: count.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Uncertain", "Transient", "Final".
    #[test]
    fn codes_are_classified() {
        let uncertain = [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ];
        for number in 0..=16 {
            let code = Code::from_i32(number);
            let expected = if uncertain.contains(&code) { Class::Uncertain } else { Class::Final };
            assert_eq!(class_of(code), expected, "{code:?}");
        }
    }

    /// Kubelet's backoff: 500 ms, doubled up to 2m2s.
    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let backoff = Backoff::without_jitter(Duration::from_millis(500), Duration::from_secs(122));
        let mut failure: Option<Failure> = None;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            // The wall clock does not matter.
            let (before, time) = (failure.as_ref(), Time(i64::MAX));
            let next = Failure::after(before, Class::Final, String::new(), time, Monotonic(0), &backoff);
            pauses.push(next.pause.as_millis());
            failure = Some(next);
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
        let failure = failure.unwrap();
        assert_eq!(failure.left(Monotonic(1000)), Some(Duration::from_secs(121)));
        assert_eq!(failure.left(Monotonic(122_000)), None);
    }
}
