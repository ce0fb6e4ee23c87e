//! Reports the health of volumes, as reported by the driver, to the users of their claims.
//!
//! - Read-only: the driver and the cluster's objects are not changed. The results are events on claims, with
//!   upstream's reasons, and gauges.
//! - If the driver can list, all volumes are read with one list; otherwise one after the other, spread over the
//!   interval. Regardless of the number of volumes, there are at most 50 driver calls and 50 events per second.
//! - A problem is reported when it is new, and again before its event expires. A recovery is reported once, even
//!   across restarts: earlier events are read at the start.
//! - A failed driver call says nothing about a volume.
//!
//! Rules: [`decide`]. What was reported: [`history`]. Failed nodes: [`nodes`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use wharf_cluster::{ApiError, EventType, Store, WatchOptions, monotonic, now};
use wharf_model::names::reason;
use wharf_model::panics::catch;
use wharf_model::{PersistentVolume, PersistentVolumeClaim};

use crate::context::Context;
use crate::driver::redacted_status_text;
use decide::{MIN_INTERVAL, Step, decide, is_monitored, volume_interval};
use history::ReportHistory;
use metrics::HealthMetrics;
pub(crate) use view::HealthSource;
use view::{Report, Reported, State, View};
use wharf_cluster::work::WorkerOptions;

mod act;
mod decide;
mod history;
mod metrics;
mod nodes;
mod view;

/// Role name in `/debug/attempts`.
const ROLE: &str = "health-monitor";
/// Upstream's note.
const RECOVERED_NOTE: &str = "The Volume returns to the healthy state";

/// Settings of the health monitor.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of workers, timeout and backoff.
    pub worker_options: WorkerOptions,
    /// Time for one pass over all volumes if they are read one by one; also how often nodes are checked.
    pub monitor_interval: Duration,
    /// Interval between lists if the driver can list.
    pub list_volumes_interval: Duration,
    /// Also report pods on failed nodes.
    pub node_watcher: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // No user waits for these calls: they should not crowd out others.
            worker_options: WorkerOptions {
                workers: 10,
                ..WorkerOptions::with_timeout(Duration::from_secs(15))
            },
            monitor_interval: Duration::from_secs(60),
            list_volumes_interval: Duration::from_secs(300),
            node_watcher: false,
        }
    }
}

/// Runs the role until it is stopped.
pub(crate) async fn run(context: Context, settings: Settings) {
    let Some(source) = HealthSource::from_capabilities(context.driver.capabilities()) else {
        let driver = context.driver.name();
        tracing::error!(driver, "driver does not report volume health; disable the health monitor role");
        context.gate.wait_stopped().await;
        return;
    };
    let gate = context.gate.clone();
    let monitor = Arc::new(Monitor::new(context, settings, source));
    tokio::select! {
        biased;
        () = gate.wait_stopped() => {}
        () = monitor.run_terms() => {}
    }
}

/// The monitor of one driver's volumes.
struct Monitor {
    context: Context,
    settings: Settings,
    source: HealthSource,
    volumes: Store<PersistentVolume>,
    claims: Store<PersistentVolumeClaim>,
    history: ReportHistory,
    metrics: HealthMetrics,
}

/// Result of one pass over all volumes.
struct PassResult {
    states: BTreeMap<State, i64>,
    claims: HashSet<String>,
}

impl Monitor {
    fn new(context: Context, settings: Settings, source: HealthSource) -> Self {
        let volumes = context.cluster.store(WatchOptions::default());
        let claims = context.cluster.store(WatchOptions::default());
        let metrics = context.metrics.get_or_register(HealthMetrics::register);
        Self { context, settings, source, volumes, claims, history: ReportHistory::default(), metrics }
    }

    /// Runs from each acquisition of the lease until its loss.
    async fn run_terms(self: &Arc<Self>) {
        tokio::join!(self.volumes.wait_synced(), self.claims.wait_synced());
        loop {
            self.context.gate.wait_open().await;
            tokio::select! {
                biased;
                () = self.context.gate.wait_lost() => {}
                () = self.run_passes() => {}
                () = self.watch_nodes() => {}
            }
            self.history.clear();
            self.metrics.clear_volumes();
        }
    }

    async fn watch_nodes(&self) {
        match self.settings.node_watcher {
            true => nodes::watch(self, self.settings.monitor_interval).await,
            false => std::future::pending().await,
        }
    }

    /// Reads the health of all volumes in a loop.
    async fn run_passes(self: &Arc<Self>) {
        let every = match self.source.is_list() {
            true => self.settings.list_volumes_interval,
            false => self.settings.monitor_interval,
        };
        let mut failures = 0;
        loop {
            let started = Instant::now();
            self.load_history().await;
            let volumes = self.monitored_volumes();
            let result = match self.source.is_list() {
                true => self.list_pass(&volumes).await,
                false => Some(self.get_pass(&volumes, every).await),
            };
            let Some(PassResult { states, claims }) = result else {
                sleep(self.settings.worker_options.backoff().delay(failures).min(every)).await;
                failures = failures.saturating_add(1);
                continue;
            };
            failures = 0;
            self.history.retain(&claims);
            self.metrics.record_pass(self.context.driver.name(), &states, started.elapsed());
            tracing::debug!(volumes = volumes.len(), ?states, duration = ?started.elapsed(), "checked all volumes");
            sleep_until(started + every).await;
        }
    }

    /// Reads the events from before this start, unless done already. Returns whether they are known.
    async fn load_history(&self) -> bool {
        if self.history.is_loaded() {
            return true;
        }
        match act::past_events(&self.context.cluster, self.settings.node_watcher).await {
            Ok(past) => self.history.load(&past, now(), monotonic()),
            Err(ApiError::Forbidden(refusal)) => {
                tracing::warn!(
                    error = %refusal,
                    "not allowed to list events; recoveries from before this start are not reported"
                );
                self.history.load(&history::PastEvents::default(), now(), monotonic());
            }
            Err(error) => {
                tracing::warn!(%error, "failed to list events; recoveries are reported once they can be listed");
                return false;
            }
        }
        true
    }

