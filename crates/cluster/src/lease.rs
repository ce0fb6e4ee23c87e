//! Leader election with leases: whether this process may act.
//!
//! Guarantees: `Leadership::is_leader` is false from the renew deadline on, counted from before the last successful
//! renewal was sent. The [`Fence`] cancels running work then. Others take over only after the longer lease duration, so
//! what a cancelled request still does in a server has the difference to end. A process that loses the lease does not exit; it
//! tries to acquire it again. [`Leadership::release`] gives it up immediately. Each candidate has an identity of its own,
//! so that two processes of one name never both count as the holder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_model::panics::catch;
use wharf_model::{ApiResource, Key, Kind, Meta};

use crate::transport::{Call, Transport};
use crate::{ApiError, Cluster, Store, WatchOptions};
use decide::{ObservedLease, Step, decide};

mod decide;
mod fence;
mod fresh;

pub use fence::Fence;
pub(crate) use fresh::{Freshness, Relist};

const API: ApiResource = wharf_model::Lease::API;

/// The lease to compete for, and its timing.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    /// The lease's namespace.
    pub namespace: String,
    /// Its name: that of the upstream sidecar with the same role, so that the two are never active together.
    pub name: String,
    /// The name of this process: that of its pod or host. The identity in the lease also has a random part, because
    /// several processes may run under one name.
    pub process: String,
    /// Labels for the lease if this process creates it.
    pub labels: BTreeMap<String, String>,
    /// How long others wait for a holder that does not renew; see [`written_lease_duration`].
    pub lease_duration: Duration,
    /// How long after the last renewal new steps may start. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The interval between attempts.
    pub retry_period: Duration,
}

impl LeaseOptions {
    /// Upstream's times: 15 s, 10 s, 5 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, process: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            process: process.into(),
            labels: BTreeMap::new(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        }
    }

    /// The same options without durations that a lease cannot contain, or that overflow when added to the present time.
    fn limited(self) -> Self {
        Self {
            lease_duration: written_lease_duration(self.lease_duration),
            renew_deadline: self.renew_deadline.min(MAX_DURATION),
            retry_period: self.retry_period.min(MAX_DURATION),
            ..self
        }
    }
}

/// How long other processes wait for a holder whose lease duration is set to `duration`: a lease contains whole seconds,
/// at least one. Rounded up: with a shorter duration another process would lead before the holder's renew deadline.
pub fn written_lease_duration(duration: Duration) -> Duration {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    Duration::from_secs(seconds.max(1)).min(MAX_DURATION)
}

/// The longest duration in a lease, a 32-bit number of seconds: 68 years.
const MAX_DURATION: Duration = Duration::from_secs(i32::MAX as u64);

/// The fields of a lease that matter for the decision. Others are not decoded, so that they cannot fail decoding.
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
    lease_duration_seconds: Option<i64>,
}

impl Kind for Lease {
    const API: ApiResource = API;

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A candidate for a lease; cheap to clone. When the last clone is dropped without [`Leadership::release`], the lease
/// is no longer renewed and expires.
#[derive(Clone)]
pub struct Leadership {
    fence: Fence,
    name: Arc<str>,
    lease_duration: Duration,
    handover: Duration,
    /// When the lease was last seen with this process as its holder; `None` if it was last seen without.
    renewed: watch::Receiver<Option<Instant>>,
    freshness: Arc<Freshness>,
    shared: Arc<Shared>,
}

/// Whether a process competes for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It acquires and renews the lease.
    Compete,
    /// It does not act, and leaves the lease to expire.
    Expire,
    /// It does not act, and releases the lease. Only for a process without running work.
    Release,
}

/// Upstream's tolerance of `/healthz/leader-election` for a holder that does not renew its lease.
const TOLERANCE: Duration = Duration::from_secs(20);

