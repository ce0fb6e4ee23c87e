//! The exec helper: runs an additional program in a container.
//!
//! The helper itself joins only the container's PID namespace, which takes effect for its children; the child joins
//! the other namespaces. So the helper does not hold any mount of the container. The child executes nothing but the
//! requested program: anything else it loaded would be the container's files, run with the host's privileges. When
//! the agent closes the other end of the helper's standard input, the program is killed.

use std::io::{self, IoSliceMut, PipeReader, PipeWriter, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::init;
use crate::record::Record;
use crate::report::{cannot_execute, code_of};
use crate::sandbox::{self, Namespaces, ProcessHandle, Terminal, scoped_path};
use crate::spec::TerminalSize;

/// The agent's request; sent with three descriptors: stdin, stdout and stderr.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Allocate a terminal.
    pub(crate) tty: bool,
    /// The terminal's initial size.
    pub(crate) size: Option<TerminalSize>,
}

/// The helper's replies to the agent, one per line: first one of the first four, then `Exited`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ExecReply {
    /// The program was started.
    Started,
    /// The program could not be executed.
    Program {
        /// The exit code a shell would return.
        code: i32,
        /// The reason.
        message: String,
    },
    /// The container has exited.
    NotRunning,
    /// Another failure.
    Machine(String),
    /// The program exited.
    Exited(i32),
}

/// Maximum length of a request.
const LONGEST: u32 = 4 << 20;

/// Serves the agent at the other end of standard input.
pub(crate) fn run(directory: &Path) -> io::Result<()> {
    sandbox::set_not_dumpable()?;
    let mut agent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (request, files) = receive(&mut agent)?;
    let session = match start(directory, &request, files) {
        Ok(session) => session,
        Err(reply) => return send(&mut agent, &reply),
    };
    send(&mut agent, &ExecReply::Started)?;
    let code = session.supervise(&agent)?;
    send(&mut agent, &ExecReply::Exited(code))
}

fn send(agent: &mut UnixStream, reply: &ExecReply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    agent.write_all(&line)
}

