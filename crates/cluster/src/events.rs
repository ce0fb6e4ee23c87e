//! Events for users, off the critical path: recording one never waits and never fails.
//!
//! Promise: what is recorded is handed to a bounded channel and written by one task, repetitions as a count on the
//! first. What does not fit is dropped and counted. Written to the core `v1` API, because that is what upstream's
//! RBAC rules allow; `events.k8s.io` shows the same objects.

use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use wharf_model::{Api, Key, Kind, Scope, Time};

use crate::{ApiError, Cluster, Patch, now};
use aggregate::{Aggregate, Write};

mod aggregate;

const API: Api = Api { group: "", version: "v1", kind: "Event", plural: "events", scope: Scope::Namespaced };
/// So many events wait for the task.
const CHANNEL: usize = 1024;
/// Events of this long are looked at together.
const BATCH: Duration = Duration::from_millis(200);
/// At most so many requests per batch, so that a storm of events does not crowd out the work itself.
const PER_BATCH: usize = 20;
/// A note may not be longer in the API.
const NOTE: usize = 1024;

/// Normal or a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The object an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its API version, `v1` or `group/version`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Key,
    /// Its identity.
    pub uid: String,
}

/// An event. Two that are equal are one, repeated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// What it is about.
    pub regarding: Regarding,
    /// Normal or a warning.
    pub kind: EventType,
    /// One word for machines.
    pub reason: String,
    /// A sentence for people; never with secrets in it.
    pub note: String,
}

enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Where events are handed in; cheap to clone.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Message>,
    metrics: crate::Metrics,
}

impl Events {
    /// Starts the task that writes. `component` is the reporter's name as users see it, `instance` tells its
    /// replicas apart. The task ends, with what it has written, when the last clone is dropped.
    pub fn start(cluster: &Cluster, component: impl Into<String>, instance: impl Into<String>) -> Self {
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let writer = Writer {
            cluster: cluster.clone(),
            component: component.into(),
            instance: instance.into(),
            aggregate: Aggregate::default(),
            backlog: Vec::new(),
            forbidden: false,
        };
        tokio::spawn(writer.run(receiver));
        Self { sender, metrics: cluster.metrics().clone() }
    }

    /// Tells users something about an object.
    pub fn tell<K: Kind>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        let regarding = Regarding {
            api_version: K::API.api_version(),
            kind: K::API.kind.to_owned(),
            key: object.key(),
            uid: object.meta().uid.clone(),
        };
        self.record(Event { regarding, kind, reason: reason.to_owned(), note: note.into() });
    }

    /// Records an event.
    pub fn record(&self, mut event: Event) {
        truncate(&mut event.note);
        if self.sender.try_send(Message::Event(event)).is_err() {
            self.metrics.event("dropped", 1);
        }
    }

    /// Waits until what was recorded before has been tried, at most this long; for the end of the process.
    pub async fn flush(&self, within: Duration) {
        let flushed = async {
            let (sender, receiver) = oneshot::channel();
            if self.sender.send(Message::Flush(sender)).await.is_ok() {
                let _ = receiver.await;
            }
        };
        if timeout(within, flushed).await.is_err() {
            tracing::warn!("some events were not written before the end");
        }
    }
}

fn truncate(note: &mut String) {
    if note.len() > NOTE {
        let mut end = NOTE - 3;
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push_str("...");
    }
}

struct Writer {
    cluster: Cluster,
    component: String,
    instance: String,
    aggregate: Aggregate,
    backlog: Vec<Write>,
    forbidden: bool,
}

