//! Who may hold a lease: the rule, over what was seen of it.

use std::time::Duration;

use tokio::time::Instant;

/// A lease as last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) holder: String,
    /// How long its holder asked others to wait.
    pub(crate) duration: Duration,
    pub(crate) version: String,
    /// When we first saw this version, by our own clock: clocks of others are not trusted.
    pub(crate) since: Instant,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is none: make it ours.
    Create,
    /// It is ours: say so again.
    Renew,
    /// It is nobody's, or its holder has not been heard of for its duration: make it ours.
    Take,
    /// It is somebody else's.
    Wait,
}

pub(crate) fn decide(seen: Option<&Seen>, me: &str, now: Instant) -> Step {
    match seen {
        None => Step::Create,
        Some(seen) if seen.holder == me => Step::Renew,
        Some(seen) if seen.holder.is_empty() => Step::Take,
        Some(seen) if now.saturating_duration_since(seen.since) >= seen.duration => Step::Take,
        Some(_) => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rule() {
        let start = Instant::now();
        let seen = |holder: &str| Seen {
            holder: holder.into(),
            duration: Duration::from_secs(15),
            version: "1".into(),
            since: start,
        };
        let table = [
            (None, 0, Step::Create),
            (Some(seen("me")), 0, Step::Renew),
            (Some(seen("me")), 100, Step::Renew),
            (Some(seen("")), 0, Step::Take),
            (Some(seen("you")), 0, Step::Wait),
            (Some(seen("you")), 14, Step::Wait),
            (Some(seen("you")), 15, Step::Take),
        ];
        for (seen, seconds, step) in table {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(decide(seen.as_ref(), "me", now), step, "{seen:?} after {seconds} s");
        }
    }
}
