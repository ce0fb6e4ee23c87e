//! `wharf driver local`: flags into a checked pool configuration, and the driver on it until it is told to stop.
//! With `--with-sidecar` everything that joins it to Kubernetes runs in the same process.

mod beside;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use wharf_csi::Endpoint;
use wharf_driver::ServeOptions;
use wharf_driver_local::Config;
use wharf_linux::Linux;

use crate::sidecar::Environment;
use crate::signal::stop_signal;
use beside::BesideArgs;

const EXPLANATION: &str = "\
A pool is a directory on a local file system. Each volume is an image file in it, attached through a loop
device. On xfs and btrfs snapshots and clones share blocks and are instant; on other file systems they are
copies. Give the pool a file system of its own, so that its free space is nobody else's. An empty directory
becomes a pool at the first start; a missing one is an error, because its disk may just not be mounted.

Example:
  mkdir /srv/pool
  wharf driver local --endpoint unix:///run/wharf/local.sock --node-id \"$HOSTNAME\" --pool /srv/pool

In Kubernetes, on each node (see deploy/local.yaml):
  wharf driver local --with-sidecar --node-id \"$NODE_NAME\" --pool /srv/pool \\
    --endpoint unix:///var/lib/kubelet/plugins/local.csi.wharf.dev/csi.sock
A claim whose class does not wait for a pod goes to a node that has room, within about 5 seconds.

SIGTERM and SIGINT stop the driver; volumes stay mounted, and the next start goes on where this one ended.";

/// Serve volumes from a pool on a local disk (local.csi.wharf.dev)
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(super) struct Args {
    /// Socket to listen on, such as unix:///run/wharf/local.sock; only root can reach it
    #[arg(long, env = "WHARF_ENDPOINT", value_name = "ENDPOINT")]
    endpoint: Endpoint,
    /// This node, as the orchestrator calls it; also its value of the topology key local.csi.wharf.dev/node
    #[arg(long, env = "WHARF_NODE_ID", value_name = "NAME")]
    node_id: String,
    /// Directory of the pool
    #[arg(long, env = "WHARF_POOL", value_name = "DIR")]
    pool: PathBuf,
    /// Serve ControllerPublish and ControllerUnpublish: a volume's record then names the node that has it
    #[arg(long, env = "WHARF_ATTACH")]
    attach: bool,
    /// Bytes that may be promised to thin volumes for each byte that the pool has
    #[arg(long, env = "WHARF_OVERCOMMIT", value_name = "RATIO", default_value_t = 2.0)]
    overcommit: f64,
    /// Percent in use from which the volumes' health says so
    #[arg(long, env = "WHARF_WARN_THRESHOLD", value_name = "PERCENT", default_value_t = 85)]
    warn_threshold: u8,
    /// Percent in use from which there are no new volumes, snapshots or expansions
    #[arg(long, env = "WHARF_FULL_THRESHOLD", value_name = "PERCENT", default_value_t = 95)]
    full_threshold: u8,
    /// How many volumes can be on this node at once; 0 for no limit
    #[arg(long, env = "WHARF_MAX_VOLUMES", value_name = "N", default_value_t = 0)]
    max_volumes: i64,
    /// Address for /metrics and /healthz, such as 127.0.0.1:9808; nowhere if not given
    #[arg(long, env = "WHARF_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    beside: BesideArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        endpoint,
        node_id,
        pool,
        attach,
        overcommit,
        warn_threshold,
        full_threshold,
        max_volumes,
        metrics_listen,
        beside,
    } = args;
    let sidecar = beside.with_sidecar.then(|| beside.checked(&endpoint, &node_id, &Environment::read()));
    let config = Config { node_id, pool, attach, overcommit, warn_threshold, full_threshold, max_volumes };
    // Before anything else: a signal that comes while the pool recovers must not be lost.
    let stop = stop_signal()?;
    // Opening recovers, which may take a while and blocks.
    let driver =
        tokio::task::spawn_blocking(move || wharf_driver_local::driver(Arc::new(Linux::new()), config))
            .await
            .context("open the pool")??;
    let options = ServeOptions { metrics_listen };
    match sidecar {
        Some(sidecar) => beside::serve(driver, &endpoint, options, sidecar, stop).await,
        None => Ok(driver.serve(&endpoint, options, stop).await?),
    }
}
