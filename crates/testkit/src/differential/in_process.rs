//! Our sidecar in this process, on the embedded API without a socket. It has its own thread and runtime, so a test
//! can kill it as it would kill the program: at any await point, with all its tasks.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use wharf_cluster::{Cluster, ConnectOptions};
use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::{Config, Role};
use wharf_sidecar::process::{Sidecar, run_on_cluster};
use wharf_sidecar::{WorkerOptions, attacher, health_monitor, provisioner, resizer, snapshotter};

/// A running sidecar.
pub(super) struct InProcessSidecar {
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl InProcessSidecar {
    /// Starts a sidecar by upstream's name with these of upstream's arguments.
    pub(super) fn start(
        program: &str,
        args: &[&str],
        pod: &str,
        client: impl FnOnce() -> kube::Client + Send + 'static,
    ) -> Result<Self, String> {
        let sidecar = sidecar(program, args, pod)?;
        let (kill, killed) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                // As in the program: a rule that reads a detail that slim views lack fails here.
                let cluster = Cluster::with_client(client()).with_slim_views();
                let run = run_on_cluster(Some(cluster), sidecar, std::future::pending());
                tokio::select! {
                    biased;
                    _ = killed => {}
                    ended = run => panic!("the sidecar exited unexpectedly: {:?}", ended.err()),
                }
            });
            // Ends all its tasks; blocking ones end by themselves.
            runtime.shutdown_background();
        });
        Ok(Self { kill: Some(kill), thread: Some(thread) })
    }
}

impl Drop for InProcessSidecar {
    fn drop(&mut self) {
        drop(self.kill.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a sidecar in this process panicked, see above");
        }
    }
}

/// Translates the flags that scenarios use. The binary implements the complete set of upstream's flags.
fn sidecar(program: &str, args: &[&str], pod: &str) -> Result<Sidecar, String> {
    let (mut driver, mut worker_options) = (None, WorkerOptions::with_timeout(Duration::from_secs(15)));
    let mut provisioning = provisioner::Settings::default();
    let mut snapshotting = snapshotter::Settings::default();
    let mut monitoring = health_monitor::Settings::default();
    // The defaults of the flags, except for the owner, which would be a pod.
    let mut capacity = provisioner::CapacitySettings::default();
    let mut publish_capacity = false;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        match flag {
            "--csi-address" => {
                let socket = words.next().ok_or("--csi-address needs a value")?;
                driver =
                    Some(format!("unix://{socket}").parse().map_err(|error| format!("{socket}: {error}"))?);
            }
            "--retry-interval-start" => worker_options.retry_start = time(value)?,
            "--retry-interval-max" => worker_options.retry_max = time(value)?,
            "--timeout" => worker_options.timeout = time(value)?,
            "--default-fstype" => provisioning.default_fstype = value.to_owned(),
            "--extra-create-metadata" => {
                (provisioning.extra_create_metadata, snapshotting.extra_create_metadata) = (true, true);
            }
            "--volume-name-prefix" => provisioning.naming.prefix = value.to_owned(),
            "--volume-name-uuid-length" => provisioning.naming.uuid_length = value.parse().ok(),
            "--snapshot-name-prefix" => {
                snapshotting.naming = VolumeNaming { prefix: value.to_owned(), uuid_length: None };
            }
            "--groupsnapshot-name-prefix" => {
                snapshotting.group_naming = VolumeNaming { prefix: value.to_owned(), uuid_length: None };
            }
            "--strict-topology" => provisioning.strict_topology = value != "false",
            "--immediate-topology" => provisioning.immediate_topology = value != "false",
            "--enable-capacity" => publish_capacity = true,
            "--capacity-poll-interval" => capacity.poll_interval = time(value)?,
            "--capacity-ownerref-level" if value == "-1" => {}
            "--monitor-interval" => monitoring.monitor_interval = time(value)?,
            "--list-volumes-interval" => monitoring.list_volumes_interval = time(value)?,
            // The rate limits are far above what a scenario needs, and the feature gates are always enabled.
            "--kube-api-qps" | "--kube-api-burst" | "--v" | "--feature-gates" => {}
            _ => return Err(format!("the in-process sidecar does not support {word}")),
        }
    }
    let role = match program {
        "csi-provisioner" => Role::Provisioner,
        "csi-attacher" => Role::Attacher,
        "csi-resizer" => Role::Resizer,
        "csi-snapshotter" => Role::Snapshotter,
        "csi-external-health-monitor-controller" => Role::HealthMonitor,
        "snapshot-controller" => Role::SnapshotController,
        _ => return Err(format!("{program} cannot run in this process")),
    };
    let mut config = Config {
        connect: ConnectOptions::default(),
        roles: Some([role].into()),
        identity: pod.to_owned(),
        namespace: Some("default".to_owned()),
        election: None,
        topology: true,
        node: None,
        provisioner: provisioner::Settings {
            worker_options,
            capacity: publish_capacity.then_some(capacity),
            ..provisioning
        },
        attacher: attacher::Settings { worker_options, ..attacher::Settings::default() },
        resizer: resizer::Settings { worker_options, ..resizer::Settings::default() },
        snapshotter: snapshotter::Settings { worker_options, ..snapshotting },
        health_monitor: monitoring,
        snapshot_controller: Default::default(),
    };
    config.snapshot_controller.worker_options = worker_options;
    Ok(Sidecar { driver, registrar: None, probe_timeout: None, controller: Some(config), listen: Vec::new() })
}

/// Parses `500ms`, `5s` or `5m`.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a duration"))?;
    match &text[digits.len()..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(60 * number)),
        _ => Err(format!("{text:?} is not a duration")),
    }
}
