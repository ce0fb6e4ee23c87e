//! What the roles count. Calls to the driver have the name, labels and buckets that the upstream
//! sidecars give them, so that dashboards go on working.

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

const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Until the driver has said its name.
const UNKNOWN: &str = "unknown-driver";

type Operation = [(&'static str, String); 3];
type Result = [(&'static str, &'static str); 1];

/// The counters; clones count together.
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
        registry.register("csi_sidecar_operations_seconds", "Calls to the driver", operations.clone());
        registry.register(
            "wharf_registrar_registered",
            "Whether kubelet's last word was that the driver is registered",
            registered.clone(),
        );
        registry.register(
            "wharf_registrar_registrations",
            "What kubelet said of registrations, by result",
            registrations.clone(),
        );
        registry.register(
            "wharf_registrar_sockets",
            "Registration sockets made, by what called for them",
            sockets.clone(),
        );
        let registry = Arc::new(Mutex::new(registry));
        let families = Arc::default();
        Self { driver: Arc::default(), operations, registered, registrations, sockets, registry, families }
    }

    /// The driver's name, for the labels. A second one is not taken: the label would no longer be one.
    pub(crate) fn name_driver(&self, name: &str) {
        self.driver.get_or_init(|| name.to_owned());
    }

    /// Whether the driver's name is known.
    pub(crate) fn knows_driver(&self) -> bool {
        self.driver.get().is_some()
    }

    /// A call to the driver has ended. `method` is the path of gRPC, such as `/csi.v1.Identity/Probe`.
    pub(crate) fn called(&self, method: &str, code: Code, took: Duration) {
        let driver = self.driver.get().map_or(UNKNOWN, String::as_str);
        let labels = [
            ("driver_name", driver.to_owned()),
            ("method_name", method.to_owned()),
            ("grpc_status_code", code_name(code)),
        ];
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Kubelet has said whether the driver is registered.
    pub(crate) fn registration(&self, registered: bool) {
        self.registered.set(i64::from(registered));
        let result = if registered { "registered" } else { "refused" };
        self.registrations.get_or_create(&[("result", result)]).inc();
    }

    /// A registration socket was made; kubelet has not said anything of this one.
    pub(crate) fn socket(&self, why: &'static str) {
        self.registered.set(0);
        self.sockets.get_or_create(&[("why", why)]).inc();
    }

    /// Where a role registers what it counts itself.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a role counts itself. It is made and registered once, also if the role is started anew: a second
    /// registration would show every name twice.
    pub(crate) fn family<T: Clone + Send + Sync + 'static>(
        &self,
        make: impl FnOnce(&mut Registry) -> T,
    ) -> T {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        let family =
            families.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(make(&mut self.registry())));
        match family.downcast_ref::<T>() {
            Some(family) => family.clone(),
            None => unreachable!("a family is kept under its own type"),
        }
    }

    /// All of them, as Prometheus reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry());
        text
    }
}

/// As Go writes them, which is what upstream's label holds.
pub(crate) fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.0 "Metrics"
    #[test]
    fn calls_have_upstreams_name_labels_and_buckets() {
        let metrics = Metrics::new();
        metrics.called("/csi.v1.Identity/Probe", Code::Cancelled, Duration::from_millis(1));
        metrics.name_driver("d.test");
        metrics.name_driver("another");
        metrics.called("/csi.v1.Identity/Probe", Code::Ok, Duration::from_secs(601));
        let text = metrics.text();
        for line in [
            r#"csi_sidecar_operations_seconds_count{driver_name="unknown-driver",method_name="/csi.v1.Identity/Probe",grpc_status_code="Canceled"} 1"#,
            r#"csi_sidecar_operations_seconds_bucket{le="600.0",driver_name="d.test",method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 0"#,
            r#"csi_sidecar_operations_seconds_bucket{le="+Inf",driver_name="d.test",method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_family_is_registered_once() {
        #[derive(Clone)]
        struct Family(Counter);
        let metrics = Metrics::new();
        let family = || {
            metrics.family(|registry| {
                let counter = Counter::default();
                registry.register("wharf_test", "Test", counter.clone());
                Family(counter)
            })
        };
        family().0.inc();
        family().0.inc();
        assert_eq!(metrics.text().matches("wharf_test_total 2").count(), 1);
        assert_eq!(metrics.text().matches("# TYPE wharf_test").count(), 1);
    }

    #[test]
    fn registered_is_kubelets_last_word_of_this_socket() {
        let metrics = Metrics::new();
        let registered = || metrics.text().contains("wharf_registrar_registered 1");
        metrics.socket("first");
        metrics.registration(true);
        assert!(registered());
        metrics.registration(false);
        assert!(!registered());
        metrics.registration(true);
        metrics.socket("vanished");
        assert!(!registered());
        assert!(metrics.text().contains(r#"wharf_registrar_registrations_total{result="registered"} 2"#));
        assert!(metrics.text().contains(r#"wharf_registrar_sockets_total{why="vanished"} 1"#));
    }
}
