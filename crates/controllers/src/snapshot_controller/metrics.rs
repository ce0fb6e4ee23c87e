//! Durations of snapshot operations under upstream's metric names, from when the controller first observes the
//! request until it observes the result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Operations in flight, by operation, object kind and UID.
type InFlight = HashMap<(Operation, ObjectKind, String), InFlightOperation>;
type Labels = [(&'static str, String); 4];

/// A measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Create,
    CreateAndReady,
    Delete,
}

/// The kind of object that an operation handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ObjectKind {
    Snapshot,
    Group,
}

impl Operation {
    fn name(self, object: ObjectKind) -> &'static str {
        match (self, object) {
            (Self::Create, ObjectKind::Snapshot) => "CreateSnapshot",
            (Self::CreateAndReady, ObjectKind::Snapshot) => "CreateSnapshotAndReady",
            (Self::Delete, ObjectKind::Snapshot) => "DeleteSnapshot",
            (Self::Create, ObjectKind::Group) => "CreateGroupSnapshot",
            (Self::CreateAndReady, ObjectKind::Group) => "CreateGroupSnapshotAndReady",
            (Self::Delete, ObjectKind::Group) => "DeleteGroupSnapshot",
        }
    }
}

struct InFlightOperation {
    driver: String,
    kind: &'static str,
    since: Instant,
}

/// The metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    running: Arc<Mutex<InFlight>>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let in_flight = Gauge::default();
        registry.register(
            "snapshot_controller_operation_total_seconds",
            "Total number of seconds spent by the controller on an operation",
            durations.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Total number of operations in flight",
            in_flight.clone(),
        );
        Self { durations, in_flight, running: Arc::default() }
    }

    /// Starts an operation, unless it was started before.
    pub(crate) fn start(
        &self,
        operation: Operation,
        object: ObjectKind,
        uid: &str,
        driver: &str,
        dynamic: bool,
    ) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry((operation, object, uid.to_owned())).or_insert_with(|| InFlightOperation {
            driver: if driver.is_empty() { "unknown".to_owned() } else { driver.to_owned() },
            kind: if dynamic { "dynamic" } else { "pre-provisioned" },
            since: Instant::now(),
        });
        self.in_flight.set(running.len() as i64);
    }

    /// Finishes an operation. A finished deletion cancels pending creations.
    pub(crate) fn finish(&self, operation: Operation, object: ObjectKind, uid: &str, driver: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = running.remove(&(operation, object, uid.to_owned())) {
            let driver = if driver.is_empty() { &ended.driver } else { driver };
            self.observe(operation, object, driver, &ended, "success");
        }
        if operation == Operation::Delete {
            for operation in [Operation::Create, Operation::CreateAndReady] {
                if let Some(ended) = running.remove(&(operation, object, uid.to_owned())) {
                    self.observe(operation, object, &ended.driver, &ended, "cancel");
                }
            }
        }
        self.in_flight.set(running.len() as i64);
    }

    fn observe(
        &self,
        operation: Operation,
        object: ObjectKind,
        driver: &str,
        ended: &InFlightOperation,
        status: &str,
    ) {
        let labels = [
            ("driver_name", driver.to_owned()),
            ("operation_name", operation.name(object).to_owned()),
            ("snapshot_type", ended.kind.to_owned()),
            ("operation_status", status.to_owned()),
        ];
        self.durations.get_or_create(&labels).observe(ended.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// sidecars.md 1.4 "Metrics".
    #[tokio::test(start_paused = true)]
    async fn metrics_use_upstreams_names() {
        let mut registry = Registry::default();
        let operations = Metrics::register(&mut registry);
        let encoded = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        operations.start(Operation::Create, ObjectKind::Snapshot, "u", "", true);
        operations.start(Operation::CreateAndReady, ObjectKind::Snapshot, "u", "d", true);
        operations.start(Operation::Create, ObjectKind::Group, "g", "d", false);
        tokio::time::advance(std::time::Duration::from_secs(20)).await;
        operations.start(Operation::Create, ObjectKind::Snapshot, "u", "d", true);
        operations.finish(Operation::Create, ObjectKind::Snapshot, "u", "d");
        operations.finish(Operation::Create, ObjectKind::Snapshot, "u", "d");
        operations.finish(Operation::Create, ObjectKind::Group, "g", "");
        assert!(encoded().contains("snapshot_controller_operations_in_flight 1"));
        operations.start(Operation::Delete, ObjectKind::Snapshot, "u", "d", true);
        operations.finish(Operation::Delete, ObjectKind::Snapshot, "u", "d");
        let text = encoded();
        let count = |operation: &str, kind: &str, status: &str| {
            format!(
                r#"snapshot_controller_operation_total_seconds_count{{driver_name="d",operation_name="{operation}",snapshot_type="{kind}",operation_status="{status}"}} 1"#
            )
        };
        for line in [
            count("CreateSnapshot", "dynamic", "success"),
            count("CreateGroupSnapshot", "pre-provisioned", "success"),
            count("DeleteSnapshot", "dynamic", "success"),
            count("CreateSnapshotAndReady", "dynamic", "cancel"),
            "snapshot_controller_operations_in_flight 0".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        let bucket = r#"snapshot_controller_operation_total_seconds_bucket{le="15.0",driver_name="d",operation_name="CreateSnapshot",snapshot_type="dynamic",operation_status="success"} 0"#;
        assert!(text.contains(bucket), "{text}");
    }
}
