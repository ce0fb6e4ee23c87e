//! Leases: whether this process may act.
//!
//! Promise: [`Leadership::holds`] is false from the renew deadline on, counted from before the last successful
//! renewal was sent, and others take over only after the longer lease duration; so two holders never begin steps
//! at the same time, as long as a step begun ends within the difference. Losing the lease does not end the
//! process: it tries to get it back. [`Leadership::release`] gives it up at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::{Api, Key, Kind, Meta};

use crate::transport::{Call, Transport};
use crate::{ApiError, Cluster, Store, WatchOptions};
use decide::{Seen, Step, decide};

mod decide;

const API: Api = wharf_model::Lease::API;

/// Which lease, and how it is held.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    /// The lease's namespace.
    pub namespace: String,
    /// Its name: that of the upstream sidecar whose work this is, so that the two never act side by side.
    pub name: String,
    /// Who we are; a process restarted under the same identity goes on at once.
    pub identity: String,
    /// Labels for the lease if we make it.
    pub labels: BTreeMap<String, String>,
    /// How long others wait for a holder they do not hear of.
    pub lease_duration: Duration,
    /// After so long without a renewal no new step begins. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Between two attempts.
    pub retry_period: Duration,
}

impl LeaseOptions {
    /// Upstream's times: 15 s, 10 s, 5 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            labels: BTreeMap::new(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        }
    }
}

/// A lease as we read it: no more of it than decides, so that nothing else in it can keep us from deciding.
#[derive(Debug, Clone, Deserialize)]
struct Lease {
    metadata: Meta,
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
}

impl Kind for Lease {
    const API: Api = API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Whether we hold a lease; cheap to clone. When the last clone is dropped without [`Leadership::release`], the
/// lease is no longer renewed and runs out.
#[derive(Clone)]
pub struct Leadership {
    until: watch::Receiver<Option<Instant>>,
    shared: Arc<Shared>,
}

struct Shared {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Not released: whoever drops this has not said that its work has ended.
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

impl Leadership {
    /// Begins to compete for the lease.
    pub fn start(cluster: &Cluster, options: LeaseOptions) -> Self {
        let (sender, until) = watch::channel(None);
        let stop = CancellationToken::new();
        // Watching the one lease lets us take over at the moment it is released.
        let store = cluster.store::<Lease>(WatchOptions {
            namespace: Some(options.namespace.clone()),
            field_selector: Some(format!("metadata.name={}", options.name)),
            ..WatchOptions::default()
        });
        let candidate = Candidate {
            key: Key::namespaced(&options.namespace, &options.name),
            transport: cluster.transport().unlimited(),
            _cluster: cluster.clone(),
            options,
            until: sender,
            raw: None,
            seen: None,
        };
        let task = tokio::spawn(candidate.run(store, stop.clone()));
        Self { until, shared: Arc::new(Shared { stop, task: Mutex::new(Some(task)) }) }
    }

    /// Whether a step may begin now.
    pub fn holds(&self) -> bool {
        holds(&self.until)
    }

    /// Waits until `holds` is no longer what it was when this was called.
    pub async fn changed(&self) {
        let before = self.holds();
        self.wait(!before).await;
    }

    /// Waits until we hold it.
    pub async fn acquired(&self) {
        self.wait(true).await;
    }

    /// Waits until we do not.
    pub async fn lost(&self) {
        self.wait(false).await;
    }