impl Writer {
    async fn run(mut self, mut receiver: mpsc::Receiver<Message>) {
        let mut batches = interval(BATCH);
        batches.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Sleeps without a timer while there is nothing to do.
            let Some(first) = receiver.recv().await else { return };
            let mut flushes = self.accept(first);
            loop {
                batches.tick().await;
                while let Ok(message) = receiver.try_recv() {
                    flushes.extend(self.accept(message));
                }
                let limit = if flushes.is_empty() { PER_BATCH } else { usize::MAX };
                self.write(limit).await;
                for flush in flushes.drain(..) {
                    let _ = flush.send(());
                }
                if !self.aggregate.has_unwritten() && self.backlog.is_empty() {
                    break;
                }
            }
        }
    }

    fn accept(&mut self, message: Message) -> Vec<oneshot::Sender<()>> {
        match message {
            Message::Event(event) => {
                self.aggregate.take(event, Instant::now(), now());
                Vec::new()
            }
            Message::Flush(sender) => vec![sender],
        }
    }

    async fn write(&mut self, limit: usize) {
        self.backlog.extend(self.aggregate.due(Instant::now()));
        if let Some(excess) = self.backlog.len().checked_sub(CHANNEL).filter(|excess| *excess > 0) {
            self.backlog.drain(..excess);
            self.cluster.metrics().event("dropped", excess as u64);
        }
        let count = limit.min(self.backlog.len());
        for write in self.backlog.drain(..count).collect::<Vec<_>>() {
            self.write_one(write).await;
        }
    }

    async fn write_one(&mut self, write: Write) {
        let outcome = match write {
            Write::Create { event, first, count } => self.create(event, first, now(), count).await,
            Write::Repeat { event, name, first, last, count } => {
                let key = Key { namespace: Some(namespace(&event)), name };
                let patch = Patch::Merge(json!({"count": count, "lastTimestamp": last.to_string()}));
                match self.cluster.patch(&API, &key, None, patch).await {
                    Ok(_) => Ok(()),
                    // Events are thrown away after an hour.
                    Err(ApiError::NotFound(_)) => self.create(event, first, last, count).await,
                    Err(error) => Err(error),
                }
            }
        };
        match outcome {
            Ok(()) => self.cluster.metrics().event("written", 1),
            // It goes with all that is in it, and says nothing of our rights.
            Err(error @ ApiError::Terminating(_)) => {
                self.cluster.metrics().event("failed", 1);
                tracing::debug!(%error, "event not written");
            }
            Err(error) => {
                self.cluster.metrics().event("failed", 1);
                let forbidden = matches!(error, ApiError::Forbidden(_));
                if !forbidden || !std::mem::replace(&mut self.forbidden, true) {
                    tracing::warn!(%error, "event not written");
                }
            }
        }
    }

    async fn create(&mut self, event: Event, first: Time, last: Time, count: u64) -> Result<(), ApiError> {
        // The name must be unique; upstream's is the object's name and a time, cut to what a name may be.
        let Event { regarding, kind, reason, note } = &event;
        let name = event_name(&regarding.key.name, now(), crate::jitter());
        let namespace = namespace(&event);
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.key.namespace,
                "name": regarding.key.name,
                "uid": regarding.uid,
            },
            "type": match kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
            "reason": reason,
            "message": note,
            "count": count,
            "firstTimestamp": first.to_string(),
            "lastTimestamp": last.to_string(),
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
        });
        let created = self.cluster.create(&API, Some(&namespace), &body).await;
        match &created {
            Ok(_) => self.aggregate.named(&event, name),
            Err(_) => self.aggregate.lost(&event),
        }
        created.map(|_| ())
    }
}

/// The object's name and a time. What is cut off a long name must not leave a part that ends in a dash.
fn event_name(object: &str, now: Time, jitter: f64) -> String {
    let mut name = object.to_owned();
    name.truncate(200);
    let name = name.trim_end_matches(['-', '.']);
    format!("{name}.{:x}{:04x}", now.0, (jitter * 65_536.0) as u32)
}

/// Events about objects of the whole cluster live in `default`.
fn namespace(event: &Event) -> String {
    event.regarding.key.namespace.clone().unwrap_or_else(|| "default".to_owned())
}

#[cfg(test)]
mod tests;
