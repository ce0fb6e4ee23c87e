//! A clean stop, what runs on after it, and the pages that tell of it all.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use wharf_testkit::{built, free_address, page};

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, pod};

impl Machine {
    /// A page of `wharf up`, by its socket.
    fn page(&self, path: &str) -> Result<String, String> {
        let ask = || {
            let mut stream = UnixStream::connect(self.data().join("run/metrics.sock"))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
        if head.starts_with("HTTP/1.1 200") { Ok(body.to_owned()) } else { Err(head.to_owned()) }
    }

    /// `wharf down`: whether it went well, and what it said.
    fn down(&self) -> (bool, String) {
        self.down_with("")
    }

    fn down_with(&self, words: &str) -> (bool, String) {
        let data = self.data().display().to_string();
        let wharf = built("wharf").display().to_string();
        let command = format!("{wharf} down --data-dir {data} {words} 2>&1; echo status $?");
        let said = self.run(&["sh", "-c", &command]);
        (said.trim_end().ends_with("status 0"), said)
    }
}

/// A pod that runs goes on while `wharf up` is told to end, is away and comes back, with its data; and what was left running
/// is stopped by `wharf down` once somebody is there to do it.
#[test]
fn a_pod_outlives_a_clean_stop() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    machine.written("keeper");
    let id = machine.field("pod/keeper", "/status/containerStatuses/0/containerID");
    let mounts = machine.mounts();
    assert!(!mounts.is_empty());
    machine.stop();
    assert!(!machine.runs());
    assert_eq!(machine.mounts(), mounts, "a stop unmounts nothing");
    // Nobody is there to stop the pod, and so it is said what to do.
    let (well, said) = machine.down();
    assert!(!well && said.contains("no `wharf up` runs in"), "{said}");
    assert!(said.contains("start `wharf up --data-dir") && said.contains("then `wharf down"), "{said}");
    assert_eq!(machine.mounts(), mounts);
    machine.restart();
    machine.ready();
    machine.running("keeper");
    assert_eq!(machine.field("pod/keeper", "/status/containerStatuses/0/containerID"), id, "the same one");
    assert_eq!(machine.field("pod/keeper", "/status/containerStatuses/0/restartCount"), "0");
    machine.nothing_else_is_mounted(&["keeper"]);
    // Now there is.
    let (well, said) = machine.down();
    assert!(well, "{said}");
    assert!(!machine.runs());
    machine.restart();
    machine.ready();
    machine.gone("pod/keeper");
    machine.check_data("data");
    machine.delete_everything();
}

/// `wharf down --keep-pods` ends `wharf up` alone: the same container goes on, on the same mounts, and the next start has it.
#[test]
fn pods_are_kept() {
    let mut machine = Machine::new();
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.written("keeper");
    let container = |machine: &Machine| {
        let status = "/status/containerStatuses/0";
        ["containerID", "restartCount", "state"]
            .map(|of| machine.field("pod/keeper", &format!("{status}/{of}")))
    };
    let (before, process, mounts) = (container(&machine), machine.process_of("keeper"), machine.mounts());
    assert!(!mounts.is_empty() && !before[0].is_empty() && before[1] == "0", "{before:?} {mounts:?}");
    let (well, said) = machine.down_with("--keep-pods");
    assert!(well, "{said}");
    assert!(!machine.runs());
    assert_eq!(machine.mounts(), mounts, "nothing is unmounted");
    machine.run(&["kill", "-0", &process]);
    machine.restart();
    machine.ready();
    machine.running("keeper");
    machine.nothing_else_is_mounted(&["keeper"]);
    assert_eq!((container(&machine), machine.mounts()), (before, mounts), "it is the same one");
    machine.check_data("data");
    machine.delete_everything();
}

/// Metrics of all parts and what was tried, at one place that only root can reach, and where the user says.
#[test]
fn what_is_counted_and_tried() {
    let address = free_address();
    let mut machine = Machine::with(&["--pool-size", "4Gi", "--metrics", &address]);
    machine.create(&claim("data", "32Mi"));
    machine.create(&pod("keeper", "data", KEEPER));
    machine.running("keeper");
    let mode = std::fs::metadata(machine.data().join("run/metrics.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(machine.page("/healthz").unwrap(), "ok");
    // Statistics are asked for once a minute.
    let metrics = machine.until("metrics of all parts", |machine| {
        let metrics = machine.page("/metrics")?;
        let all = [
            "kubelet_volume_stats_capacity_bytes{part=\"node\",namespace=\"default\",persistentvolumeclaim=\"data\"}",
            "csi_sidecar_operations_seconds_count{part=\"",
            "workqueue_adds_total{part=\"snapshot-controller\"",
        ];
        match all.iter().find(|name| !metrics.contains(*name)) {
            None => Ok(metrics),
            Some(missing) => Err(format!("no {missing} in {metrics}")),
        }
    });
    assert_eq!(metrics.matches("# EOF").count(), 1);
    assert_eq!(metrics.matches("# TYPE csi_sidecar_operations_seconds ").count(), 1);
    let attempts = machine.page("/debug/attempts").unwrap();
    assert!(attempts.contains("provisioner"), "{attempts}");
    assert_eq!(page(&address, "/healthz").unwrap(), "ok");
    assert!(
        page(&address, "/metrics").unwrap().contains("kubelet_volume_stats_capacity_bytes{part=\"node\"")
    );
    assert!(page(&address, "/debug/attempts").unwrap().contains("provisioner"));
    machine.delete_everything();
}
