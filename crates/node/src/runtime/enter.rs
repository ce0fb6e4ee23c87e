//! The helper that runs a program in a container beside its own.
//!
//! It joins only the container's process namespace, and that counts for its child alone; the child joins the rest by
//! itself. So this process keeps no mount of the container alive. The child executes nothing but the wanted program: what
//! else it could load would be the container's files, with the host's rights. The helper lives as long as the agent holds
//! the other end of its standard input; then the program is killed.

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
use wharf_linux::sandbox::{self, Namespaces, Process, Terminal, inside};

use super::init;
use super::record::Record;
use super::report::{cannot_execute, code_of};
use super::spec::TerminalSize;

/// What the agent asks for; with it come three descriptors: input, output and errors.
#[derive(Serialize, Deserialize)]
pub(super) struct Request {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// With a terminal.
    pub(super) tty: bool,
    /// Its size.
    pub(super) size: Option<TerminalSize>,
}

/// What the agent is told, a line each: first one of the first three, then the last.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The program runs.
    Started,
    /// It cannot be executed.
    Program {
        /// As a shell would have it.
        code: i32,
        /// Why.
        message: String,
    },
    /// The container has ended.
    NotRunning,
    /// Something else went wrong.
    Machine(String),
    /// The program has ended.
    Exited(i32),
}

/// No request is longer.
const LONGEST: u32 = 4 << 20;

/// Serves the agent at the other end of standard input.
pub(super) fn run(directory: &Path) -> io::Result<()> {
    sandbox::hide_from_debuggers()?;
    let mut agent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (request, files) = receive(&mut agent)?;
    let session = match start(directory, &request, files) {
        Ok(session) => session,
        Err(answer) => return tell(&mut agent, &answer),
    };
    tell(&mut agent, &Answer::Started)?;
    let code = session.attend(&agent)?;
    tell(&mut agent, &Answer::Exited(code))
}

