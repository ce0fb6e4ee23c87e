//! `wharf driver local`: builds the pool configuration from flags and runs the driver until a stop signal. With
//! `--with-sidecar`, its Kubernetes sidecar runs in the same process.

mod embedded_sidecar;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use wharf_csi::Endpoint;
use wharf_driver::ServeOptions;
use wharf_driver_local::Config;
use wharf_linux::Linux;
use wharf_upstream_flags::Environment;

use crate::signal::stop_signal;
use embedded_sidecar::EmbeddedSidecarArgs;

const AFTER_HELP: &str = "\
A pool is a directory on a local file system. Each volume is an image file in the pool, attached through a loop device. On \
xfs and btrfs, snapshots and clones share blocks and are instant; on other file systems they are full copies. Use a \
separate file system for the pool, so that nothing else uses its free space. `wharf local init` creates a pool. A missing or \
empty directory is an error, because its disk may not be mounted.

Example:
  mkdir /srv/pool
  wharf local init --pool /srv/pool
  wharf driver local --endpoint unix:///run/wharf/local.sock --node-id \"$HOSTNAME\" --pool /srv/pool

In Kubernetes, on each node (see deploy/local.yaml):
  wharf driver local --with-sidecar --node-id \"$NODE_NAME\" --pool /srv/pool \\
    --endpoint unix:///var/lib/kubelet/plugins/local.csi.wharf.dev/csi.sock

A claim whose StorageClass binds immediately gets a volume on a node with enough capacity within about 5 seconds.

SIGTERM and SIGINT stop the driver. Volumes stay mounted, and the next start resumes unfinished operations.";

/// Serve volumes from a pool on a local disk (local.csi.wharf.dev)
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Socket to listen on, such as unix:///run/wharf/local.sock; only root can reach it
    #[arg(long, env = "WHARF_ENDPOINT", value_name = "ENDPOINT")]
    endpoint: Endpoint,
    /// Name of this node in the orchestrator; also the value of the topology key local.csi.wharf.dev/node
    #[arg(long, env = "WHARF_NODE_ID", value_name = "NAME")]
    node_id: String,
    /// Pool directory
    #[arg(long, env = "WHARF_POOL", value_name = "DIR")]
    pool: PathBuf,
    /// Create a pool if the directory is empty. Use it only if the directory cannot be the mount point of a disk that is
    /// not mounted, or together with --pool-id-file
    #[arg(long, env = "WHARF_CREATE_POOL")]
    create_pool: bool,
    /// File on another file system in which the driver records the identity of the pool at its first start. Later it
    /// refuses to start with another pool, or with none
    #[arg(long, env = "WHARF_POOL_ID_FILE", value_name = "FILE")]
    pool_id_file: Option<PathBuf>,
    /// Implement ControllerPublishVolume and ControllerUnpublishVolume, and record the node of each volume
    #[arg(long, env = "WHARF_ATTACH")]
    attach: bool,
    /// Overcommit ratio: bytes that thin volumes are promised for each free byte of the pool. Above 1, writes can fail for
    /// lack of space
    #[arg(long, env = "WHARF_OVERCOMMIT", value_name = "RATIO", default_value_t = 1.0)]
    overcommit: f64,
    /// Pool usage in percent from which the volumes' health reports a warning
    #[arg(long, env = "WHARF_WARN_THRESHOLD", value_name = "PERCENT", default_value_t = 85)]
    warn_threshold: u8,
    /// Pool usage in percent from which new volumes, snapshots and expansions are refused
    #[arg(long, env = "WHARF_FULL_THRESHOLD", value_name = "PERCENT", default_value_t = 95)]
    full_threshold: u8,
    /// Maximum time in seconds for which a snapshot freezes a file system in use: 1 to 60. If taking the snapshot takes longer,
    /// the snapshot is only crash-consistent, like a disk after a power failure
    #[arg(long, env = "WHARF_FREEZE_LIMIT", value_name = "SECONDS", default_value_t = 2)]
    freeze_limit: u64,
    /// Maximum number of volumes on this node; 0 for no limit
    #[arg(long, env = "WHARF_MAX_VOLUMES", value_name = "N", default_value_t = 0)]
    max_volumes: i64,
    /// Listen address of /metrics and /healthz, such as 127.0.0.1:9808 [default: not served]
    #[arg(long, env = "WHARF_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    sidecar: EmbeddedSidecarArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        endpoint,
        node_id,
        pool,
        create_pool,
        pool_id_file,
        attach,
        overcommit,
        warn_threshold,
        full_threshold,
        freeze_limit,
        max_volumes,
        metrics_listen,
        sidecar,
    } = args;
    let sidecar =
        sidecar.with_sidecar.then(|| sidecar.into_sidecar(&endpoint, &node_id, &Environment::read()));
    let config = Config {
        node_id,
        pool,
        create_pool,
        pool_id_file,
        attach,
        overcommit,
        warn_threshold,
        full_threshold,
        freeze_limit: Duration::from_secs(freeze_limit),
        max_volumes,
    };
    // First, so that a signal during the recovery of the pool is not lost.
    let stop = stop_signal()?;
    // Opening the pool also recovers it, which blocks and may take a while.
    let driver =
        tokio::task::spawn_blocking(move || wharf_driver_local::driver(Arc::new(Linux::new()), config))
            .await
            .context("failed to open the pool")??;
    let options = ServeOptions { metrics_listen };
    match sidecar {
        Some(sidecar) => embedded_sidecar::serve(driver, &endpoint, options, sidecar, stop).await,
        None => Ok(driver.serve(&endpoint, options, stop).await?),
    }
}
