//! Records Kubernetes events, off the critical path: recording one never blocks and never fails.
//!
//! Guarantees: recorded events go through a bounded channel to one task that writes them; repetitions become a count
//! on the first event. Events that do not fit into the channel are dropped and counted. They are written to the core
//! `v1` API, because upstream's RBAC rules allow only that; `events.k8s.io` shows the same objects.

use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use wharf_model::panics::catch;
use wharf_model::{ApiResource, Key, Kind, Scope, Time};

use crate::{ApiError, Cluster, Patch, now};
use aggregate::{Aggregate, Write};

mod aggregate;

const API: ApiResource =
    ApiResource { group: "", version: "v1", kind: "Event", plural: "events", scope: Scope::Namespaced };
/// Events that may wait for the writer task.
const CHANNEL_CAPACITY: usize = 1024;
/// How long events are collected before they are written.
const BATCH_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of requests per batch, so that an event storm does not starve the actual work.
const REQUESTS_PER_BATCH: usize = 20;
/// The API's limit for the length of a note.
const MAX_NOTE: usize = 1024;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// For information.
    Normal,
    /// Something failed and may need attention.
    Warning,
}

/// The object an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// Its API version, `v1` or `group/version`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

/// An event. Equal events are repetitions of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// The object it is about.
    pub regarding: ObjectReference,
    /// Normal or Warning.
    pub event_type: EventType,
    /// A machine-readable reason in CamelCase.
    pub reason: String,
    /// A human-readable message; must not contain secrets.
    pub note: String,
}

enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Records events; cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Message>,
    metrics: crate::Metrics,
}

impl EventRecorder {
    /// Starts the writer task. `component` is the reporter's name shown to users, `instance` identifies the replica.
    /// The task stops when the last clone is dropped; events not written by then are lost.
    pub fn start(cluster: &Cluster, component: impl Into<String>, instance: impl Into<String>) -> Self {
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
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

    /// Records an event about an object.
    pub fn record_for<K: Kind>(&self, object: &K, kind: EventType, reason: &str, note: impl Into<String>) {
        let regarding = ObjectReference {
            api_version: K::API.api_version(),
            kind: K::API.kind.to_owned(),
            key: object.key(),
            uid: object.meta().uid.clone(),
        };
        self.record(Event { regarding, event_type: kind, reason: reason.to_owned(), note: note.into() });
    }

    /// Records an event.
    pub fn record(&self, mut event: Event) {
        truncate(&mut event.note);
        if self.sender.try_send(Message::Event(event)).is_err() {
            self.metrics.event("dropped", 1);
        }
    }

    /// Waits, at most this long, until an attempt was made to write everything recorded before; for shutdown.
    pub async fn flush(&self, within: Duration) {
        let flushed = async {
            let (sender, receiver) = oneshot::channel();
            if self.sender.send(Message::Flush(sender)).await.is_ok() {
                let _ = receiver.await;
            }
        };
        if timeout(within, flushed).await.is_err() {
            tracing::warn!("failed to flush all events before the timeout");
        }
    }
}

fn truncate(note: &mut String) {
    if note.len() > MAX_NOTE {
        let mut end = MAX_NOTE - 3;
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
        let mut batches = interval(BATCH_INTERVAL);
        batches.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // No timer runs while there is nothing to do.
            let Some(first) = receiver.recv().await else { return };
            let mut flushes = self.accept(first);
            loop {
                batches.tick().await;
                while let Ok(message) = receiver.try_recv() {
                    flushes.extend(self.accept(message));
                }
                let limit = if flushes.is_empty() { REQUESTS_PER_BATCH } else { usize::MAX };
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
                self.aggregate.add(event, Instant::now(), now());
                Vec::new()
            }
            Message::Flush(sender) => vec![sender],
        }
    }

    async fn write(&mut self, limit: usize) {
        self.backlog.extend(self.aggregate.due(Instant::now()));
        if let Some(excess) = self.backlog.len().checked_sub(CHANNEL_CAPACITY).filter(|excess| *excess > 0) {
            self.backlog.drain(..excess);
            self.cluster.metrics().event("dropped", excess as u64);
        }
        let count = limit.min(self.backlog.len());
        for write in self.backlog.drain(..count).collect::<Vec<_>>() {
            // An event that panics is lost; the others are written.
            let component = self.component.clone();
            let _ = catch("events", component, self.write_one(write)).await;
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
                    // The API server deletes events after an hour.
                    Err(ApiError::NotFound(_)) => self.create(event, first, last, count).await,
                    Err(error) => Err(error),
                }
            }
        };
        match outcome {
            Ok(()) => self.cluster.metrics().event("written", 1),
            // The namespace is being deleted with everything in it: this is not a missing permission.
            Err(error @ ApiError::Terminating(_)) => {
                self.cluster.metrics().event("failed", 1);
                tracing::debug!(%error, "failed to write event");
            }
            Err(error) => {
                self.cluster.metrics().event("failed", 1);
                let forbidden = matches!(error, ApiError::Forbidden(_));
                if !forbidden || !std::mem::replace(&mut self.forbidden, true) {
                    tracing::warn!(%error, "failed to write event");
                }
            }
        }
    }

    async fn create(&mut self, event: Event, first: Time, last: Time, count: u64) -> Result<(), ApiError> {
        // The name must be unique. Upstream uses the object's name and a timestamp, truncated to a valid name.
        let Event { regarding, event_type: kind, reason, note } = &event;
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
            Ok(_) => self.aggregate.set_name(&event, name),
            Err(_) => self.aggregate.clear_name(&event),
        }
        created.map(|_| ())
    }
}

/// The object's name and a timestamp. A truncated name must not end in a dash or dot.
fn event_name(object: &str, now: Time, jitter: f64) -> String {
    let mut name = object.to_owned();
    name.truncate(200);
    let name = name.trim_end_matches(['-', '.']);
    format!("{name}.{:x}{:04x}", now.0, (jitter * 65_536.0) as u32)
}

/// Events about cluster-scoped objects are in `default`.
fn namespace(event: &Event) -> String {
    event.regarding.key.namespace.clone().unwrap_or_else(|| "default".to_owned())
}

#[cfg(test)]
mod tests;
