//! A sidecar of ours in this process, on the embedded API without a socket. It has a thread and a runtime of its own, as
//! the program has, so that it can be killed as the program can: at any await, with everything that it had begun.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use wharf_cluster::{Cluster, ConnectOptions};
use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{Sidecar, run_on};
use wharf_sidecar::{Pace, attacher, health_monitor, provisioner, resizer, snapshot_controller, snapshotter};

/// A sidecar that runs.
pub(super) struct Within {
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Within {
    /// Starts the one of this name, as upstream calls it, with these of its arguments.
    pub(super) fn start(
        program: &str,
        args: &[&str],
        who: &str,
        client: impl FnOnce() -> kube::Client + Send + 'static,
    ) -> Result<Self, String> {
        let sidecar = sidecar(program, args, who)?;
        let (kill, killed) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let run = run_on(Some(Cluster::with_client(client())), sidecar, std::future::pending());
                tokio::select! {
                    biased;
                    _ = killed => {}
                    ended = run => panic!("the sidecar ended by itself: {:?}", ended.err()),
                }
            });
            // With all its tasks; those that block end by themselves.
            runtime.shutdown_background();
        });
        Ok(Self { kill: Some(kill), thread: Some(thread) })
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        drop(self.kill.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a sidecar in this process has panicked, see above");
        }
    }
}

/// What the flags that scenarios use come to. All that upstream's programs take is the binary's business.
fn sidecar(program: &str, args: &[&str], who: &str) -> Result<Sidecar, String> {
    let (mut driver, mut pace) = (None, Pace::with_timeout(Duration::from_secs(15)));
    let mut making = provisioner::Settings::default();
    let mut taking = snapshotter::Settings::default();
    let mut watching = health_monitor::Settings::default();
    // As the flags' own defaults are, but for the owner, which is a pod.
    let mut room = provisioner::CapacitySettings {
        immediate_binding: false,
        poll_interval: Duration::from_secs(60),
        owner_level: -1,
        pod: None,
    };
    let mut tells_room = false;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        match flag {
            "--csi-address" => {
                let socket = words.next().ok_or("--csi-address of what?")?;
                driver =
                    Some(format!("unix://{socket}").parse().map_err(|error| format!("{socket}: {error}"))?);
            }
            "--retry-interval-start" => pace.retry_start = time(value)?,
            "--retry-interval-max" => pace.retry_max = time(value)?,
            "--timeout" => pace.timeout = time(value)?,
            "--default-fstype" => making.default_fstype = value.to_owned(),
            "--extra-create-metadata" => {
                (making.extra_create_metadata, taking.extra_create_metadata) = (true, true);
            }
            "--volume-name-prefix" => making.naming.prefix = value.to_owned(),
            "--volume-name-uuid-length" => making.naming.uuid_length = value.parse().ok(),
            "--snapshot-name-prefix" => {
                taking.naming = VolumeNaming { prefix: value.to_owned(), uuid_length: None };
            }
            "--groupsnapshot-name-prefix" => {
                taking.group_naming = VolumeNaming { prefix: value.to_owned(), uuid_length: None };
            }
            "--strict-topology" => making.strict_topology = value != "false",
            "--immediate-topology" => making.immediate_topology = value != "false",
            "--enable-capacity" => tells_room = true,
            "--capacity-poll-interval" => room.poll_interval = time(value)?,
            "--capacity-ownerref-level" if value == "-1" => {}
            "--monitor-interval" => watching.monitor_interval = time(value)?,
            "--list-volumes-interval" => watching.list_volumes_interval = time(value)?,
            // The limits are far above what a scenario asks, and the features are always there.
            "--kube-api-qps" | "--kube-api-burst" | "--v" | "--feature-gates" => {}
            _ => return Err(format!("the sidecar in this process does not know {word}")),
        }
    }
    let role = match program {
        "csi-provisioner" => Role::Provisioner,
        "csi-attacher" => Role::Attacher,
        "csi-resizer" => Role::Resizer,
        "csi-snapshotter" => Role::Snapshotter,
        "csi-external-health-monitor-controller" => Role::HealthMonitor,
        "snapshot-controller" => Role::SnapshotController,
        _ => return Err(format!("{program} is no sidecar that runs in this process")),
    };
    let config = Config {
        connect: ConnectOptions::default(),
        roles: Some([role].into()),
        identity: who.to_owned(),
        namespace: Some("default".to_owned()),
        election: None,
        topology: true,
        node: None,
        provisioner: provisioner::Settings { pace, capacity: tells_room.then_some(room), ..making },
        attacher: attacher::Settings { pace, ..attacher::Settings::default() },
        resizer: resizer::Settings { pace, ..resizer::Settings::default() },
        snapshotter: snapshotter::Settings { pace, ..taking },
        health_monitor: watching,
        snapshot_controller: snapshot_controller::Settings {
            pace,
            ..snapshot_controller::Settings::default()
        },
    };
    Ok(Sidecar { driver, registrar: None, probe_timeout: None, controller: Some(config), listen: Vec::new() })
}

/// As `500ms`, `5s` or `5m`.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no time"))?;
    match &text[digits.len()..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(60 * number)),
        _ => Err(format!("{text:?} is no time")),
    }
}