fn tell(agent: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
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

/// A program that runs.
struct Session {
    child: Child,
    process: Process,
    screen: Option<Screen>,
}

/// A terminal, and the pipes to and from whoever sits at it.
struct Screen {
    terminal: Terminal,
    keyboard: Option<PipeReader>,
    /// Typed, but not taken by the terminal yet.
    typed: Vec<u8>,
    output: Option<PipeWriter>,
}

fn start(directory: &Path, request: &Request, files: [OwnedFd; 3]) -> Result<Session, Answer> {
    let machine = |error: io::Error| Answer::Machine(error.to_string());
    let record = Record::at(directory);
    let (order, running) = (record.order().map_err(machine)?, record.running().map_err(machine)?);
    let (Some(order), Some(running)) = (order, running) else { return Err(Answer::NotRunning) };
    let Some(container) = running.program().map_err(machine)? else { return Err(Answer::NotRunning) };
    let identity = init::identity(&order.spec).map_err(|failure| Answer::Machine(format!("{failure:?}")))?;
    let Some(program) = request.command.first().filter(|program| !program.is_empty()) else {
        return Err(Answer::Program { code: 126, message: "no command was given".to_owned() });
    };
    if request.command.iter().any(|word| word.contains('\0')) {
        return Err(Answer::Program {
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
    let screen = if request.tty {
        let root = root_of(&container).map_err(machine)?;
        let (terminal, side) = Terminal::open(root).map_err(machine)?;
        if let Some(size) = request.size {
            terminal.resize(size.width, size.height).map_err(machine)?;
        }
        // Neither end waits for the other: what is typed and what is printed go through the same process.
        fcntl_setfl(&terminal, OFlags::NONBLOCK).map_err(|error| machine(error.into()))?;
        command
            .stdin(side.try_clone().map_err(machine)?)
            .stdout(side.try_clone().map_err(machine)?)
            .stderr(side);
        let (keyboard, output) = (Some(PipeReader::from(input)), Some(PipeWriter::from(output)));
        Some(Screen { terminal, keyboard, typed: Vec::new(), output })
    } else {
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
        None
    };
    sandbox::join(&container, Namespaces::Processes).map_err(machine)?;
    let (tty, working_dir) = (request.tty, working_dir(&order.spec.working_dir));
    let prepare = move || {
        sandbox::go_first_without_memory()?;
        sandbox::join(&container, Namespaces::Surroundings)?;
        rustix::process::chdir(&working_dir)?;
        sandbox::new_session()?;
        if tty {
            sandbox::make_controlling(io::stdin())?;
        }
        identity.assume()?;
        sandbox::die_with_parent()?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        sandbox::default_signals();
        sandbox::forget_inherited()
    };
    sandbox::after_fork(&mut command, prepare).map_err(machine)?;
    let child = command.spawn().map_err(|error| {
        let (code, message) = cannot_execute(program, &error);
        Answer::Program { code, message }
    })?;
    let process = Process::open(child.id()).map_err(machine)?;
    let process = process.ok_or_else(|| Answer::Machine("the program's process is gone".to_owned()))?;
    Ok(Session { child, process, screen })
}

fn working_dir(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { PathBuf::from("/") } else { path.to_owned() }
}

/// The root of a container, without entering it.
fn root_of(container: &Process) -> io::Result<OwnedFd> {
    let root = inside::open(Path::new(&format!("/proc/{}/root", container.pid())))?;
    // While it lives its number is its own, so the root is its root.
    if container.ended_within(0)? { Err(io::ErrorKind::NotFound.into()) } else { Ok(root) }
}

impl Session {
    /// Passes on what is typed, printed and told until the program has ended; answers its code.
    fn attend(mut self, agent: &UnixStream) -> io::Result<i32> {
        let mut hung_up = false;
        loop {
            let ready = self.wait(agent, hung_up)?;
            if ready.agent {
                hung_up = self.listen(agent)?;
            }
            if let Some(screen) = &mut self.screen {
                screen.pass_on(ready.keyboard);
            }
            if self.process.ended_within(0)? {
                break;
            }
        }
        if let Some(screen) = &mut self.screen {
            screen.show();
        }
        Ok(code_of(self.child.wait()?).0)
    }

    fn wait(&self, agent: &UnixStream, hung_up: bool) -> io::Result<Ready> {
        let mut waiting: Vec<(BorrowedFd<'_>, PollFlags, &str)> =
            vec![(self.process.as_fd(), PollFlags::IN, "end")];
        if !hung_up {
            waiting.push((agent.as_fd(), PollFlags::IN, "agent"));
        }
        if let Some(screen) = &self.screen {
            let mut terminal = PollFlags::empty();
            terminal.set(PollFlags::IN, screen.output.is_some());
            terminal.set(PollFlags::OUT, !screen.typed.is_empty());
            if !terminal.is_empty() {
                waiting.push((screen.terminal.as_fd(), terminal, "terminal"));
            }
            if let Some(keyboard) = screen.keyboard.as_ref().filter(|_| screen.typed.is_empty()) {
                waiting.push((keyboard.as_fd(), PollFlags::IN, "keyboard"));
            }
        }
        let mut fds: Vec<PollFd<'_>> = waiting.iter().map(|(fd, flags, _)| PollFd::new(fd, *flags)).collect();
        while let Err(error) = poll(&mut fds, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        let said = |what| {
            waiting.iter().zip(&fds).any(|((_, _, name), fd)| *name == what && !fd.revents().is_empty())
        };
        Ok(Ready { agent: said("agent"), keyboard: said("keyboard") })
    }

    /// Does what the agent says: lines with a width and a height. `true` when it is gone; then the program is killed,
    /// with those it started in its own group.
    fn listen(&self, mut agent: &UnixStream) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let length = agent.read(&mut bytes).unwrap_or(0);
        if length == 0 {
            self.process.kill_group()?;
            return Ok(true);
        }
        // The last one counts. One that is cut in two is as good as lost: another one comes with the next change.
        let text = String::from_utf8_lossy(&bytes[..length]);
        let size = text.lines().rev().find_map(|line| {
            let (width, height) = line.split_once(' ')?;
            Some((width.parse().ok()?, height.parse().ok()?))
        });
        if let (Some(screen), Some((width, height))) = (&self.screen, size) {
            screen.terminal.resize(width, height)?;
        }
        Ok(false)
    }
}

/// Who has something to say.
struct Ready {
    agent: bool,
    keyboard: bool,
}

impl Screen {
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

    /// Prints what the program wrote so far.
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
                // At its end, which terminals call an error: nobody has the other side open.
                _ => self.output = None,
            }
        }
    }
}
