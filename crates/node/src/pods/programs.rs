//! Short programs in a container: probes and hooks.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{sleep, timeout};
use wharf_model::whole::container::Handler;

use crate::runtime::{ContainerId, ExecError, ExecSpec, Runtime};

/// So much of what a program says is kept, as kubelet does.
const OUTPUT: u64 = 10 << 10;
/// For what is still in its pipes when it has ended.
const DRAIN: Duration = Duration::from_millis(500);

/// What came of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// It ended.
    Ended { code: i32, output: String },
    /// It did not end in time, and was killed.
    TimedOut,
    /// It could not be run, or nobody knows how it ended.
    Failed(String),
}

/// Runs a program to its end.
pub(super) async fn run(runtime: &Runtime, id: &ContainerId, command: &[String], limit: Duration) -> Ran {
    let spec = ExecSpec { command: command.to_vec(), stdin: false, tty: false, size: None };
    let running = async {
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
    };
    timeout(limit, running).await.unwrap_or(Ran::TimedOut)
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut bytes = Vec::new();
    // What was read before an error is as good as all.
    _ = from.take(OUTPUT).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Does what a hook says, at most for so long; an error says what went wrong.
pub(super) async fn hook(
    runtime: &Runtime,
    id: &ContainerId,
    handler: &Handler,
    limit: Duration,
) -> Result<(), String> {
    if let Some(pause) = &handler.sleep {
        let pause = Duration::from_secs(pause.seconds.max(0).unsigned_abs());
        sleep(pause.min(limit)).await;
        return Ok(());
    }
    let Some(exec) = &handler.exec else {
        return Err("only exec and sleep are done here".to_owned());
    };
    match run(runtime, id, &exec.command, limit).await {
        Ran::Ended { code: 0, .. } => Ok(()),
        Ran::Ended { code, .. } => Err(format!("command exited with {code}")),
        Ran::TimedOut => Err(format!("command timed out after {}s", limit.as_secs())),
        Ran::Failed(why) => Err(why),
    }
}
