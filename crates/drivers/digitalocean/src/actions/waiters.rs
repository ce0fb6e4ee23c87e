//! Which operations wait for which actions, and how to poll the API for all of them. Pure.
//!
//! A few actions are polled individually. For many, one listing of the region's volumes shows where each volume is
//! attached and how large it is. A listing does not show failed actions, so an action that takes longer than usual
//! is also polled individually from time to time.
//!
//! The number of requests per round does not grow with the number of waiters.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::PollingOptions;
use super::decide::Outcome;
use super::goal::Goal;
use crate::api::{Action, ActionStatus, Volume};
use crate::client::PER_PAGE;

/// Up to this many actions are polled individually, even if a listing needed fewer requests.
const MAX_SINGLE_POLLS: usize = 3;
/// Maximum number of overdue actions polled in one round.
const OVERDUE_AT_ONCE: usize = 4;
/// An action is overdue after this many initial intervals: 12 seconds, where 11 are usual.
const OVERDUE: u32 = 12;

/// One waiting operation.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) volume: String,
    pub(super) goal: Goal,
    pub(super) action: u64,
    pub(super) since: Instant,
}

/// The requests of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// No operation waits.
    Idle,
    /// These actions: ticket, volume, action.
    Actions(Vec<(u64, String, u64)>),
    /// List all volumes, then poll [`Waiters::overdue`].
    Listing,
}

#[derive(Debug)]
struct Entry {
    waiter: Waiter,
    /// How often its action was polled individually because it was overdue.
    polls: u32,
}

/// All waiting operations.
#[derive(Debug)]
pub(super) struct Waiters {
    polling: PollingOptions,
    entries: BTreeMap<u64, Entry>,
    next_ticket: u64,
    /// Number of requests of the last listing.
    pages: usize,
    /// Rounds since a waiter was added or finished.
    idle_rounds: i32,
    /// Time of the next round.
    due: Instant,
}

impl Waiters {
    pub(super) fn new(polling: PollingOptions, now: Instant) -> Self {
        Self { polling, entries: BTreeMap::new(), next_ticket: 0, pages: 1, idle_rounds: 0, due: now }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn urgent(&self) -> bool {
        self.entries.values().any(|entry| entry.waiter.goal.urgent())
    }

    /// Adds a waiter and returns its ticket.
    pub(super) fn add(&mut self, waiter: Waiter, now: Instant, jitter: f64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let alone = self.entries.is_empty();
        self.entries.insert(ticket, Entry { waiter, polls: 0 });
        self.idle_rounds = 0;
        let soon = now + self.pause(jitter);
        self.due = if alone { soon } else { self.due.min(soon) };
        ticket
    }

    /// Removes a waiter.
    pub(super) fn remove(&mut self, ticket: u64) {
        self.entries.remove(&ticket);
    }

    /// The requests to send now.
    pub(super) fn plan(&self) -> Plan {
        if self.entries.is_empty() {
            return Plan::Idle;
        }
        if self.entries.len() > self.single_poll_limit() {
            return Plan::Listing;
        }
        Plan::Actions(self.entries.iter().map(action_query).collect())
    }

    /// The waiters whose goal is reached according to a listing. A volume missing from the listing proves nothing,
    /// because pages shift while they are read. A listing `requested` before the waiter was added proves nothing
    /// either, because it may show the volume as it was before the action.
    pub(super) fn listed(&mut self, volumes: Vec<Volume>, requested: Instant) -> Vec<(u64, Outcome)> {
        self.pages = volumes.len().div_ceil(PER_PAGE).max(1);
        let volumes: HashMap<&str, &Volume> =
            volumes.iter().map(|volume| (volume.id.as_str(), volume)).collect();
        let reached = |(ticket, entry): (&u64, &Entry)| {
            if entry.waiter.since >= requested {
                return None;
            }
            let volume = *volumes.get(entry.waiter.volume.as_str())?;
            entry.waiter.goal.reached(volume).then(|| (*ticket, Outcome::Reached(volume.clone())))
        };
        self.entries.iter().filter_map(reached).collect()
    }

    /// Overdue actions to poll individually, with growing intervals: the listing would show them if they had
    /// succeeded.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(u64, String, u64)> {
        let long = self.polling.initial_interval * OVERDUE;
        let is_due = |entry: &Entry| {
            let times = 2_u32.checked_pow(entry.polls).unwrap_or(u32::MAX);
            entry.waiter.since + long.saturating_mul(times) <= now
        };
        let mut due: Vec<_> = self.entries.iter_mut().filter(|(_, entry)| is_due(entry)).collect();
        due.sort_by_key(|(ticket, entry)| (entry.polls, **ticket));
        due.truncate(OVERDUE_AT_ONCE);
        due.into_iter()
            .map(|(ticket, entry)| {
                entry.polls += 1;
                action_query((ticket, entry))
            })
            .collect()
    }

    /// Schedules the next round. `news` means that a waiter finished in this round.
    pub(super) fn schedule_next(&mut self, now: Instant, news: bool, jitter: f64) {
        self.idle_rounds = if news { 0 } else { self.idle_rounds.saturating_add(1) };
        self.due = now + self.pause(jitter);
    }

    fn single_poll_limit(&self) -> usize {
        self.pages.max(MAX_SINGLE_POLLS)
    }

    /// The interval grows by half each round, from the initial to the maximum one. With many waiters it is at least
    /// twice the initial one, because they are added and finish all the time. Jitter shortens it by up to a tenth, so
    /// that drivers of one account do not poll in step.
    fn pause(&self, jitter: f64) -> Duration {
        let PollingOptions { initial_interval, max_interval, .. } = self.polling;
        let least = if self.entries.len() > self.single_poll_limit() {
            initial_interval * 2
        } else {
            initial_interval
        };
        let grown = least.mul_f64(1.5_f64.powi(self.idle_rounds.clamp(0, 20))).min(max_interval);
        grown.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0))
    }
}

/// The outcome that an action's status implies, if it has ended.
pub(super) fn outcome(action: Option<&Action>) -> Option<Outcome> {
    match action.map(|action| action.status) {
        Some(ActionStatus::Completed) => Some(Outcome::Completed),
        Some(ActionStatus::Errored) => Some(Outcome::Errored),
        Some(ActionStatus::InProgress | ActionStatus::Unknown) => None,
        None => Some(Outcome::Vanished),
    }
}

fn action_query((ticket, Entry { waiter, .. }): (&u64, &Entry)) -> (u64, String, u64) {
    (*ticket, waiter.volume.clone(), waiter.action)
}

#[cfg(test)]
mod tests;
