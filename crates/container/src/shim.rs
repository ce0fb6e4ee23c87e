//! The shim: creates a container, writes its log, waits for it, and records how it exited.
//!
//! It is independent of the agent: it has its own session and keeps running when the agent is killed. It holds none
//! of the host's mounts. Its standard input is the lock of the container's record, which shows that it is alive; its
//! standard output takes one line for the agent.
//!
//! It ignores SIGTERM: its container would be killed with it. On shutdown, when all processes get SIGTERM, the
//! container gets it too, and the shim exits after the container.

use std::io::{self, PipeReader, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wharf_model::system::now;

use crate::log::file::LogFile;
use crate::log::{self, Lines};
use crate::record::{ProcessIdentity, Record, Running};
use crate::report::{Failure, Started, Step as _, code_of};
use crate::runtime::INIT;
use crate::sandbox::{self, Namespaces, ProcessHandle};
use crate::spec::{Cause, Exit, LogStream};

/// Time to drain output after the program has exited. All its writers are dead by then.
const DRAIN: Duration = Duration::from_secs(10);

/// Retry interval of recording the exit.
const EXIT_RETRY: Duration = Duration::from_secs(1);

/// Runs the container whose record is in `directory`, until it exits.
pub(crate) fn run(directory: &Path) -> io::Result<()> {
    sandbox::ignore_termination_signals();
    sandbox::set_not_dumpable()?;
    let record = Record::at(directory);
    let (mut program, log) = match start(&record) {
        Ok(started) => started,
        Err(failure) => return report(&Started::Failed(failure)),
    };
    // The agent may be gone.
    let _ = report(&Started::Running);
    let status = program.supervise(log)?;
    let (code, signal) = code_of(status);
    let exit = Exit { code, signal, started: program.started, finished: now(), cause: Cause::Ended };
    record_exit(&record, &exit)
}

/// Records the exit, retrying until it succeeds: nothing else knows it, and while the lock is held the container does
/// not count as lost.
fn record_exit(record: &Record, exit: &Exit) -> io::Result<()> {
    let mut logged = false;
    while let Err(error) = record.set_exit(exit) {
        // The record has been removed, so the exit is not needed.
        if matches!(record.has_order(), Ok(false)) {
            return Err(error);
        }
        if !logged {
            // Not with eprintln!, which panics on failure: this log is on the same disk.
            let _ = writeln!(io::stderr(), "failed to record container exit; retrying: {error}");
            logged = true;
        }
        std::thread::sleep(EXIT_RETRY);
    }
    Ok(())
}

fn report(started: &Started) -> io::Result<()> {
    let mut line = serde_json::to_vec(started)?;
    line.push(b'\n');
    io::stdout().lock().write_all(&line)
}

/// The running program.
struct Program {
    child: Child,
    process: ProcessHandle,
    started: wharf_model::Time,
    stdout: Output,
    stderr: Output,
    /// Held open and never written to, so that a reading program blocks.
    _stdin: Option<io::PipeWriter>,
}

struct Output {
    pipe: Option<PipeReader>,
    lines: Lines,
}

fn start(record: &Record) -> Result<(Program, LogFile), Failure> {
    sandbox::new_session().step("session")?;
    let order = record.order().step("order")?;
    let order = order.ok_or_else(|| Failure::machine("order", "order.json is missing"))?;
    let log = LogFile::open(&order.log, order.log_bytes, order.log_files).step("log")?;
    let (stdout, stdout_writer) = io::pipe().step("pipe")?;
    let (stderr, stderr_writer) = io::pipe().step("pipe")?;
    let (stdin, stdin_writer) = match order.spec.stdin {
        true => io::pipe().map(|(reader, writer)| (Stdio::from(reader), Some(writer))).step("pipe")?,
        false => (Stdio::null(), None),
    };
    let (mut ours, theirs) = UnixStream::pair().step("socket")?;
    // From here on this process can start one child: the init process of the new PID namespace.
    sandbox::unshare(Namespaces::Pid).step("process namespace")?;
    sandbox::close_inherited_on_exec().step("descriptors")?;
    sandbox::make_inheritable(&theirs).step("socket")?;
    let child = Command::new("/proc/self/exe")
        .arg(INIT)
        .arg(record.path())
        .arg(theirs.as_raw_fd().to_string())
        .env_clear()
        .current_dir("/")
        .stdin(stdin)
        .stdout(stdout_writer)
        .stderr(stderr_writer)
        .spawn();
    let mut child = child.step("first process")?;
    drop(theirs);
    match follow_init(record, &mut ours, &child) {
        Ok((process, started)) => {
            let stdout = Output { pipe: Some(stdout), lines: Lines::new(LogStream::Stdout) };
            let stderr = Output { pipe: Some(stderr), lines: Lines::new(LogStream::Stderr) };
            Ok((Program { child, process, started, stdout, stderr, _stdin: stdin_writer }, log))
        }
        Err(failure) => {
            // It has exited, or will when it reads from the socket; the kill makes sure.
            let _ = ours.shutdown(Shutdown::Both);
            let _ = child.kill();
            let _ = child.wait();
            Err(failure)
        }
    }
}

/// Lets the init process set up the container, after recording its identity.
fn follow_init(
    record: &Record,
    ours: &mut UnixStream,
    child: &Child,
) -> Result<(ProcessHandle, wharf_model::Time), Failure> {
    ours.read_exact(&mut [0; 1]).step("first process")?;
    let process = ProcessHandle::open(child.id()).step("first process")?;
    let process = process.ok_or_else(|| Failure::machine("first process", "the init process exited"))?;
    let mut running = Running {
        boot: sandbox::boot_id().step("boot id")?,
        shim: ProcessIdentity::of(std::process::id()).step("own process")?,
        program: ProcessIdentity::of(child.id()).step("first process")?,
        started: None,
    };
    record.set_running(&running).step("record")?;
    ours.write_all(b"g").step("first process")?;
    // The socket closes when the program is executed; before that the init process may report a failure.
    let mut message = Vec::new();
    ours.read_to_end(&mut message).step("first process")?;
    if !message.is_empty() {
        return Err(
            serde_json::from_slice(&message).unwrap_or_else(|error| Failure::machine("first process", error))
        );
    }
    let started = now();
    running.started = Some(started.0);
    record.set_running(&running).step("record")?;
    Ok((process, started))
}

impl Program {
    /// Writes the log until the program has exited.
    fn supervise(&mut self, mut log: LogFile) -> io::Result<std::process::ExitStatus> {
        let mut ended = false;
        while !(ended && self.stdout.pipe.is_none() && self.stderr.pipe.is_none()) {
            let outputs = [self.stdout.pipe.as_ref(), self.stderr.pipe.as_ref()];
            let mut waiting: Vec<BorrowedFd<'_>> = outputs.into_iter().flatten().map(AsFd::as_fd).collect();
            if !ended {
                waiting.push(self.process.as_fd());
            }
            if !wait(&waiting, ended.then_some(DRAIN))? {
                break;
            }
            self.stdout.copy(&mut log);
            self.stderr.copy(&mut log);
            ended = ended || self.process.exited_within(0)?;
        }
        self.child.wait()
    }
}

impl Output {
    /// Copies available output to the log; closes the pipe at its end.
    fn copy(&mut self, log: &mut LogFile) {
        let Some(pipe) = &mut self.pipe else { return };
        if !wait(&[pipe.as_fd()], Some(Duration::ZERO)).unwrap_or(false) {
            return;
        }
        let at = jiff::Timestamp::now();
        let time = log::time(at);
        let mut bytes = [0; 64 * 1024];
        let mut lines = Vec::new();
        match pipe.read(&mut bytes) {
            Ok(length) if length > 0 => self.lines.write(&bytes[..length], &time, &mut lines),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {
                self.lines.finish(&time, &mut lines);
                self.pipe = None;
            }
        }
        log.write(&lines, at);
    }
}

/// Waits until one of the descriptors is readable; `false` on timeout.
fn wait(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    loop {
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
