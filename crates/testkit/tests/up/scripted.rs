//! The scripted driver on a machine: somebody else's driver, which comes and goes as it likes. It has sidecars of its own, or
//! `wharf up` serves it.

use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;
use wharf_testkit::scripted::{Entry, entries, violations};

use crate::inside::Inside;
use crate::machine::{Machine, PLACE};

pub(crate) const DRIVER: &str = "scripted.test.wharf.dev";
/// The class of its volumes, where somebody has to make one.
pub(crate) const CLASS: &str = "scripted";
/// So many volumes a node takes.
pub(crate) const LIMIT: u64 = 7;

/// The driver, and what is beside it. The order is that in which they end.
pub(crate) struct Scripted {
    /// None where `wharf up` serves the driver itself.
    sidecars: Option<Sidecars>,
    pub(crate) driver: Inside,
    /// The class of its volumes.
    pub(crate) class: &'static str,
    dir: PathBuf,
    /// What that is in, if it had to be there before the machine was.
    _place: Option<TempDir>,
}

/// What registers the driver, and what makes and attaches its volumes.
struct Sidecars {
    registrar: Inside,
    _controller: Inside,
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
        let driver = serve(machine, &dir);
        let sidecars = Some(Sidecars::start(machine, &dir.join("csi.sock").display().to_string()));
        let scripted = Self { sidecars, driver, class: CLASS, dir, _place: None };
        machine.has_driver(DRIVER);
        scripted
    }

    /// Starts it on a machine whose `wharf up` was told of it and serves it, beside the local driver; with a class that was
    /// made for it.
    pub(crate) fn served() -> (Machine, Self) {
        let place = tempfile::Builder::new().prefix("wharf-csi-").tempdir_in(PLACE).unwrap();
        let dir = place.path().to_owned();
        let (socket, state) = (dir.join("csi.sock"), dir.join("state"));
        std::fs::create_dir(&state).unwrap();
        let (socket, state) = (format!("unix://{}", socket.display()), state.display().to_string());
        let mut machine = Machine::with(&["--pool-size", "4Gi", "--csi", &socket, "--hide", &state]);
        let driver = serve(&machine, &dir);
        let scripted = Self { sidecars: None, driver, class: DRIVER, dir, _place: Some(place) };
        machine.has_driver(DRIVER);
        machine.until("the driver has a class", |machine| {
            machine.get(&format!("sc/{DRIVER}")).map(drop).ok_or_else(|| "it has none".to_owned())
        });
        (machine, scripted)
    }

    /// What registers it.
    pub(crate) fn registrar(&mut self) -> &mut Inside {
        &mut self.sidecars.as_mut().expect("it has sidecars of its own").registrar
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

/// Starts the driver alone.
fn serve(machine: &Machine, dir: &Path) -> Inside {
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
        let pages = ["--http-endpoint", "127.0.0.1:0"];
        let mut args = vec!["sidecar", "--csi-address", socket, "--kubeconfig", &kubeconfig];
        args.extend(["--leader-election=false", "--namespace", "default", "--retry-interval-start", "100ms"]);
        args.extend(["--retry-interval-max", "1s"]);
        args.extend(pages);
        let controller = machine.start("wharf", &args, "sidecar.log");
        let registry = machine.data().join("kubelet/plugins_registry").display().to_string();
        let mut args = vec!["sidecar", "--node", "--csi-address", socket];
        args.extend(["--kubelet-registration-path", socket, "--plugin-registration-path", &registry]);
        args.extend(pages);
        let registrar = machine.start("wharf", &args, "registrar.log");
        Self { registrar, _controller: controller }
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
