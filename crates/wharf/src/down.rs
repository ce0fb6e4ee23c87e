//! `wharf down`: ends a `wharf up`, and before that its pods and their mounts, as one drains a node.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{sleep, timeout};
use wharf_cluster::{Cluster, ConnectOptions, Preconditions, Store, WatchOptions};
use wharf_linux::{Beneath, Files as _, Linux, Mounts as _};
use wharf_model::whole::Pod;
use wharf_model::{Kind as _, VolumeAttachment};

use crate::sidecar::parse_duration;
use crate::up::{DATA_DIR, Place};

/// For the process to end, once it was told to.
const ENDING: Duration = Duration::from_secs(30);

/// Between looks at what is still mounted.
const LOOK: Duration = Duration::from_millis(100);

const EXPLANATION: &str = "\
Pods are deleted, as by `kubectl drain`: they are asked to stop and get their time, and when they are gone nothing is
mounted any more. Claims, volumes and all other objects stay, and so does the data: `wharf up` has them again.

`wharf up` must be running: it is what stops pods and unmounts. If it is not, start it first.

With --keep-pods only `wharf up` itself ends. Pods go on running, and the next `wharf up` finds them.";

/// Stop what `wharf up` started
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct DownArgs {
    /// Directory of `wharf up`
    #[arg(long, env = "WHARF_DATA_DIR", value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Let pods run on, with their volumes mounted
    #[arg(long)]
    keep_pods: bool,
    /// How long pods may take to end; then nothing more is stopped, and it is said what still runs
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "2m")]
    timeout: Duration,
}

pub(crate) async fn run(args: DownArgs) -> anyhow::Result<()> {
    let DownArgs { data_dir, keep_pods, timeout: patience } = args;
    let place = Place::find(&data_dir)?;
    let Some(process) = running(&place)? else {
        let dir = data_dir.display();
        anyhow::bail!(
            "no `wharf up` runs in {dir}. Pods that it left behind run on with their volumes mounted; to stop them, \
             start `wharf up --data-dir {dir}`, then `wharf down --data-dir {dir}`"
        );
    };
    if !keep_pods {
        let connect = ConnectOptions { kubeconfig: Some(place.kubeconfig()), ..ConnectOptions::default() };
        let cluster = Cluster::connect(&connect).await?;
        drain(&cluster, &place, patience).await?;
    }
    let pidfd = pidfd_open(process, PidfdFlags::empty()).context("find the process of `wharf up`")?;
    pidfd_send_signal(&pidfd, Signal::TERM).context("tell `wharf up` to stop")?;
    let ended = tokio::task::spawn_blocking(move || {
        let wait = Timespec { tv_sec: ENDING.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&wait))
    });
    anyhow::ensure!(ended.await?? > 0, "`wharf up` (process {}) has not ended yet", process.as_raw_nonzero());
    if !keep_pods {
        wharf_driver_local::disk::close(&Linux::new(), place.path())?;
    }
    writeln!(std::io::stdout(), "stopped; `wharf up` goes on from here")?;
    Ok(())
}

/// The process that has the directory.
fn running(place: &Place) -> anyhow::Result<Option<Pid>> {
    let file = place.pid();
    let (dir, name) = (place.sockets(), Path::new("pid"));
    if !file.exists() || Linux::new().try_lock(&Beneath::new(&dir, name))?.is_some() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    Ok(Some(pid.with_context(|| format!("{} does not name a process", file.display()))?))
}

/// Deletes all pods, and waits until they are gone and nothing is attached or mounted any more: not all drivers attach.
async fn drain(cluster: &Cluster, place: &Place, patience: Duration) -> anyhow::Result<()> {
    let pods = cluster.store::<Pod>(WatchOptions::default());
    let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
    let gone = async {
        pods.synced().await;
        attachments.synced().await;
        for pod in pods.all() {
            let preconditions =
                Preconditions { uid: Some(pod.metadata.uid.clone()), ..Preconditions::default() };
            match cluster.delete(&Pod::API, &pod.key(), preconditions).await {
                Ok(()) | Err(wharf_cluster::ApiError::NotFound(_) | wharf_cluster::ApiError::Conflict(_)) => {
                }
                Err(error) => return Err(error),
            }
        }
        empty(&pods).await;
        empty(&attachments).await;
        while !mounted(place).is_empty() {
            sleep(LOOK).await;
        }
        Ok(())
    };
    match timeout(patience, gone).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            let pods: Vec<_> = pods.all().iter().map(|pod| format!("pod {}", pod.key())).collect();
            let attached = attachments.all();
            let attached = attached.iter().map(|attachment| {
                let volume = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or("?");
                format!("volume {volume} on {}", attachment.spec.node_name)
            });
            let mounts = mounted(place);
            let mounts = mounts.iter().map(|path| format!("mount {}", path.display()));
            let left: Vec<_> = pods.into_iter().chain(attached).chain(mounts).collect();
            anyhow::bail!(
                "still there after {patience:?}: {}; nothing was stopped. `wharf explain pod/NAME` says why, a longer \
                 --timeout waits on",
                left.join(", ")
            )
        }
    }
}

/// Where volumes are mounted. Nobody is kept waiting by what a driver has mounted for itself, nor if nobody can tell.
fn mounted(place: &Place) -> Vec<PathBuf> {
    let ours = ["pods", "plugins/kubernetes.io"].map(|name| place.kubelet().join(name));
    let table = Linux::new().mount_table().inspect_err(|error| {
        tracing::warn!(%error, "nobody can tell what is still mounted");
    });
    let mounts = table.iter().flat_map(|table| table.mounts()).map(|mount| mount.mount_point.clone());
    mounts.filter(|path| ours.iter().any(|place| path.starts_with(place))).collect()
}

async fn empty<K: wharf_model::Kind>(store: &Store<K>) {
    let mut changes = store.changes();
    while !store.all().is_empty() {
        if changes.next().await.is_none() {
            return;
        }
    }
}
