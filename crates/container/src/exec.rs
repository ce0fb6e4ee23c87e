//! Exec sessions, the agent's side: see [`crate::enter`] for the helper's side.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};

use crate::enter::{ExecReply, Request};
use crate::error::ExecError;
use crate::runtime::{EXEC, reap};
use crate::spec::{ContainerId, ExecSpec, TerminalSize};
use crate::{Runtime, State};

/// Timeout of the program's start.
const START: Duration = Duration::from_secs(30);

/// A program running in a container. Dropping the session kills it.
#[derive(Debug)]
pub struct ExecSession {
    /// The program's standard input; dropping it closes the input.
    pub stdin: Option<pipe::Sender>,
    /// The program's standard output; with a terminal, also its standard error. It ends when all writers have closed
    /// it, which may be after the program exited if it left children behind.
    pub stdout: Option<pipe::Receiver>,
    /// The program's standard error; `None` with a terminal.
    pub stderr: Option<pipe::Receiver>,
    id: ContainerId,
    replies: Lines<BufReader<OwnedReadHalf>>,
    /// The helper kills the program when this is closed.
    control: Arc<OwnedWriteHalf>,
    exited: Option<i32>,
}

/// Resizes a session's terminal.
#[derive(Debug, Clone)]
pub struct Resizer(Weak<OwnedWriteHalf>);

impl Resizer {
    /// Sets the terminal's size. Does nothing if the program has no terminal or has exited.
    pub fn resize(&self, size: TerminalSize) {
        if let Some(control) = self.0.upgrade() {
            // If the helper is busy, this size is dropped; the next resize will reach it.
            let _ = control.try_write(format!("{} {}\n", size.width, size.height).as_bytes());
        }
    }
}

impl ExecSession {
    pub(crate) async fn start(
        runtime: &Runtime,
        id: &ContainerId,
        spec: ExecSpec,
    ) -> Result<Self, ExecError> {
        if !matches!(runtime.state(id), State::Running { .. }) {
            return Err(ExecError::NotRunning(id.clone()));
        }
        let machine = |error: io::Error| ExecError::Machine { id: id.clone(), reason: error.to_string() };
        let started = tokio::time::timeout(START, Self::begin(runtime, id, spec)).await;
        let (mut session, reply) = started
            .map_err(|_| {
                machine(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the program to start"))
            })?
            .map_err(machine)?;
        match reply {
            ExecReply::Started => Ok(session),
            ExecReply::Exited(code) => {
                session.exited = Some(code);
                Ok(session)
            }
            ExecReply::NotRunning => Err(ExecError::NotRunning(id.clone())),
            ExecReply::Program { code, message } => Err(ExecError::Program { code, message }),
            ExecReply::Machine(reason) => Err(ExecError::Machine { id: id.clone(), reason }),
        }
    }

    async fn begin(runtime: &Runtime, id: &ContainerId, spec: ExecSpec) -> io::Result<(Self, ExecReply)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut helper = runtime.helper_command(EXEC, &runtime.directory(id));
        helper.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = helper.spawn()?;
        // The command holds the helper's end of the socket: close our copy.
        drop(helper);
        reap(child)?;

        let (stdin, their_stdin) = match spec.stdin {
            true => {
                io::pipe().map(|(reader, writer)| (Some(OwnedFd::from(writer)), OwnedFd::from(reader)))?
            }
            false => (None, OwnedFd::from(std::fs::File::open("/dev/null")?)),
        };
        let (stdout, their_stdout) = io::pipe()?;
        let (stderr, their_stderr) = match spec.tty {
            false => {
                io::pipe().map(|(reader, writer)| (Some(OwnedFd::from(reader)), OwnedFd::from(writer)))?
            }
            true => (None, OwnedFd::from(std::fs::File::open("/dev/null")?)),
        };
        let request = Request { command: spec.command, tty: spec.tty, size: spec.size };
        let request = serde_json::to_vec(&request)?;
        let length = u32::try_from(request.len()).map_err(io::Error::other)?.to_ne_bytes();
        {
            let files = [their_stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&files));
            sendmsg(&ours, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
        }
        drop((their_stdin, their_stdout, their_stderr));

        ours.set_nonblocking(true)?;
        let (replies, mut control) = UnixStream::from_std(ours)?.into_split();
        control.write_all(&request).await?;
        let mut session = Self {
            stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
            stdout: Some(pipe::Receiver::from_owned_fd(stdout.into())?),
            stderr: stderr.map(pipe::Receiver::from_owned_fd).transpose()?,
            id: id.clone(),
            replies: BufReader::new(replies).lines(),
            control: Arc::new(control),
            exited: None,
        };
        let reply = session.reply().await?;
        Ok((session, reply))
    }

    async fn reply(&mut self) -> io::Result<ExecReply> {
        let line = self.replies.next_line().await?;
        let line = line.ok_or_else(|| io::Error::other("the exec helper exited without a reply"))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// A handle to resize the terminal while another task waits for the program.
    pub fn resizer(&self) -> Resizer {
        Resizer(Arc::downgrade(&self.control))
    }

    /// Waits until the program exits; returns its exit code, or 128 plus the signal number.
    pub async fn wait(&mut self) -> Result<i32, ExecError> {
        loop {
            if let Some(code) = self.exited {
                return Ok(code);
            }
            match self.reply().await {
                Ok(ExecReply::Exited(code)) => self.exited = Some(code),
                Ok(reply) => {
                    let reason = format!("unexpected reply from the exec helper: {reply:?}");
                    return Err(ExecError::Machine { id: self.id.clone(), reason });
                }
                Err(error) => {
                    return Err(ExecError::Machine { id: self.id.clone(), reason: error.to_string() });
                }
            }
        }
    }
}
