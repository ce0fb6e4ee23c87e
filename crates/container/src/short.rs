//! [`Containers`] for host processes, including short programs run in them.

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use crate::containers::{Containers, RunResult};
use crate::{
    ContainerId, ContainerInfo, ContainerSpec, ExecError, ExecSpec, Exit, ListError, RemoveError, Runtime,
    StartError, State,
};

/// Maximum output kept, as in kubelet.
const OUTPUT: u64 = 10 << 10;
/// Time to drain pipes after the program exited.
const DRAIN: Duration = Duration::from_millis(500);

#[async_trait]
impl Containers for Runtime {
    fn list(&self) -> Result<Vec<ContainerInfo>, ListError> {
        Self::list(self)
    }

    fn state(&self, id: &ContainerId) -> State {
        Self::state(self, id)
    }

    async fn exited(&self, id: &ContainerId) -> Option<Exit> {
        Self::exited(self, id).await
    }

    async fn start(&self, spec: ContainerSpec) -> Result<ContainerId, StartError> {
        Self::start(self, spec).await
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Option<Exit> {
        Self::stop(self, id, grace).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RemoveError> {
        Self::remove(self, id).await
    }

    async fn run(&self, id: &ContainerId, command: &[String], limit: Duration) -> RunResult {
        let spec = ExecSpec { command: command.to_vec(), stdin: false, tty: false, size: None };
        timeout(limit, run(self, id, spec)).await.unwrap_or(RunResult::TimedOut)
    }
}

async fn run(runtime: &Runtime, id: &ContainerId, spec: ExecSpec) -> RunResult {
    let mut session = match runtime.exec(id, spec).await {
        Ok(session) => session,
        Err(ExecError::Program { code, message }) => return RunResult::Ended { code, output: message },
        Err(error) => return RunResult::Failed(error.to_string()),
    };
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let reading = async { tokio::join!(read(stdout), read(stderr)) };
    tokio::pin!(reading);
    let ended = session.wait();
    tokio::pin!(ended);
    let (code, (output, errors)) = tokio::select! {
        both = &mut reading => (ended.await, both),
        // Processes it left behind may hold the pipes open indefinitely.
        code = &mut ended => (code, timeout(DRAIN, reading).await.unwrap_or_default()),
    };
    match code {
        Ok(code) => RunResult::Ended { code, output: output + &errors },
        Err(error) => RunResult::Failed(error.to_string()),
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut bytes = Vec::new();
    // After a read error, keep what was read.
    _ = from.take(OUTPUT).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
