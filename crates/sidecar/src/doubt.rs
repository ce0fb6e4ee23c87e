//! Limits how often a call with unknown result is repeated after the last object that needs the result is gone.
//!
//! Only the same call shows what the first one created, because the lists of a driver do not contain the names of the
//! requests. While an object needs the result, the call is repeated without a limit. Afterwards it is repeated until the
//! driver gives a conclusive answer, or until [`Doubt::is_over`]; then what may exist is recorded as a
//! [suspect](crate::suspects), and the call is dropped. The count is in memory: a new process counts from zero.

use std::time::Duration;

use wharf_model::Monotonic;

/// The minimum number of calls before the repetition ends.
pub(crate) const MIN_CALLS: u32 = 5;
/// How long the call is repeated if the driver answers with errors that do not show the result of earlier calls.
pub(crate) const ANSWERED_PERIOD: Duration = Duration::from_secs(10 * 60);
/// How long the call is repeated if the driver does not answer, or answers that the operation is still running.
pub(crate) const RUNNING_PERIOD: Duration = Duration::from_secs(60 * 60);

/// The calls that were made although no object waits for their result, none of them conclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    calls: u32,
    since: Monotonic,
    /// Since when every call was answered, and no answer said that the operation is still running.
    answered_since: Option<Monotonic>,
}

impl Doubt {
    /// Counts another inconclusive call. `running`: it got no answer, or the operation is still running.
    pub(crate) fn after(before: Option<Self>, running: bool, now: Monotonic) -> Self {
        let before = before.unwrap_or(Self { calls: 0, since: now, answered_since: None });
        let answered_since = if running { None } else { before.answered_since.or(Some(now)) };
        Self { calls: before.calls.saturating_add(1), answered_since, ..before }
    }

    /// Whether the driver is asked no more.
    pub(crate) fn is_over(&self, now: Monotonic) -> bool {
        let lasted = |since: Monotonic, period| now.since(since) >= period;
        let answered = self.answered_since.is_some_and(|since| lasted(since, ANSWERED_PERIOD));
        self.calls >= MIN_CALLS && (answered || lasted(self.since, RUNNING_PERIOD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls at these minutes; `r`: still running, `v`: an error that says nothing.
    fn doubt(calls: &[(i64, char)]) -> Doubt {
        let at = |minute: i64| Monotonic(minute * 60_000);
        let after = |doubt, &(minute, kind)| Some(Doubt::after(doubt, kind == 'r', at(minute)));
        calls.iter().fold(None, after).unwrap()
    }

    #[test]
    fn doubt_ends_after_enough_calls_and_time() {
        let minutes =
            |from: i64, to: i64, kind| (from..=to).map(move |minute| (minute, kind)).collect::<Vec<_>>();
        let vague = |to| minutes(0, to, 'v');
        let running = |to| minutes(0, to, 'r');
        for (calls, minute, over) in [
            (vague(9), 9, false),
            (vague(10), 10, true),
            (running(10), 10, false),
            (running(59), 59, false),
            (running(60), 60, true),
            // The clock alone, or the number of calls alone, ends nothing.
            (minutes(0, 3, 'v'), 600, false),
            (vec![(0, 'v'); 100], 0, false),
            // Still running: the ten minutes start again.
            ([vague(8), minutes(9, 9, 'r'), minutes(10, 19, 'v')].concat(), 19, false),
            ([vague(8), minutes(9, 9, 'r'), minutes(10, 20, 'v')].concat(), 20, true),
            // Alternating answers end after the longer period.
            ((0..=60).map(|minute| (minute, if minute % 2 == 0 { 'r' } else { 'v' })).collect(), 60, true),
        ] {
            assert_eq!(doubt(&calls).is_over(Monotonic(minute * 60_000)), over, "{calls:?} at {minute}");
        }
    }
}
