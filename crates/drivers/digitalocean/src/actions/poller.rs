//! The task that polls the API for all waiting operations. It runs only while an operation waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::PollingOptions;
use super::decide::Outcome;
use super::waiters::{Plan, Waiter, Waiters, outcome};
use crate::backoff::jitter;
use crate::client::{ApiError, Client};

/// Clones share one poller task.
#[derive(Debug, Clone)]
pub(super) struct Poller {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    region: String,
    state: Mutex<State>,
    added: Notify,
}

#[derive(Debug)]
struct State {
    waiters: Waiters,
    senders: HashMap<u64, oneshot::Sender<Outcome>>,
    running: bool,
    /// The error of the last round, if it failed.
    last_error: Option<ApiError>,
}

impl Poller {
    pub(super) fn new(client: Client, region: String, polling: PollingOptions) -> Self {
        let waiters = Waiters::new(polling, Instant::now());
        let state = State { waiters, senders: HashMap::new(), running: false, last_error: None };
        Self { shared: Arc::new(Shared { client, region, state: Mutex::new(state), added: Notify::new() }) }
    }

    /// Waits until the action has ended. At the deadline, returns the last polling error, if there was one.
    /// Cancellation-safe.
    pub(super) async fn wait(&self, waiter: Waiter, deadline: Instant) -> Result<Outcome, Option<ApiError>> {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.shared.state();
            let ticket = state.waiters.add(waiter, Instant::now(), jitter());
            state.senders.insert(ticket, sender);
            if !state.running {
                state.running = true;
                state.last_error = None;
                tokio::spawn(run(self.shared.clone()));
            }
            Ticket { shared: &self.shared, ticket }
        };
        self.shared.added.notify_one();
        let outcome = timeout_at(deadline, receiver).await;
        drop(ticket);
        match outcome {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) | Err(_) => Err(self.shared.state().last_error.clone()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the waiter on drop, also if the wait is cancelled.
struct Ticket<'a> {
    shared: &'a Shared,
    ticket: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.waiters.remove(self.ticket);
        state.senders.remove(&self.ticket);
    }
}

/// Ends the polling if the task panics: the waiters fail, and the next one starts a new task.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            state.running = false;
            state.senders.clear();
        }
    }
}

async fn run(shared: Arc<Shared>) {
    let _guard = PanicGuard(Arc::clone(&shared));
    loop {
        sleep_until_due(&shared).await;
        let (plan, urgent) = {
            let mut state = shared.state();
            let plan = state.waiters.plan();
            if plan == Plan::Idle {
                // Under the lock: the next waiter starts a new task.
                state.running = false;
                return;
            }
            (plan, state.waiters.urgent())
        };
        let client = if urgent { shared.client.urgent() } else { shared.client.clone() };
        let round = match plan {
            Plan::Idle => Ok(false),
            Plan::Actions(actions) => poll_actions(&shared, &client, actions).await,
            Plan::Listing => poll_listing(&shared, &client).await,
        };
        let mut state = shared.state();
        let news = *round.as_ref().unwrap_or(&false);
        state.last_error = round.err().inspect(|error| tracing::warn!(%error, "failed to poll actions"));
        state.waiters.schedule_next(Instant::now(), news, jitter());
    }
}

async fn sleep_until_due(shared: &Shared) {
    loop {
        let due = shared.state().waiters.due();
        tokio::select! {
            () = sleep_until(due) => return,
            () = shared.added.notified() => {}
        }
    }
}

async fn poll_listing(shared: &Shared, client: &Client) -> Result<bool, ApiError> {
    let requested = Instant::now();
    let volumes = client.volumes(&shared.region).await?;
    let (news, overdue) = {
        let mut state = shared.state();
        let outcomes = state.waiters.listed(volumes, requested);
        let news = !outcomes.is_empty();
        for (ticket, outcome) in outcomes {
            state.notify(ticket, outcome);
        }
        (news, state.waiters.overdue(Instant::now()))
    };
    Ok(poll_actions(shared, client, overdue).await? || news)
}

/// Polls each action. An HTTP error for one does not affect the others; without any response, polling stops, because
/// the rest would time out as well.
async fn poll_actions(
    shared: &Shared,
    client: &Client,
    actions: Vec<(u64, String, u64)>,
) -> Result<bool, ApiError> {
    let mut news = false;
    let mut last_error = None;
    for (ticket, volume, action) in actions {
        match client.action(&volume, action).await {
            Ok(action) => {
                if let Some(outcome) = outcome(action.as_ref()) {
                    shared.state().notify(ticket, outcome);
                    news = true;
                }
            }
            Err(error) if error.status().is_none() => return Err(error),
            Err(error) => last_error = Some(error),
        }
    }
    last_error.map_or(Ok(news), Err)
}

impl State {
    fn notify(&mut self, ticket: u64, outcome: Outcome) {
        self.waiters.remove(ticket);
        if let Some(sender) = self.senders.remove(&ticket) {
            // A dropped receiver means that the waiter was cancelled.
            let _ = sender.send(outcome);
        }
    }
}