struct Shared {
    standing: watch::Sender<Standing>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Not released: the caller has not confirmed that its work has ended.
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

impl Leadership {
    /// Starts to compete for the lease.
    pub fn start(cluster: &Cluster, options: LeaseOptions) -> Self {
        let options = options.limited();
        let (sender, until) = watch::channel(None);
        let (renewed_sender, renewed) = watch::channel(None);
        let (standing, standings) = watch::channel(Standing::Compete);
        let (name, lease_duration) = (options.name.as_str().into(), options.lease_duration);
        let handover = lease_duration.saturating_sub(options.renew_deadline);
        let (stop, freshness) = (CancellationToken::new(), Arc::<Freshness>::default());
        // The watch on this lease allows taking over as soon as it is released.
        let store = cluster.store::<Lease>(WatchOptions {
            namespace: Some(options.namespace.clone()),
            field_selector: Some(format!("metadata.name={}", options.name)),
            ..WatchOptions::default()
        });
        let candidate = Candidate {
            key: Key::namespaced(&options.namespace, &options.name),
            transport: cluster.transport().unlimited(),
            _cluster: cluster.clone(),
            identity: unique_identity(&options.process),
            options,
            until: sender,
            freshness: Arc::clone(&freshness),
            renewed: renewed_sender,
            raw: None,
            observed: None,
        };
        let task = tokio::spawn(candidate.run(store, standings, stop.clone()));
        let shared = Arc::new(Shared { standing, stop, task: Mutex::new(Some(task)) });
        Self { fence: Fence::new(until), name, lease_duration, handover, renewed, freshness, shared }
    }

    /// Whether this process holds the lease, so that a step may start now.
    pub fn is_leader(&self) -> bool {
        self.fence.is_open()
    }

    pub(crate) fn freshness(&self) -> &Arc<Freshness> {
        &self.freshness
    }

    /// Ends effects when the lease is lost.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// How long others wait for this process if it does not renew the lease.
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// The time between the end of this process' work and the takeover of another process.
    pub(crate) fn handover(&self) -> Duration {
        self.handover
    }

    /// Stops or starts to compete for the lease.
    pub fn set_standing(&self, standing: Standing) {
        self.shared.standing.send_if_modified(|present| std::mem::replace(present, standing) != standing);
    }

    /// As upstream's `/healthz/leader-election`: fails if the lease names this process as its holder, but was not renewed
    /// for its duration and 20 s more. A process that does not hold the lease is healthy.
    pub fn check_renewal(&self) -> Result<(), String> {
        let renewed = *self.renewed.borrow();
        match renewed.is_some_and(|renewed| renewed.elapsed() > self.lease_duration + TOLERANCE) {
            true => Err(format!("failed election to renew leadership on lease {}", self.name)),
            false => Ok(()),
        }
    }

    /// Waits until leadership is acquired or lost.
    pub async fn wait_changed(&self) {
        let before = self.is_leader();
        self.fence.wait(!before).await;
    }

    /// Waits until this process holds the lease.
    pub async fn wait_acquired(&self) {
        self.fence.wait(true).await;
    }

    /// Waits until this process does not hold the lease.
    pub async fn wait_lost(&self) {
        self.fence.wait(false).await;
    }

