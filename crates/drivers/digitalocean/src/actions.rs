//! Attach, detach and resize, each until the API says that it is done.
//!
//! Promise: what is asked of one droplet goes one after the other, detach first; all who wait share one poller;
//! success means that the API showed the volume so, an error of an action is an error at once, and what is not
//! known at the deadline is [`OperationError::Unfinished`], which a repetition takes up again.

mod decide;
mod error;
mod goal;
mod poller;
mod queue;
mod waiting;

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api::Volume;
use crate::chance;
use crate::client::{ApiError, Client};
use decide::{Failure, Next, after_droplet, after_find, after_look, after_start, after_wait};
use goal::Goal;
use poller::Poller;
use queue::Queues;
use waiting::Waiter;

pub use error::OperationError;

/// How much time there is, and how often the API is asked.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// For one operation, with waiting for its turn.
    pub patience: Duration,
    /// The first pause between two looks.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(120),
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5),
        }
    }
}

/// What is attached where; cheap to clone, clones share queues and poller.
#[derive(Debug, Clone)]
pub struct Attachments {
    client: Client,
    region: String,
    pace: Pace,
    queues: Queues,
    poller: Poller,
}

impl Attachments {
    /// For the volumes of one region.
    pub fn new(client: Client, region: impl Into<String>, pace: Pace) -> Self {
        let region = region.into();
        let poller = Poller::new(client.clone(), region.clone(), pace);
        Self { client, region, pace, queues: Queues::default(), poller }
    }

    /// Attaches a volume to a droplet, and answers the volume as it is then. Attached there already is success.
    pub async fn attach(&self, volume: &str, droplet: u64) -> Result<Volume, OperationError> {
        self.shown(Goal::Attached(droplet), volume).await
    }

    /// Detaches a volume from a droplet. Not attached there, or either of them gone, is success.
    pub async fn detach(&self, volume: &str, droplet: u64) -> Result<(), OperationError> {
        self.operate(Goal::Detached(droplet), volume).await.map(|_| ())
    }

    /// Grows a volume to so many GiB, and answers the volume as it is then. As large already is success.
    pub async fn resize(&self, volume: &str, gib: u64) -> Result<Volume, OperationError> {
        self.shown(Goal::Size(gib), volume).await
    }

    async fn shown(&self, goal: Goal, volume: &str) -> Result<Volume, OperationError> {
        let gone = || OperationError::NoVolume(volume.to_owned());
        self.operate(goal, volume).await?.ok_or_else(gone)
    }

    async fn operate(&self, goal: Goal, volume: &str) -> Result<Option<Volume>, OperationError> {
        let client = if goal.urgent() { self.client.urgent() } else { self.client.clone() };
        let began = Instant::now();
        let deadline = began + self.pace.patience;
        let mut run = Run { of: self, client, goal, volume, began, deadline, begun: false, seen: None };
        // Held until the end: the next one would only be refused.
        let _place = match goal.droplet() {
            None => None,
            Some(droplet) => match timeout_at(deadline, self.queues.enter(droplet, goal.urgent())).await {
                Ok(place) => Some(place),
                Err(_) => return Err(run.late("the droplet's queue did not get so far")),
            },
        };
        run.carry_out().await
    }
}

/// One operation under way.
struct Run<'a> {
    of: &'a Attachments,
    client: Client,
    goal: Goal,
    volume: &'a str,
    began: Instant,
    deadline: Instant,
    /// Whether an action of ours runs, or may run.
    begun: bool,
    /// What was last in the way.
    seen: Option<String>,
}

impl Run<'_> {
    async fn carry_out(&mut self) -> Result<Option<Volume>, OperationError> {
        let (client, goal, volume) = (self.client.clone(), self.goal, self.volume);
        let mut searched = false;
        let mut ours = None;
        let mut pauses = 0;
        let mut next = Next::Start;
        loop {
            let ended = matches!(next, Next::Done(_) | Next::Fail(_));
            if !ended && Instant::now() >= self.deadline {
                return Err(self.late(self.seen.as_deref().unwrap_or("the API was slow")));
            }
            next = match next {
                Next::Start => {
                    let answer = client.start_action(volume, &goal.action(&self.of.region)).await;
                    self.begun |= answer.as_ref().map_or_else(ApiError::uncertain, |_| true);
                    ours = answer.as_ref().ok().map(|action| action.id);
                    after_start(goal, answer, searched)
                }
                Next::Find(doubt) => {
                    searched = true;
                    let actions = client.actions(volume).await.map_err(|error| self.failed(error))?;
                    after_find(goal, actions.as_deref(), doubt)
                }
                Next::Await(action) => {
                    self.begun = true;
                    let since = Instant::now();
                    let waiter = Waiter { volume: volume.to_owned(), goal, action, since };
                    match self.of.poller.wait(waiter, self.deadline).await {
                        Ok(outcome) => after_wait(goal, action, outcome, ours == Some(action)),
                        Err(Some(trouble)) => return Err(self.late(&trouble.to_string())),
                        Err(None) => return Err(self.late(&format!("action {action} is still in progress"))),
                    }
                }
                Next::Look(doubt) => {
                    let seen = client.volume(volume).await.map_err(|error| self.failed(error))?;
                    after_look(goal, seen, doubt)
                }
                Next::LookAtDroplet(error) => match goal.droplet() {
                    Some(id) => {
                        let droplet = client.droplet(id).await.map_err(|error| self.failed(error))?;
                        after_droplet(goal, droplet.as_ref(), error)
                    }
                    None => Next::Fail(Failure::Api(error)),
                },
                Next::Pause(why) => {
                    self.seen = Some(why);
                    let Pace { first, longest, .. } = self.of.pace;
                    // Each costs a request, and nobody shares it: longer than the poller's.
                    let pause = chance::exponential(first, longest * 2, pauses, chance::jitter());
                    pauses += 1;
                    sleep_until((Instant::now() + pause).min(self.deadline)).await;
                    Next::Start
                }
                Next::Done(volume) => return Ok(volume),
                Next::Fail(failure) => return Err(self.failure(failure)),
            };
        }
    }

    fn late(&self, message: &str) -> OperationError {
        let what = self.goal.of(self.volume);
        let waited = self.began.elapsed();
        let message = message.to_owned();
        match self.begun {
            true => OperationError::Unfinished { what, waited, message },
            false => OperationError::Busy { what, waited, message },
        }
    }

    /// A question on the way was not answered. What was begun goes on without us.
    fn failed(&self, error: ApiError) -> OperationError {
        let what = self.goal.of(self.volume);
        match self.begun {
            true => {
                OperationError::Unfinished { what, waited: self.began.elapsed(), message: error.to_string() }
            }
            false => OperationError::Api { what, error },
        }
    }

    fn failure(&self, failure: Failure) -> OperationError {
        let volume = self.volume.to_owned();
        let droplet = self.goal.droplet().unwrap_or_default();
        let what = self.goal.of(self.volume);
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
