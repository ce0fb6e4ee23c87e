//! The shim: makes a container, writes its log, waits for it, and notes how it ended.
//!
//! It belongs to nobody: it has a session of its own and goes on when the agent is killed. It holds nothing of the
//! host's mounts. Its standard input is the lock of the container's record, which says that it lives; its standard output
//! gets one line for the agent.
//!
//! Nobody asks it to end: its container would die with it. Whoever asks all processes, as the machine does before it is
//! switched off, asks the container too, and the shim ends when that has.

use std::io::{self, PipeReader, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wharf_cluster::now;
use wharf_linux::sandbox::{self, Namespaces, Process};

use super::log::file::LogFile;
use super::log::{self, Lines};
use super::record::{Record, Running, Who};
use super::report::{Failure, Started, Step as _, code_of};
use super::spec::{Cause, Exit, LogStream};

/// How long output may still come when the program has ended. Whoever could write it is dead by then.
const DRAIN: Duration = Duration::from_secs(10);

/// How often an end is written down that cannot be.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs the container whose record is in `directory`, until its end.
pub(super) fn run(directory: &Path) -> io::Result<()> {
    sandbox::ignore_requests_to_end();
    let record = Record::at(directory);
    let (mut program, log) = match start(&record) {
        Ok(started) => started,
        Err(failure) => return tell(&Started::Failed(failure)),
    };
    // An agent that is gone does not want to know.
    let _ = tell(&Started::Running);
    let status = program.attend(log)?;
    let (code, signal) = code_of(status);
    let exit = Exit { code, signal, started: program.started, finished: now(), cause: Cause::Ended };
    note(&record, &exit)
}

/// Writes down how the container ended, however long that takes: nobody else knows, and while we hold the lock nobody
/// takes it for lost.
fn note(record: &Record, exit: &Exit) -> io::Result<()> {
    let mut told = false;
    while let Err(error) = record.set_exit(exit) {
        // Somebody has taken the whole record away: there is nobody to tell.
        if matches!(record.is_ordered(), Ok(false)) {
            return Err(error);
        }
        if !told {
            // Not by eprintln!, which panics if it cannot: this log is on the same disk.
            let _ = writeln!(io::stderr(), "how the container ended is not written down yet: {error}");
            told = true;
        }
        std::thread::sleep(AGAIN);
    }
    Ok(())
}

fn tell(started: &Started) -> io::Result<()> {
    let mut line = serde_json::to_vec(started)?;
    line.push(b'\n');
    io::stdout().lock().write_all(&line)
}

/// The program, seen from outside.
struct Program {
    child: Child,
    process: Process,
    started: wharf_model::Time,
    stdout: Output,
    stderr: Output,
    /// Kept open, never written to: a program that reads waits.
    _stdin: Option<io::PipeWriter>,
}

struct Output {
    pipe: Option<PipeReader>,
    lines: Lines,
}

fn start(record: &Record) -> Result<(Program, LogFile), Failure> {
    sandbox::new_session().step("session")?;
    let order = record.order().step("order")?;
    let order = order.ok_or_else(|| Failure::machine("order", "there is none"))?;
    let log = LogFile::open(&order.log, order.log_bytes, order.log_files).step("log")?;
    let (stdout, stdout_writer) = io::pipe().step("pipe")?;
    let (stderr, stderr_writer) = io::pipe().step("pipe")?;
    let (stdin, stdin_writer) = match order.spec.stdin {
        true => io::pipe().map(|(reader, writer)| (Stdio::from(reader), Some(writer))).step("pipe")?,
        false => (Stdio::null(), None),
    };
    let (mut ours, theirs) = UnixStream::pair().step("socket")?;
    // From here on this process can start one child, which is the first process of its namespace.
    sandbox::unshare(Namespaces::Processes).step("process namespace")?;
    sandbox::forget_inherited().step("descriptors")?;
    sandbox::to_inherit(&theirs).step("socket")?;
    let child = Command::new("/proc/self/exe")
        .arg(super::INIT)
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
            // It has ended, or will when it reads from us; killed, it surely does.
            let _ = ours.shutdown(Shutdown::Both);
            let _ = child.kill();
            let _ = child.wait();
            Err(failure)
        }
    }
}

/// Lets the first process make the container, and notes who it is before that can have any effect.
fn follow_init(
    record: &Record,
    ours: &mut UnixStream,
    child: &Child,
) -> Result<(Process, wharf_model::Time), Failure> {
    ours.read_exact(&mut [0; 1]).step("first process")?;
    let process = Process::open(child.id()).step("first process")?;
    let process = process.ok_or_else(|| Failure::machine("first process", "it has ended"))?;
    let mut running = Running {
        boot: sandbox::boot_id().step("boot id")?,
        shim: Who::of(std::process::id()).step("own process")?,
        program: Who::of(child.id()).step("first process")?,
        started: None,
    };
    record.set_running(&running).step("record")?;
    ours.write_all(b"g").step("first process")?;
    // Its end of the socket closes when the program is executed; before that it may tell why not.
    let mut said = Vec::new();
    ours.read_to_end(&mut said).step("first process")?;
    if !said.is_empty() {
        return Err(
            serde_json::from_slice(&said).unwrap_or_else(|error| Failure::machine("first process", error))
        );
    }
    let started = now();
    running.started = Some(started.0);
    record.set_running(&running).step("record")?;
    Ok((process, started))
}

impl Program {
    /// Writes the log until the program has ended.
    fn attend(&mut self, mut log: LogFile) -> io::Result<std::process::ExitStatus> {
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
            ended = ended || self.process.ended_within(0)?;
        }
        self.child.wait()
    }
}

impl Output {
    /// Writes to the log what there is to read; at the end of the pipe, it is closed.
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

/// Waits until one of them has something to say; `false` if none has for so long.
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
