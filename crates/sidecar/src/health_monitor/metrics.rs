//! What the health monitor counts: volumes by state, never by name, so that the number of series is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::view::State;

const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// The gauges; clones are the same.
#[derive(Clone)]
pub(crate) struct Counts {
    volumes: Family<[(&'static str, String); 2], Gauge>,
    pass: Histogram,
    failed: Counter,
}

impl Counts {
    /// Makes and registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counts =
            Self { volumes: Family::default(), pass: Histogram::new(BUCKETS), failed: Counter::default() };
        registry.register(
            "wharf_volume_health",
            "Volumes by what the driver said of them in the last pass",
            counts.volumes.clone(),
        );
        registry.register(
            "wharf_volume_health_pass_seconds",
            "How long it took to ask about all volumes",
            counts.pass.clone(),
        );
        registry.register(
            "wharf_volume_health_failures",
            "Questions about health that the driver did not answer",
            counts.failed.clone(),
        );
        counts
    }

    /// A pass has ended.
    pub(crate) fn passed(&self, driver: &str, states: &BTreeMap<State, i64>, took: Duration) {
        for state in State::ALL {
            let labels = [("driver_name", driver.to_owned()), ("state", state.name().to_owned())];
            self.volumes.get_or_create(&labels).set(states.get(&state).copied().unwrap_or(0));
        }
        self.pass.observe(took.as_secs_f64());
    }

    /// A question was not answered.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }

    /// Somebody else looks from now on: two that tell of the same volumes would count them twice.
    pub(crate) fn silence(&self) {
        self.volumes.clear();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn states_that_are_over_are_zero() {
        let mut registry = Registry::default();
        let counts = Counts::register(&mut registry);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        counts.passed("d", &[(State::Healthy, 7), (State::DataLoss, 1)].into(), Duration::from_secs(2));
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="data_loss"} 1"#), "{}", text());
        counts.passed("d", &[(State::Healthy, 8)].into(), Duration::from_secs(2));
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="data_loss"} 0"#), "{}", text());
        assert!(text().contains(r#"wharf_volume_health{driver_name="d",state="healthy"} 8"#), "{}", text());
        assert!(text().contains("wharf_volume_health_pass_seconds_count 2"), "{}", text());
        counts.silence();
        assert!(!text().contains("wharf_volume_health{"), "{}", text());
    }
}
