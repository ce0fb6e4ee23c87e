//! Attach, detach and resize, each until the API reports completion.
//!
//! Guarantees: operations on one droplet run one at a time, detach first. All waiting operations share one poller.
//! Success means that the API showed the volume in the requested state. An errored action is reported at once. An
//! operation whose result is unknown at the deadline is [`OperationError::Unfinished`]; a retry resumes it.

mod decide;
mod error;
mod goal;
mod poller;
mod queue;
mod waiters;

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api::Volume;
use crate::backoff;
use crate::client::{ApiError, Client};
use decide::{
    Failure, Next, after_find_running, after_get_droplet, after_get_volume, after_start, after_wait,
};
use goal::Goal;
use poller::Poller;
use queue::Queues;
use waiters::Waiter;

pub use error::OperationError;

/// Timeout of an operation and polling intervals.
#[derive(Debug, Clone, Copy)]
pub struct PollingOptions {
    /// Timeout of one operation, including the wait in the droplet's queue.
    pub timeout: Duration,
    /// The initial polling interval.
    pub initial_interval: Duration,
    /// The maximum polling interval.
    pub max_interval: Duration,
}

impl Default for PollingOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(120),
            initial_interval: Duration::from_secs(1),
            max_interval: Duration::from_secs(5),
        }
    }
}

/// Attaches, detaches and resizes volumes. Cheap to clone; clones share queues and poller.
#[derive(Debug, Clone)]
pub struct Attachments {
    client: Client,
    region: String,
    polling: PollingOptions,
    queues: Queues,
    poller: Poller,
}

impl Attachments {
    /// For the volumes of one region.
    pub fn new(client: Client, region: impl Into<String>, polling: PollingOptions) -> Self {
        let region = region.into();
        let poller = Poller::new(client.clone(), region.clone(), polling);
        Self { client, region, polling, queues: Queues::default(), poller }
    }

    /// Attaches a volume to a droplet and returns the updated volume. Succeeds if it is already attached there.
    pub async fn attach(&self, volume: &str, droplet: u64) -> Result<Volume, OperationError> {
        self.operate_on_existing(Goal::Attached(droplet), volume).await
    }

    /// Detaches a volume from a droplet. Succeeds if it is not attached there, or if volume or droplet do not exist.
    pub async fn detach(&self, volume: &str, droplet: u64) -> Result<(), OperationError> {
        self.operate(Goal::Detached(droplet), volume).await.map(|_| ())
    }

    /// Resizes a volume to `gib` GiB and returns the updated volume. Succeeds if it is already that large.
    pub async fn resize(&self, volume: &str, gib: u64) -> Result<Volume, OperationError> {
        self.operate_on_existing(Goal::Size(gib), volume).await
    }

    async fn operate_on_existing(&self, goal: Goal, volume: &str) -> Result<Volume, OperationError> {
        let gone = || OperationError::NoVolume(volume.to_owned());
        self.operate(goal, volume).await?.ok_or_else(gone)
    }

    async fn operate(&self, goal: Goal, volume: &str) -> Result<Option<Volume>, OperationError> {
        let client = if goal.urgent() { self.client.urgent() } else { self.client.clone() };
        let start = Instant::now();
        let deadline = start + self.polling.timeout;
        let mut run = Operation {
            attachments: self,
            client,
            goal,
            volume,
            start,
            deadline,
            started: false,
            obstacle: None,
        };
        // Held until the end: the API refuses a second event on the droplet.
        let _lock = match goal.droplet() {
            None => None,
            Some(droplet) => match timeout_at(deadline, self.queues.enter(droplet, goal.urgent())).await {
                Ok(lock) => Some(lock),
                Err(_) => return Err(run.timed_out("earlier operations on the droplet did not finish")),
            },
        };
        run.run_to_end().await
    }
}

/// One operation in progress.
struct Operation<'a> {
    attachments: &'a Attachments,
    client: Client,
    goal: Goal,
    volume: &'a str,
    start: Instant,
    deadline: Instant,
    /// Whether an action that this operation started is running, or may be running.
    started: bool,
    /// What delayed the operation last.
    obstacle: Option<String>,
}

