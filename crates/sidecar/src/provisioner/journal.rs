//! The intent journal: what the provisioner is about to do, written down before the driver is asked, so that a
//! crash leaves no volume that nobody knows of.
//!
//! Intents are kept in Lease objects of the sidecar's own namespace, since that is the one kind which upstream's
//! rules for a provisioner let it create and delete there. Promises:
//!
//! - When [`Journal::write`] returns, the intent outlives us; it does until [`Journal::finish`], and perhaps a
//!   little longer: who finds one looks whether it is done already.
//! - Many intents cost one request; finished ones are deleted off the critical path.
//! - Where we may not keep a journal, intents live in memory, which is what upstream does, and we say so once. So
//!   does one that is larger than Kubernetes lets it be.
//! - After a lost lease the journal is read again before anything is written.
//!
//! The rules are in [`book`] and [`removals`], the form of a segment in [`segment`], requests in [`act`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::ApiError;

use self::act::Place;
use self::book::{Answers, Book, Job, Loaded, Ticket, Written};
use self::removals::Removed;
use self::segment::Owner;
use super::intent::Intent;
use crate::context::Context;
use wharf_cluster::work::Gate;

mod act;
mod book;
mod removals;
mod segment;

/// How long an end waits for finished intents to be deleted.
const FLUSH: Duration = Duration::from_secs(2);

/// Why an intent is not written. Nothing may be done for it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum JournalError {
    /// Another one is open for the volume: look at it first.
    #[error("another intent for volume {volume} is open already")]
    Exists { volume: String },
    /// Another replica may be writing the journal.
    #[error("the intent journal is not ours now: the lease was lost, or the sidecar ends")]
    Shut,
    /// The server did not take it.
    #[error("the intent was not written: {0}")]
    Api(ApiError),
    /// It has no form in JSON.
    #[error("the intent for volume {volume} cannot be written as JSON: {reason}")]
    NotJson { volume: String, reason: String },
}

/// The journal; clones are the same one.
#[derive(Clone)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

struct Shared {
    state: Mutex<State>,
    metrics: Counts,
    /// There is something for the writer to do.
    wake: Notify,
    /// Something has ended that others may wait for.
    news: Notify,
}

struct State {
    book: Book,
    waiting: HashMap<Ticket, oneshot::Sender<Result<(), JournalError>>>,
    last: Ticket,
    /// What was said last of whether the journal can be kept.
    told: Option<bool>,
}

impl Journal {
    /// Waits until we may act, and reads what is there; after a stop, gives a journal that takes nothing.
    pub(crate) async fn open(context: &Context) -> Self {
        let place = Place {
            cluster: context.cluster.clone(),
            namespace: context.namespace.clone(),
            owner: Owner {
                driver: context.driver.name().to_owned(),
                node: context.node.as_ref().map(|node| node.name.clone()),
            },
        };
        let journal = Self::start(place, context.gate.clone(), context.metrics.family(Counts::register));
        tokio::select! {
            biased;
            () = journal.ready() => {}
            () = context.gate.stopped() => {}
        }
        journal
    }

