//! Host processes as pods know containers, with short programs in them.

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::{
    ContainerId, ContainerSpec, ExecError, ExecSpec, Exit, Found, ListError, RemoveError, Runtime,
    StartError, State,
};
use crate::containers::{Containers, Ran};

/// So much of what a program says is kept, as kubelet does.
const OUTPUT: u64 = 10 << 10;
/// For what is still in its pipes when it has ended.
const DRAIN: Duration = Duration::from_millis(500);

#[async_trait]
impl Containers for Runtime {
    fn list(&self) -> Result<Vec<Found>, ListError> {
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

    async fn run(&self, id: &ContainerId, command: &[String], limit: Duration) -> Ran {
        let spec = ExecSpec { command: command.to_vec(), stdin: false, tty: false, size: None };
        timeout(limit, run(self, id, spec)).await.unwrap_or(Ran::TimedOut)
    }
}

async fn run(runtime: &Runtime, id: &ContainerId, spec: ExecSpec) -> Ran {
    let mut session = match runtime.exec(id, spec).await {
        Ok(session) => session,
        Err(ExecError::Program { code, message }) => return Ran::Ended { code, output: message },
        Err(error) => return Ran::Failed(error.to_string()),
    };
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let reading = async { tokio::join!(read(stdout), read(stderr)) };
    tokio::pin!(reading);
    let ended = session.wait();
    tokio::pin!(ended);
    let (code, (output, errors)) = tokio::select! {
        both = &mut reading => (ended.await, both),
        // What it left running may hold the pipes for ever.
        code = &mut ended => (code, timeout(DRAIN, reading).await.unwrap_or_default()),
    };
    match code {
        Ok(code) => Ran::Ended { code, output: output + &errors },
        Err(error) => Ran::Failed(error.to_string()),
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut bytes = Vec::new();
    // What was read before an error is as good as all.
    _ = from.take(OUTPUT).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
