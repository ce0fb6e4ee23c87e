//! Stop signals.

use std::future::Future;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use wharf_sidecar::registrar::legacy::StopReason;

/// Completes on SIGTERM (sent by init systems and kubelet) or SIGINT (Ctrl-C). From this call on, neither signal ends
/// the process by default.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let signal = received_stop_signal()?;
    Ok(async move { _ = signal.await })
}

/// Like [`stop_signal`], for callers that distinguish the two signals.
pub(crate) fn received_stop_signal() -> anyhow::Result<impl Future<Output = StopReason>> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    Ok(async move {
        let (name, leaving) = tokio::select! {
            _ = terminate.recv() => ("SIGTERM", StopReason::Terminated),
            _ = interrupt.recv() => ("SIGINT", StopReason::Interrupted),
        };
        tracing::info!(signal = name, "stopping");
        leaving
    })
}
