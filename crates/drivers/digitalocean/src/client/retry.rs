//! Which failed calls are sent again.
//!
//! Promise: a call that has its effect each time is sent again only if it certainly had none.

use std::time::Duration;

use super::error::Kind;
use crate::chance;

/// Whether a call may be sent twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Twice is the same as once: GET, DELETE, a tag.
    Always,
    /// Only if it had no effect: the other POSTs.
    WithoutEffect,
}

/// What is to be done about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays failed.
    Fail,
    /// Once more after this pause, if there is time.
    After(Duration),
}

/// What became of the last try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub kind: Kind,
    /// Whether the API may have seen the request at all.
    pub sent: bool,
    /// Whether the token is another by now than the one that was sent.
    pub new_token: bool,
    /// How many tries failed before this one.
    pub earlier: u32,
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

/// The rule; `jitter` is in `0.0..1.0`.
pub fn verdict(repeat: Repeat, failure: Failure, jitter: f64) -> Verdict {
    let pause = chance::exponential(FIRST, LONGEST, failure.earlier, jitter);
    match failure.kind {
        // The budget knows when: it is asked before each try.
        Kind::RateLimited => Verdict::After(Duration::ZERO),
        Kind::Unauthorized if failure.new_token => Verdict::After(Duration::ZERO),
        Kind::Transport if !failure.sent => Verdict::After(pause),
        Kind::Transport | Kind::Server | Kind::BadAnswer if repeat == Repeat::Always => Verdict::After(pause),
        Kind::Transport | Kind::Server | Kind::BadAnswer => Verdict::Fail,
        Kind::Unauthorized
        | Kind::Forbidden
        | Kind::CapacityLimit
        | Kind::NotFound
        | Kind::Conflict
        | Kind::Unprocessable(_)
        | Kind::BadRequest
        | Kind::SnapshotTooSoon => Verdict::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Refused;

    #[test]
    fn what_is_sent_again() {
        // kind, the API may have seen it, again if repeatable, again if it has an effect each time
        let table = [
            (Kind::Transport, false, true, true),
            (Kind::Transport, true, true, false),
            (Kind::Server, true, true, false),
            (Kind::BadAnswer, true, true, false),
            (Kind::RateLimited, true, true, true),
            (Kind::SnapshotTooSoon, true, false, false),
            (Kind::Unauthorized, true, false, false),
            (Kind::Forbidden, true, false, false),
            (Kind::CapacityLimit, true, false, false),
            (Kind::NotFound, true, false, false),
            (Kind::Conflict, true, false, false),
            (Kind::BadRequest, true, false, false),
            (Kind::Unprocessable(Refused::PendingEvent), true, false, false),
            (Kind::Unprocessable(Refused::AlreadyAttached), true, false, false),
            (Kind::Unprocessable(Refused::Other), true, false, false),
        ];
        for (kind, sent, always, without_effect) in table {
            let failure = Failure { kind, sent, new_token: false, earlier: 0 };
            for (repeat, again) in [(Repeat::Always, always), (Repeat::WithoutEffect, without_effect)] {
                let verdict = verdict(repeat, failure, 0.0);
                assert_eq!(verdict != Verdict::Fail, again, "{kind:?} sent: {sent} {repeat:?}");
            }
        }
    }

    #[test]
    fn a_new_token_is_tried_at_once() {
        let failure = Failure { kind: Kind::Unauthorized, sent: true, new_token: true, earlier: 0 };
        assert_eq!(verdict(Repeat::WithoutEffect, failure, 0.0), Verdict::After(Duration::ZERO));
    }

    #[test]
    fn pauses_grow() {
        for (earlier, jitter, millis) in [(0, 0.0, 250), (1, 0.0, 500), (9, 0.0, 5_000), (9, 1.0, 3_750)] {
            let failure = Failure { kind: Kind::Server, sent: true, new_token: false, earlier };
            let expected = Verdict::After(Duration::from_millis(millis));
            assert_eq!(verdict(Repeat::Always, failure, jitter), expected);
        }
    }
}