    /// Releases the lease, so that another process can take over immediately. Call this only after all work has
    /// ended: no step may be running. Waits at most this long for the server.
    pub async fn release(&self, within: Duration) {
        self.shared.stop.cancel();
        if let Some(mut task) = self.shared.task.lock().await.take()
            && timeout(within, &mut task).await.is_err()
        {
            task.abort();
            tracing::warn!("failed to release lease before the timeout; it will expire");
        }
    }
}

struct Candidate {
    key: Key,
    transport: Transport,
    _cluster: Cluster,
    /// The holder of the lease while this candidate holds it.
    identity: String,
    options: LeaseOptions,
    until: watch::Sender<Option<Instant>>,
    freshness: Arc<Freshness>,
    renewed: watch::Sender<Option<Instant>>,
    /// The whole lease as last read or written: fields that others set are preserved.
    raw: Option<Value>,
    observed: Option<ObservedLease>,
}

impl Candidate {
    async fn run(
        mut self,
        store: Store<Lease>,
        mut standings: watch::Receiver<Standing>,
        stop: CancellationToken,
    ) {
        let mut changes = store.subscribe();
        loop {
            let standing = *standings.borrow_and_update();
            if standing != Standing::Compete {
                let aside = async {
                    self.stand_aside(standing).await;
                    wait_changed(&mut standings).await;
                };
                match stop.run_until_cancelled(aside).await {
                    Some(()) => continue,
                    None => break,
                }
            }
            let key = self.key.clone();
            let attempt = catch("lease", key, self.attempt());
            let attempt = async {
                tokio::select! {
                    biased;
                    () = wait_changed(&mut standings) => None,
                    renewed = attempt => Some(renewed),
                }
            };
            let Some(renewed) = stop.run_until_cancelled(attempt).await else { break };
            self.freshness.attempted();
            let Some(renewed) = renewed else {
                // The server may have accepted the last request.
                self.raw = None;
                continue;
            };
            // A panic is a failed request: the lease expires if that goes on.
            let renewed = renewed.unwrap_or_else(|_| {
                self.raw = None;
                false
            });
            let holding = self.holding();
            self.transport.metrics().leading(&self.options.name, holding);
            // Waiting candidates use jitter so that they do not collide; the holder uses the exact period. A holder that
            // failed to renew retries early: after a whole period no time would be left before the deadline.
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
                () = wait_changed(&mut standings) => {}
                () = sleep(pause) => {}
                () = released => {}
            }
        }
        self.release().await;
    }