    fn start(place: Place, gate: Gate, metrics: Counts) -> Self {
        let state = State { book: Book::new(), waiting: HashMap::new(), last: 0, told: None };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), metrics, wake: Notify::new(), news: Notify::new() });
        let writer = tokio::spawn(Arc::clone(&shared).run(place));
        let watcher = tokio::spawn(Arc::clone(&shared).follow(gate));
        Self { shared, _tasks: Arc::new([writer, watcher].map(AbortOnDropHandle::new)) }
    }

    async fn ready(&self) {
        self.shared.until(|book| book.is_ready().then_some(())).await;
    }

    /// The open intent of a volume.
    pub(crate) fn get(&self, volume: &str) -> Option<Arc<Intent>> {
        self.shared.lock().book.get(volume)
    }

    /// The volumes with open intents.
    pub(crate) fn volumes(&self) -> Vec<String> {
        self.shared.lock().book.volumes()
    }

    /// Waits until intents are found that we did not write, and gives their volumes: at the start, and when the
    /// journal was read again after a lost lease. Each is given once; safe to drop while it waits.
    pub(crate) async fn found(&self) -> Vec<String> {
        self.shared.until(|book| Some(book.take_found()).filter(|found| !found.is_empty())).await
    }

    /// Writes an intent down. The same intent again is no second one; another one for a volume that has one is
    /// refused.
    pub(crate) async fn write(&self, intent: Intent) -> Result<(), JournalError> {
        let text = serde_json::to_string(&intent).map_err(|error| JournalError::NotJson {
            volume: intent.volume.clone(),
            reason: error.to_string(),
        })?;
        if !segment::fits(&text) {
            self.shared.metrics.too_large.inc();
            tracing::warn!(
                volume = intent.volume,
                bytes = text.len(),
                "the intent is too large for the journal: the volume may leak if the sidecar dies while it is made; \
                 --strict-topology makes it small"
            );
        }
        let told = {
            let mut state = self.shared.lock();
            state.last += 1;
            let ticket = state.last;
            match state.book.write(ticket, Arc::new(intent), text.into(), Instant::now()) {
                Some(answer) => {
                    self.shared.count(&state);
                    return answer;
                }
                None => {
                    let (sender, told) = oneshot::channel();
                    state.waiting.insert(ticket, sender);
                    told
                }
            }
        };
        self.shared.wake.notify_one();
        // The writer lives as long as the journal does.
        told.await.unwrap_or(Err(JournalError::Shut))
    }

    /// All is done for this volume: made and recorded, or known never to have been made.
    pub(crate) fn finish(&self, volume: &str) {
        let mut state = self.shared.lock();
        state.book.finish(volume, Instant::now());
        self.shared.count(&state);
        self.shared.wake.notify_one();
    }

    /// Deletes what is finished, for an end. What is left is found settled at the next start.
    pub(crate) async fn flush(&self) {
        self.shared.lock().book.removals.hurry(Instant::now());
        self.shared.wake.notify_one();
        let tidy = self.shared.until(|book| book.removals.is_tidy(Instant::now()).then_some(()));
        if timeout(FLUSH, tidy).await.is_err() {
            tracing::warn!("finished intents are still in the journal; the next start looks at them again");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The book is whole between any two of its calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the book has an answer.
    async fn until<T>(&self, mut answer: impl FnMut(&mut Book) -> Option<T>) -> T {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Before the book is asked, so that nothing is missed.
            news.as_mut().enable();
            if let Some(answer) = answer(&mut self.lock().book) {
                return answer;
            }
            news.await;
        }
    }

    /// Opens the book when we may act, and shuts it when we may not.
    async fn follow(self: Arc<Self>, gate: Gate) {
        loop {
            gate.opened().await;
            self.lock().book.opened(Instant::now());
            self.wake.notify_one();
            gate.lost().await;
            self.change(Book::shut);
            tracing::info!("the lease is lost: the intent journal is read again when it is back");
        }
    }

    /// Does what the book says, for ever.
    async fn run(self: Arc<Self>, place: Place) {
        let mut running: JoinSet<Ended> = JoinSet::new();
        loop {
            let due = loop {
                let mut state = self.lock();
                match state.book.next(Instant::now(), || place.owner.segment_name(random())) {
                    Some(job) => {
                        if let Job::Write { intents, .. } = &job {
                            self.metrics.writes.inc();
                            self.metrics.batch.observe(intents.len() as f64);
                        }
                        running.spawn(work(place.clone(), job));
                    }
                    None => break state.book.due(),
                }
            };
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(Ok(ended)) = running.join_next() => self.ended(ended),
                () = self.wake.notified() => {}
                () = due => {}
            }
        }
    }

    fn ended(&self, ended: Ended) {
        let refused = match &ended {
            Ended::Load(Loaded::NotAllowed(error)) | Ended::Write(_, Written::NotAllowed(error)) => {
                Some(error.clone())
            }
            _ => None,
        };
        self.change(|book| {
            let now = Instant::now();
            match ended {
                Ended::Load(outcome) => book.loaded(outcome, now),
                Ended::Write(name, outcome) => book.written(&name, outcome, now),
                Ended::Remove(name, outcome) => {
                    book.removals.ended(&name, outcome, now);
                    Answers::new()
                }
            }
        });
        if let Some(error) = refused {
            self.say_if_unavailable(&error);
        }
    }

    /// Changes the book and tells those who wait.
    fn change(&self, change: impl FnOnce(&mut Book) -> Answers) {
        let mut state = self.lock();
        let before = state.book.is_durable();
        for (ticket, answer) in change(&mut state.book) {
            if let Some(waiting) = state.waiting.remove(&ticket) {
                // Who is gone does not need to know.
                let _ = waiting.send(answer);
            }
        }
        if !before && state.book.is_durable() && state.told.replace(true) == Some(false) {
            tracing::info!("the intent journal can be kept now");
        }
        self.count(&state);
        drop(state);
        self.news.notify_waiters();
    }

    fn say_if_unavailable(&self, error: &ApiError) {
        let mut state = self.lock();
        if !state.book.is_durable() && state.told.replace(false) != Some(false) {
            tracing::warn!(
                %error,
                "the intent journal cannot be kept: volumes may leak if the sidecar dies while they are made; \
                 grant create, list and delete of leases in the sidecar's namespace"
            );
        }
    }

    fn count(&self, state: &State) {
        let (intents, segments) = state.book.sizes();
        self.metrics.intents.set(intents as i64);
        self.metrics.segments.set(segments as i64);
        self.metrics.available.set(i64::from(state.book.is_durable()));
    }
}

