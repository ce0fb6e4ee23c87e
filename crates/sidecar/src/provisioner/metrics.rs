//! What the provisioner counts, under upstream's names and labels, so that dashboards go on working.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Those that Prometheus' Go library has where nobody chose others.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

type Made = [(&'static str, String); 2];
type Deleted = [(&'static str, String); 1];
type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// The counters; clones count together.
#[derive(Clone)]
pub(crate) struct Counts {
    made: Family<Made, Counter>,
    not_made: Family<Made, Counter>,
    making: Durations<Made>,
    deleted: Family<Deleted, Counter>,
    not_deleted: Family<Deleted, Counter>,
    deleting: Durations<Deleted>,
}

impl Counts {
    /// Makes and registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let counts = Self {
            made: Family::default(),
            not_made: Family::default(),
            making: Family::new_with_constructor(histogram),
            deleted: Family::default(),
            not_deleted: Family::default(),
            deleting: Family::new_with_constructor(histogram),
        };
        let claim = "controller_persistentvolumeclaim_provision";
        registry.register(claim, "Volumes made, by class and source", counts.made.clone());
        registry.register(
            format!("{claim}_failed"),
            "Failed attempts to make a volume, by class and source",
            counts.not_made.clone(),
        );
        registry.register(
            format!("{claim}_duration_seconds"),
            "How long it took to make a volume, by class and source",
            counts.making.clone(),
        );
        let volume = "controller_persistentvolume_delete";
        registry.register(volume, "Volumes deleted, by class", counts.deleted.clone());
        registry.register(
            format!("{volume}_failed"),
            "Failed attempts to delete a volume, by class",
            counts.not_deleted.clone(),
        );
        registry.register(
            format!("{volume}_duration_seconds"),
            "How long it took to delete a volume, by class",
            counts.deleting.clone(),
        );
        counts
    }

    /// A volume was made and written; `source` is the kind that its content came from, or empty.
    pub(crate) fn made(&self, class: &str, source: &str, took: Duration) {
        let labels = [("class", class.to_owned()), ("source", source.to_owned())];
        self.making.get_or_create(&labels).observe(took.as_secs_f64());
        self.made.get_or_create(&labels).inc();
    }

    /// An attempt to make a volume failed.
    pub(crate) fn not_made(&self, class: &str, source: &str) {
        self.not_made.get_or_create(&[("class", class.to_owned()), ("source", source.to_owned())]).inc();
    }

    /// A volume was deleted.
    pub(crate) fn deleted(&self, class: &str, took: Duration) {
        let labels = [("class", class.to_owned())];
        self.deleting.get_or_create(&labels).observe(took.as_secs_f64());
        self.deleted.get_or_create(&labels).inc();
    }

    /// An attempt to delete a volume failed.
    pub(crate) fn not_deleted(&self, class: &str) {
        self.not_deleted.get_or_create(&[("class", class.to_owned())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    /// sidecars.md 1.1 "Metrics"
    #[test]
    fn names_and_labels_are_upstreams() {
        let metrics = Metrics::new();
        let counts = metrics.family(Counts::register);
        counts.made("fast", "", Duration::from_millis(20));
        counts.not_made("fast", "VolumeSnapshot");
        counts.deleted("fast", Duration::from_secs(11));
        counts.not_deleted("fast");
        let text = metrics.text();
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
