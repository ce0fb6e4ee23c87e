//! Tells the users of claims what the driver says of their volumes' health.
//!
//! - Nothing is changed, in the driver or in the cluster: what comes of it are events on claims, with upstream's
//!   reasons, and gauges.
//! - Where the driver lists, it is asked for all volumes at once; else for one after the other, spread over the
//!   interval. However many volumes there are, the driver gets no more than fifty questions a second and the server
//!   no more than fifty events.
//! - What is wrong is told when it is new, and again before the event is thrown away. That nothing is wrong any more
//!   is told once, also if we were restarted in between: events from before are read at the start.
//! - A driver that does not answer says nothing about a volume.
//!
//! The rules are in [`decide`]; what was told is in [`memory`]; failed nodes are in [`nodes`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use wharf_cluster::{ApiError, EventType, Store, WatchOptions, now};
use wharf_model::names::reason;
use wharf_model::{PersistentVolume, PersistentVolumeClaim};

use crate::context::Context;
use crate::driver::described;
use decide::{GAP, Step, decide, gap, is_watched};
use memory::Memory;
use metrics::Counts;
pub(crate) use view::Asks;
use view::{Report, State, Told, View};
use wharf_cluster::work::Pace;

mod act;
mod decide;
mod memory;
mod metrics;
mod nodes;
mod view;

/// In attempts.
const ROLE: &str = "health-monitor";
/// Upstream's words.
const WELL_AGAIN: &str = "The Volume returns to the healthy state";

/// What the health monitor is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// In which time every volume has its turn, where each is asked for alone; and how often nodes are looked at.
    pub monitor_interval: Duration,
    /// How often a driver that lists is asked.
    pub list_volumes_interval: Duration,
    /// Tell also of pods on nodes that have failed.
    pub node_watcher: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Questions that nobody waits for should not crowd out others.
            pace: Pace { workers: 10, ..Pace::with_timeout(Duration::from_secs(15)) },
            monitor_interval: Duration::from_secs(60),
            list_volumes_interval: Duration::from_secs(300),
            node_watcher: false,
        }
    }
}

/// Runs until the stop.
pub(crate) async fn run(context: Context, settings: Settings) {
    let Some(asks) = Asks::of(context.driver.can()) else {
        let driver = context.driver.name();
        tracing::error!(
            driver,
            "the driver says nothing of its volumes' health: leave the health monitor out"
        );
        context.gate.stopped().await;
        return;
    };
    let gate = context.gate.clone();
    let monitor = Arc::new(Monitor::new(context, settings, asks));
    tokio::select! {
        biased;
        () = gate.stopped() => {}
        () = monitor.terms() => {}
    }
}

/// Everything that looks after one driver's volumes.
struct Monitor {
    context: Context,
    settings: Settings,
    asks: Asks,
    volumes: Store<PersistentVolume>,
    claims: Store<PersistentVolumeClaim>,
    memory: Memory,
    counts: Counts,
}

/// What came of a pass.
struct Passed {
    states: BTreeMap<State, i64>,
    claims: HashSet<String>,
}

impl Monitor {
    fn new(context: Context, settings: Settings, asks: Asks) -> Self {
        let volumes = context.cluster.store(WatchOptions::default());
        let claims = context.cluster.store(WatchOptions::default());
        let counts = context.metrics.family(Counts::register);
        Self { context, settings, asks, volumes, claims, memory: Memory::default(), counts }
    }

    /// From getting the lease to losing it, again and again.
    async fn terms(self: &Arc<Self>) {
        tokio::join!(self.volumes.synced(), self.claims.synced());
        loop {
            self.context.gate.opened().await;
            tokio::select! {
                biased;
                () = self.context.gate.lost() => {}
                () = self.passes() => {}
                () = self.watch_nodes() => {}
            }
            self.memory.clear();
            self.counts.silence();
        }
    }

    async fn watch_nodes(&self) {
        match self.settings.node_watcher {
            true => nodes::watch(self, self.settings.monitor_interval).await,
            false => std::future::pending().await,
        }
    }

    /// Asks about all volumes, again and again.
    async fn passes(self: &Arc<Self>) {
        let every = match self.asks.lists() {
            true => self.settings.list_volumes_interval,
            false => self.settings.monitor_interval,
        };
        let mut failures = 0;
        loop {
            let began = Instant::now();
            self.past().await;
            let volumes = self.watched();
            let passed = match self.asks.lists() {
                true => self.list_pass(&volumes).await,
                false => Some(self.get_pass(&volumes, every).await),
            };
            let Some(Passed { states, claims }) = passed else {
                sleep(self.settings.pace.backoff().after(failures).min(every)).await;
                failures = failures.saturating_add(1);
                continue;
            };
            failures = 0;
            self.memory.keep(&claims);
            self.counts.passed(self.context.driver.name(), &states, began.elapsed());
            tracing::debug!(volumes = volumes.len(), ?states, took = ?began.elapsed(), "asked about all volumes");
            sleep_until(began + every).await;
        }
    }

    /// Reads what was told before we started, unless it is known; whether it is now.
    async fn past(&self) -> bool {
        if self.memory.past_known() {
            return true;
        }
        match act::past(&self.context.cluster, self.settings.node_watcher).await {
            Ok(past) => self.memory.learn(&past),
            Err(ApiError::Forbidden(refusal)) => {
                tracing::warn!(%refusal, "events cannot be read: a recovery from before this start is not told");
                self.memory.learn(&memory::Past::default());
            }
            Err(error) => {
                tracing::warn!(%error, "events cannot be read now: recoveries are told once they can");
                return false;
            }
        }
        true
    }

