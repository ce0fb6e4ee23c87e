//! `wharf down`: drains a running `wharf up` (deletes pods, waits for unmounts), then stops it.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{sleep, timeout};
use wharf_cluster::{Cluster, ConnectOptions, Preconditions, Store, WatchOptions};
use wharf_linux::{Files as _, Linux, MountTable, Mounts as _, PathBeneath};
use wharf_model::{Key, Kind as _, Node, Pod, VolumeAttachment};

use crate::sidecar::parse_duration;
use crate::up::{DATA_DIR, DataDir};

/// How long `wharf up` may take to exit after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between reads of the mount table.
const MOUNT_POLL_INTERVAL: Duration = Duration::from_millis(100);

const AFTER_HELP: &str = "\
Deletes all pods, waits until every volume is unmounted, then stops `wharf up`. Pods get their termination grace period, as \
with `kubectl drain`. Claims, volumes, all other objects and the data remain for the next `wharf up`.

The command needs a running `wharf up`, because that is what stops pods and unmounts volumes. If it is not running, start \
it first.

With --keep-pods, only `wharf up` itself stops. Pods keep running, and the next `wharf up` finds them.";

/// Stop `wharf up` and its pods
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DownArgs {
    /// Data directory of `wharf up`
    #[arg(long, env = "WHARF_DATA_DIR", value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Leave pods running, with their volumes mounted
    #[arg(long)]
    keep_pods: bool,
    /// How long to wait for pods and mounts to disappear; after that, the command lists what is left, leaves `wharf up`
    /// running and fails
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "2m")]
    timeout: Duration,
}

pub(crate) async fn run(args: DownArgs) -> anyhow::Result<()> {
    let DownArgs { data_dir: path, keep_pods, timeout: limit } = args;
    let data_dir = DataDir::open(&path)?;
    let Some(process) = running_process(&data_dir)? else {
        let dir = path.display();
        anyhow::bail!(
            "`wharf up` is not running in {dir}. Pods that it left behind keep running with their volumes mounted; to stop them, \
             run `wharf up --data-dir {dir}`, then `wharf down --data-dir {dir}`"
        );
    };
    if !keep_pods {
        let connect = ConnectOptions { kubeconfig: Some(data_dir.kubeconfig()), ..ConnectOptions::default() };
        let cluster = Cluster::connect(&connect).await?;
        drain(&cluster, &data_dir, limit).await?;
    }
    let RunningUp { pid, pidfd } = process;
    pidfd_send_signal(&pidfd, Signal::TERM).context("failed to send SIGTERM to `wharf up`")?;
    let exited = tokio::task::spawn_blocking(move || {
        let wait = Timespec { tv_sec: EXIT_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&wait))
    });
    anyhow::ensure!(
        exited.await?? > 0,
        "`wharf up` (process {}) did not exit within {EXIT_TIMEOUT:?} of SIGTERM",
        pid.as_raw_nonzero()
    );
    if !keep_pods {
        wharf_driver_local::disk::close(&Linux::new(), data_dir.path())?;
    }
    writeln!(std::io::stdout(), "stopped; run `wharf up` to continue")?;
    Ok(())
}

/// A running `wharf up`. A process ID alone may be reused by another process.
struct RunningUp {
    pid: Pid,
    pidfd: OwnedFd,
}

/// The `wharf up` process that holds the lock of the data directory.
fn running_process(data_dir: &DataDir) -> anyhow::Result<Option<RunningUp>> {
    let file = data_dir.pid_file();
    let (dir, name) = (data_dir.run(), Path::new("pid"));
    let is_locked = || Linux::new().try_lock(&PathBeneath::new(&dir, name)).map(|lock| lock.is_none());
    let read =
        || std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()));
    if !file.exists() || !is_locked()? {
        return Ok(None);
    }
    let text = read()?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.with_context(|| format!("{} does not contain a process ID", file.display()))?;
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        opened => opened.context("failed to open the process of `wharf up`")?,
    };
    // The process holds the lock until it exits, so it had not exited when its file descriptor was opened.
    match is_locked()? && read()? == text {
        true => Ok(Some(RunningUp { pid, pidfd })),
        false => Ok(None),
    }
}

