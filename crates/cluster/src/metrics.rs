//! Metrics of this crate. Those of queues and leases have the names that client-go uses, so that dashboards for the
//! upstream sidecars keep working; the others start with `wharf_`.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::ApiError;

type Labels<const N: usize> = [(&'static str, String); N];
type Seconds = Family<Labels<1>, Histogram, fn() -> Histogram>;

const BUCKETS: [f64; 10] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0];

/// Metrics of requests, watches, queues, events and leases; clones share them. Register them once in the process's
/// registry with [`Metrics::register`].
#[derive(Clone)]
pub struct Metrics {
    requests: Family<Labels<3>, Counter>,
    watch_starts: Family<Labels<2>, Counter>,
    undecodable: Family<Labels<1>, Counter>,
    queue_adds: Family<Labels<1>, Counter>,
    queue_retries: Family<Labels<1>, Counter>,
    queue_seconds: Seconds,
    work_seconds: Seconds,
    events: Family<Labels<1>, Counter>,
    leading: Family<Labels<1>, Gauge>,
    queues: Arc<Queues>,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Seconds::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        Self {
            requests: Family::default(),
            watch_starts: Family::default(),
            undecodable: Family::default(),
            queue_adds: Family::default(),
            queue_retries: Family::default(),
            queue_seconds: seconds(),
            work_seconds: seconds(),
            events: Family::default(),
            leading: Family::default(),
            queues: Arc::default(),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "wharf_api_requests",
            "Completed requests to the API server, by method, resource and outcome",
            self.requests.clone(),
        );
        registry.register(
            "wharf_watch_starts",
            "LIST and WATCH requests started, by resource and type",
            self.watch_starts.clone(),
        );
        registry.register(
            "wharf_undecodable_objects",
            "Objects in lists and watches that could not be decoded",
            self.undecodable.clone(),
        );
        registry.register("workqueue_adds", "Keys added to a queue", self.queue_adds.clone());
        registry.register("workqueue_retries", "Keys requeued after a failure", self.queue_retries.clone());
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time keys waited in the queue before processing started",
            self.queue_seconds.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time processing a key took",
            self.work_seconds.clone(),
        );
        registry.register(
            "wharf_events",
            "Events by outcome: written, failed or dropped",
            self.events.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "1 while this process holds the lease",
            self.leading.clone(),
        );
        registry.register_collector(Box::new(Arc::clone(&self.queues)));
    }

    pub(crate) fn request(&self, method: &str, resource: &str, error: Option<&ApiError>) {
        let outcome = error.map_or("OK", ApiError::reason);
        let labels = [
            ("method", method.to_owned()),
            ("resource", resource.to_owned()),
            ("outcome", outcome.to_owned()),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn watch_start(&self, resource: &str, operation: &'static str) {
        let labels = [("resource", resource.to_owned()), ("operation", operation.to_owned())];
        self.watch_starts.get_or_create(&labels).inc();
    }

    pub(crate) fn undecodable(&self, resource: &str) {
        self.undecodable.get_or_create(&[("resource", resource.to_owned())]).inc();
    }

    pub(crate) fn event(&self, outcome: &'static str, count: u64) {
        self.events.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count);
    }

    pub(crate) fn leading(&self, lease: &str, holds: bool) {
        self.leading.get_or_create(&[("name", lease.to_owned())]).set(i64::from(holds));
    }

    pub(crate) fn queue_add(&self, queue: &str) {
        self.queue_adds.get_or_create(&[("name", queue.to_owned())]).inc();
    }

    pub(crate) fn queue_retry(&self, queue: &str) {
        self.queue_retries.get_or_create(&[("name", queue.to_owned())]).inc();
    }

    pub(crate) fn queue_waited(&self, queue: &str, waited: Duration) {
        self.queue_seconds.get_or_create(&[("name", queue.to_owned())]).observe(waited.as_secs_f64());
    }

    pub(crate) fn queue_worked(&self, queue: &str, took: Duration) {
        self.work_seconds.get_or_create(&[("name", queue.to_owned())]).observe(took.as_secs_f64());
    }

    pub(crate) fn watch_queue(&self, queue: Weak<dyn Gauged>) {
        self.queues.lock().push(queue);
    }
}

/// Adds the caught panics of this process to a registry. They are not part of [`Metrics`], of which a process may have
/// several.
pub fn register_panics(registry: &mut Registry) {
    registry.register_collector(Box::new(Panics));
}

#[derive(Debug)]
struct Panics;

impl Collector for Panics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = ("wharf_panics", "Caught panics, by component");
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (component, count) in wharf_model::panics::counts() {
            ConstCounter::new(count).encode(family.encode_family(&[("component", component)])?)?;
        }
        Ok(())
    }
}

/// A queue whose gauges are read at a scrape.
pub(crate) trait Gauged: Send + Sync {
    fn gauges(&self) -> Gauges;
}

/// The gauges of a queue. They are computed at a scrape, since an age is only correct when it is read.
pub(crate) struct Gauges {
    pub(crate) name: &'static str,
    pub(crate) depth: usize,
    pub(crate) oldest: Duration,
    pub(crate) running: usize,
    pub(crate) longest_running: Duration,
}

#[derive(Default)]
struct Queues(Mutex<Vec<Weak<dyn Gauged>>>);

impl Queues {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Gauged>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues: Vec<_> = {
            let mut queues = self.lock();
            queues.retain(|queue| queue.strong_count() > 0);
            queues.iter().filter_map(Weak::upgrade).collect()
        };
        let gauges: Vec<Gauges> = queues.iter().map(|queue| queue.gauges()).collect();
        type Read = fn(&Gauges) -> f64;
        let families: [(&str, &str, Read); 4] = [
            ("workqueue_depth", "Keys waiting in the queue", |gauges| gauges.depth as f64),
            ("wharf_queue_oldest_seconds", "Time the oldest key has been waiting", |gauges| {
                gauges.oldest.as_secs_f64()
            }),
            ("wharf_queue_running", "Keys being processed", |gauges| gauges.running as f64),
            (
                "workqueue_longest_running_processor_seconds",
                "Time the longest running work has taken",
                |gauges| gauges.longest_running.as_secs_f64(),
            ),
        ];
        for (name, help, read) in families {
            let kind = ConstGauge::new(0.0).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for gauges in &gauges {
                let labels = [("name", gauges.name)];
                ConstGauge::new(read(gauges)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
