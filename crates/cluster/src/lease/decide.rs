//! The rule for acquiring a lease, given its last observed state.

use std::time::Duration;

use tokio::time::Instant;

/// A lease as last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedLease {
    pub(crate) holder: String,
    /// How long others must wait after the last renewal.
    pub(crate) duration: Duration,
    pub(crate) version: String,
    /// When this version was first observed, by the local clock: other clocks are not trusted.
    pub(crate) observed_at: Instant,
}

/// The next step of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The lease does not exist: create it.
    Create,
    /// This process holds it: renew it.
    Renew,
    /// It has no holder, or its holder has not renewed for its duration: take it.
    Take,
    /// Another process holds it.
    Wait,
}

pub(crate) fn decide(observed: Option<&ObservedLease>, me: &str, now: Instant) -> Step {
    match observed {
        None => Step::Create,
        Some(observed) if observed.holder == me => Step::Renew,
        Some(observed) if observed.holder.is_empty() => Step::Take,
        Some(observed) if now.saturating_duration_since(observed.observed_at) >= observed.duration => {
            Step::Take
        }
        Some(_) => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lease_is_taken_only_after_its_duration() {
        let start = Instant::now();
        let observed = |holder: &str| ObservedLease {
            holder: holder.into(),
            duration: Duration::from_secs(15),
            version: "1".into(),
            observed_at: start,
        };
        let table = [
            (None, 0, Step::Create),
            (Some(observed("me")), 0, Step::Renew),
            (Some(observed("me")), 100, Step::Renew),
            (Some(observed("")), 0, Step::Take),
            (Some(observed("you")), 0, Step::Wait),
            (Some(observed("you")), 14, Step::Wait),
            (Some(observed("you")), 15, Step::Take),
        ];
        for (observed, seconds, step) in table {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(decide(observed.as_ref(), "me", now), step, "{observed:?} after {seconds} s");
        }
    }
}
