//! `wharf driver …`: runs a CSI driver until a stop signal.

mod digitalocean;
mod local;
mod nfs;

use clap::{Args, Subcommand};
use wharf_driver_nfs::worker::WorkerLog;

/// Run a CSI driver on this node
#[derive(Debug, Args)]
pub(crate) struct DriverArgs {
    #[command(subcommand)]
    driver: Driver,
}

#[derive(Debug, Subcommand)]
enum Driver {
    Local(Box<local::Args>),
    Digitalocean(Box<digitalocean::Args>),
    Nfs(Box<nfs::Args>),
}

/// `worker_log` is what worker processes log.
pub(crate) async fn run(args: DriverArgs, worker_log: WorkerLog) -> anyhow::Result<()> {
    match args.driver {
        Driver::Local(args) => local::run(*args).await,
        Driver::Digitalocean(args) => digitalocean::run(*args).await,
        Driver::Nfs(args) => nfs::run(*args, worker_log).await,
    }
}