    fn holding(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// One attempt to acquire or renew the lease; `false` if the request failed.
    async fn attempt(&mut self) -> bool {
        let was = self.holding();
        // The holder knows the lease's last version; it reads it again only after a conflict.
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
                    tracing::debug!(lease = %self.key, "lease was changed by another client");
                    // If we held it, our version was outdated, or the lease was taken: read it immediately.
                    if was {
                        match self.reread().await {
                            Ok(()) => done = true,
                            Err(error) => {
                                tracing::warn!(lease = %self.key, %error, "failed to renew lease");
                            }
                        }
                    }
                }
                error => tracing::warn!(lease = %self.key, %error, "failed to acquire or renew lease"),
            }
        }
        match (was, self.holding()) {
            (false, true) => tracing::info!(lease = %self.key, "acquired lease"),
            (true, false) => tracing::warn!(lease = %self.key, "lost lease; not starting new work"),
            _ => {}
        }
        done
    }

    async fn reread(&mut self) -> Result<(), ApiError> {
        self.read().await?;
        if self.observed.as_ref().is_none_or(|observed| observed.holder != self.identity) {
            self.until.send_replace(None);
        }
        self.write().await
    }

    async fn read(&mut self) -> Result<(), ApiError> {
        let bytes = match self.send(Call::object("GET", &API, &self.key)).await {
            Ok(bytes) => bytes,
            Err(ApiError::NotFound(_)) => {
                (self.raw, self.observed) = (None, None);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.observe(&bytes)
    }

    fn observe(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        let subject = Call::object("GET", &API, &self.key).subject;
        let unreadable = |error: serde_json::Error| ApiError::Other {
            refusal: subject.refusal(format!("failed to decode lease: {error}")),
            status: 200,
        };
        let lease: Lease = serde_json::from_slice(bytes).map_err(unreadable)?;
        self.raw = Some(serde_json::from_slice(bytes).map_err(unreadable)?);
        let version = lease.metadata.resource_version.clone();
        if holder(&lease) != self.identity {
            self.renewed.send_replace(None);
        }
        if self.observed.as_ref().is_none_or(|observed| observed.version != version) {
            let seconds = lease.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_DURATION));
            self.observed = Some(ObservedLease {
                holder: holder(&lease).to_owned(),
                duration: duration.unwrap_or(self.options.lease_duration),
                version,
                observed_at: Instant::now(),
            });
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        let started = Instant::now();
        let step = decide(self.observed.as_ref(), &self.identity, started);
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
        self.observe(&bytes)?;
        self.renewed.send_replace(Some(started));
        if !self.holding() {
            self.freshness.begin_term();
        }
        self.until.send_replace(Some(started + self.options.renew_deadline));
        Ok(())
    }

    fn body(&self, step: Step) -> Vec<u8> {
        let LeaseOptions { namespace, name, labels, lease_duration, .. } = &self.options;
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
        spec.insert("holderIdentity".into(), json!(self.identity));
        spec.insert("leaseDurationSeconds".into(), json!(lease_duration.as_secs()));
        spec.insert("renewTime".into(), json!(now));
        lease.to_string().into_bytes()
    }

    /// Closes the fence, and releases the lease if the standing says so.
    async fn stand_aside(&mut self, standing: Standing) {
        if self.holding() {
            tracing::warn!(lease = %self.key, "gave up lease");
        }
        self.close();
        if standing == Standing::Release {
            self.release().await;
        }
    }

    /// From now on this process does not count as the holder.
    fn close(&mut self) {
        self.until.send_replace(None);
        self.renewed.send_replace(None);
        self.raw = None;
        self.transport.metrics().leading(&self.options.name, false);
    }

    /// Clears the holder, if this process is the holder.
    async fn release(&mut self) {
        self.close();
        // The last attempt may have been cancelled after the server accepted it, so the known version may be outdated.
        let outcome = match self.read().await {
            Ok(()) => self.clear_holder().await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => tracing::info!(lease = %self.key, "released lease"),
            Err(error) => {
                tracing::warn!(lease = %self.key, %error, "failed to release lease; it will expire");
            }
        }
    }

    async fn clear_holder(&mut self) -> Result<(), ApiError> {
        let ours = self.observed.as_ref().is_some_and(|observed| observed.holder == self.identity);
        let (true, Some(mut lease)) = (ours, self.raw.take()) else { return Ok(()) };
        let spec = spec_of(&mut lease);
        spec.insert("holderIdentity".into(), json!(""));
        spec.insert("leaseDurationSeconds".into(), json!(1));
        spec.insert("renewTime".into(), json!(micro_time()));
        let call =
            Call::object("PUT", &API, &self.key).body("application/json", lease.to_string().into_bytes());
        self.send(call).await.map(|_| ())
    }

    /// Times out after the retry period: a retry is better than a slow renewal.
    async fn send(&self, call: Call<'_>) -> Result<Vec<u8>, ApiError> {
        self.transport.send_within(call, self.options.retry_period).await
    }
}

/// Waits for another standing; never returns if there will be none.
async fn wait_changed(standings: &mut watch::Receiver<Standing>) {
    if standings.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The name of a process with a random part, as kube-controller-manager has it: `NAME_UUID`.
fn unique_identity(process: &str) -> String {
    let mut random = [0; 16];
    if wharf_model::system::fill_random(&mut random).is_err() {
        // Without randomness, the time and the process ID make it unique on its host.
        let now = jiff::Timestamp::now().as_nanosecond();
        return format!("{process}_{now}-{}", std::process::id());
    }
    // Version 4, variant 1 of RFC 9562.
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(random);
    let hex = format!("{number:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{process}_{}", parts.join("-"))
}

fn holder(lease: &Lease) -> &str {
    lease.spec.holder_identity.as_deref().unwrap_or("")
}

/// The lease's spec as an object; anything else is replaced by an empty one.
fn spec_of(lease: &mut Value) -> &mut Map<String, Value> {
    if !lease["spec"].is_object() {
        lease["spec"] = json!({});
    }
    match &mut lease["spec"] {
        Value::Object(spec) => spec,
        _ => unreachable!("set to an object above"),
    }
}

/// The current time in the format of `metav1.MicroTime`.
fn micro_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests;