fn receive(agent: &mut UnixStream) -> io::Result<(Request, [OwnedFd; 3])> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let got = recvmsg(&*agent, &mut [IoSliceMut::new(&mut length)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    let files = <[OwnedFd; 3]>::try_from(files).map_err(|_| io::ErrorKind::InvalidData)?;
    let length = u32::from_ne_bytes(length);
    if got.bytes != 4 || length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    agent.read_exact(&mut bytes)?;
    Ok((serde_json::from_slice(&bytes)?, files))
}

/// A running program.
struct Session {
    child: Child,
    process: ProcessHandle,
    terminal_io: Option<TerminalIo>,
}

/// A terminal, and the pipes to and from the user.
struct TerminalIo {
    terminal: Terminal,
    keyboard: Option<PipeReader>,
    /// Input not yet accepted by the terminal.
    typed: Vec<u8>,
    output: Option<PipeWriter>,
}

fn start(directory: &Path, request: &Request, files: [OwnedFd; 3]) -> Result<Session, ExecReply> {
    let machine = |error: io::Error| ExecReply::Machine(error.to_string());
    let record = Record::at(directory);
    let (order, running) = (record.order().map_err(machine)?, record.running().map_err(machine)?);
    let (Some(order), Some(running)) = (order, running) else { return Err(ExecReply::NotRunning) };
    let Some(container) = running.program().map_err(machine)? else { return Err(ExecReply::NotRunning) };
    let identity =
        init::identity(&order.spec).map_err(|failure| ExecReply::Machine(format!("{failure:?}")))?;
    let Some(program) = request.command.first().filter(|program| !program.is_empty()) else {
        return Err(ExecReply::Program { code: 126, message: "no command was given".to_owned() });
    };
    if request.command.iter().any(|word| word.contains('\0')) {
        return Err(ExecReply::Program {
            code: 126,
            message: "the command has a NUL character in it".to_owned(),
        });
    }
    let mut env = order.spec.env.clone();
    if request.tty {
        env.insert(0, ("TERM".to_owned(), "xterm".to_owned()));
    }
    let mut command = init::command(&request.command, &env);
    let [input, output, errors] = files;
    let terminal_io = if request.tty {
        let root = root_of(&container).map_err(machine)?;
        let (terminal, side) = Terminal::open(root).map_err(machine)?;
        if let Some(size) = request.size {
            terminal.resize(size.width, size.height).map_err(machine)?;
        }
        // Non-blocking on both sides: input and output are handled by the same process.
        fcntl_setfl(&terminal, OFlags::NONBLOCK).map_err(|error| machine(error.into()))?;
        command
            .stdin(side.try_clone().map_err(machine)?)
            .stdout(side.try_clone().map_err(machine)?)
            .stderr(side);
        let (keyboard, output) = (Some(PipeReader::from(input)), Some(PipeWriter::from(output)));
        Some(TerminalIo { terminal, keyboard, typed: Vec::new(), output })
    } else {
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
        None
    };
    sandbox::join(&container, Namespaces::Pid).map_err(machine)?;
    let (tty, working_dir) = (request.tty, working_dir(&order.spec.working_dir));
    let prepare = move || {
        sandbox::raise_oom_score()?;
        sandbox::disable_core_dumps()?;
        sandbox::join(&container, Namespaces::MountIpcUts)?;
        rustix::process::chdir(&working_dir)?;
        sandbox::new_session()?;
        sandbox::join_new_session_keyring()?;
        if tty {
            sandbox::set_controlling_terminal(io::stdin())?;
        }
        identity.assume()?;
        sandbox::die_with_parent()?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        sandbox::reset_signal_dispositions();
        sandbox::close_inherited_on_exec()
    };
    sandbox::run_after_fork(&mut command, prepare).map_err(machine)?;
    let child = command.spawn().map_err(|error| {
        let (code, message) = cannot_execute(program, &error);
        ExecReply::Program { code, message }
    })?;
    let process = ProcessHandle::open(child.id()).map_err(machine)?;
    let process = process.ok_or_else(|| ExecReply::Machine("the program's process is gone".to_owned()))?;
    Ok(Session { child, process, terminal_io })
}

fn working_dir(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { PathBuf::from("/") } else { path.to_owned() }
}

/// The root of a container, opened without entering it.
fn root_of(container: &ProcessHandle) -> io::Result<OwnedFd> {
    let root = scoped_path::open(Path::new(&format!("/proc/{}/root", container.pid())))?;
    // The pid is not reused while the process exists, so this is its root.
    if container.exited_within(0)? { Err(io::ErrorKind::NotFound.into()) } else { Ok(root) }
}

impl Session {
    /// Forwards input, output and resizes until the program exits; returns its exit code.
    fn supervise(mut self, agent: &UnixStream) -> io::Result<i32> {
        let mut hung_up = false;
        loop {
            let ready = self.wait(agent, hung_up)?;
            if ready.agent {
                hung_up = self.listen(agent)?;
            }
            if let Some(terminal_io) = &mut self.terminal_io {
                terminal_io.pass_on(ready.keyboard);
            }
            if self.process.exited_within(0)? {
                break;
            }
        }
        if let Some(terminal_io) = &mut self.terminal_io {
            terminal_io.show();
        }
        Ok(code_of(self.child.wait()?).0)
    }

    fn wait(&self, agent: &UnixStream, hung_up: bool) -> io::Result<Ready> {
        let mut waiting: Vec<(BorrowedFd<'_>, PollFlags, &str)> =
            vec![(self.process.as_fd(), PollFlags::IN, "end")];
        if !hung_up {
            waiting.push((agent.as_fd(), PollFlags::IN, "agent"));
        }
        if let Some(terminal_io) = &self.terminal_io {
            let mut terminal = PollFlags::empty();
            terminal.set(PollFlags::IN, terminal_io.output.is_some());
            terminal.set(PollFlags::OUT, !terminal_io.typed.is_empty());
            if !terminal.is_empty() {
                waiting.push((terminal_io.terminal.as_fd(), terminal, "terminal"));
            }
            if let Some(keyboard) = terminal_io.keyboard.as_ref().filter(|_| terminal_io.typed.is_empty()) {
                waiting.push((keyboard.as_fd(), PollFlags::IN, "keyboard"));
            }
        }
        let mut fds: Vec<PollFd<'_>> = waiting.iter().map(|(fd, flags, _)| PollFd::new(fd, *flags)).collect();
        while let Err(error) = poll(&mut fds, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        let is_ready = |what| {
            waiting.iter().zip(&fds).any(|((_, _, name), fd)| *name == what && !fd.revents().is_empty())
        };
        Ok(Ready { agent: is_ready("agent"), keyboard: is_ready("keyboard") })
    }

    /// Handles the agent's messages: lines with width and height. Returns `true` when the agent is gone; then the
    /// program and its process group are killed.
    fn listen(&self, mut agent: &UnixStream) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let length = agent.read(&mut bytes).unwrap_or(0);
        if length == 0 {
            self.process.kill_group()?;
            return Ok(true);
        }
        // Only the last size counts. A truncated line is ignored: the next resize sends another.
        let text = String::from_utf8_lossy(&bytes[..length]);
        let size = text.lines().rev().find_map(|line| {
            let (width, height) = line.split_once(' ')?;
            Some((width.parse().ok()?, height.parse().ok()?))
        });
        if let (Some(terminal_io), Some((width, height))) = (&self.terminal_io, size) {
            terminal_io.terminal.resize(width, height)?;
        }
        Ok(false)
    }
}

/// Which sources are ready.
struct Ready {
    agent: bool,
    keyboard: bool,
}

impl TerminalIo {
    fn pass_on(&mut self, keyboard_ready: bool) {
        if let Some(keyboard) = self.keyboard.as_mut().filter(|_| keyboard_ready) {
            let mut bytes = [0; 4096];
            match keyboard.read(&mut bytes) {
                Ok(length) if length > 0 => self.typed.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.keyboard = None,
            }
        }
        if !self.typed.is_empty() {
            match rustix::io::write(&self.terminal, &self.typed) {
                Ok(length) => drop(self.typed.drain(..length)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => self.typed.clear(),
            }
        }
        self.show();
    }

    /// Forwards the program's pending output.
    fn show(&mut self) {
        let mut bytes = [0; 16 * 1024];
        while let Some(output) = &mut self.output {
            match rustix::io::read(&self.terminal, &mut bytes) {
                Ok(length) if length > 0 => {
                    if output.write_all(&bytes[..length]).is_err() {
                        self.output = None;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                // EIO: the other side of the terminal is closed.
                _ => self.output = None,
            }
        }
    }
}
