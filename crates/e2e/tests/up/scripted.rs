//! The scripted driver on a simulated machine: a third-party driver that can stop and restart at any time. It has
//! its own sidecars, or `wharf up` serves it.

use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;
use wharf_testkit::scripted::{Entry, entries, violations};

use crate::machine::{Machine, TEMP_DIR};
use crate::namespaces::NamespacedProcess;

pub(crate) const DRIVER: &str = "scripted.test.wharf.dev";
/// The driver's StorageClass, if the test creates it.
pub(crate) const CLASS: &str = "scripted";
/// The maximum number of volumes per node.
pub(crate) const LIMIT: u64 = 7;

/// The driver and its sidecars. Fields are dropped in this order.
pub(crate) struct Scripted {
    /// `None` if `wharf up` serves the driver itself.
    sidecars: Option<Sidecars>,
    pub(crate) driver: NamespacedProcess,
    /// The StorageClass of the driver's volumes.
    pub(crate) class: &'static str,
    dir: PathBuf,
    /// Keeps the directory of the driver's files, if it was created before the machine.
    _temp_dir: Option<TempDir>,
}

/// The registrar, and the sidecar that provisions and attaches the driver's volumes.
struct Sidecars {
    registrar: NamespacedProcess,
    _controller: NamespacedProcess,
}

impl Scripted {
    /// Starts the driver with its own sidecars, and waits until it is registered on the node.
    pub(crate) fn start(machine: &mut Machine) -> Self {
        machine.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "podInfoOnMount": false, "fsGroupPolicy": "None"},
        }));
        machine.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
            "provisioner": DRIVER,
        }));
        let dir = machine.work_dir().join("scripted");
        std::fs::create_dir(&dir).unwrap();
        let driver = start_driver(machine, &dir);
        let sidecars = Some(Sidecars::start(machine, &dir.join("csi.sock").display().to_string()));
        let scripted = Self { sidecars, driver, class: CLASS, dir, _temp_dir: None };
        machine.wait_for_driver(DRIVER);
        scripted
    }

    /// Starts the driver on a machine whose `wharf up --csi` serves it next to the local driver and creates its
    /// StorageClass.
    pub(crate) fn served() -> (Machine, Self) {
        let temp_dir = tempfile::Builder::new().prefix("wharf-csi-").tempdir_in(TEMP_DIR).unwrap();
        let dir = temp_dir.path().to_owned();
        let (socket, state) = (dir.join("csi.sock"), dir.join("state"));
        std::fs::create_dir(&state).unwrap();
        let (socket, state) = (format!("unix://{}", socket.display()), state.display().to_string());
        let mut machine = Machine::with(&["--pool-size", "4Gi", "--csi", &socket, "--hide", &state]);
        let driver = start_driver(&machine, &dir);
        let scripted = Self { sidecars: None, driver, class: DRIVER, dir, _temp_dir: Some(temp_dir) };
        machine.wait_for_driver(DRIVER);
        machine.wait_until("the driver's StorageClass exists", |machine| {
            machine
                .get(&format!("sc/{DRIVER}"))
                .map(drop)
                .ok_or_else(|| "the StorageClass does not exist".to_owned())
        });
        (machine, scripted)
    }

    /// The registrar of the driver's own sidecars.
    pub(crate) fn registrar(&mut self) -> &mut NamespacedProcess {
        &mut self.sidecars.as_mut().expect("the driver has its own sidecars").registrar
    }

    /// Sets which calls fail from now on; see [`wharf_testkit::scripted::Fault`].
    pub(crate) fn faults(&self, json: &str) {
        let temporary = self.dir.join("faults.tmp");
        std::fs::write(&temporary, json).unwrap();
        std::fs::rename(temporary, self.dir.join("faults")).unwrap();
    }

    /// The calls that a fault has held so far.
    pub(crate) fn held(&self) -> String {
        std::fs::read_to_string(self.dir.join("faults.held")).unwrap_or_default()
    }

    /// Clears the list of held calls.
    pub(crate) fn clear_held(&self) {
        // The file may not exist.
        let _ = std::fs::remove_file(self.dir.join("faults.held"));
    }

    /// The calls that the driver has received so far.
    pub(crate) fn calls(&self) -> Vec<Entry> {
        entries(&self.dir.join("calls"))
    }

    /// Asserts that no caller violated the CSI contract and no volume is left.
    pub(crate) fn assert_no_volumes_left(&self, machine: &mut Machine) {
        let volumes = self.dir.join("state/volumes");
        machine.wait_until("the driver has no volumes", |_| {
            let left: Vec<_> =
                std::fs::read_dir(&volumes).unwrap().flatten().map(|entry| entry.path()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let violations = violations(&self.dir.join("calls"));
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

/// Starts the driver without sidecars.
fn start_driver(machine: &Machine, dir: &Path) -> NamespacedProcess {
    let text = |name: &str| dir.join(name).display().to_string();
    let (socket, state, log, faults) = (text("csi.sock"), text("state"), text("calls"), text("faults"));
    let (endpoint, limit) = (format!("unix://{socket}"), LIMIT.to_string());
    let mut args = vec!["--endpoint", &endpoint, "--name", DRIVER, "--state", &state, "--node-id", "n1"];
    args.extend(["--log", &log, "--fault-file", &faults, "--no-sync", "--max-volumes", &limit]);
    machine.start("scripted-driver", &args, "driver.log")
}

impl Sidecars {
    fn start(machine: &Machine, socket: &str) -> Self {
        let kubeconfig = machine.data().join("kubeconfig").display().to_string();
        let http_endpoint = ["--http-endpoint", "127.0.0.1:0"];
        let mut args = vec!["sidecar", "--csi-address", socket, "--kubeconfig", &kubeconfig];
        args.extend(["--leader-election=false", "--namespace", "default", "--retry-interval-start", "100ms"]);
        args.extend(["--retry-interval-max", "1s"]);
        args.extend(http_endpoint);
        let controller = machine.start("wharf", &args, "sidecar.log");
        let registry = machine.data().join("kubelet/plugins_registry").display().to_string();
        let mut args = vec!["sidecar", "--node", "--csi-address", socket];
        args.extend(["--kubelet-registration-path", socket, "--plugin-registration-path", &registry]);
        args.extend(http_endpoint);
        let registrar = machine.start("wharf", &args, "registrar.log");
        Self { registrar, _controller: controller }
    }
}

impl Machine {
    /// Waits until the CSINode lists a driver, with its volume limit if it has one.
    pub(crate) fn wait_for_driver(&mut self, driver: &str) {
        self.wait_until(&format!("the CSINode lists {driver}"), |machine| {
            let node = machine.get("csinode/node-1").ok_or("the CSINode does not exist")?;
            let drivers = node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
            let entry = drivers.iter().find(|entry| entry["name"] == driver);
            let has_limit =
                entry.is_some_and(|entry| driver != DRIVER || entry["allocatable"]["count"] == LIMIT);
            let ids = machine.node_ids();
            if has_limit && ids.contains(&format!("\"{driver}\"")) {
                Ok(())
            } else {
                Err(format!("{drivers:?} {ids}"))
            }
        });
    }

    /// The node's annotation with the drivers' node IDs.
    pub(crate) fn node_ids(&self) -> String {
        self.field("node/node-1", "/metadata/annotations/csi.volume.kubernetes.io~1nodeid")
    }
}
