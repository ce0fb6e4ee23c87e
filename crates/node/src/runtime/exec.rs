//! Programs in containers, the agent's side: see [`super::enter`] for the other one.

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

use super::enter::{Answer, Request};
use super::error::ExecError;
use super::spec::{ContainerId, ExecSpec, TerminalSize};
use super::{Runtime, State, reap};

/// How long a program may take to begin.
const START: Duration = Duration::from_secs(30);

/// A program that runs in a container. Dropped, it is killed.
#[derive(Debug)]
pub struct ExecSession {
    /// What the program reads; drop it and the program's input is at its end.
    pub stdin: Option<pipe::Sender>,
    /// What it writes; with a terminal, errors too. At its end when nobody has it open any more, which may be after
    /// the program's end if it left others behind.
    pub stdout: Option<pipe::Receiver>,
    /// Its errors; `None` with a terminal.
    pub stderr: Option<pipe::Receiver>,
    id: ContainerId,
    answers: Lines<BufReader<OwnedReadHalf>>,
    /// The helper kills the program when this is closed.
    control: Arc<OwnedWriteHalf>,
    exited: Option<i32>,
}

/// Tells a terminal its size.
#[derive(Debug, Clone)]
pub struct Resizer(Weak<OwnedWriteHalf>);

impl Resizer {
    /// From now on the terminal has this size. Nothing happens if the program has no terminal, or has ended.
    pub fn resize(&self, size: TerminalSize) {
        if let Some(control) = self.0.upgrade() {
            // A helper that does not listen has more to do; the next size will reach it.
            let _ = control.try_write(format!("{} {}\n", size.width, size.height).as_bytes());
        }
    }
}

impl ExecSession {
    pub(super) async fn start(
        runtime: &Runtime,
        id: &ContainerId,
        spec: ExecSpec,
    ) -> Result<Self, ExecError> {
        if !matches!(runtime.state(id), State::Running { .. }) {
            return Err(ExecError::NotRunning(id.clone()));
        }
        let machine = |error: io::Error| ExecError::Machine { id: id.clone(), reason: error.to_string() };
        let begun = tokio::time::timeout(START, Self::begin(runtime, id, spec)).await;
        let (mut session, answer) = begun
            .map_err(|_| {
                machine(io::Error::new(io::ErrorKind::TimedOut, "the program did not begin in time"))
            })?
            .map_err(machine)?;
        match answer {
            Answer::Started => Ok(session),
            Answer::Exited(code) => {
                session.exited = Some(code);
                Ok(session)
            }
            Answer::NotRunning => Err(ExecError::NotRunning(id.clone())),
            Answer::Program { code, message } => Err(ExecError::Program { code, message }),
            Answer::Machine(reason) => Err(ExecError::Machine { id: id.clone(), reason }),
        }
    }

    async fn begin(runtime: &Runtime, id: &ContainerId, spec: ExecSpec) -> io::Result<(Self, Answer)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut helper = runtime.helper(super::EXEC, &runtime.directory(id));
        helper.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = helper.spawn()?;
        // The command holds the helper's end of the socket: both must not have it open.
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
        let (answers, mut control) = UnixStream::from_std(ours)?.into_split();
        control.write_all(&request).await?;
        let mut session = Self {
            stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
            stdout: Some(pipe::Receiver::from_owned_fd(stdout.into())?),
            stderr: stderr.map(pipe::Receiver::from_owned_fd).transpose()?,
            id: id.clone(),
            answers: BufReader::new(answers).lines(),
            control: Arc::new(control),
            exited: None,
        };
        let answer = session.answer().await?;
        Ok((session, answer))
    }

    async fn answer(&mut self) -> io::Result<Answer> {
        let line = self.answers.next_line().await?;
        let line = line.ok_or_else(|| io::Error::other("the helper has ended without an answer"))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Something that can tell the terminal's size while another one waits.
    pub fn resizer(&self) -> Resizer {
        Resizer(Arc::downgrade(&self.control))
    }

    /// Waits for the program's end; answers its exit code, 128 and the number if a signal ended it.
    pub async fn wait(&mut self) -> Result<i32, ExecError> {
        loop {
            if let Some(code) = self.exited {
                return Ok(code);
            }
            match self.answer().await {
                Ok(Answer::Exited(code)) => self.exited = Some(code),
                Ok(answer) => {
                    let reason = format!("unexpected answer {answer:?}");
                    return Err(ExecError::Machine { id: self.id.clone(), reason });
                }
                Err(error) => {
                    return Err(ExecError::Machine { id: self.id.clone(), reason: error.to_string() });
                }
            }
        }
    }
}
