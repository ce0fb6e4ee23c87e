//! The scripted driver on a machine, with sidecars of its own: somebody else's driver, which comes and goes as it likes.

use std::path::PathBuf;

use serde_json::json;
use wharf_testkit::scripted::{Entry, entries, violations};

use crate::inside::Inside;
use crate::machine::Machine;

pub(crate) const DRIVER: &str = "scripted.test.wharf.dev";
/// Its class.
pub(crate) const CLASS: &str = "scripted";
/// So many volumes a node takes.
pub(crate) const LIMIT: u64 = 7;

/// The driver, what makes and attaches its volumes, and what registers it. The order is that in which they end.
pub(crate) struct Scripted {
    pub(crate) registrar: Inside,
    _controller: Inside,
    pub(crate) driver: Inside,
    dir: PathBuf,
}

impl Scripted {
    /// Starts it, and waits until the node has it.
    pub(crate) fn start(machine: &mut Machine) -> Self {
        machine.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "podInfoOnMount": false, "fsGroupPolicy": "None"},
        }));
        machine.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
            "provisioner": DRIVER,
        }));
        let dir = machine.beside().join("scripted");
        std::fs::create_dir(&dir).unwrap();
        let text = |name: &str| dir.join(name).display().to_string();
        let (socket, state, log, faults) = (text("csi.sock"), text("state"), text("calls"), text("faults"));
        let (endpoint, limit) = (format!("unix://{socket}"), LIMIT.to_string());
        let mut args = vec!["--endpoint", &endpoint, "--name", DRIVER, "--state", &state, "--node-id", "n1"];
        args.extend(["--log", &log, "--fault-file", &faults, "--no-sync", "--max-volumes", &limit]);
        let driver = machine.start("scripted-driver", &args, "driver.log");
        let kubeconfig = machine.data().join("kubeconfig").display().to_string();
        let pages = ["--http-endpoint", "127.0.0.1:0"];
        let mut args = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig];
        args.extend(["--leader-election=false", "--namespace", "default", "--retry-interval-start", "100ms"]);
        args.extend(["--retry-interval-max", "1s"]);
        args.extend(pages);
        let controller = machine.start("wharf", &args, "sidecar.log");
        let registry = machine.data().join("kubelet/plugins_registry").display().to_string();
        let mut args = vec!["sidecar", "--node", "--csi-address", &socket];
        args.extend(["--kubelet-registration-path", &socket, "--plugin-registration-path", &registry]);
        args.extend(pages);
        let registrar = machine.start("wharf", &args, "registrar.log");
        let scripted = Self { registrar, _controller: controller, driver, dir };
        machine.has_driver(DRIVER);
        scripted
    }

    /// Which calls fail from now on; see [`wharf_testkit::scripted::Fault`].
    pub(crate) fn faults(&self, json: &str) {
        let temporary = self.dir.join("faults.tmp");
        std::fs::write(&temporary, json).unwrap();
        std::fs::rename(temporary, self.dir.join("faults")).unwrap();
    }

    /// Which calls stand still, so far.
    pub(crate) fn held(&self) -> String {
        std::fs::read_to_string(self.dir.join("faults.held")).unwrap_or_default()
    }

    /// Forgets which calls stood still.
    pub(crate) fn forget_held(&self) {
        // There may have been none.
        let _ = std::fs::remove_file(self.dir.join("faults.held"));
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<Entry> {
        entries(&self.dir.join("calls"))
    }

    /// Nobody has done what must not be done, and no volume is left.
    pub(crate) fn is_as_before(&self, machine: &mut Machine) {
        let volumes = self.dir.join("state/volumes");
        machine.until("the driver has no volume", |_| {
            let left: Vec<_> =
                std::fs::read_dir(&volumes).unwrap().flatten().map(|entry| entry.path()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let violations = violations(&self.dir.join("calls"));
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

impl Machine {
    /// Waits until the node has a driver, and the driver's limit if it says one.
    pub(crate) fn has_driver(&mut self, driver: &str) {
        self.until(&format!("the node has {driver}"), |machine| {
            let node = machine.get("csinode/node-1").ok_or("there is no CSINode")?;
            let drivers = node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
            let entry = drivers.iter().find(|entry| entry["name"] == driver);
            let limit = entry.is_some_and(|entry| driver != DRIVER || entry["allocatable"]["count"] == LIMIT);
            let ids = machine.node_ids();
            if limit && ids.contains(&format!("\"{driver}\"")) {
                Ok(())
            } else {
                Err(format!("{drivers:?} {ids}"))
            }
        });
    }

    /// What the node says of drivers' names for it.
    pub(crate) fn node_ids(&self) -> String {
        self.field("node/node-1", "/metadata/annotations/csi.volume.kubernetes.io~1nodeid")
    }
}
