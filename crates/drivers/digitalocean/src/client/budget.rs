//! The client's rate limiter. Pure.
//!
//! The API has two limits: requests per hour, where every response reports the remaining number, and requests per
//! minute, which it reports only by refusing. The limiter tracks both. The last tenth of each is reserved for detaches:
//! a volume that cannot be attached waits, but one that cannot be detached blocks the whole move to another node.
//!
//! No request is admitted that would be refused according to the numbers known so far.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The priority of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Does not use the reserve.
    Normal,
    /// Can use the whole limit.
    Urgent,
}

/// The limits reported by a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests per hour.
    pub limit: Option<u64>,
    /// Remaining requests in this hour.
    pub remaining: Option<u64>,
    /// When the oldest counted request expires.
    pub reset: Option<Duration>,
    /// When to retry, if the request was refused.
    pub retry_after: Option<Duration>,
    /// Whether the request was refused.
    pub refused: bool,
}

/// Whether a request is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Send it now; it is counted.
    Now,
    /// Try again at this time.
    WaitUntil(Instant),
}

const MINUTE: Duration = Duration::from_secs(60);
/// Delay after a refusal that does not say for how long.
const DEFAULT_BACKOFF: Duration = Duration::from_secs(5);

/// The rate limiter's state.
#[derive(Debug)]
pub struct Budget {
    per_minute: u32,
    /// Send times of the requests of the last minute.
    recent: VecDeque<Instant>,
    in_flight: u64,
    hour: Option<HourlyLimit>,
    /// The API refused; no requests until then.
    blocked_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct HourlyLimit {
    limit: u64,
    remaining: u64,
    reset: Instant,
}

impl Budget {
    /// Only the limit per minute is known.
    pub fn new(per_minute: u32) -> Self {
        Self { per_minute, recent: VecDeque::new(), in_flight: 0, hour: None, blocked_until: None }
    }

    /// Admits a request now, or says when to try again.
    pub fn try_acquire(&mut self, now: Instant, priority: Priority) -> Admission {
        if let Some(blocked_until) = self.blocked_until.filter(|blocked_until| *blocked_until > now) {
            return Admission::WaitUntil(blocked_until);
        }
        while self.recent.front().is_some_and(|sent| *sent + MINUTE <= now) {
            self.recent.pop_front();
        }
        let allowed = u64::from(self.per_minute) - reserve(self.per_minute.into(), priority);
        let sent = self.recent.len() as u64;
        if sent >= allowed {
            // Wait until the excess requests have expired, oldest first.
            let position = usize::try_from(sent - allowed).unwrap_or(usize::MAX);
            return Admission::WaitUntil(
                self.recent.get(position).map_or(now + DEFAULT_BACKOFF, |sent| *sent + MINUTE),
            );
        }
        if let Some(hour) = &mut self.hour {
            if hour.reset <= now {
                // At least one more is allowed. Its response reports the new number; until then, one per second.
                hour.remaining = (hour.remaining + 1).max(reserve(hour.limit, priority) + 1);
                hour.reset = now + Duration::from_secs(1);
            }
            if hour.remaining <= reserve(hour.limit, priority) {
                return Admission::WaitUntil(hour.reset);
            }
            hour.remaining -= 1;
        }
        self.recent.push_back(now);
        self.in_flight += 1;
        Admission::Now
    }

    /// An admitted request has completed, with or without a response (then without reported limits).
    pub fn complete(&mut self, now: Instant, limits: Limits) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if limits.refused {
            let wait = limits.retry_after.or(limits.reset.filter(|_| limits.remaining == Some(0)));
            let until = now + wait.unwrap_or(DEFAULT_BACKOFF).max(Duration::from_secs(1));
            self.blocked_until =
                Some(self.blocked_until.map_or(until, |blocked_until| blocked_until.max(until)));
        }
        let (Some(limit), Some(remaining), Some(reset)) = (limits.limit, limits.remaining, limits.reset)
        else {
            return;
        };
        // It is unknown whether requests in flight are already counted: assume that they are not.
        let remaining = remaining.saturating_sub(self.in_flight);
        self.hour = Some(HourlyLimit { limit, remaining, reset: now + reset });
    }
}

/// The part of a limit that this priority must not use.
fn reserve(limit: u64, priority: Priority) -> u64 {
    match priority {
        Priority::Normal => (limit / 10).max(u64::from(limit > 1)),
        Priority::Urgent => 0,
    }
}

#[cfg(test)]
mod tests;
