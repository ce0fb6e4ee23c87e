//! Connects the API server of `kubectl logs` and `kubectl exec` with the container runtime. Neither depends on the other.

use std::io::Cursor;

use bytes::Bytes;
use tokio::sync::mpsc;
use wharf_apiserver::rest::{Command, LogOptions, PodStreams, Session, Size, Stream, StreamFuture};
use wharf_apiserver::status::StatusError;
use wharf_container::{
    ContainerId, ExecError, ExecSession, ExecSpec, LogError, LogStream, Runtime, TerminalSize,
};

/// Buffered chunks of a log stream.
const WAITING: usize = 16;

/// Log and exec streams of this machine's containers.
#[derive(Debug, Clone)]
pub(super) struct ContainerStreams {
    node: String,
    runtime: Runtime,
}

impl ContainerStreams {
    /// Streams of this runtime's containers, which are those of this node.
    pub(super) fn new(node: impl Into<String>, runtime: Runtime) -> Self {
        Self { node: node.into(), runtime }
    }
}

fn failed(message: String) -> StatusError {
    StatusError::new(500, "InternalError", format!("Internal error occurred: {message}"))
}

fn no_such(container: &str) -> StatusError {
    StatusError::new(404, "NotFound", format!("container {container:?} is not on this node"))
}

impl PodStreams for ContainerStreams {
    fn node(&self) -> &str {
        &self.node
    }

    fn log(&self, container: &str, options: LogOptions) -> StreamFuture<mpsc::Receiver<Bytes>> {
        let (runtime, container) = (self.runtime.clone(), container.to_owned());
        Box::pin(async move {
            let id = ContainerId::parse(&container).ok_or_else(|| no_such(&container))?;
            let LogOptions { follow, since, timestamps, tail_lines, limit_bytes, stream } = options;
            let stream = match stream {
                Stream::All => None,
                Stream::Stdout => Some(LogStream::Stdout),
                Stream::Stderr => Some(LogStream::Stderr),
            };
            let options = wharf_container::LogOptions {
                follow,
                tail: tail_lines,
                since,
                timestamps,
                limit_bytes,
                stream,
            };
            let mut logs = runtime.logs(&id, options).await.map_err(|error| match error {
                LogError::NoSuchContainer(_) => no_such(&container),
                error @ LogError::File { .. } => failed(error.to_string()),
            })?;
            let (pieces, lines) = mpsc::channel(WAITING);
            tokio::spawn(async move {
                loop {
                    let next = tokio::select! {
                        // The reader is gone.
                        () = pieces.closed() => return,
                        next = logs.next() => next,
                    };
                    match next {
                        Ok(Some(piece)) => {
                            if pieces.send(piece.into()).await.is_err() {
                                return;
                            }
                        }
                        Ok(None) => return,
                        Err(error) => {
                            return tracing::warn!(%error, "failed to read container log; closing the stream");
                        }
                    }
                }
            });
            Ok(lines)
        })
    }

    fn exec(&self, container: &str, command: Command) -> StreamFuture<Session> {
        let (runtime, container) = (self.runtime.clone(), container.to_owned());
        Box::pin(async move {
            let id = ContainerId::parse(&container).ok_or_else(|| no_such(&container))?;
            let Command { command, stdin, stdout, stderr, tty } = command;
            let spec = ExecSpec { command, stdin, tty, size: None };
            match runtime.exec(&id, spec).await {
                Ok(session) => Ok(serve(session, tty, stdout, stderr)),
                // Like a shell: a message on stderr and the exit code.
                Err(ExecError::Program { code, message }) => Ok(Session {
                    stdin: None,
                    stdout: None,
                    stderr: Some(Box::new(Cursor::new(format!("{message}\n").into_bytes()))),
                    resize: None,
                    exit_code: Box::pin(async move { Ok(code) }),
                }),
                Err(ExecError::NotRunning(_)) => Err(no_such(&container)),
                Err(error @ ExecError::Machine { .. }) => Err(failed(error.to_string())),
            }
        })
    }
}

fn serve(mut session: ExecSession, tty: bool, stdout: bool, stderr: bool) -> Session {
    let resizer = session.resizer();
    let resize = move |size: Size| {
        resizer.resize(TerminalSize { width: size.width, height: size.height });
    };
    Session {
        stdin: session.stdin.take().map(|stdin| Box::new(stdin) as _),
        // Unread streams are closed, so that the program does not block on them.
        stdout: session.stdout.take().filter(|_| stdout).map(|stdout| Box::new(stdout) as _),
        stderr: session.stderr.take().filter(|_| stderr).map(|stderr| Box::new(stderr) as _),
        resize: tty.then(|| Box::new(resize) as _),
        // Dropping the session kills the program.
        exit_code: Box::pin(async move { session.wait().await.map_err(|error| error.to_string()) }),
    }
}
