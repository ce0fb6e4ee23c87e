//! What the attach/detach controller counts, by upstream's name.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::decide::Force;

/// Counters; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    forced: Family<[(&'static str, &'static str); 1], Times>,
}

impl Metrics {
    /// Makes them part of a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Number of times the A/D Controller performed a forced detach",
            self.forced.clone(),
        );
    }

    /// The end of an attachment was asked for, though the node may still use the volume.
    pub(super) fn forced(&self, why: Force) {
        self.forced.get_or_create(&[("reason", why.as_str())]).0.inc();
    }
}

/// A counter whose name does not end in `_total`. Upstream's does not, and OpenMetrics knows such a one only as a number of
/// which nothing is said: alerts that ask for upstream's name find it.
#[derive(Debug, Clone, Default)]
struct Times(Counter);

impl TypedMetric for Times {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&self.0.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// kubernetes.md 1.3 "Forced metric".
    #[test]
    fn upstreams_name_and_reasons() {
        let (metrics, mut registry, mut text) = (Metrics::default(), Registry::default(), String::new());
        metrics.register(&mut registry);
        metrics.forced(Force::Timeout);
        metrics.forced(Force::Timeout);
        metrics.forced(Force::OutOfService);
        encode(&mut text, &registry).unwrap();
        let name = "attach_detach_controller_attachdetach_controller_forced_detaches";
        for (reason, times) in [("timeout", 2), ("out-of-service", 1)] {
            let line = format!("{name}{{reason=\"{reason}\"}} {times}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