    /// The volumes to ask about.
    fn watched(&self) -> Vec<Arc<PersistentVolume>> {
        let driver = self.context.driver.name();
        let ours = |volume: &Arc<PersistentVolume>| is_watched(volume, driver) && self.is_own(volume);
        self.volumes.all().into_iter().filter(ours).collect()
    }

    /// A node's own sidecar speaks of what is its node's.
    fn is_own(&self, volume: &PersistentVolume) -> bool {
        self.context.node.as_ref().is_none_or(|node| node.has(volume))
    }

    /// One question for all; `None` if the driver did not answer it.
    async fn list_pass(&self, volumes: &[Arc<PersistentVolume>]) -> Option<Passed> {
        let (driver, timeout) = (&self.context.driver, self.settings.pace.timeout);
        let mut reports = match act::list(driver, self.asks, timeout).await {
            Ok(reports) => reports,
            Err(status) => {
                self.failed(driver.name(), &status);
                return None;
            }
        };
        self.context.attempts.forget(ROLE, driver.name());
        let mut passed = Passed { states: BTreeMap::new(), claims: HashSet::new() };
        for volume in volumes {
            let report = reports.remove(handle(volume)).unwrap_or_else(|| self.asks.unlisted());
            passed.add(volume, &report);
            if self.tell(volume, &report) {
                sleep(GAP).await;
            }
        }
        Some(passed)
    }

    /// One question for each, spread over the interval.
    async fn get_pass(self: &Arc<Self>, volumes: &[Arc<PersistentVolume>], every: Duration) -> Passed {
        let mut ticks = interval(gap(every, volumes.len()));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let slots = Arc::new(Semaphore::new(self.settings.pace.workers.max(1)));
        let mut running = JoinSet::new();
        let mut passed = Passed { states: BTreeMap::new(), claims: HashSet::new() };
        for volume in volumes {
            ticks.tick().await;
            // The semaphore is never closed, so there is always a slot to come.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            let (monitor, volume) = (Arc::clone(self), Arc::clone(volume));
            running.spawn(async move {
                let report = monitor.get(&volume).await;
                monitor.tell(&volume, &report);
                drop(slot);
                (volume, report)
            });
            while let Some(ended) = running.try_join_next() {
                passed.add_ended(ended);
            }
        }
        while let Some(ended) = running.join_next().await {
            passed.add_ended(ended);
        }
        passed
    }

    async fn get(&self, volume: &PersistentVolume) -> Report {
        let (driver, timeout) = (&self.context.driver, self.settings.pace.timeout);
        match act::get(driver, self.asks, handle(volume).to_owned(), timeout).await {
            Ok(report) => {
                self.context.attempts.forget(ROLE, &volume.metadata.name);
                report
            }
            Err(status) => {
                self.failed(&volume.metadata.name, &status);
                Report::Unknown
            }
        }
    }

    fn failed(&self, object: &str, status: &tonic::Status) {
        let error = described(status, &BTreeMap::new());
        tracing::warn!(object, method = self.asks.method(), error, "the driver does not tell health");
        self.counts.failed();
        self.context.attempts.note(ROLE, object, self.asks.method(), Some(error));
    }

    /// Tells the claim's users, if there is something to tell; whether there was.
    fn tell(&self, volume: &PersistentVolume, report: &Report) -> bool {
        let claim = volume.spec.claim_ref.as_ref().and_then(|reference| self.claims.get(&reference.key()));
        let told = claim.as_ref().map_or(Told::Unknown, |claim| self.memory.told(&claim.metadata.uid));
        let now = now();
        let step = decide(&View { volume, claim: claim.as_deref(), report, told: &told }, now);
        let Some(claim) = claim else { return false };
        let uid = &claim.metadata.uid;
        tracing::trace!(volume = volume.metadata.name, ?step, "looked");
        match step {
            Step::Leave(_) => return false,
            _ if !self.context.gate.is_open() => return false,
            Step::Warn { message } => {
                let reason = reason::VOLUME_CONDITION_ABNORMAL;
                self.context.event(&*claim, EventType::Warning, reason, message.clone());
                self.memory.warned(uid, &message, now);
            }
            Step::Recover => {
                self.context.event(&*claim, EventType::Normal, reason::VOLUME_CONDITION_NORMAL, WELL_AGAIN);
                self.memory.recovered(uid);
            }
        }
        true
    }
}

impl Passed {
    fn add(&mut self, volume: &PersistentVolume, report: &Report) {
        *self.states.entry(report.state()).or_default() += 1;
        self.claims.extend(volume.spec.claim_ref.as_ref().map(|claim| claim.uid.clone()));
    }

    fn add_ended(&mut self, ended: Result<(Arc<PersistentVolume>, Report), tokio::task::JoinError>) {
        // One that panicked has said so, and nothing of the volume.
        if let Ok((volume, report)) = ended {
            self.add(&volume, &report);
        }
    }
}

fn handle(volume: &PersistentVolume) -> &str {
    volume.spec.csi.as_ref().map_or("", |csi| &csi.volume_handle)
}
