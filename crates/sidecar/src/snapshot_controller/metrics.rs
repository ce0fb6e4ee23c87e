//! How long snapshots take, by upstream's names: from when the controller first sees the wish to when it sees it
//! fulfilled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Operations under way, by what they are and by the object's identity.
type InFlight = HashMap<(Operation, Of, String), Running>;
type Labels = [(&'static str, String); 4];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Create,
    CreateAndReady,
    Delete,
}

/// Of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Of {
    Snapshot,
    Group,
}

impl Operation {
    fn name(self, of: Of) -> &'static str {
        match (self, of) {
            (Self::Create, Of::Snapshot) => "CreateSnapshot",
            (Self::CreateAndReady, Of::Snapshot) => "CreateSnapshotAndReady",
            (Self::Delete, Of::Snapshot) => "DeleteSnapshot",
            (Self::Create, Of::Group) => "CreateGroupSnapshot",
            (Self::CreateAndReady, Of::Group) => "CreateGroupSnapshotAndReady",
            (Self::Delete, Of::Group) => "DeleteGroupSnapshot",
        }
    }
}

struct Running {
    driver: String,
    kind: &'static str,
    since: Instant,
}

/// What is counted; clones count together.
#[derive(Clone)]
pub(crate) struct Operations {
    took: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    running: Arc<Mutex<InFlight>>,
}

impl Operations {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let took = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let in_flight = Gauge::default();
        registry.register(
            "snapshot_controller_operation_total_seconds",
            "Total number of seconds spent by the controller on an operation",
            took.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Total number of operations in flight",
            in_flight.clone(),
        );
        Self { took, in_flight, running: Arc::default() }
    }

    /// An operation is seen to be wanted; it begins once.
    pub(crate) fn begin(&self, operation: Operation, of: Of, uid: &str, driver: &str, dynamic: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry((operation, of, uid.to_owned())).or_insert_with(|| Running {
            driver: if driver.is_empty() { "unknown".to_owned() } else { driver.to_owned() },
            kind: if dynamic { "dynamic" } else { "pre-provisioned" },
            since: Instant::now(),
        });
        self.in_flight.set(running.len() as i64);
    }

    /// It is done. A deletion that is done ends what was still to be made.
    pub(crate) fn done(&self, operation: Operation, of: Of, uid: &str, driver: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = running.remove(&(operation, of, uid.to_owned())) {
            let driver = if driver.is_empty() { &ended.driver } else { driver };
            self.observe(operation, of, driver, &ended, "success");
        }
        if operation == Operation::Delete {
            for operation in [Operation::Create, Operation::CreateAndReady] {
                if let Some(ended) = running.remove(&(operation, of, uid.to_owned())) {
                    self.observe(operation, of, &ended.driver, &ended, "cancel");
                }
            }
        }
        self.in_flight.set(running.len() as i64);
    }

    fn observe(&self, operation: Operation, of: Of, driver: &str, ended: &Running, status: &str) {
        let labels = [
            ("driver_name", driver.to_owned()),
            ("operation_name", operation.name(of).to_owned()),
            ("snapshot_type", ended.kind.to_owned()),
            ("operation_status", status.to_owned()),
        ];
        self.took.get_or_create(&labels).observe(ended.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    /// sidecars.md 1.4 "Metrics".
    #[tokio::test(start_paused = true)]
    async fn upstreams_names() {
        let metrics = Metrics::new();
        let operations = metrics.family(Operations::register);
        operations.begin(Operation::Create, Of::Snapshot, "u", "", true);
        operations.begin(Operation::CreateAndReady, Of::Snapshot, "u", "d", true);
        operations.begin(Operation::Create, Of::Group, "g", "d", false);
        tokio::time::advance(std::time::Duration::from_secs(20)).await;
        operations.begin(Operation::Create, Of::Snapshot, "u", "d", true);
        operations.done(Operation::Create, Of::Snapshot, "u", "d");
        operations.done(Operation::Create, Of::Snapshot, "u", "d");
        operations.done(Operation::Create, Of::Group, "g", "");
        assert!(metrics.text().contains("snapshot_controller_operations_in_flight 1"));
        operations.begin(Operation::Delete, Of::Snapshot, "u", "d", true);
        operations.done(Operation::Delete, Of::Snapshot, "u", "d");
        let text = metrics.text();
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
