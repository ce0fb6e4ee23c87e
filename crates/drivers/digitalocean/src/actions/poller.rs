//! The one task that asks the API on behalf of all who wait; there is none while nobody does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Pace;
use super::decide::Outcome;
use super::waiting::{Plan, Waiter, Waiting, outcome};
use crate::chance::jitter;
use crate::client::{ApiError, Client};

/// Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Poller {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    region: String,
    state: Mutex<State>,
    came: Notify,
}

#[derive(Debug)]
struct State {
    waiting: Waiting,
    told: HashMap<u64, oneshot::Sender<Outcome>>,
    running: bool,
    /// Why the last round did not learn anything.
    trouble: Option<ApiError>,
}

impl Poller {
    pub(super) fn new(client: Client, region: String, pace: Pace) -> Self {
        let waiting = Waiting::new(pace, Instant::now());
        let state = State { waiting, told: HashMap::new(), running: false, trouble: None };
        Self { shared: Arc::new(Shared { client, region, state: Mutex::new(state), came: Notify::new() }) }
    }

    /// Waits until the action has ended; at the deadline the error is what was in the way, if anything was. May be
    /// dropped at any time.
    pub(super) async fn wait(&self, waiter: Waiter, deadline: Instant) -> Result<Outcome, Option<ApiError>> {
        let (tell, told) = oneshot::channel();
        let ticket = {
            let mut state = self.shared.state();
            let ticket = state.waiting.enter(waiter, Instant::now(), jitter());
            state.told.insert(ticket, tell);
            if !state.running {
                state.running = true;
                state.trouble = None;
                tokio::spawn(run(self.shared.clone()));
            }
            Ticket { shared: &self.shared, ticket }
        };
        self.shared.came.notify_one();
        let outcome = timeout_at(deadline, told).await;
        drop(ticket);
        match outcome {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) | Err(_) => Err(self.shared.state().trouble.clone()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the waiter out again, also if it is dropped while it waits.
struct Ticket<'a> {
    shared: &'a Shared,
    ticket: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.waiting.leave(self.ticket);
        state.told.remove(&self.ticket);
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        sleep_until_due(&shared).await;
        let (plan, urgent) = {
            let mut state = shared.state();
            let plan = state.waiting.plan();
            if plan == Plan::Rest {
                // Under the lock: whoever comes next starts another.
                state.running = false;
                return;
            }
            (plan, state.waiting.urgent())
        };
        let client = if urgent { shared.client.urgent() } else { shared.client.clone() };
        let round = match plan {
            Plan::Rest => Ok(false),
            Plan::Actions(actions) => ask(&shared, &client, actions).await,
            Plan::Listing => list(&shared, &client).await,
        };
        let mut state = shared.state();
        let news = *round.as_ref().unwrap_or(&false);
        state.trouble = round.err().inspect(|error| tracing::warn!(%error, "cannot see how far actions are"));
        state.waiting.rest(Instant::now(), news, jitter());
    }
}

async fn sleep_until_due(shared: &Shared) {
    loop {
        let due = shared.state().waiting.due();
        tokio::select! {
            () = sleep_until(due) => return,
            () = shared.came.notified() => {}
        }
    }
}

async fn list(shared: &Shared, client: &Client) -> Result<bool, ApiError> {
    let asked = Instant::now();
    let volumes = client.volumes(&shared.region).await?;
    let (news, overdue) = {
        let mut state = shared.state();
        let outcomes = state.waiting.listed(volumes, asked);
        let news = !outcomes.is_empty();
        for (ticket, outcome) in outcomes {
            state.tell(ticket, outcome);
        }
        (news, state.waiting.overdue(Instant::now()))
    };
    Ok(ask(shared, client, overdue).await? || news)
}

/// Asks for each. One that is answered with an error is in nobody's way, but without any answer the rest would only
/// take as long.
async fn ask(shared: &Shared, client: &Client, actions: Vec<(u64, String, u64)>) -> Result<bool, ApiError> {
    let mut news = false;
    let mut trouble = None;
    for (ticket, volume, action) in actions {
        match client.action(&volume, action).await {
            Ok(action) => {
                if let Some(outcome) = outcome(action.as_ref()) {
                    shared.state().tell(ticket, outcome);
                    news = true;
                }
            }
            Err(error) if error.status().is_none() => return Err(error),
            Err(error) => trouble = Some(error),
        }
    }
    trouble.map_or(Ok(news), Err)
}

impl State {
    fn tell(&mut self, ticket: u64, outcome: Outcome) {
        self.waiting.leave(ticket);
        if let Some(told) = self.told.remove(&ticket) {
            // Who does not listen any more has left.
            let _ = told.send(outcome);
        }
    }
}
