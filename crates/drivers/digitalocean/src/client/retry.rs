//! Which failed calls are retried. A call that is not idempotent is retried only if it certainly had no effect.

use std::time::Duration;

use super::error::ApiErrorKind;
use crate::backoff;

/// Whether a call can be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Idempotent: GET, DELETE, tagging.
    Always,
    /// Only if it certainly had no effect: all other POSTs.
    OnlyWithoutEffect,
}

/// How to proceed after a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Return the error.
    Fail,
    /// Retry after this delay, if the deadline allows it.
    After(Duration),
}

/// The last failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub kind: ApiErrorKind,
    /// Whether the API may have received the request.
    pub sent: bool,
    /// Whether the token changed since the request was sent.
    pub new_token: bool,
    /// Number of failed attempts before this one.
    pub earlier: u32,
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

/// Decides whether to retry; `jitter` is in `0.0..1.0`.
pub fn decide_retry(repeat: RetryPolicy, failure: Failure, jitter: f64) -> RetryDecision {
    let pause = backoff::exponential(FIRST, LONGEST, failure.earlier, jitter);
    match failure.kind {
        // The rate limiter, which is consulted before each attempt, knows when.
        ApiErrorKind::RateLimited => RetryDecision::After(Duration::ZERO),
        ApiErrorKind::Unauthorized if failure.new_token => RetryDecision::After(Duration::ZERO),
        ApiErrorKind::Transport if !failure.sent => RetryDecision::After(pause),
        ApiErrorKind::Transport | ApiErrorKind::Server | ApiErrorKind::BadResponse
            if repeat == RetryPolicy::Always =>
        {
            RetryDecision::After(pause)
        }
        ApiErrorKind::Transport | ApiErrorKind::Server | ApiErrorKind::BadResponse => RetryDecision::Fail,
        ApiErrorKind::Unauthorized
        | ApiErrorKind::Forbidden
        | ApiErrorKind::CapacityLimit
        | ApiErrorKind::NotFound
        | ApiErrorKind::Conflict
        | ApiErrorKind::Unprocessable(_)
        | ApiErrorKind::BadRequest
        | ApiErrorKind::SnapshotTooSoon => RetryDecision::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::UnprocessableReason;

    #[test]
    fn retry_depends_on_error_and_policy() {
        // kind, whether the API may have received it, retried if idempotent, retried otherwise
        let table = [
            (ApiErrorKind::Transport, false, true, true),
            (ApiErrorKind::Transport, true, true, false),
            (ApiErrorKind::Server, true, true, false),
            (ApiErrorKind::BadResponse, true, true, false),
            (ApiErrorKind::RateLimited, true, true, true),
            (ApiErrorKind::SnapshotTooSoon, true, false, false),
            (ApiErrorKind::Unauthorized, true, false, false),
            (ApiErrorKind::Forbidden, true, false, false),
            (ApiErrorKind::CapacityLimit, true, false, false),
            (ApiErrorKind::NotFound, true, false, false),
            (ApiErrorKind::Conflict, true, false, false),
            (ApiErrorKind::BadRequest, true, false, false),
            (ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent), true, false, false),
            (ApiErrorKind::Unprocessable(UnprocessableReason::AlreadyAttached), true, false, false),
            (ApiErrorKind::Unprocessable(UnprocessableReason::Other), true, false, false),
        ];
        for (kind, sent, always, without_effect) in table {
            let failure = Failure { kind, sent, new_token: false, earlier: 0 };
            for (repeat, again) in
                [(RetryPolicy::Always, always), (RetryPolicy::OnlyWithoutEffect, without_effect)]
            {
                let decision = decide_retry(repeat, failure, 0.0);
                assert_eq!(decision != RetryDecision::Fail, again, "{kind:?} sent: {sent} {repeat:?}");
            }
        }
    }

    #[test]
    fn new_token_is_tried_at_once() {
        let failure = Failure { kind: ApiErrorKind::Unauthorized, sent: true, new_token: true, earlier: 0 };
        assert_eq!(
            decide_retry(RetryPolicy::OnlyWithoutEffect, failure, 0.0),
            RetryDecision::After(Duration::ZERO)
        );
    }

    #[test]
    fn retry_delay_grows() {
        for (earlier, jitter, millis) in [(0, 0.0, 250), (1, 0.0, 500), (9, 0.0, 5_000), (9, 1.0, 3_750)] {
            let failure = Failure { kind: ApiErrorKind::Server, sent: true, new_token: false, earlier };
            let expected = RetryDecision::After(Duration::from_millis(millis));
            assert_eq!(decide_retry(RetryPolicy::Always, failure, jitter), expected);
        }
    }
}
