//! The driver's metrics: requests by method and code, their durations, requests in flight, and the backend's own.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

/// From requests without I/O to those that check a large file system.
const BUCKETS: [f64; 11] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

type ByMethod = [(&'static str, &'static str); 1];
type ByMethodAndCode = [(&'static str, String); 2];

/// A metric of the backend.
#[derive(Clone)]
pub(crate) struct DriverGauge {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) read: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// The driver's metrics; clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<ByMethodAndCode, Counter>,
    durations: Family<ByMethod, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    backend: Vec<(DriverGauge, Gauge)>,
    registry: Arc<Registry>,
}

impl Metrics {
    pub(crate) fn new(backend: &[DriverGauge]) -> Self {
        let requests = Family::default();
        let durations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let in_flight = Gauge::default();
        let mut registry = Registry::default();
        registry.register(
            "csi_requests",
            "Requests that have ended, by method and gRPC code",
            requests.clone(),
        );
        registry.register("csi_request_seconds", "How long requests took", durations.clone());
        registry.register("csi_requests_in_flight", "Requests that run now", in_flight.clone());
        let with_gauge = |gauge: &DriverGauge| (gauge.clone(), Gauge::default());
        let backend: Vec<(DriverGauge, Gauge)> = backend.iter().map(with_gauge).collect();
        for (spec, gauge) in &backend {
            registry.register(spec.name.clone(), spec.help.clone(), gauge.clone());
        }
        Self { requests, durations, in_flight, backend, registry: Arc::new(registry) }
    }

    pub(crate) fn request_started(&self) {
        self.in_flight.inc();
    }

    pub(crate) fn request_finished(&self, method: &'static str, code: Code, took: Duration) {
        self.in_flight.dec();
        self.requests.get_or_create(&[("method", method.to_owned()), ("code", format!("{code:?}"))]).inc();
        self.durations.get_or_create(&[("method", method)]).observe(took.as_secs_f64());
    }

    /// All metrics in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        for (spec, gauge) in &self.backend {
            gauge.set(i64::try_from((spec.read)()).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_of_the_backend_is_read_on_each_scrape() {
        let count = Arc::new(std::sync::atomic::AtomicU64::new(3));
        let read = count.clone();
        let gauge = DriverGauge {
            name: "blocked_workers".to_owned(),
            help: "Workers that do not exit".to_owned(),
            read: Arc::new(move || read.load(std::sync::atomic::Ordering::Relaxed)),
        };
        let metrics = Metrics::new(&[gauge]);
        assert!(metrics.text().contains("blocked_workers 3"), "{}", metrics.text());
        count.store(4, std::sync::atomic::Ordering::Relaxed);
        assert!(metrics.text().contains("blocked_workers 4"), "{}", metrics.text());
    }
}
