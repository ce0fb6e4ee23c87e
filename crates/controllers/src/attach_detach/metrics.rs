//! Metrics of the attach/detach controller, with upstream's names.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::decide::ForceReason;

/// Counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    forced: Family<[(&'static str, &'static str); 1], UntypedCounter>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Number of times the A/D Controller performed a forced detach",
            self.forced.clone(),
        );
    }

    /// Counts a VolumeAttachment that was deleted although the node may still use the volume.
    pub(super) fn forced(&self, reason: ForceReason) {
        self.forced.get_or_create(&[("reason", reason.as_str())]).0.inc();
    }
}

/// A counter whose name does not end in `_total`. Upstream's does not, and OpenMetrics allows that only for metrics of
/// type unknown. Alerts that use upstream's name find it.
#[derive(Debug, Clone, Default)]
struct UntypedCounter(Counter);

impl TypedMetric for UntypedCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for UntypedCounter {
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

    /// kubernetes.md 1.3 "Forced detach metric".
    #[test]
    fn forced_detaches_has_upstreams_name_and_reasons() {
        let (metrics, mut registry, mut text) = (Metrics::default(), Registry::default(), String::new());
        metrics.register(&mut registry);
        metrics.forced(ForceReason::Timeout);
        metrics.forced(ForceReason::Timeout);
        metrics.forced(ForceReason::OutOfService);
        encode(&mut text, &registry).unwrap();
        let name = "attach_detach_controller_attachdetach_controller_forced_detaches";
        for (reason, times) in [("timeout", 2), ("out-of-service", 1)] {
            let line = format!("{name}{{reason=\"{reason}\"}} {times}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
