//! How many requests may still be sent, and who may send them.
//!
//! The API counts twice: so many requests in an hour, of which every answer says how many are left, and so many
//! in a minute, of which it says nothing until it refuses. Both are kept here. The last tenth of each is for
//! those who detach: a volume that cannot be attached waits, one that cannot be detached holds up a whole move.
//!
//! Promise: pure; no request is let go that the numbers known so far say would be refused.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Leaves the reserve alone.
    Normal,
    /// May use all there is.
    Urgent,
}

/// What an answer says of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests in an hour.
    pub limit: Option<u64>,
    /// How many of them are left.
    pub remaining: Option<u64>,
    /// When the oldest request that counts is forgotten.
    pub reset: Option<Duration>,
    /// When to ask again, if we were refused.
    pub retry_after: Option<Duration>,
    /// Whether we were refused.
    pub refused: bool,
}

/// Whether a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Now; it is counted.
    Go,
    /// Not before then. Whether then is to be asked again.
    Wait(Instant),
}

const MINUTE: Duration = Duration::from_secs(60);
/// If we are refused and not told for how long.
const UNTOLD: Duration = Duration::from_secs(5);

/// The numbers known so far.
#[derive(Debug)]
pub struct Budget {
    a_minute: u32,
    /// When the requests of the last minute were sent.
    recent: VecDeque<Instant>,
    under_way: u64,
    hour: Option<Hour>,
    /// Refused until then.
    closed: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Hour {
    limit: u64,
    remaining: u64,
    reset: Instant,
}

impl Budget {
    /// Nothing is known but the minute's limit.
    pub fn new(a_minute: u32) -> Self {
        Self { a_minute, recent: VecDeque::new(), under_way: 0, hour: None, closed: None }
    }

    /// May a request go now?
    pub fn ask(&mut self, now: Instant, priority: Priority) -> Turn {
        if let Some(closed) = self.closed.filter(|closed| *closed > now) {
            return Turn::Wait(closed);
        }
        while self.recent.front().is_some_and(|sent| *sent + MINUTE <= now) {
            self.recent.pop_front();
        }
        let allowed = u64::from(self.a_minute) - kept(self.a_minute.into(), priority);
        let sent = self.recent.len() as u64;
        if sent >= allowed {
            // As many of the oldest must be forgotten as there are too many.
            let position = usize::try_from(sent - allowed).unwrap_or(usize::MAX);
            return Turn::Wait(self.recent.get(position).map_or(now + UNTOLD, |sent| *sent + MINUTE));
        }
        if let Some(hour) = &mut self.hour {
            if hour.reset <= now {
                // One more than before, that is all we know. Its answer tells the rest; until then, one a second.
                hour.remaining = (hour.remaining + 1).max(kept(hour.limit, priority) + 1);
                hour.reset = now + Duration::from_secs(1);
            }
            if hour.remaining <= kept(hour.limit, priority) {
                return Turn::Wait(hour.reset);
            }
            hour.remaining -= 1;
        }
        self.recent.push_back(now);
        self.under_way += 1;
        Turn::Go
    }

    /// A request that was let go has been answered, or never will be (no limits told).
    pub fn answered(&mut self, now: Instant, limits: Limits) {
        self.under_way = self.under_way.saturating_sub(1);
        if limits.refused {
            let told = limits.retry_after.or(limits.reset.filter(|_| limits.remaining == Some(0)));
            let until = now + told.unwrap_or(UNTOLD).max(Duration::from_secs(1));
            self.closed = Some(self.closed.map_or(until, |closed| closed.max(until)));
        }
        let (Some(limit), Some(remaining), Some(reset)) = (limits.limit, limits.remaining, limits.reset)
        else {
            return;
        };
        // Those under way are not in the number yet, or are already: taken as if they were not.
        let remaining = remaining.saturating_sub(self.under_way);
        self.hour = Some(Hour { limit, remaining, reset: now + reset });
    }
}

/// How many of a limit this asker must leave.
fn kept(limit: u64, priority: Priority) -> u64 {
    match priority {
        Priority::Normal => (limit / 10).max(u64::from(limit > 1)),
        Priority::Urgent => 0,
    }
}

#[cfg(test)]
mod tests;
