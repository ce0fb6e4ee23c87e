//! The programs, of which any may die at any time, and requests that are made until they are heard.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_testkit::{Beside, ClusterOptions, Dice, ScriptedDriver, Server, TestCluster, built};

pub(crate) const DRIVER: &str = "leaks.test.wharf.dev";
pub(crate) const NAMESPACE: &str = "default";
/// How long the server may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// Everything but attaching, for which there is no node. Volumes grow without a node's help, and a snapshot is not
/// ready when it is cut.
const OPTIONS: [&str; 6] = [
    "--capabilities",
    "CREATE_DELETE_VOLUME,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,CLONE_VOLUME,EXPAND_VOLUME",
    "--node-capabilities",
    "STAGE_UNSTAGE_VOLUME",
    "--snapshot-ready-looks",
    "1",
];
const PACE: [&str; 4] = ["--retry-interval-start", "100ms", "--retry-interval-max", "2s"];

/// How the driver behaves for a while.
const FAULTS: [&str; 5] = [
    "{}",
    // Answers are lost.
    r#"{"CreateVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4, "delay_ms": 100},
        "DeleteVolume": {"code": "Unavailable", "when": "after", "probability": 0.2},
        "ControllerExpandVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4},
        "CreateSnapshot": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4, "delay_ms": 100},
        "DeleteSnapshot": {"code": "Internal", "when": "after", "probability": 0.2},
        "CreateVolumeGroupSnapshot": {"code": "Unavailable", "when": "after", "probability": 0.4},
        "DeleteVolumeGroupSnapshot": {"code": "DeadlineExceeded", "when": "after", "probability": 0.2}}"#,
    // It is asked too much.
    r#"{"*": {"code": "ResourceExhausted", "probability": 0.3}}"#,
    // It breaks down, before the effect or after it.
    r#"{"*": {"code": "Internal", "probability": 0.2, "delay_ms": 50}}"#,
    r#"{"*": {"die": true, "when": "after", "probability": 0.03}}"#,
];

/// Who may die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Sidecar,
    SnapshotController,
    Driver,
    Server,
    ControllerManager,
}

impl Victim {
    pub(crate) const ALL: [Self; 5] =
        [Self::Sidecar, Self::SnapshotController, Self::Driver, Self::Server, Self::ControllerManager];
}

/// A server with controllers and no nodes, the driver, and our two programs.
pub(crate) struct World {
    // The programs end before the cluster does.
    sidecar: Beside,
    controller: Beside,
    pub(crate) driver: ScriptedDriver,
    pub(crate) server: Server,
    cluster: TestCluster,
    /// Who is dead, and for how many steps more.
    away: Vec<(Victim, usize)>,
}

