//! Who waits for which action, and what to ask the API about all of them.
//!
//! Few actions are asked one by one. Many are read off one listing of the region's volumes, which shows where
//! each is attached and how large it is; what it cannot show is that an action failed, so whoever has waited
//! longer than an action takes is asked for by itself now and then.
//!
//! Promise: pure; the requests of one round do not grow with the number of those who wait.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::Pace;
use super::decide::Outcome;
use super::goal::Goal;
use crate::api::{Action, ActionStatus, Volume};
use crate::client::PER_PAGE;

/// So many actions are asked one by one, even if a listing were less.
const FEW: usize = 3;
/// So many of those that take long are asked in one round.
const OVERDUE_AT_ONCE: usize = 4;
/// An action takes long if it takes so many first pauses: 12 seconds, where 11 are usual.
const OVERDUE: u32 = 12;

/// One who waits.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) volume: String,
    pub(super) goal: Goal,
    pub(super) action: u64,
    pub(super) since: Instant,
}

/// What to ask in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nobody waits.
    Rest,
    /// These actions: ticket, volume, action.
    Actions(Vec<(u64, String, u64)>),
    /// All volumes, and afterwards [`Waiting::overdue`].
    Listing,
}

#[derive(Debug)]
struct Entry {
    waiter: Waiter,
    /// How often its action was asked for by itself, being overdue.
    asked: u32,
}

/// All who wait.
#[derive(Debug)]
pub(super) struct Waiting {
    pace: Pace,
    entries: BTreeMap<u64, Entry>,
    next_ticket: u64,
    /// How many requests a listing took when it was last made.
    pages: usize,
    /// Rounds since somebody came or went.
    quiet: i32,
    /// When the next round is.
    due: Instant,
}

impl Waiting {
    pub(super) fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, entries: BTreeMap::new(), next_ticket: 0, pages: 1, quiet: 0, due: now }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn urgent(&self) -> bool {
        self.entries.values().any(|entry| entry.waiter.goal.urgent())
    }

    /// One more; the answer is its ticket.
    pub(super) fn enter(&mut self, waiter: Waiter, now: Instant, jitter: f64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let alone = self.entries.is_empty();
        self.entries.insert(ticket, Entry { waiter, asked: 0 });
        self.quiet = 0;
        let soon = now + self.pause(jitter);
        self.due = if alone { soon } else { self.due.min(soon) };
        ticket
    }

    /// One less, whatever the reason.
    pub(super) fn leave(&mut self, ticket: u64) {
        self.entries.remove(&ticket);
    }

    /// What to ask now.
    pub(super) fn plan(&self) -> Plan {
        if self.entries.is_empty() {
            return Plan::Rest;
        }
        if self.entries.len() > self.few() {
            return Plan::Listing;
        }
        Plan::Actions(self.entries.iter().map(ask).collect())
    }

    /// What a listing shows: those whose volume is as it is to be. A volume that is not in it proves nothing,
    /// since pages shift while they are read; nor does one that was `asked` for before somebody waited, since it
    /// may show the volume as it was before the action.
    pub(super) fn listed(&mut self, volumes: Vec<Volume>, asked: Instant) -> Vec<(u64, Outcome)> {
        self.pages = volumes.len().div_ceil(PER_PAGE).max(1);
        let volumes: HashMap<&str, &Volume> =
            volumes.iter().map(|volume| (volume.id.as_str(), volume)).collect();
        let reached = |(ticket, entry): (&u64, &Entry)| {
            if entry.waiter.since >= asked {
                return None;
            }
            let volume = *volumes.get(entry.waiter.volume.as_str())?;
            entry.waiter.goal.reached(volume).then(|| (*ticket, Outcome::Reached(volume.clone())))
        };
        self.entries.iter().filter_map(reached).collect()
    }

    /// Those who have waited longer than an action takes and are to be asked for by themselves, ever more
    /// seldom: the listing would show them if they ended well.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(u64, String, u64)> {
        let long = self.pace.first * OVERDUE;
        let is_due = |entry: &Entry| {
            let times = 2_u32.checked_pow(entry.asked).unwrap_or(u32::MAX);
            entry.waiter.since + long.saturating_mul(times) <= now
        };
        let mut due: Vec<_> = self.entries.iter_mut().filter(|(_, entry)| is_due(entry)).collect();
        due.sort_by_key(|(ticket, entry)| (entry.asked, **ticket));
        due.truncate(OVERDUE_AT_ONCE);
        due.into_iter()
            .map(|(ticket, entry)| {
                entry.asked += 1;
                ask((ticket, entry))
            })
            .collect()
    }

    /// After a round: when is the next? `news` says that somebody's waiting ended.
    pub(super) fn rest(&mut self, now: Instant, news: bool, jitter: f64) {
        self.quiet = if news { 0 } else { self.quiet.saturating_add(1) };
        self.due = now + self.pause(jitter);
    }

    fn few(&self) -> usize {
        self.pages.max(FEW)
    }

    /// From the first pause to the longest, by half each time; twice the first at least where many wait, who
    /// come and go at all times. Shortened by up to a tenth, so that drivers of one account do not keep step.
    fn pause(&self, jitter: f64) -> Duration {
        let Pace { first, longest, .. } = self.pace;
        let least = if self.entries.len() > self.few() { first * 2 } else { first };
        let grown = least.mul_f64(1.5_f64.powi(self.quiet.clamp(0, 20))).min(longest);
        grown.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0))
    }
}

/// What an action says.
pub(super) fn outcome(action: Option<&Action>) -> Option<Outcome> {
    match action.map(|action| action.status) {
        Some(ActionStatus::Completed) => Some(Outcome::Completed),
        Some(ActionStatus::Errored) => Some(Outcome::Errored),
        Some(ActionStatus::InProgress | ActionStatus::Unknown) => None,
        None => Some(Outcome::Vanished),
    }
}

fn ask((ticket, Entry { waiter, .. }): (&u64, &Entry)) -> (u64, String, u64) {
    (*ticket, waiter.volume.clone(), waiter.action)
}

#[cfg(test)]
mod tests;
