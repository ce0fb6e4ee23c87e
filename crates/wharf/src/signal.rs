//! How a process of ours is told to stop.

use std::future::Future;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use wharf_sidecar::registrar::legacy::Leaving;

/// Ready at SIGTERM (how init systems and kubelet end a process) or SIGINT (how people do). From this call
/// on neither ends the process by itself.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let signal = which_signal()?;
    Ok(async move { _ = signal.await })
}

/// The same, for who has to know which of the two it was.
pub(crate) fn which_signal() -> anyhow::Result<impl Future<Output = Leaving>> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    Ok(async move {
        let (name, leaving) = tokio::select! {
            _ = terminate.recv() => ("SIGTERM", Leaving::Terminated),
            _ = interrupt.recv() => ("SIGINT", Leaving::Interrupted),
        };
        tracing::info!(signal = name, "stopping");
        leaving
    })
}
