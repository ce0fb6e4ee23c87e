//! Metrics of the roles. Calls to the driver use the name, labels and buckets of the upstream sidecars, so existing
//! dashboards keep working.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;
use wharf_csi::go_code_name;

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The label's value until the driver's name is known.
const UNKNOWN: &str = "unknown-driver";

type Operation = [(&'static str, String); 3];
type Result = [(&'static str, &'static str); 1];

/// The metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    driver: Arc<OnceLock<String>>,
    operations: Family<Operation, Histogram, fn() -> Histogram>,
    registered: Gauge,
    registrations: Family<Result, Counter>,
    sockets: Family<Result, Counter>,
    registry: Arc<Mutex<Registry>>,
    families: Arc<Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let operations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let (registered, registrations, sockets) = (Gauge::default(), Family::default(), Family::default());
        let mut registry = Registry::default();
        registry.register(
            "csi_sidecar_operations_seconds",
            "Duration of CSI calls to the driver",
            operations.clone(),
        );
        registry.register(
            "wharf_registrar_registered",
            "Whether kubelet last reported the driver as registered",
            registered.clone(),
        );
        registry.register(
            "wharf_registrar_registrations",
            "Registration results reported by kubelet",
            registrations.clone(),
        );
        registry.register(
            "wharf_registrar_sockets",
            "Registration sockets created, by reason",
            sockets.clone(),
        );
        let registry = Arc::new(Mutex::new(registry));
        let families = Arc::default();
        Self { driver: Arc::default(), operations, registered, registrations, sockets, registry, families }
    }

    /// Sets the driver's name for the labels. Only the first name counts: the label must not change.
    pub(crate) fn set_driver_name(&self, name: &str) {
        self.driver.get_or_init(|| name.to_owned());
    }

    /// Whether the driver's name is set.
    pub(crate) fn has_driver_name(&self) -> bool {
        self.driver.get().is_some()
    }

    /// Records a finished call to the driver. `method` is the gRPC path, such as `/csi.v1.Identity/Probe`.
    pub(crate) fn record_call(&self, method: &str, code: Code, took: Duration) {
        let driver = self.driver.get().map_or(UNKNOWN, String::as_str);
        let labels = [
            ("driver_name", driver.to_owned()),
            ("method_name", method.to_owned()),
            ("grpc_status_code", go_code_name(code).to_owned()),
        ];
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Records kubelet's registration result.
    pub(crate) fn record_registration(&self, registered: bool) {
        self.registered.set(i64::from(registered));
        let result = if registered { "registered" } else { "refused" };
        self.registrations.get_or_create(&[("result", result)]).inc();
    }

    /// Records a new registration socket. Until kubelet responds on it, the driver counts as not registered.
    pub(crate) fn record_socket(&self, reason: &'static str) {
        self.registered.set(0);
        self.sockets.get_or_create(&[("reason", reason)]).inc();
    }

    /// The registry for a role's own metrics.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A role's own metrics. They are created and registered once, even if the role restarts: registering them again
    /// would expose every name twice.
    pub(crate) fn get_or_register<T: Clone + Send + Sync + 'static>(
        &self,
        register: impl FnOnce(&mut Registry) -> T,
    ) -> T {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        let family =
            families.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(register(&mut self.registry())));
        match family.downcast_ref::<T>() {
            Some(family) => family.clone(),
            None => unreachable!("metrics are stored under their own type"),
        }
    }

    /// All metrics of a process with one sidecar.
    pub(crate) fn encode_with_panics(&self) -> String {
        let own = self.encode();
        own.trim_end().trim_end_matches("# EOF").to_owned() + &encode_panics()
    }

    /// All metrics as OpenMetrics text.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry());
        text
    }
}

/// The caught panics of this process as OpenMetrics text.
pub(crate) fn encode_panics() -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    wharf_cluster::register_panics(&mut registry);
    // Writing to a String does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.0 "Metrics"
    #[test]
    fn call_metrics_match_upstream() {
        let metrics = Metrics::new();
        metrics.record_call("/csi.v1.Identity/Probe", Code::Cancelled, Duration::from_millis(1));
        metrics.set_driver_name("d.test");
        metrics.set_driver_name("another");
        metrics.record_call("/csi.v1.Identity/Probe", Code::Ok, Duration::from_secs(601));
        let text = metrics.encode();
        for line in [
            r#"csi_sidecar_operations_seconds_count{driver_name="unknown-driver",method_name="/csi.v1.Identity/Probe",grpc_status_code="Canceled"} 1"#,
            r#"csi_sidecar_operations_seconds_bucket{le="600.0",driver_name="d.test",method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 0"#,
            r#"csi_sidecar_operations_seconds_bucket{le="+Inf",driver_name="d.test",method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn role_metrics_are_registered_once() {
        #[derive(Clone)]
        struct Family(Counter);
        let metrics = Metrics::new();
        let family = || {
            metrics.get_or_register(|registry| {
                let counter = Counter::default();
                registry.register("wharf_test", "Test", counter.clone());
                Family(counter)
            })
        };
        family().0.inc();
        family().0.inc();
        assert_eq!(metrics.encode().matches("wharf_test_total 2").count(), 1);
        assert_eq!(metrics.encode().matches("# TYPE wharf_test").count(), 1);
    }

    #[test]
    fn registered_gauge_follows_last_result_of_current_socket() {
        let metrics = Metrics::new();
        let registered = || metrics.encode().contains("wharf_registrar_registered 1");
        metrics.record_socket("first");
        metrics.record_registration(true);
        assert!(registered());
        metrics.record_registration(false);
        assert!(!registered());
        metrics.record_registration(true);
        metrics.record_socket("vanished");
        assert!(!registered());
        assert!(metrics.encode().contains(r#"wharf_registrar_registrations_total{result="registered"} 2"#));
        assert!(metrics.encode().contains(r#"wharf_registrar_sockets_total{reason="vanished"} 1"#));
    }
}
