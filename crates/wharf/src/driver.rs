//! `wharf driver …`: run a CSI driver until it is told to stop.

mod local;

use std::future::Future;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Run a CSI driver on this node
#[derive(Debug, Args)]
pub(crate) struct DriverArgs {
    #[command(subcommand)]
    driver: Driver,
}

#[derive(Debug, Subcommand)]
enum Driver {
    Local(local::Args),
}

pub(crate) async fn run(args: DriverArgs) -> anyhow::Result<()> {
    match args.driver {
        Driver::Local(args) => local::run(args).await,
    }
}

/// Ready at SIGTERM (how init systems and kubelet end a process) or SIGINT (how people do). From this call
/// on neither ends the process by itself.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
    })
}