    /// The volumes to check.
    fn monitored_volumes(&self) -> Vec<Arc<PersistentVolume>> {
        let driver = self.context.driver.name();
        let ours =
            |volume: &Arc<PersistentVolume>| is_monitored(volume, driver) && self.is_on_own_node(volume);
        self.volumes.all().into_iter().filter(ours).collect()
    }

    /// With one sidecar per node, only volumes on this node are checked.
    fn is_on_own_node(&self, volume: &PersistentVolume) -> bool {
        self.context.node.as_ref().is_none_or(|node| node.owns(volume))
    }

    /// Lists the health of all volumes; `None` if the call failed.
    async fn list_pass(&self, volumes: &[Arc<PersistentVolume>]) -> Option<PassResult> {
        let (driver, timeout) = (&self.context.driver, self.settings.worker_options.timeout);
        let mut reports = match act::list(driver, self.source, timeout).await {
            Ok(reports) => reports,
            Err(status) => {
                self.failed(driver.name(), &status);
                return None;
            }
        };
        self.context.attempts.remove(ROLE, driver.name());
        let mut result = PassResult { states: BTreeMap::new(), claims: HashSet::new() };
        for volume in volumes {
            let report = reports.remove(handle(volume)).unwrap_or_else(|| self.source.report_if_unlisted());
            result.add(volume, &report);
            if self.record_event(volume, &report) {
                sleep(MIN_INTERVAL).await;
            }
        }
        Some(result)
    }

    /// Reads the health of each volume, spread over the interval.
    async fn get_pass(self: &Arc<Self>, volumes: &[Arc<PersistentVolume>], every: Duration) -> PassResult {
        let mut ticks = interval(volume_interval(every, volumes.len()));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let slots = Arc::new(Semaphore::new(self.settings.worker_options.workers.max(1)));
        let mut running = JoinSet::new();
        let mut result = PassResult { states: BTreeMap::new(), claims: HashSet::new() };
        for volume in volumes {
            ticks.tick().await;
            // The semaphore is never closed, so a permit will become available.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            let (monitor, volume) = (Arc::clone(self), Arc::clone(volume));
            running.spawn(async move {
                let check = async {
                    let report = monitor.get(&volume).await;
                    monitor.record_event(&volume, &report);
                    report
                };
                let report = catch(ROLE, &volume.metadata.name, check).await;
                drop(slot);
                (volume, report.unwrap_or(Report::Unknown))
            });
            while let Some(ended) = running.try_join_next() {
                result.add_ended(ended);
            }
        }
        while let Some(ended) = running.join_next().await {
            result.add_ended(ended);
        }
        result
    }

    async fn get(&self, volume: &PersistentVolume) -> Report {
        let (driver, timeout) = (&self.context.driver, self.settings.worker_options.timeout);
        match act::get(driver, self.source, handle(volume).to_owned(), timeout).await {
            Ok(report) => {
                self.context.attempts.remove(ROLE, &volume.metadata.name);
                report
            }
            Err(status) => {
                self.failed(&volume.metadata.name, &status);
                Report::Unknown
            }
        }
    }

    fn failed(&self, object: &str, status: &tonic::Status) {
        let error = redacted_status_text(status, &BTreeMap::new());
        tracing::warn!(object, method = self.source.method(), error, "failed to get volume health");
        self.metrics.record_failure();
        self.context.attempts.record(ROLE, object, self.source.method(), Some(error));
    }

    /// Records an event on the claim if there is something to report. Returns whether there was.
    fn record_event(&self, volume: &PersistentVolume, report: &Report) -> bool {
        let claim = volume.spec.claim_ref.as_ref().and_then(|reference| self.claims.get(&reference.key()));
        let reported =
            claim.as_ref().map_or(Reported::Unknown, |claim| self.history.reported(&claim.metadata.uid));
        let now = monotonic();
        let step = decide(&View { volume, claim: claim.as_deref(), report, reported: &reported }, now);
        let Some(claim) = claim else { return false };
        let uid = &claim.metadata.uid;
        tracing::trace!(pv = volume.metadata.name, ?step, "decided next step");
        match step {
            Step::Idle(_) => return false,
            _ if !self.context.gate.is_open() => return false,
            Step::Warn { message } => {
                let reason = reason::VOLUME_CONDITION_ABNORMAL;
                self.context.record_event(&*claim, EventType::Warning, reason, message.clone());
                self.history.warned(uid, &message, now);
            }
            Step::Recover => {
                self.context.record_event(
                    &*claim,
                    EventType::Normal,
                    reason::VOLUME_CONDITION_NORMAL,
                    RECOVERED_NOTE,
                );
                self.history.recovered(uid);
            }
        }
        true
    }
}

impl PassResult {
    fn add(&mut self, volume: &PersistentVolume, report: &Report) {
        *self.states.entry(report.state()).or_default() += 1;
        self.claims.extend(volume.spec.claim_ref.as_ref().map(|claim| claim.uid.clone()));
    }

    fn add_ended(&mut self, ended: Result<(Arc<PersistentVolume>, Report), tokio::task::JoinError>) {
        // A task fails only if it is cancelled, and then says nothing about the volume.
        if let Ok((volume, report)) = ended {
            self.add(&volume, &report);
        }
    }
}

fn handle(volume: &PersistentVolume) -> &str {
    volume.spec.csi.as_ref().map_or("", |csi| &csi.volume_handle)
}