enum Ended {
    Load(Loaded),
    Write(String, Written),
    Remove(String, Removed),
}

async fn work(place: Place, job: Job) -> Ended {
    match job {
        Job::Load => Ended::Load(place.load().await),
        Job::Write { name, intents } => {
            let outcome = place.write(&name, &intents).await;
            Ended::Write(name, outcome)
        }
        Job::Remove { name, uid } => {
            let outcome = place.remove(&name, uid).await;
            Ended::Remove(name, outcome)
        }
    }
}

/// A number for a name. Without randomness the clock has to do: a name that is taken is refused by the server.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match wharf_model::chance::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wharf_cluster::now().0 as u64,
    }
}

/// What the journal counts.
#[derive(Clone)]
struct Counts {
    available: Gauge,
    intents: Gauge,
    segments: Gauge,
    writes: Counter,
    batch: Histogram,
    too_large: Counter,
}

impl Counts {
    fn register(registry: &mut Registry) -> Self {
        let counts = Self {
            available: Gauge::default(),
            intents: Gauge::default(),
            segments: Gauge::default(),
            writes: Counter::default(),
            batch: Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]),
            too_large: Counter::default(),
        };
        registry.register(
            "wharf_provisioner_journal_available",
            "1 while intents outlive the process, 0 while they are in memory only",
            counts.available.clone(),
        );
        registry.register("wharf_provisioner_journal_intents", "Open intents", counts.intents.clone());
        registry.register(
            "wharf_provisioner_journal_segments",
            "Leases with open intents",
            counts.segments.clone(),
        );
        registry.register("wharf_provisioner_journal_writes", "Segments written", counts.writes.clone());
        registry.register(
            "wharf_provisioner_journal_batch_size",
            "Intents in a segment that was written",
            counts.batch.clone(),
        );
        registry.register(
            "wharf_provisioner_journal_too_large",
            "Intents that were too large to be written",
            counts.too_large.clone(),
        );
        counts
    }
}

#[cfg(test)]
pub(super) mod testing;
