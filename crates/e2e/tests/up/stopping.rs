//! Clean stops, what keeps running after them, and the status pages.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use wharf_testkit::{built_program, free_address, http_get};

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, pod};

impl Machine {
    /// A page of `wharf up`, from its socket.
    pub(crate) fn page(&self, path: &str) -> Result<String, String> {
        let ask = || {
            let mut stream = UnixStream::connect(self.data().join("run/metrics.sock"))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            std::io::Result::Ok(response)
        };
        let response = ask().map_err(|error| error.to_string())?;
        let (head, body) = response.split_once("\r\n\r\n").ok_or("no HTTP")?;
        if head.starts_with("HTTP/1.1 200") { Ok(body.to_owned()) } else { Err(head.to_owned()) }
    }

    /// `wharf down`: whether it succeeded, and its output.
    fn down(&self) -> (bool, String) {
        self.down_with("")
    }

    fn down_with(&self, words: &str) -> (bool, String) {
        let data = self.data().display().to_string();
        let wharf = built_program("wharf").display().to_string();
        let command = format!("{wharf} down --data-dir {data} {words} 2>&1; echo status $?");
        let output = self.run(&["sh", "-c", &command]);
        (output.trim_end().ends_with("status 0"), output)
    }
}

/// A pod keeps running, with its data, while `wharf up` is stopped and restarted. `wharf down` stops it once `wharf
/// up` is running again.
#[test]
fn pod_survives_clean_stop() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    machine.wait_until_written("keeper");
    let id = machine.field("pod/keeper", "/status/containerStatuses/0/containerID");
    let mounts = machine.mounts();
    assert!(!mounts.is_empty());
    machine.stop();
    machine.wait_until_stopped();
    assert_eq!(machine.mounts(), mounts, "a stop must not unmount anything");
    // Without `wharf up` nothing can stop the pod, so the message says what to do.
    let (success, output) = machine.down();
    assert!(!success && output.contains("`wharf up` is not running in"), "{output}");
    assert!(output.contains("run `wharf up --data-dir") && output.contains("then `wharf down"), "{output}");
    assert_eq!(machine.mounts(), mounts);
    machine.restart();
    machine.wait_until_ready();
    machine.wait_until_running("keeper");
    assert_eq!(
        machine.field("pod/keeper", "/status/containerStatuses/0/containerID"),
        id,
        "the container must be the same"
    );
    assert_eq!(machine.field("pod/keeper", "/status/containerStatuses/0/restartCount"), "0");
    machine.wait_for_only_these_mounts(&["keeper"]);
    // Now `wharf up` is running.
    let (success, output) = machine.down();
    assert!(success, "{output}");
    machine.wait_until_stopped();
    machine.restart();
    machine.wait_until_ready();
    machine.wait_until_gone("pod/keeper");
    machine.check_data("data");
    machine.delete_everything();
}

/// `wharf down --keep-pods` stops only `wharf up`: the container and its mounts stay, and the next start adopts
/// them.
#[test]
fn down_with_keep_pods_leaves_containers_running() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_written("keeper");
    let container = |machine: &Machine| {
        let status = "/status/containerStatuses/0";
        ["containerID", "restartCount", "state"]
            .map(|of| machine.field("pod/keeper", &format!("{status}/{of}")))
    };
    let (before, process, mounts) = (container(&machine), machine.process_of("keeper"), machine.mounts());
    assert!(!mounts.is_empty() && !before[0].is_empty() && before[1] == "0", "{before:?} {mounts:?}");
    let (success, output) = machine.down_with("--keep-pods");
    assert!(success, "{output}");
    machine.wait_until_stopped();
    assert_eq!(machine.mounts(), mounts, "nothing must be unmounted");
    machine.run(&["kill", "-0", &process]);
    machine.restart();
    machine.wait_until_ready();
    machine.wait_until_running("keeper");
    machine.wait_for_only_these_mounts(&["keeper"]);
    assert_eq!(
        (container(&machine), machine.mounts()),
        (before, mounts),
        "the container and its mounts must be the same"
    );
    machine.check_data("data");
    machine.delete_everything();
}

/// Metrics of all components and recent attempts, on one socket that only root can reach and on the address that
/// the user configures.
#[test]
fn metrics_and_attempts_are_served() {
    let address = free_address();
    let mut machine = Machine::with(&["--pool-size", "4Gi", "--metrics", &address]);
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.wait_until_running("keeper");
    let mode = std::fs::metadata(machine.data().join("run/metrics.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(machine.page("/healthz").unwrap(), "ok");
    // Volume statistics are collected once a minute.
    let metrics = machine.wait_until("metrics of all components", |machine| {
        let metrics = machine.page("/metrics")?;
        let all = [
            "kubelet_volume_stats_capacity_bytes{part=\"node\",namespace=\"default\",persistentvolumeclaim=\"data\"}",
            "csi_sidecar_operations_seconds_count{part=\"",
            "workqueue_adds_total{part=\"snapshot-controller\"",
        ];
        match all.iter().find(|name| !metrics.contains(*name)) {
            None => Ok(metrics),
            Some(missing) => Err(format!("{missing} is missing in {metrics}")),
        }
    });
    assert_eq!(metrics.matches("# EOF").count(), 1);
    assert_eq!(metrics.matches("# TYPE csi_sidecar_operations_seconds ").count(), 1);
    let attempts = machine.page("/debug/attempts").unwrap();
    assert!(attempts.contains("provisioner"), "{attempts}");
    assert_eq!(http_get(&address, "/healthz").unwrap(), "ok");
    assert!(
        http_get(&address, "/metrics").unwrap().contains("kubelet_volume_stats_capacity_bytes{part=\"node\"")
    );
    assert!(http_get(&address, "/debug/attempts").unwrap().contains("provisioner"));
    machine.delete_everything();
}