    async fn wait(&self, wanted: bool) {
        let mut until = self.until.clone();
        loop {
            until.borrow_and_update();
            if holds(&until) == wanted {
                return;
            }
            let deadline = *until.borrow();
            let expired = async {
                match deadline {
                    Some(deadline) if !wanted => sleep_until(deadline).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = until.changed() => if changed.is_err() && wanted {
                    // Released: it will not come back.
                    std::future::pending::<()>().await;
                },
                () = expired => {}
            }
        }
    }

    /// Gives the lease up, so that another process can go on at once. No step may run any more: call this after
    /// the work has ended. Waits at most this long for the server.
    pub async fn release(&self, within: Duration) {
        self.shared.stop.cancel();
        if let Some(mut task) = self.shared.task.lock().await.take()
            && timeout(within, &mut task).await.is_err()
        {
            // Who competes under our name after this must not find the lease emptied behind its back.
            task.abort();
            tracing::warn!("lease not released in time; it will run out by itself");
        }
    }
}

fn holds(until: &watch::Receiver<Option<Instant>>) -> bool {
    until.borrow().is_some_and(|until| Instant::now() < until)
}

struct Candidate {
    key: Key,
    transport: Transport,
    _cluster: Cluster,
    options: LeaseOptions,
    until: watch::Sender<Option<Instant>>,
    /// The whole lease as last read or written: what others put on it stays on it.
    raw: Option<Value>,
    seen: Option<Seen>,
}

impl Candidate {
    async fn run(mut self, store: Store<Lease>, stop: CancellationToken) {
        let mut changes = store.changes();
        loop {
            let Some(renewed) = stop.run_until_cancelled(self.attempt()).await else { break };
            let holding = self.holding();
            self.transport.metrics().leading(&self.options.name, holding);
            // Waiting jitters so that candidates do not collide; the holder keeps its period. One that could not
            // renew tries again soon: after a whole period there would be no time left before the deadline.
            let pause = match (holding, renewed) {
                (true, true) => self.options.retry_period,
                (true, false) => self.options.retry_period / 5,
                (false, _) => self.options.retry_period.mul_f64(1.0 + 0.2 * crate::jitter()),
            };
            let released = async {
                loop {
                    if changes.next().await.is_none() {
                        std::future::pending::<()>().await;
                    }
                    let lease = store.get(&self.key);
                    if !holding && lease.is_some_and(|lease| holder(&lease).is_empty()) {
                        return;
                    }
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
                () = released => {}
            }
        }
        self.give_up().await;
    }

    fn holding(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// One attempt to get or keep the lease; `false` if the server did not let us.
    async fn attempt(&mut self) -> bool {
        let was = self.holding();
        // Whoever holds it knows its last version; a conflict makes us read.
        let read = match (&self.raw, was) {
            (Some(_), true) => Ok(()),
            _ => self.read().await,
        };
        let outcome = match read {
            Ok(()) => self.write().await,
            Err(error) => Err(error),
        };
        let mut done = outcome.is_ok();
        if let Err(error) = outcome {
            self.raw = None;
            match error {
                ApiError::Conflict(_) | ApiError::AlreadyExists(_) => {
                    tracing::debug!(lease = %self.key, "somebody else was faster");
                    // If we held it, our knowledge was merely old, or it was taken; look at once.
                    if was {
                        match self.reread().await {
                            Ok(()) => done = true,
                            Err(error) => {
                                tracing::warn!(lease = %self.key, %error, "cannot renew the lease");
                            }
                        }
                    }
                }
                error => tracing::warn!(lease = %self.key, %error, "cannot acquire or renew the lease"),
            }
        }
        match (was, self.holding()) {
            (false, true) => tracing::info!(lease = %self.key, "lease acquired"),
            (true, false) => tracing::warn!(lease = %self.key, "lease lost; no new work begins"),
            _ => {}
        }
        done
    }

    async fn reread(&mut self) -> Result<(), ApiError> {
        self.read().await?;
        if self.seen.as_ref().is_none_or(|seen| seen.holder != self.options.identity) {
            self.until.send_replace(None);
        }
        self.write().await
    }

    async fn read(&mut self) -> Result<(), ApiError> {
        let bytes = match self.send(Call::object("GET", &API, &self.key)).await {
            Ok(bytes) => bytes,
            Err(ApiError::NotFound(_)) => {
                (self.raw, self.seen) = (None, None);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.remember(&bytes)
    }

    fn remember(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        let subject = Call::object("GET", &API, &self.key).subject;
        let unreadable = |error: serde_json::Error| ApiError::Other {
            refusal: subject.refusal(format!("cannot decode the lease: {error}")),
            status: 200,
        };
        let lease: Lease = serde_json::from_slice(bytes).map_err(unreadable)?;
        self.raw = Some(serde_json::from_slice(bytes).map_err(unreadable)?);
        let version = lease.metadata.resource_version.clone();
        if self.seen.as_ref().is_none_or(|seen| seen.version != version) {
            let duration = lease.spec.lease_duration_seconds.map(Duration::from_secs);
            self.seen = Some(Seen {
                holder: holder(&lease).to_owned(),
                duration: duration.unwrap_or(self.options.lease_duration),
                version,
                since: Instant::now(),
            });
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let began = Instant::now();
        let step = decide(self.seen.as_ref(), &self.options.identity, began);
        let call = match step {
            Step::Wait => {
                self.until.send_replace(None);
                return Ok(());
            }
            Step::Create => Call::collection("POST", &API, Some(&self.options.namespace))
                .body("application/json", self.body(step)),
            Step::Renew | Step::Take => {
                Call::object("PUT", &API, &self.key).body("application/json", self.body(step))
            }
        };
        let bytes = self.send(call).await?;
        self.remember(&bytes)?;
        self.until.send_replace(Some(began + self.options.renew_deadline));
        Ok(())
    }

    fn body(&self, step: Step) -> Vec<u8> {
        let LeaseOptions { namespace, name, identity, labels, lease_duration, .. } = &self.options;
        let mut lease = match &self.raw {
            Some(raw) => raw.clone(),
            None => json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": namespace, "name": name, "labels": labels},
            }),
        };
        let spec = spec_of(&mut lease);
        let now = micro_time();
        if step != Step::Renew {
            let transitions = spec.get("leaseTransitions").and_then(Value::as_i64).unwrap_or(0);
            spec.insert("acquireTime".into(), json!(now));
            spec.insert("leaseTransitions".into(), json!(transitions + i64::from(step == Step::Take)));
        }
        spec.insert("holderIdentity".into(), json!(identity));
        spec.insert("leaseDurationSeconds".into(), json!(lease_duration.as_secs().max(1)));
        spec.insert("renewTime".into(), json!(now));
        lease.to_string().into_bytes()
    }

    /// Writes that nobody holds it, if it is ours.
    async fn give_up(mut self) {
        self.until.send_replace(None);
        self.transport.metrics().leading(&self.options.name, false);
        // An attempt may have been cut short after the server took it, so what we remember may be old.
        let outcome = match self.read().await {
            Ok(()) => self.empty().await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => tracing::info!(lease = %self.key, "lease released"),
            Err(error) => {
                tracing::warn!(lease = %self.key, %error, "lease not released; it will run out by itself");
            }
        }
    }

    async fn empty(&mut self) -> Result<(), ApiError> {
        let ours = self.seen.as_ref().is_some_and(|seen| seen.holder == self.options.identity);
        let (true, Some(mut lease)) = (ours, self.raw.take()) else { return Ok(()) };
        let spec = spec_of(&mut lease);
        spec.insert("holderIdentity".into(), json!(""));
        spec.insert("leaseDurationSeconds".into(), json!(1));
        spec.insert("renewTime".into(), json!(micro_time()));
        let call =
            Call::object("PUT", &API, &self.key).body("application/json", lease.to_string().into_bytes());
        self.send(call).await.map(|_| ())
    }

    /// A renewal that takes longer than the retry period is better tried again.
    async fn send(&self, call: Call<'_>) -> Result<Vec<u8>, ApiError> {
        self.transport.send_within(call, self.options.retry_period).await
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.holder_identity.as_deref().unwrap_or("")
}

/// The lease's spec as something to write in, whatever it was before.
fn spec_of(lease: &mut Value) -> &mut Map<String, Value> {
    if !lease["spec"].is_object() {
        lease["spec"] = json!({});
    }
    match &mut lease["spec"] {
        Value::Object(spec) => spec,
        _ => unreachable!("made an object above"),
    }
}

/// As `metav1.MicroTime` is written.
fn micro_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests;
