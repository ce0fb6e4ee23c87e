//! The scripted driver for a test cluster: one process for the Controller service, and on each node one process
//! with a `wharf sidecar --node`. All of them share one state directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::scripted::{Entry, entries, violations};
use crate::{ChildProcess, TestCluster, built_program};

/// How long a program may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The processes and the directory of the driver.
pub struct ScriptedDriver {
    name: String,
    dir: PathBuf,
    /// Its Controller service.
    pub controller: ChildProcess,
    nodes: Vec<ChildProcess>,
    cluster: PathBuf,
    kubeconfig: PathBuf,
}

impl ScriptedDriver {
    /// Starts the controller with these additional options and creates the CSIDriver object. Volumes need
    /// attachment unless `--capabilities=…` omits PUBLISH_UNPUBLISH_VOLUME.
    pub fn start(cluster: &TestCluster, name: &str, options: &[&str]) -> Self {
        let dir = cluster.directory().join(name);
        fs::create_dir_all(&dir).expect("failed to create the driver's directory");
        let listed = options.iter().find(|option| option.starts_with("--capabilities="));
        let attach = listed.is_none_or(|list| list.contains("PUBLISH_UNPUBLISH_VOLUME"));
        cluster.apply(&format!(
            "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {name}}}\n\
             spec: {{attachRequired: {attach}, podInfoOnMount: false, fsGroupPolicy: None}}\n"
        ));
        let controller = process(name, &dir, &dir.join("csi.sock"), options);
        Self {
            name: name.to_owned(),
            dir,
            controller,
            nodes: Vec::new(),
            cluster: cluster.directory().to_owned(),
            kubeconfig: cluster.kubeconfig(),
        }
    }

    /// Starts the driver on a node, with the same options as the controller, and registers it with the node's
    /// kubelet.
    pub fn join(&mut self, cluster: &TestCluster, node: &str, options: &[&str]) {
        let root = cluster.kubelet_root(node);
        let plugin = root.join("plugins").join(&self.name);
        fs::create_dir_all(&plugin).expect("failed to create the driver's plugin directory");
        let socket = plugin.join("csi.sock");
        let mut options = options.to_vec();
        options.extend(["--node-id", node]);
        self.nodes.push(process(&self.name, &self.dir, &socket, &options));
        let log = self.cluster.join(format!("log/{}-{node}.log", self.name));
        self.nodes.push(node_sidecar(cluster, node, &socket, &log));
        cluster.eventually("the driver is registered", START_TIMEOUT, |cluster| {
            cluster
                .field(&format!("csinode/{node}"), ".spec.drivers[*].name")
                .contains(&self.name)
                .then_some(())
        });
    }

    /// Starts `wharf sidecar` for the driver with administrator credentials and these additional arguments.
    pub fn sidecar(&self, pod: &str, args: &[&str]) -> ChildProcess {
        self.sidecar_with(pod, &self.kubeconfig, args)
    }

