//! `wharf up`: API server, controllers, scheduler, node agent, sidecar and local driver in one process, until a stop
//! signal.
//!
//! - All state is in one directory. After a crash, the next start resumes unfinished work.
//! - A stop leaves pods and volumes as they are. `wharf down` deletes pods and waits for unmounts first.
//! - Each component uses the API as it would on a cluster. They share one API client, and so one watch per kind.
//!
//! Start reading at `components::run`.

mod components;
mod data_dir;
mod external_driver;
mod nfs_export;
mod objects;
mod pod_streams;
mod served_driver;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::agent::hidden_dir;
use crate::size::parse_size;
pub(crate) use data_dir::DataDir;
use external_driver::ExternalDriver;
use nfs_export::NfsExport;

pub(crate) const DATA_DIR: &str = "/var/lib/wharf";

const AFTER_HELP: &str = "\
Runs the Kubernetes API, the volume controllers, a scheduler, a node agent and the local CSI driver in one process. Apply \
a claim and a pod, and the pod runs with its volume:

  wharf up &
  export KUBECONFIG=/var/lib/wharf/kubeconfig
  kubectl apply -f examples/claim-and-pod.yaml
  kubectl get pod,pvc

Volumes:
  The local driver stores volumes in a pool (StorageClasses local, local-xfs and local-btrfs). If the disk cannot share \
blocks, the pool is a file that contains an xfs file system, so that volumes in use can be snapshotted. All blocks of the file are \
allocated when it is created; `wharf local grow` enlarges it.

Pods:
  Containers are processes of this machine in their own namespaces. Their root is an overlay over the machine's root; \
changes to it are discarded. Images are not pulled: containers run the machine's own programs. Only pods are supported: \
Deployments and StatefulSets need a cluster.

NFS:
  wharf up --nfs nas.example.com:/export

  Runs the NFS driver, and creates the StorageClass nfs. A volume is a directory in the export.

Other CSI drivers:
  wharf up --csi unix:///run/my-driver/csi.sock

  Wharf registers the driver and starts the sidecar roles that it needs, as on a cluster. Append properties that a driver \
cannot report itself, separated by commas: pod-info, ephemeral, fs-group=POLICY. If the driver stores volumes in \
directories of this machine, name their parent directory with --hide; otherwise all pods can read them.

Stopping:
  SIGTERM and SIGINT stop wharf up. Pods keep running, and the next start finds them. `wharf down` stops pods and \
unmounts their volumes.";

/// Run Kubernetes storage on this machine, without a cluster
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct UpArgs {
    /// Data directory; created if it does not exist
    #[arg(long, env = "WHARF_DATA_DIR", value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Listen address of the API server; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Name of this machine's Node object [default: that of the first start, which is the host name]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Pool directory of the local driver [default: in --data-dir]
    #[arg(long, env = "WHARF_POOL", value_name = "DIR", conflicts_with = "pool_size")]
    pool: Option<PathBuf>,
    /// Size of the pool, if it is a file; a larger size than before grows it [default: half of the free space of the disk]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pool_size: Option<i64>,
    /// Overcommit ratio: bytes that thin volumes are promised for each free byte of the pool. Above 1, writes can fail for
    /// lack of space
    #[arg(long, env = "WHARF_OVERCOMMIT", value_name = "RATIO", default_value_t = 1.0)]
    overcommit: f64,
    /// Socket of another CSI driver, such as unix:///run/csi.sock, with options (see below); may be repeated
    #[arg(long, value_name = "SOCKET[,OPTION]...", group = "other_driver")]
    csi: Vec<ExternalDriver>,
    /// Export of an NFS server, such as nas:/export: also run the NFS driver (see below)
    #[arg(long, value_name = "SERVER:/SHARE", group = "other_driver")]
    nfs: Option<NfsExport>,
    /// Directory in which a --csi driver stores volumes; pods see it empty; may be repeated
    #[arg(long, value_name = "DIR", value_parser = hidden_dir)]
    hide: Vec<PathBuf>,
    /// Also serve metrics at this address (they are always served on a socket in --data-dir)
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Do not run the local driver
    #[arg(long, requires = "other_driver")]
    no_local: bool,
}

pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    components::run(args).await
}
