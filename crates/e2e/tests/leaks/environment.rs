//! The programs, each of which may be killed at any time, and requests that are retried until they succeed.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_testkit::{
    ApiClient, ChildProcess, ClusterOptions, ScriptedDriver, SeededRng, TestCluster, built_program,
};

pub(crate) const DRIVER: &str = "leaks.test.wharf.dev";
pub(crate) const NAMESPACE: &str = "default";
/// How long the API server may be unavailable.
const TIMEOUT: Duration = Duration::from_secs(120);

/// All capabilities except attachment, since there is no node. Volumes expand without node expansion, and a
/// snapshot is not ready when it is created.
const OPTIONS: [&str; 6] = [
    "--capabilities",
    "CREATE_DELETE_VOLUME,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,CLONE_VOLUME,EXPAND_VOLUME",
    "--node-capabilities",
    "STAGE_UNSTAGE_VOLUME",
    "--snapshot-ready-looks",
    "1",
];
const PACE: [&str; 5] = [
    "--retry-interval-start=100ms",
    "--retry-interval-max=2s",
    // A killed process leaves its leases to expire.
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
];

/// Fault configurations of the driver.
const FAULTS: [&str; 5] = [
    "{}",
    // Responses are lost.
    r#"{"CreateVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4, "delay_ms": 100},
        "DeleteVolume": {"code": "Unavailable", "when": "after", "probability": 0.2},
        "ControllerExpandVolume": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4},
        "CreateSnapshot": {"code": "DeadlineExceeded", "when": "after", "probability": 0.4, "delay_ms": 100},
        "DeleteSnapshot": {"code": "Internal", "when": "after", "probability": 0.2},
        "CreateVolumeGroupSnapshot": {"code": "Unavailable", "when": "after", "probability": 0.4},
        "DeleteVolumeGroupSnapshot": {"code": "DeadlineExceeded", "when": "after", "probability": 0.2}}"#,
    // The driver is overloaded.
    r#"{"*": {"code": "ResourceExhausted", "probability": 0.3}}"#,
    // The driver crashes before or after the effect.
    r#"{"*": {"code": "Internal", "probability": 0.2, "delay_ms": 50}}"#,
    r#"{"*": {"die": true, "when": "after", "probability": 0.03}}"#,
];

/// The components that the test kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Sidecar,
    SnapshotController,
    Driver,
    ApiServer,
    ControllerManager,
}

impl Victim {
    pub(crate) const ALL: [Self; 5] =
        [Self::Sidecar, Self::SnapshotController, Self::Driver, Self::ApiServer, Self::ControllerManager];
}

/// An API server with controllers but without nodes, the driver, and our two programs.
pub(crate) struct Environment {
    // The programs exit before the cluster does.
    sidecar: ChildProcess,
    controller: ChildProcess,
    pub(crate) driver: ScriptedDriver,
    pub(crate) server: ApiClient,
    cluster: TestCluster,
    /// The killed components, and for how many more steps they stay down.
    down: Vec<(Victim, usize)>,
}