impl Operation<'_> {
    async fn run_to_end(&mut self) -> Result<Option<Volume>, OperationError> {
        let (client, goal, volume) = (self.client.clone(), self.goal, self.volume);
        let mut searched = false;
        let mut ours = None;
        let mut pauses = 0;
        let mut next = Next::Start;
        loop {
            let ended = matches!(next, Next::Done(_) | Next::Fail(_));
            if !ended && Instant::now() >= self.deadline {
                return Err(self.timed_out(self.obstacle.as_deref().unwrap_or("the API was slow")));
            }
            next = match next {
                Next::Start => {
                    let response = client.start_action(volume, &goal.action(&self.attachments.region)).await;
                    self.started |= response.as_ref().map_or_else(ApiError::uncertain, |_| true);
                    ours = response.as_ref().ok().map(|action| action.id);
                    after_start(goal, response, searched)
                }
                Next::FindRunning(check) => {
                    searched = true;
                    let actions = client.actions(volume).await.map_err(|error| self.failed(error))?;
                    after_find_running(goal, actions.as_deref(), check)
                }
                Next::Await(action) => {
                    self.started = true;
                    let since = Instant::now();
                    let waiter = Waiter { volume: volume.to_owned(), goal, action, since };
                    match self.attachments.poller.wait(waiter, self.deadline).await {
                        Ok(outcome) => after_wait(goal, action, outcome, ours == Some(action)),
                        Err(Some(last_error)) => return Err(self.timed_out(&last_error.to_string())),
                        Err(None) => {
                            return Err(self.timed_out(&format!("action {action} is still in progress")));
                        }
                    }
                }
                Next::GetVolume(check) => {
                    let seen = client.volume(volume).await.map_err(|error| self.failed(error))?;
                    after_get_volume(goal, seen, check)
                }
                Next::GetDroplet(error) => match goal.droplet() {
                    Some(id) => {
                        let droplet = client.droplet(id).await.map_err(|error| self.failed(error))?;
                        after_get_droplet(goal, droplet.as_ref(), error)
                    }
                    None => Next::Fail(Failure::Api(error)),
                },
                Next::Pause(reason) => {
                    self.obstacle = Some(reason);
                    let PollingOptions { initial_interval, max_interval, .. } = self.attachments.polling;
                    // Each attempt costs a request that is not shared: longer than the poller's interval.
                    let pause =
                        backoff::exponential(initial_interval, max_interval * 2, pauses, backoff::jitter());
                    pauses += 1;
                    sleep_until((Instant::now() + pause).min(self.deadline)).await;
                    Next::Start
                }
                Next::Done(volume) => return Ok(volume),
                Next::Fail(failure) => return Err(self.failure(failure)),
            };
        }
    }

    fn timed_out(&self, message: &str) -> OperationError {
        let what = self.goal.describe(self.volume);
        let waited = self.start.elapsed();
        let message = message.to_owned();
        match self.started {
            true => OperationError::Unfinished { what, waited, message },
            false => OperationError::Busy { what, waited, message },
        }
    }

    /// A request failed along the way. An action that was started continues without us.
    fn failed(&self, error: ApiError) -> OperationError {
        let what = self.goal.describe(self.volume);
        match self.started {
            true => {
                OperationError::Unfinished { what, waited: self.start.elapsed(), message: error.to_string() }
            }
            false => OperationError::Api { what, error },
        }
    }

    fn failure(&self, failure: Failure) -> OperationError {
        let volume = self.volume.to_owned();
        let droplet = self.goal.droplet().unwrap_or_default();
        let what = self.goal.describe(self.volume);
        match failure {
            Failure::NoVolume => OperationError::NoVolume(volume),
            Failure::NoDroplet => OperationError::NoDroplet(droplet),
            Failure::AttachedElsewhere(droplet) => OperationError::AttachedElsewhere { volume, droplet },
            Failure::TooManyVolumes { attached, message } => {
                OperationError::TooManyVolumes { droplet, attached, message }
            }
            Failure::Errored(action) => OperationError::Errored { what, action },
            Failure::Api(error) => OperationError::Api { what, error },
        }
    }
}
