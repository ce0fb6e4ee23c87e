//! `wharf up`: the six flows on this machine, from one command: API, controllers, scheduler, node agent, sidecar and the
//! local driver in one process, until it is told to stop.
//!
//! - Everything it keeps is beneath one directory; what it was doing when it died it goes on with at the next start.
//! - Stopping leaves pods and volumes as they are. `wharf down` asks for them to be stopped and unmounted first.
//! - Each part sees what it would see on a cluster; they share one handle of the API, and so one watch for each kind.

mod drivers;
mod objects;
mod parts;
mod place;
mod served;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::agent::hidden_place;
use crate::size::parse_size;
use drivers::Foreign;
pub(crate) use place::Place;

pub(crate) const DATA_DIR: &str = "/var/lib/wharf";

const EXPLANATION: &str = "\
A machine with Kubernetes storage and without Kubernetes: apply a claim and a pod, and the pod runs with its volume.

  wharf up &
  export KUBECONFIG=/var/lib/wharf/kubeconfig
  kubectl apply -f examples/claim-and-pod.yaml
  kubectl get pod,pvc

Volumes are in a pool of the local driver (classes local, local-xfs and local-btrfs). Where the disk cannot share blocks,
the pool is kept in one file with xfs in it, so that volumes in use can be snapshotted.

A pod's containers run as processes of this machine, in namespaces of their own, on an overlay of its root whose changes
are thrown away. Images are not pulled: the machine's own programs are what there is. There are pods only: Deployments and
StatefulSets are for a cluster.

With --csi somebody else's driver is served too, as on a cluster:
  wharf up --csi unix:///run/my-driver/csi.sock
Words after the socket say what a driver cannot say itself: pod-info, ephemeral, fs-group=POLICY. If it keeps volumes as
directories of this machine, name the directory above them with --hide, or all pods see them.

SIGTERM and SIGINT stop it; pods go on running, and the next start finds them. `wharf down` stops pods and unmounts.";

/// Run Kubernetes storage on this machine, without a cluster
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct UpArgs {
    /// Directory for everything that is kept; made if it is not there
    #[arg(long, env = "WHARF_DATA_DIR", value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Address of the API; port 0 for any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// This machine's name as a node [default: the host's name]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Directory of the local driver's pool [default: in --data-dir]
    #[arg(long, env = "WHARF_POOL", value_name = "DIR", conflicts_with = "pool_size")]
    pool: Option<PathBuf>,
    /// The most that the pool may hold, if it is made in a file [default: what the disk has free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pool_size: Option<i64>,
    /// Socket of somebody else's driver, such as unix:///run/csi.sock, and words about it; may be repeated
    #[arg(long, value_name = "SOCKET[,WORD]...")]
    csi: Vec<Foreign>,
    /// Directory in which a driver of --csi keeps volumes: pods see it empty; may be repeated
    #[arg(long, value_name = "DIR", value_parser = hidden_place)]
    hide: Vec<PathBuf>,
    /// Serve metrics at this address too, beside the socket in --data-dir
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Leave the local driver out
    #[arg(long, requires = "csi")]
    no_local: bool,
}

pub(crate) async fn run(args: UpArgs) -> anyhow::Result<()> {
    parts::run(args).await
}
