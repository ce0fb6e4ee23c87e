//! Lifecycle hooks: postStart and preStop. As in kubelet, any HTTP response counts as success.

use std::time::Duration;

use tokio::time::sleep;
use wharf_container::{ContainerId, Containers, RunResult};
use wharf_model::container::{Container, LifecycleHandler};

use super::probe::http_hook;

/// Runs a hook with a time limit; the error describes the failure.
pub(super) async fn run(
    runtime: &dyn Containers,
    id: &ContainerId,
    container: &Container,
    handler: &LifecycleHandler,
    limit: Duration,
) -> Result<(), String> {
    if let Some(pause) = &handler.sleep {
        let pause = Duration::from_secs(pause.seconds.max(0).unsigned_abs());
        sleep(pause.min(limit)).await;
        return Ok(());
    }
    if let Some(get) = &handler.http_get {
        return http_hook(get, container, limit).await;
    }
    let Some(exec) = &handler.exec else {
        return Err("only exec, httpGet and sleep hooks are supported".to_owned());
    };
    match runtime.run(id, &exec.command, limit).await {
        RunResult::Ended { code: 0, .. } => Ok(()),
        RunResult::Ended { code, .. } => Err(format!("command exited with {code}")),
        RunResult::TimedOut => Err(format!("command timed out after {}s", limit.as_secs())),
        RunResult::Failed(reason) => Err(reason),
    }
}