/// Deletes all pods, and waits until they are gone and no volume is attached or mounted. Mounts are checked too,
/// because not all drivers attach volumes.
async fn drain(cluster: &Cluster, data_dir: &DataDir, limit: Duration) -> anyhow::Result<()> {
    let pods = cluster.store::<Pod>(WatchOptions::default());
    let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
    let nodes = cluster.store::<Node>(WatchOptions::default());
    let drained = async {
        pods.wait_synced().await;
        nodes.wait_synced().await;
        attachments.wait_synced().await;
        for pod in pods.all() {
            let preconditions =
                Preconditions { uid: Some(pod.metadata.uid.clone()), ..Preconditions::default() };
            match cluster.delete(&Pod::API, &pod.key(), preconditions).await {
                Ok(()) | Err(wharf_cluster::ApiError::NotFound(_) | wharf_cluster::ApiError::Conflict(_)) => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        wait_until_empty(&pods).await;
        wait_until_empty(&attachments).await;
        while !mounted_volumes(data_dir)?.is_empty() {
            sleep(MOUNT_POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    match timeout(limit, drained).await {
        Ok(done) => done,
        Err(_) => {
            let own = data_dir.recorded_node_name().unwrap_or_default();
            let remaining = |pod: &Arc<Pod>| {
                let node = nodes.get(&Key::cluster(&*pod.node_name));
                remaining_pod(pod, node.as_deref(), own.as_deref())
            };
            let pods: Vec<_> = pods.all().iter().map(remaining).collect();
            let attached = attachments.all();
            let attached = attached.iter().map(|attachment| {
                let volume = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or("?");
                format!("volume {volume} on {}", attachment.spec.node_name)
            });
            let mounts = mounted_volumes(data_dir)?;
            let mounts = mounts.iter().map(|path| format!("mount {}", path.display()));
            let left: Vec<_> = pods.into_iter().chain(attached).chain(mounts).collect();
            anyhow::bail!(
                "failed to drain within {limit:?}; still present: {}. `wharf up` is still running. Run `wharf explain pod/NAME` \
                 for the reason, or set a longer --timeout",
                left.join(", ")
            )
        }
    }
}

/// A pod that is still present, and what to do if its node cannot stop it. `own` is the node of `wharf up`, which
/// creates its Node again if that is deleted.
fn remaining_pod(pod: &Pod, node: Option<&Node>, own: Option<&str>) -> String {
    let (key, name) = (pod.key(), &pod.node_name);
    match node {
        _ if name.is_empty() => format!("pod {key}"),
        Some(node) if node.is_ready() => format!("pod {key}"),
        _ if own == Some(name) => format!(
            "pod {key} (its node {name} is this machine, whose node agent is not Ready: read the log of `wharf up` for the reason)"
        ),
        None => format!("pod {key} (its node {name} does not exist: it is deleted within a minute)"),
        Some(_) => format!(
            "pod {key} (its node {name} is not Ready and cannot stop it: if that machine is certainly off, run \
             `kubectl delete node {name}`, and the pod is deleted within a minute)"
        ),
    }
}

/// The mount points of volumes. Mounts that a driver makes for itself are not included.
fn mounted_volumes(data_dir: &DataDir) -> anyhow::Result<Vec<PathBuf>> {
    volume_mounts(Linux::new().mount_table(), &data_dir.kubelet_root())
}

/// The mount points of volumes in a mount table. A table that cannot be read is an error: volumes may still be mounted.
fn volume_mounts<E>(table: Result<MountTable, E>, kubelet_root: &Path) -> anyhow::Result<Vec<PathBuf>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let table = table.context(
        "failed to read the mount table: volumes may still be mounted; `wharf up` is still running",
    )?;
    let volume_dirs = ["pods", "plugins/kubernetes.io"].map(|name| kubelet_root.join(name));
    let mounts = table.mounts().iter().map(|mount| mount.mount_point.clone());
    Ok(mounts.filter(|path| volume_dirs.iter().any(|dir| path.starts_with(dir))).collect())
}

async fn wait_until_empty<K: wharf_model::Kind>(store: &Store<K>) {
    let mut changes = store.subscribe();
    while !store.all().is_empty() {
        if changes.next().await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// U-3: a pod that no running node can stop.
    #[test]
    fn remaining_pod_of_a_lost_node_is_named_with_a_remedy() {
        let node = |ready: &str| -> Node {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}}))
                .unwrap()
        };
        for (node_name, node, own, expected) in [
            ("", None, "up", "pod ns/p"),
            ("n", Some(node("True")), "up", "pod ns/p"),
            ("n", Some(node("Unknown")), "up", "run `kubectl delete node n`"),
            ("n", None, "up", "its node n does not exist"),
            ("n", Some(node("True")), "n", "pod ns/p"),
            ("n", Some(node("Unknown")), "n", "read the log of `wharf up`"),
            ("n", None, "n", "read the log of `wharf up`"),
        ] {
            let body = json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {"nodeName": node_name}});
            let pod: Pod = serde_json::from_value(body).unwrap();
            let text = remaining_pod(&pod, node.as_ref(), Some(own));
            assert!(text.starts_with("pod ns/p") && text.contains(expected), "{text}");
            assert_eq!(text == "pod ns/p", expected == "pod ns/p", "{text}");
            assert!(own != "n" || !text.contains("delete node"), "{text}");
        }
    }

    #[test]
    fn mounts_of_volumes_are_found_and_an_unreadable_table_is_an_error() {
        let line = |mount_point: &str| format!("36 35 98:0 / {mount_point} rw shared:1 - ext4 /dev/x rw\n");
        let table =
            ["/k/pods/u/volumes/v", "/k/plugins/kubernetes.io/csi/d/h", "/k/plugins/d", "/k", "/other"]
                .map(line)
                .concat();
        let mounts = volume_mounts(MountTable::parse(table.as_bytes()), Path::new("/k")).unwrap();
        let expected = ["/k/pods/u/volumes/v", "/k/plugins/kubernetes.io/csi/d/h"].map(PathBuf::from);
        assert_eq!(mounts, expected);
        let error = volume_mounts(Err(std::io::Error::other("no")), Path::new("/k")).unwrap_err();
        assert!(error.to_string().contains("volumes may still be mounted"), "{error:#}");
    }
}