impl World {
    pub(crate) fn new(logs: &Path) -> Self {
        // Of an earlier run.
        let _ = std::fs::remove_dir_all(logs);
        std::fs::create_dir_all(logs).unwrap();
        let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], ..ClusterOptions::default() });
        let kubeconfig = cluster.kubeconfig().display().to_string();
        let wharf = built("wharf");
        let installed = Command::new(&wharf).args(["install", "crds", "--kubeconfig", &kubeconfig]).output();
        let installed = installed.expect("wharf install crds");
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        let driver = ScriptedDriver::start(&cluster, DRIVER, &OPTIONS);
        cluster.apply(CLASSES);
        let start = |program: &str, args: &[&str]| {
            let args = [&[program, "--kubeconfig", &kubeconfig], &PACE[..], args].concat();
            let env = [("POD_NAME", program), ("RUST_LOG", "info,wharf_sidecar=debug")];
            Beside::start_with(&wharf, &args, &env, &logs.join(format!("{program}.log")))
        };
        let socket = driver.socket().display().to_string();
        let sidecar = start("sidecar", &["--csi-address", &socket, "--http-endpoint", "127.0.0.1:0"]);
        let controller = start("snapshot-controller", &[]);
        let server = Server::connect(&cluster.kubeconfig()).unwrap();
        Self { sidecar, controller, driver, server, cluster, away: Vec::new() }
    }

    /// Lets the driver behave in another way.
    pub(crate) fn another_fault(&self, dice: &mut Dice) {
        self.driver.faults(FAULTS[dice.roll(FAULTS.len())]);
    }

    /// kill -9; it is dead for some steps.
    pub(crate) fn kill(&mut self, victim: Victim, steps: usize) {
        if self.is_away(victim) {
            return;
        }
        match victim {
            Victim::Sidecar => self.sidecar.kill(),
            Victim::SnapshotController => self.controller.kill(),
            Victim::Driver => self.driver.controller.kill(),
            // Whoever keeps the cluster starts these again at once.
            Victim::Server => return self.cluster.kill("kube-apiserver"),
            Victim::ControllerManager => return self.cluster.kill("kube-controller-manager"),
        }
        self.away.push((victim, steps));
    }

    fn is_away(&self, victim: Victim) -> bool {
        self.away.iter().any(|(who, _)| *who == victim)
    }

    /// A step has passed: those whose time has come live again.
    pub(crate) fn step(&mut self) {
        let (back, away) = self.away.drain(..).partition(|(_, steps)| *steps == 0);
        self.away = away;
        for (_, steps) in &mut self.away {
            *steps -= 1;
        }
        let back: Vec<(Victim, usize)> = back;
        for (victim, _) in back {
            match victim {
                Victim::Sidecar => self.sidecar.restart(),
                Victim::SnapshotController => self.controller.restart(),
                Victim::Driver => self.driver.controller.restart(),
                Victim::Server | Victim::ControllerManager => {}
            }
        }
        self.keep_alive();
    }

    /// All live, and nothing fails.
    pub(crate) fn recover(&mut self) {
        self.driver.faults("{}");
        self.away.iter_mut().for_each(|(_, steps)| *steps = 0);
        self.step();
    }

    /// The driver may die of a fault. Nobody of ours ends by itself.
    pub(crate) fn keep_alive(&mut self) {
        if !self.is_away(Victim::Driver) && !self.driver.controller.runs() {
            self.driver.controller.restart();
        }
        assert!(self.is_away(Victim::Sidecar) || self.sidecar.runs(), "the sidecar has ended");
        let controller = self.is_away(Victim::SnapshotController) || self.controller.runs();
        assert!(controller, "the snapshot controller has ended");
    }

    /// Ends our programs in order, and the driver after them.
    pub(crate) fn end(mut self) {
        self.driver.assert_no_violation();
        self.sidecar.stop();
        self.controller.stop();
    }

    /// Makes an object and gives it back. Its creation may have happened although nobody heard of it.
    pub(crate) fn create(&mut self, object: &Value, short: &str) -> Value {
        let name = format!("{short}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        self.insist(&name, |server| {
            server
                .create(NAMESPACE, object)
                .or_else(|error| server.get(NAMESPACE, &name).and_then(|found| found.ok_or(error)))
        })
    }

    /// Asks for an object's deletion.
    pub(crate) fn delete(&mut self, object: &str) {
        self.insist(object, |server| match server.delete(NAMESPACE, object) {
            Err(error) if server.get(NAMESPACE, object)?.is_some() => Err(error),
            _ => Ok(()),
        });
    }

    /// Asks for more of a claim.
    pub(crate) fn enlarge(&mut self, claim: &str, bytes: u64) {
        let patch = json!({"spec": {"resources": {"requests": {"storage": bytes.to_string()}}}});
        self.insist(claim, |server| server.patch(NAMESPACE, &format!("pvc/{claim}"), false, &patch));
    }

    /// Again and again, until the server has heard it.
    pub(crate) fn insist<T>(&mut self, what: &str, ask: impl Fn(&Server) -> Result<T, String>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(&self.server) {
                Ok(answer) => return answer,
                Err(error) => assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}: {error}"),
            }
            self.keep_alive();
            sleep(Duration::from_millis(100));
        }
    }
}

const CLASSES: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: plain}
provisioner: leaks.test.wharf.dev
allowVolumeExpansion: true
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: plain}
driver: leaks.test.wharf.dev
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: plain}
driver: leaks.test.wharf.dev
deletionPolicy: Delete
";
