//! The driver's end of one share worker: a task owns the process, sends requests, matches responses and enforces deadlines.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::process::Process;
use super::protocol::{FromWorker, MAX_LINE, ToWorker, decode, encode};
use super::workers::Phase;
use super::{Export, WorkerError};
use crate::mount::Version;
use crate::share;

/// How many requests can wait to be sent.
const QUEUE: usize = 64;

pub(super) type Reply = Result<share::Response, WorkerError>;

/// A request to a share worker.
pub(super) struct Command {
    pub(super) request: share::Request,
    pub(super) deadline: Instant,
    pub(super) allowed: Duration,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// Sends requests to a running worker; closed when the worker has ended.
pub(super) type Handle = mpsc::Sender<Command>;

/// The lines of a worker.
pub(super) type Lines = BufReader<ChildStdout>;

/// The next message; `None` at the end.
pub(super) async fn next_message<R: AsyncRead + Unpin>(
    lines: &mut BufReader<R>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<FromWorker>> {
    // Cancel safe: what was read so far stays in `buffer`.
    let mut limited = lines.take(MAX_LINE);
    limited.read_until(b'\n', buffer).await?;
    match buffer.last() {
        None => Ok(None),
        Some(b'\n') => {
            let message = decode(buffer);
            buffer.clear();
            message.map(Some)
        }
        Some(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the worker's last message is cut off")),
    }
}

/// Sends what to open ([`ToWorker::Open`]), and waits until it is open.
pub(super) async fn open(
    process: &mut Process,
    first: ToWorker,
    export: &Export,
    deadline: Instant,
    allowed: Duration,
) -> Result<(ChildStdin, Lines, Option<Version>), WorkerError> {
    let internal = |error: io::Error| WorkerError::Internal(format!("{export}: {error}"));
    let (mut input, output) = process.pipes().map_err(internal)?;
    let mut lines = BufReader::new(output);
    let opened = async {
        let line = encode(&first).map_err(internal)?;
        // A worker that has failed may not read it; its message says why.
        let _ = input.write_all(&line).await;
        match next_message(&mut lines, &mut Vec::new()).await.map_err(internal)? {
            Some(FromWorker::Ready(version)) => Ok(version),
            Some(FromWorker::Failed(failure)) => Err(WorkerError::Mount(failure)),
            Some(_) => Err(WorkerError::Internal(format!("{export}: the worker sent an unexpected message"))),
            None => Err(WorkerError::Lost {
                subject: export.to_string(),
                reason: "it exited at its start".to_owned(),
            }),
        }
    };
    let timed_out = |_| WorkerError::TimedOut {
        server: export.server.clone(),
        subject: format!("mounting {export}"),
        deadline: allowed,
    };
    let version = timeout_at(deadline, opened).await.map_err(timed_out)??;
    Ok((input, lines, version))
}

/// Starts the task of an open worker. It ends after `idle` without a request.
pub(super) fn run(
    process: Process,
    input: ChildStdin,
    lines: Lines,
    export: Export,
    idle: Duration,
    phase: watch::Receiver<Phase>,
) -> Handle {
    let (handle, commands) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let mut worker = Worker { export, pending: BTreeMap::new(), next_id: 0 };
        let end = worker.serve(input, lines, commands, idle, phase).await;
        // Dropping it kills the process.
        drop(process);
        worker.fail_pending(&end);
    });
    handle
}

struct Pending {
    deadline: Instant,
    allowed: Duration,
    reply: oneshot::Sender<Reply>,
}

/// Why a worker ended.
enum End {
    Deadline(u64),
    Idle,
    Exited(String),
    Shutdown,
}

struct Worker {
    export: Export,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
}

impl Worker {
    async fn serve(
        &mut self,
        input: ChildStdin,
        mut lines: Lines,
        mut commands: mpsc::Receiver<Command>,
        idle: Duration,
        mut phase: watch::Receiver<Phase>,
    ) -> End {
        // A worker that hangs does not read its input; the task must go on nevertheless.
        let (outgoing, to_write) = mpsc::unbounded_channel();
        let _writer = AbortOnDrop(tokio::spawn(write_all(input, to_write)));
        let mut buffer = Vec::new();
        let mut idle_since = Instant::now();
        loop {
            let first = self.pending.iter().min_by_key(|(_, pending)| pending.deadline);
            let (wake, overdue) = match first {
                Some((id, pending)) => (pending.deadline, Some(*id)),
                None => (idle_since + idle, None),
            };
            tokio::select! {
                biased;
                message = next_message(&mut lines, &mut buffer) => match message {
                    Ok(Some(FromWorker::Response { id, response })) => {
                        if let Some(pending) = self.pending.remove(&id) {
                            // The caller may have stopped waiting.
                            let _ = pending.reply.send(Ok(response));
                        }
                        idle_since = Instant::now();
                    }
                    Ok(Some(FromWorker::Progress)) => {}
                    Ok(Some(_)) => return End::Exited("it sent an unexpected message".to_owned()),
                    Ok(None) => return End::Exited("it exited".to_owned()),
                    Err(error) => return End::Exited(error.to_string()),
                },
                _ = phase.wait_for(|phase| *phase == Phase::Stopped) => return End::Shutdown,
                () = sleep_until(wake) => match overdue {
                    Some(id) => return End::Deadline(id),
                    None => return End::Idle,
                },
                command = commands.recv() => {
                    let Some(Command { request, deadline, allowed, reply }) = command else { return End::Idle };
                    let id = self.next_id;
                    self.next_id += 1;
                    match encode(&ToWorker::Request { id, request }) {
                        Ok(line) => {
                            // Fails only if the worker has ended, which the next message says.
                            let _ = outgoing.send(line);
                            self.pending.insert(id, Pending { deadline, allowed, reply });
                        }
                        Err(error) => drop(reply.send(Err(WorkerError::Internal(error.to_string())))),
                    }
                }
            }
        }
    }

    fn fail_pending(&mut self, end: &End) {
        for (id, pending) in std::mem::take(&mut self.pending) {
            let lost = |reason: &str| WorkerError::Lost {
                subject: self.export.to_string(),
                reason: reason.to_owned(),
            };
            let error = match end {
                End::Deadline(overdue) if *overdue == id => WorkerError::TimedOut {
                    server: self.export.server.clone(),
                    subject: format!("a request on {}", self.export),
                    deadline: pending.allowed,
                },
                End::Deadline(_) => lost("another request on this export exceeded its deadline"),
                End::Exited(reason) => lost(reason),
                End::Idle | End::Shutdown => WorkerError::ShuttingDown,
            };
            let _ = pending.reply.send(Err(error));
        }
        if let End::Deadline(_) = end {
            tracing::warn!(export = %self.export, "killed worker: a request exceeded its deadline");
        }
    }
}

async fn write_all(mut input: ChildStdin, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if input.write_all(&line).await.is_err() {
            return;
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
