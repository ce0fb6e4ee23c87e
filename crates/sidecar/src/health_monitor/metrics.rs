//! Metrics of the health monitor. Volumes are counted by state, not by name, so that the number of series is
//! bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::view::State;

const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// The metrics; clones share them.
#[derive(Clone)]
pub(crate) struct HealthMetrics {
    volumes: Family<[(&'static str, String); 2], Gauge>,
    pass: Histogram,
    failed: Counter,
}

impl HealthMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics =
            Self { volumes: Family::default(), pass: Histogram::new(BUCKETS), failed: Counter::default() };
        registry.register(
            "wharf_volume_health",
            "Number of volumes by health state in the last pass",
            metrics.volumes.clone(),
        );
        registry.register(
            "wharf_volume_health_pass_seconds",
            "Duration of one pass over all volumes",
            metrics.pass.clone(),
        );
        registry.register(
            "wharf_volume_health_failures",
            "Number of failed health calls to the driver",
            metrics.failed.clone(),
        );
        metrics
    }

    /// Records a completed pass.
    pub(crate) fn record_pass(&self, driver: &str, states: &BTreeMap<State, i64>, took: Duration) {
        for state in State::ALL {
            let labels = [("driver_name", driver.to_owned()), ("state", state.name().to_owned())];
            self.volumes.get_or_create(&labels).set(states.get(&state).copied().unwrap_or(0));
        }
        self.pass.observe(took.as_secs_f64());
    }

    /// Records a failed call.
    pub(crate) fn record_failure(&self) {
        self.failed.inc();
    }

    /// Removes the gauges when the lease is lost: two replicas would count the same volumes twice.
    pub(crate) fn clear_volumes(&self) {
        self.volumes.clear();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn states_without_volumes_are_zero() {
        let mut registry = Registry::default();
        let metrics = HealthMetrics::register(&mut registry);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        metrics.record_pass("d", &[(State::Healthy, 7), (State::DataLoss, 1)].into(), Duration::from_secs(2));
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="data_loss"} 1"#), "{}", text());
        metrics.record_pass("d", &[(State::Healthy, 8)].into(), Duration::from_secs(2));
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="data_loss"} 0"#), "{}", text());
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="healthy"} 8"#), "{}", text());
        assert!(text().contains("wharf_volume_health_pass_seconds_count 2"), "{}", text());
        metrics.clear_volumes();
        assert!(!text().contains("wharf_volume_health{"), "{}", text());
    }
}
