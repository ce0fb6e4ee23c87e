//! Rate limits per token: requests per hour and per minute, in sliding windows.

use std::collections::VecDeque;

use crate::settings::FakeSettings;
use crate::time::Millis;

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;

/// The requests of one token in the last hour, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Window {
    times: VecDeque<Millis>,
}

/// Whether a request is allowed, and the rate limit headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) allowed: bool,
    /// `ratelimit-limit`.
    pub(crate) limit: u64,
    /// `ratelimit-remaining`.
    pub(crate) remaining: u64,
    /// `ratelimit-reset`: the Unix second at which the oldest counted request expires.
    pub(crate) reset: i64,
    /// `retry-after`, of the burst limit only.
    pub(crate) retry_after: Option<i64>,
}

impl Window {
    /// Counts a request, unless it is refused: refused requests do not extend the limit.
    pub(crate) fn take(&mut self, settings: &FakeSettings, now: Millis) -> RateLimit {
        while self.times.front().is_some_and(|at| *at <= now - HOUR) {
            self.times.pop_front();
        }
        let hourly = settings.requests_per_hour;
        let burst = settings.requests_per_minute;
        let recent = self.times.len() - self.times.partition_point(|at| *at <= now - MINUTE);
        let over_hour = hourly > 0 && self.times.len() as u64 >= hourly;
        let over_burst = burst > 0 && recent as u64 >= burst;
        let allowed = !over_hour && !over_burst;
        if allowed {
            self.times.push_back(now);
        }
        // The request whose expiry admits the next one: the oldest of the last `burst` requests.
        let makes_room = self.times.len().checked_sub(burst as usize).and_then(|i| self.times.get(i));
        let retry_after = (over_burst && !over_hour)
            .then(|| makes_room.map_or(60, |at| (at + MINUTE - now + 999).div_euclid(1000)));
        let oldest = self.times.front().copied().unwrap_or(now);
        RateLimit {
            allowed,
            limit: if hourly > 0 { hourly } else { u64::from(u32::MAX) },
            remaining: if hourly > 0 {
                hourly.saturating_sub(self.times.len() as u64)
            } else {
                u64::from(u32::MAX)
            },
            reset: (oldest + HOUR).div_euclid(1000),
            retry_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(requests_per_hour: u64, requests_per_minute: u64) -> FakeSettings {
        FakeSettings { requests_per_hour, requests_per_minute, ..FakeSettings::default() }
    }

    #[test]
    fn minute_and_hour_limits_are_enforced() {
        let settings = settings(5, 3);
        let mut window = Window::default();
        // (when, allowed, remaining, retry-after)
        let table = [
            (0, true, 4, None),
            (1_000, true, 3, None),
            (2_000, true, 2, None),
            (3_500, false, 2, Some(57)),
            (59_999, false, 2, Some(1)),
            (60_000, true, 1, None),
            (60_500, false, 1, Some(1)),
            (61_000, true, 0, None),
            // The hour is used up: no retry-after, only the reset.
            (200_000, false, 0, None),
            (3_599_999, false, 0, None),
            (3_600_000, true, 0, None),
        ];
        for (now, allowed, remaining, retry_after) in table {
            let rate_limit = window.take(&settings, now);
            assert_eq!(
                (rate_limit.allowed, rate_limit.remaining, rate_limit.retry_after),
                (allowed, remaining, retry_after),
                "at {now}"
            );
            assert_eq!(rate_limit.limit, 5);
        }
    }

    #[test]
    fn reset_is_the_expiry_of_the_oldest_request() {
        let settings = settings(5, 0);
        let mut window = Window::default();
        assert_eq!(window.take(&settings, 10_000).reset, 3_610);
        assert_eq!(window.take(&settings, 20_000).reset, 3_610);
        assert_eq!(window.take(&settings, 3_610_000).reset, 3_620);
    }

    #[test]
    fn zero_disables_the_limits() {
        let mut window = Window::default();
        assert!((0..1000).all(|_| window.take(&settings(0, 0), 0).allowed));
    }
}