    /// Starts `wharf sidecar` for the driver with the given credentials.
    pub fn sidecar_with(&self, pod: &str, kubeconfig: &Path, args: &[&str]) -> ChildProcess {
        let (socket, kubeconfig) = (text(&self.socket()), text(kubeconfig));
        let mut all = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig];
        if !args.contains(&"--http-endpoint") {
            all.extend(["--http-endpoint", "127.0.0.1:0"]);
        }
        all.extend(args);
        // Replicas are distinguished by their pod names.
        let env = [("POD_NAME", pod), ("RUST_LOG", "info,wharf_sidecar=debug")];
        ChildProcess::start_with(
            &built_program("wharf"),
            &all,
            &env,
            &self.cluster.join(format!("log/{pod}.log")),
        )
    }

    /// The controller's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills the controller and starts it with other options.
    pub fn replace_controller(&mut self, options: &[&str]) {
        self.controller.kill();
        self.controller = process(&self.name, &self.dir, &self.socket(), options);
    }

    /// Sets which calls fail from now on; see [`crate::scripted::Fault`].
    pub fn set_faults(&self, json: &str) {
        let temporary = self.dir.join("faults.tmp");
        fs::write(&temporary, json).expect("failed to write the faults");
        fs::rename(temporary, self.dir.join("faults")).expect("failed to replace the faults");
    }

    /// Sets the abnormal conditions of volumes, in JSON: `{"vol-1": "the disk is gone"}`.
    pub fn set_conditions(&self, json: &str) {
        let state = self.dir.join("state");
        let temporary = state.join("conditions.tmp");
        fs::write(&temporary, json).expect("failed to write the conditions");
        fs::rename(temporary, state.join("conditions")).expect("failed to replace the conditions");
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<Entry> {
        entries(&self.dir.join("log"))
    }

    /// Fails the test if a caller violated the CSI contract.
    pub fn assert_no_violation(&self) {
        let violations = violations(&self.dir.join("log"));
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Adds a volume to the backend, as a storage administrator would.
    pub fn add_volume(&self, id: &str) {
        let state = self.dir.join("state");
        fs::create_dir_all(state.join("data").join(id))
            .expect("failed to create the volume's data directory");
        let record = serde_json::json!({
            "id": id, "bytes": 1 << 30, "request": "", "mutable": {}, "published": {}, "mounted": {},
        });
        fs::write(state.join("volumes").join(id), record.to_string())
            .expect("failed to write the volume's record");
    }

    /// Adds a snapshot of a volume to the backend, as a storage administrator would.
    pub fn add_snapshot(&self, id: &str, volume: &str) {
        let state = self.dir.join("state");
        fs::create_dir_all(state.join("data").join(id))
            .expect("failed to create the snapshot's data directory");
        let record =
            serde_json::json!({"id": id, "volume": volume, "bytes": 1 << 30, "seconds": 1_700_000_000});
        fs::write(state.join("snapshots").join(id), record.to_string())
            .expect("failed to write the snapshot's record");
    }

    /// The volumes of the backend.
    pub fn volumes(&self) -> BTreeSet<String> {
        self.records("volumes")
    }

    /// The snapshots of the backend, including members of groups.
    pub fn snapshots(&self) -> BTreeSet<String> {
        self.records("snapshots")
    }

    /// The group snapshots of the backend.
    pub fn groups(&self) -> BTreeSet<String> {
        self.records("groups")
    }

    /// The backend's record of a volume, snapshot or group (`volumes`, `snapshots`, `groups`).
    pub fn record(&self, kind: &str, id: &str) -> Option<Value> {
        let text = fs::read(self.dir.join("state").join(kind).join(id)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The data directory of a volume or snapshot.
    pub fn data(&self, id: &str) -> PathBuf {
        self.dir.join("state/data").join(id)
    }

    fn records(&self, kind: &str) -> BTreeSet<String> {
        let records = fs::read_dir(self.dir.join("state").join(kind)).into_iter().flatten().flatten();
        let names = records.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.ends_with(".tmp")).collect()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn process(name: &str, dir: &Path, socket: &Path, options: &[&str]) -> ChildProcess {
    let (endpoint, state) = (format!("unix://{}", socket.display()), text(&dir.join("state")));
    let (log, faults) = (text(&dir.join("log")), text(&dir.join("faults")));
    let mut args = vec!["--endpoint", &endpoint, "--name", name, "--state", &state, "--log", &log];
    args.extend(["--fault-file", &faults, "--no-sync"]);
    args.extend(options);
    let driver = ChildProcess::start(&built_program("scripted-driver"), &args, &dir.join("stderr.log"));
    let until = Instant::now() + START_TIMEOUT;
    while UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < until, "the scripted driver did not start to listen:\n{}", driver.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    driver
}

/// Starts `wharf sidecar --node` for the driver at a socket in a node's plugin directory.
pub fn node_sidecar(cluster: &TestCluster, node: &str, socket: &Path, log: &Path) -> ChildProcess {
    let registry = text(&cluster.kubelet_root(node).join("plugins_registry"));
    let socket = text(socket);
    let args = [
        "sidecar",
        "--node",
        "--csi-address",
        &socket,
        "--kubelet-registration-path",
        &socket,
        "--plugin-registration-path",
        &registry,
        "--http-endpoint",
        "127.0.0.1:0",
    ];
    ChildProcess::start(&built_program("wharf"), &args, log)
}
