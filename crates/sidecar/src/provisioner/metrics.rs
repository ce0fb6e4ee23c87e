//! The provisioner's metrics, with upstream's names and labels so that existing dashboards keep working.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The default buckets of Prometheus' Go library.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

type ProvisionLabels = [(&'static str, String); 2];
type DeleteLabels = [(&'static str, String); 1];
type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct ProvisionerMetrics {
    provisioned: Family<ProvisionLabels, Counter>,
    provision_failed: Family<ProvisionLabels, Counter>,
    provision_duration: Durations<ProvisionLabels>,
    deleted: Family<DeleteLabels, Counter>,
    delete_failed: Family<DeleteLabels, Counter>,
    delete_duration: Durations<DeleteLabels>,
}

impl ProvisionerMetrics {
    /// Creates and registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_duration: Family::new_with_constructor(histogram),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_duration: Family::new_with_constructor(histogram),
        };
        let claim = "controller_persistentvolumeclaim_provision";
        registry.register(claim, "Volumes provisioned, by class and source", metrics.provisioned.clone());
        registry.register(
            format!("{claim}_failed"),
            "Failed attempts to provision a volume, by class and source",
            metrics.provision_failed.clone(),
        );
        registry.register(
            format!("{claim}_duration_seconds"),
            "Time to provision a volume, by class and source",
            metrics.provision_duration.clone(),
        );
        let volume = "controller_persistentvolume_delete";
        registry.register(volume, "Volumes deleted, by class", metrics.deleted.clone());
        registry.register(
            format!("{volume}_failed"),
            "Failed attempts to delete a volume, by class",
            metrics.delete_failed.clone(),
        );
        registry.register(
            format!("{volume}_duration_seconds"),
            "Time to delete a volume, by class",
            metrics.delete_duration.clone(),
        );
        metrics
    }

    /// Records a provisioned volume. `source` is the kind of its data source, or empty.
    pub(crate) fn provisioned(&self, class: &str, source: &str, took: Duration) {
        let labels = [("class", class.to_owned()), ("source", source.to_owned())];
        self.provision_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.provisioned.get_or_create(&labels).inc();
    }

    /// Records a failed attempt to provision a volume.
    pub(crate) fn provision_failed(&self, class: &str, source: &str) {
        self.provision_failed
            .get_or_create(&[("class", class.to_owned()), ("source", source.to_owned())])
            .inc();
    }

    /// Records a deleted volume.
    pub(crate) fn deleted(&self, class: &str, took: Duration) {
        let labels = [("class", class.to_owned())];
        self.delete_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.deleted.get_or_create(&labels).inc();
    }

    /// Records a failed attempt to delete a volume.
    pub(crate) fn delete_failed(&self, class: &str) {
        self.delete_failed.get_or_create(&[("class", class.to_owned())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    /// sidecars.md 1.1 "Metrics"
    #[test]
    fn names_and_labels_match_upstream() {
        let shared = Metrics::new();
        let metrics = shared.get_or_register(ProvisionerMetrics::register);
        metrics.provisioned("fast", "", Duration::from_millis(20));
        metrics.provision_failed("fast", "VolumeSnapshot");
        metrics.deleted("fast", Duration::from_secs(11));
        metrics.delete_failed("fast");
        let text = shared.encode();
        for line in [
            r#"controller_persistentvolumeclaim_provision_total{class="fast",source=""} 1"#,
            r#"controller_persistentvolumeclaim_provision_failed_total{class="fast",source="VolumeSnapshot"} 1"#,
            r#"controller_persistentvolumeclaim_provision_duration_seconds_bucket{le="0.025",class="fast",source=""} 1"#,
            r#"controller_persistentvolume_delete_total{class="fast"} 1"#,
            r#"controller_persistentvolume_delete_failed_total{class="fast"} 1"#,
            r#"controller_persistentvolume_delete_duration_seconds_bucket{le="10.0",class="fast"} 0"#,
            r#"controller_persistentvolume_delete_duration_seconds_count{class="fast"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
