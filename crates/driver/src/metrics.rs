//! The driver's metrics: requests by method and code, their durations, and requests in flight.

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

/// The driver's metrics; clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<ByMethodAndCode, Counter>,
    durations: Family<ByMethod, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    registry: Arc<Registry>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
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
        Self { requests, durations, in_flight, registry: Arc::new(registry) }
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
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
