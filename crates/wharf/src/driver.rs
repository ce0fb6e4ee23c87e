//! `wharf driver …`: runs a CSI driver until a stop signal.

mod digitalocean;
mod local;
mod nfs;

use clap::{Args, Subcommand};

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

pub(crate) async fn run(args: DriverArgs) -> anyhow::Result<()> {
    match args.driver {
        Driver::Local(args) => local::run(*args).await,
        Driver::Digitalocean(args) => digitalocean::run(*args).await,
        Driver::Nfs(args) => nfs::run(*args).await,
    }
}
