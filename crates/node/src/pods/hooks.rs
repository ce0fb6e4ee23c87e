//! Hooks of a container: what is done after its start and before its end. As for kubelet, any answer to a request is a
//! good one.

use std::time::Duration;

use tokio::time::sleep;
use wharf_model::whole::container::{Container, Handler};

use super::probe::knock;
use crate::containers::{Containers, Ran};
use crate::runtime::ContainerId;

/// Does what a hook says, at most for so long; an error says what went wrong.
pub(super) async fn run(
    runtime: &dyn Containers,
    id: &ContainerId,
    container: &Container,
    handler: &Handler,
    limit: Duration,
) -> Result<(), String> {
    if let Some(pause) = &handler.sleep {
        let pause = Duration::from_secs(pause.seconds.max(0).unsigned_abs());
        sleep(pause.min(limit)).await;
        return Ok(());
    }
    if let Some(get) = &handler.http_get {
        return knock(get, container, limit).await;
    }
    let Some(exec) = &handler.exec else {
        return Err("only exec, httpGet and sleep are done here".to_owned());
    };
    match runtime.run(id, &exec.command, limit).await {
        Ran::Ended { code: 0, .. } => Ok(()),
        Ran::Ended { code, .. } => Err(format!("command exited with {code}")),
        Ran::TimedOut => Err(format!("command timed out after {}s", limit.as_secs())),
        Ran::Failed(why) => Err(why),
    }
}