impl Environment {
    pub(crate) fn new(logs: &Path) -> Self {
        // Logs of an earlier run.
        let _ = std::fs::remove_dir_all(logs);
        std::fs::create_dir_all(logs).unwrap();
        let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], ..ClusterOptions::default() });
        let kubeconfig = cluster.kubeconfig().display().to_string();
        let wharf = built_program("wharf");
        let installed = Command::new(&wharf).args(["install", "crds", "--kubeconfig", &kubeconfig]).output();
        let installed = installed.expect("wharf install crds");
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        let driver = ScriptedDriver::start(&cluster, DRIVER, &OPTIONS);
        cluster.apply(CLASSES);
        let start = |program: &str, args: &[&str]| {
            let args = [&[program, "--kubeconfig", &kubeconfig], &PACE[..], args].concat();
            let env =
                [("POD_NAME", program), ("RUST_LOG", "info,wharf_sidecar=debug,wharf_controllers=debug")];
            ChildProcess::start_with(&wharf, &args, &env, &logs.join(format!("{program}.log")))
        };
        let socket = driver.socket().display().to_string();
        let sidecar = start("sidecar", &["--csi-address", &socket, "--http-endpoint", "127.0.0.1:0"]);
        let controller = start("snapshot-controller", &[]);
        let server = ApiClient::connect(&cluster.kubeconfig()).unwrap();
        Self { sidecar, controller, driver, server, cluster, down: Vec::new() }
    }

    /// Replaces the faults of the driver.
    pub(crate) fn set_random_faults(&self, rng: &mut SeededRng) {
        self.driver.set_faults(FAULTS[rng.below(FAULTS.len())]);
    }

    /// Kills a component with SIGKILL; it stays down for some steps.
    pub(crate) fn kill(&mut self, victim: Victim, steps: usize) {
        if self.is_down(victim) {
            return;
        }
        match victim {
            Victim::Sidecar => self.sidecar.kill(),
            Victim::SnapshotController => self.controller.kill(),
            Victim::Driver => self.driver.controller.kill(),
            // The cluster script restarts these at once.
            Victim::ApiServer => return self.cluster.kill("kube-apiserver"),
            Victim::ControllerManager => return self.cluster.kill("kube-controller-manager"),
        }
        self.down.push((victim, steps));
    }

    fn is_down(&self, victim: Victim) -> bool {
        self.down.iter().any(|(killed, _)| *killed == victim)
    }

    /// Advances one step and restarts the components whose downtime is over.
    pub(crate) fn step(&mut self) {
        let (back, down) = self.down.drain(..).partition(|(_, steps)| *steps == 0);
        self.down = down;
        for (_, steps) in &mut self.down {
            *steps -= 1;
        }
        let back: Vec<(Victim, usize)> = back;
        for (victim, _) in back {
            match victim {
                Victim::Sidecar => self.sidecar.restart(),
                Victim::SnapshotController => self.controller.restart(),
                Victim::Driver => self.driver.controller.restart(),
                Victim::ApiServer | Victim::ControllerManager => {}
            }
        }
        self.check_processes();
    }

    /// Restarts all components and disables all faults.
    pub(crate) fn recover(&mut self) {
        self.driver.set_faults("{}");
        self.down.iter_mut().for_each(|(_, steps)| *steps = 0);
        self.step();
    }

    /// Restarts the driver if a fault crashed it. Our programs must never exit on their own.
    pub(crate) fn check_processes(&mut self) {
        if !self.is_down(Victim::Driver) && !self.driver.controller.is_running() {
            self.driver.controller.restart();
        }
        assert!(self.is_down(Victim::Sidecar) || self.sidecar.is_running(), "the sidecar exited");
        let controller = self.is_down(Victim::SnapshotController) || self.controller.is_running();
        assert!(controller, "the snapshot controller exited");
    }

    /// Stops our programs in order, then the driver.
    pub(crate) fn stop(mut self) {
        self.driver.assert_no_violation();
        self.sidecar.stop();
        self.controller.stop();
    }

    /// Creates an object and returns it. A failed request may have created it.
    pub(crate) fn create(&mut self, object: &Value, short: &str) -> Value {
        let name = format!("{short}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        self.retry(&name, |server| {
            server
                .create(NAMESPACE, object)
                .or_else(|error| server.get(NAMESPACE, &name).and_then(|found| found.ok_or(error)))
        })
    }

    /// Deletes an object.
    pub(crate) fn delete(&mut self, object: &str) {
        self.retry(object, |server| match server.delete(NAMESPACE, object) {
            Err(error) if server.get(NAMESPACE, object)?.is_some() => Err(error),
            _ => Ok(()),
        });
    }

    /// Expands a claim.
    pub(crate) fn expand(&mut self, claim: &str, bytes: u64) {
        let patch = json!({"spec": {"resources": {"requests": {"storage": bytes.to_string()}}}});
        self.retry(claim, |server| server.patch(NAMESPACE, &format!("pvc/{claim}"), false, &patch));
    }

    /// Retries a request until it succeeds.
    pub(crate) fn retry<T>(&mut self, what: &str, request: impl Fn(&ApiClient) -> Result<T, String>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            match request(&self.server) {
                Ok(value) => return value,
                Err(error) => assert!(Instant::now() < until, "{what}: failed for {TIMEOUT:?}: {error}"),
            }
            self.check_processes();
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
