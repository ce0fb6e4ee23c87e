//! The scripted driver beside a cluster: one process that answers for the Controller service, one for each node with
//! its `wharf sidecar --node`, all on one state directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::scripted::{Entry, entries, violations};
use crate::{Beside, TestCluster, built};

/// How long a program may take to listen.
const START: Duration = Duration::from_secs(30);

/// The driver, and where everything of it is.
pub struct ScriptedDriver {
    name: String,
    dir: PathBuf,
    /// Its Controller service.
    pub controller: Beside,
    nodes: Vec<Beside>,
    cluster: PathBuf,
    kubeconfig: PathBuf,
}

impl ScriptedDriver {
    /// Starts its controller, with these further options, and makes its CSIDriver object: volumes are attached,
    /// unless `--capabilities=…` says otherwise.
    pub fn start(cluster: &TestCluster, name: &str, options: &[&str]) -> Self {
        let dir = cluster.directory().join(name);
        fs::create_dir_all(&dir).expect("the driver's directory");
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

    /// Puts it on a node, with the same options as the controller, and registers it with the node's kubelet.
    pub fn join(&mut self, cluster: &TestCluster, node: &str, options: &[&str]) {
        let root = cluster.kubelet_root(node);
        let plugin = root.join("plugins").join(&self.name);
        fs::create_dir_all(&plugin).expect("the driver's directory at kubelet");
        let socket = plugin.join("csi.sock");
        let mut options = options.to_vec();
        options.extend(["--node-id", node]);
        self.nodes.push(process(&self.name, &self.dir, &socket, &options));
        let log = self.cluster.join(format!("log/{}-{node}.log", self.name));
        self.nodes.push(node_sidecar(cluster, node, &socket, &log));
        cluster.eventually("the driver is registered", START, |cluster| {
            cluster
                .field(&format!("csinode/{node}"), ".spec.drivers[*].name")
                .contains(&self.name)
                .then_some(())
        });
    }

    /// Starts `wharf sidecar` for it as an administrator, with these further arguments.
    pub fn sidecar(&self, who: &str, args: &[&str]) -> Beside {
        self.sidecar_with(who, &self.kubeconfig, args)
    }

    /// Starts `wharf sidecar` for it, with credentials of one's choice.
    pub fn sidecar_with(&self, who: &str, kubeconfig: &Path, args: &[&str]) -> Beside {
        let (socket, kubeconfig) = (text(&self.socket()), text(kubeconfig));
        let mut all = vec!["sidecar", "--csi-address", &socket, "--kubeconfig", &kubeconfig];
        if !args.contains(&"--http-endpoint") {
            all.extend(["--http-endpoint", "127.0.0.1:0"]);
        }
        all.extend(args);
        // Replicas are told apart by their pods' names.
        let env = [("POD_NAME", who), ("RUST_LOG", "info,wharf_sidecar=debug")];
        Beside::start_with(&built("wharf"), &all, &env, &self.cluster.join(format!("log/{who}.log")))
    }

    /// The controller's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends the controller and starts it with other options.
    pub fn replace_controller(&mut self, options: &[&str]) {
        self.controller.kill();
        self.controller = process(&self.name, &self.dir, &self.socket(), options);
    }

    /// Which calls fail from now on; see [`crate::scripted::Fault`].
    pub fn faults(&self, json: &str) {
        let temporary = self.dir.join("faults.tmp");
        fs::write(&temporary, json).expect("writing the faults");
        fs::rename(temporary, self.dir.join("faults")).expect("replacing the faults");
    }

    /// What is wrong with volumes from now on, by volume, in JSON: `{"vol-1": "the disk is gone"}`.
    pub fn conditions(&self, json: &str) {
        let state = self.dir.join("state");
        let temporary = state.join("conditions.tmp");
        fs::write(&temporary, json).expect("writing the conditions");
        fs::rename(temporary, state.join("conditions")).expect("replacing the conditions");
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<Entry> {
        entries(&self.dir.join("log"))
    }

    /// Fails the test if anybody has done what must not be done.
    pub fn assert_no_violation(&self) {
        let violations = violations(&self.dir.join("log"));
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Puts a volume into the backend, as an administrator of it would.
    pub fn add_volume(&self, id: &str) {
        let state = self.dir.join("state");
        fs::create_dir_all(state.join("data").join(id)).expect("the volume's data");
        let record = serde_json::json!({
            "id": id, "bytes": 1 << 30, "request": "", "mutable": {}, "published": {}, "mounted": {},
        });
        fs::write(state.join("volumes").join(id), record.to_string()).expect("the volume's record");
    }

    /// Puts a snapshot of a volume into the backend, as an administrator of it would.
    pub fn add_snapshot(&self, id: &str, volume: &str) {
        let state = self.dir.join("state");
        fs::create_dir_all(state.join("data").join(id)).expect("the snapshot's data");
        let record =
            serde_json::json!({"id": id, "volume": volume, "bytes": 1 << 30, "seconds": 1_700_000_000});
        fs::write(state.join("snapshots").join(id), record.to_string()).expect("the snapshot's record");
    }

    /// The volumes of the backend.
    pub fn volumes(&self) -> BTreeSet<String> {
        self.records("volumes")
    }

    /// The snapshots of the backend, members of groups too.
    pub fn snapshots(&self) -> BTreeSet<String> {
        self.records("snapshots")
    }

    /// The group snapshots of the backend.
    pub fn groups(&self) -> BTreeSet<String> {
        self.records("groups")
    }

    /// What the backend has written down of a volume, snapshot or group (`volumes`, `snapshots`, `groups`).
    pub fn record(&self, kind: &str, id: &str) -> Option<Value> {
        let text = fs::read(self.dir.join("state").join(kind).join(id)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The directory that a volume's or snapshot's bytes are in.
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

fn process(name: &str, dir: &Path, socket: &Path, options: &[&str]) -> Beside {
    let (endpoint, state) = (format!("unix://{}", socket.display()), text(&dir.join("state")));
    let (log, faults) = (text(&dir.join("log")), text(&dir.join("faults")));
    let mut args = vec!["--endpoint", &endpoint, "--name", name, "--state", &state, "--log", &log];
    args.extend(["--fault-file", &faults, "--no-sync"]);
    args.extend(options);
    let driver = Beside::start(&built("scripted-driver"), &args, &dir.join("stderr.log"));
    let until = Instant::now() + START;
    while UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < until, "the scripted driver does not listen:\n{}", driver.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    driver
}

/// Starts `wharf sidecar --node` for the driver at a socket in a node's plugin directory.
pub fn node_sidecar(cluster: &TestCluster, node: &str, socket: &Path, log: &Path) -> Beside {
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
    Beside::start(&built("wharf"), &args, log)
}
