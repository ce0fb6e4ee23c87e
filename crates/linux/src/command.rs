//! Runs programs with a deadline, only `PATH` and `LC_ALL` in the environment, and no standard input. A program is
//! killed when this process exits, unless it must not be interrupted. Errors contain the end of the program's output.

use std::io::{self, Read};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::{Error, Result};

/// How much of a program's output is kept: the end, where programs report what went wrong.
const TAIL: usize = 2048;

/// How long to wait for a killed child: it may be blocked in the kernel on a failed disk.
const KILL_GRACE: Duration = Duration::from_secs(5);

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program to run, and the device or mount point that it works on.
pub(crate) struct Command<'a> {
    program: &'a str,
    object: &'a Path,
    deadline: Duration,
    arguments: Vec<String>,
    outlives_us: bool,
}

/// The exit status and output of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    status: ExitStatus,
    /// The end of its standard output.
    pub(crate) stdout: String,
    /// The end of its standard error.
    pub(crate) stderr: String,
}

impl ProgramOutput {
    /// The exit code; `None` if a signal killed the program.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Describes the exit code or signal.
    fn status_text(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "neither exit code nor signal".to_owned(),
        }
    }
}

impl<'a> Command<'a> {
    /// A command that runs `program` for `object`, a device or mount point. The object appears only in errors; it is
    /// not passed as an argument.
    pub(crate) fn new(program: &'a str, object: &'a Path, deadline: Duration) -> Self {
        Self { program, object, deadline, arguments: Vec::new(), outlives_us: false }
    }

    /// Appends arguments.
    pub(crate) fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Lets the program complete when this process exits or the deadline passes, which then only ends the wait: for programs
    /// that move data of an existing file system and have the device open exclusively, so that neither a mount nor a second
    /// such program can run at the same time.
    pub(crate) fn outlives_us(self) -> Self {
        Self { outlives_us: true, ..self }
    }

    /// Runs the program; any exit code other than 0 is an error.
    pub(crate) fn run(self) -> Result<ProgramOutput> {
        let (program, object) = (self.program, self.object);
        let output = self.run_any_exit_code()?;
        if output.code() == Some(0) {
            return Ok(output);
        }
        // Some programs report errors on standard output only.
        let message = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
        Err(Error::ProgramFailed {
            program: program.to_owned(),
            path: object.to_owned(),
            status: output.status_text(),
            stderr: without_usage(message).to_owned(),
        })
    }

    /// Runs the program and returns its output for any exit code. Termination by a signal is an error.
    pub(crate) fn run_any_exit_code(self) -> Result<ProgramOutput> {
        let mut child = self.spawn()?;
        let output = match self.wait_for(&mut child) {
            Ok(output) => output,
            Err(error) => {
                match self.outlives_us {
                    // It keeps the device open, so the caller's next attempt finds the device in use until it ends.
                    true => reap_in_background(child),
                    false => kill_and_reap(child),
                }
                return Err(error);
            }
        };
        if output.status.signal().is_some() {
            return Err(Error::ProgramFailed {
                program: self.program.to_owned(),
                path: self.object.to_owned(),
                status: output.status_text(),
                stderr: output.stderr.trim().to_owned(),
            });
        }
        Ok(output)
    }

    fn spawn(&self) -> Result<Child> {
        let parent = rustix::process::getpid();
        let mut command = std::process::Command::new(self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its own process group, so that the deadline also kills the program's children.
            .process_group(0);
        let outlives_us = self.outlives_us;
        // SAFETY: between fork and exec the closure makes at most two system calls and no allocation.
        unsafe {
            command.pre_exec(move || {
                if outlives_us {
                    // Its output then goes to a pipe that nobody reads.
                    libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                    return Ok(());
                }
                // The kernel sends the signal when the thread that started the child exits. That thread waits for the
                // child, so the signal is sent when this process exits and not before.
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // If the parent exited before the prctl call, the kernel would never send the signal.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(libc::ESRCH))
                }
            });
        }
        command.spawn().map_err(|source| Error::Spawn { program: self.program.to_owned(), source })
    }

    /// Reads the child's output until it exits or its deadline passes.
    fn wait_for(&self, child: &mut Child) -> Result<ProgramOutput> {
        let failed = |call| move |source: io::Error| Error::call(call, Path::new(self.program), source);
        let pid = Pid::from_child(child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| failed("pidfd_open")(errno.into()))?;
        let mut stdout = Tail::new(child.stdout.take()).map_err(failed("fcntl"))?;
        let mut stderr = Tail::new(child.stderr.take()).map_err(failed("fcntl"))?;
        let end = Instant::now() + self.deadline;
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(Error::TimedOut {
                    program: self.program.to_owned(),
                    path: self.object.to_owned(),
                    deadline: self.deadline,
                    killed: !self.outlives_us,
                });
            }
            let ended = wait(pidfd.as_fd(), [stdout.fd(), stderr.fd()], remaining).map_err(failed("poll"))?;
            stdout.drain().map_err(failed("read"))?;
            stderr.drain().map_err(failed("read"))?;
            if ended {
                // The child's own children may still hold the pipes open, but the child's output has been read.
                let status = child.wait().map_err(failed("waitpid"))?;
                return Ok(ProgramOutput { status, stdout: stdout.text(), stderr: stderr.text() });
            }
        }
    }
}

/// The error message without the usage text that some programs append to it.
fn without_usage(message: &str) -> &str {
    message.split("\nUsage:").next().unwrap_or(message).trim()
}

/// Waits until the process has exited (true) or there is output to read (false).
fn wait(pidfd: BorrowedFd<'_>, pipes: [Option<BorrowedFd<'_>>; 2], remaining: Duration) -> io::Result<bool> {
    let mut fds = vec![PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    fds.extend(pipes.into_iter().flatten().map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
    let timeout = Timespec::try_from(remaining).ok();
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Kills the child's process group and reaps the child. If the child is stuck in the kernel, a thread keeps waiting.
fn kill_and_reap(mut child: Child) {
    let pid = Pid::from_child(&child);
    // Both fail only if the processes have already exited.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let _ = child.kill();
    let end = Instant::now() + KILL_GRACE;
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    reap_in_background(child);
}

/// Waits for a child in a thread of its own, so that it does not stay as a zombie.
fn reap_in_background(mut child: Child) {
    std::thread::spawn(move || child.wait());
}

/// The last bytes of a pipe, read without blocking.
struct Tail<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + std::os::fd::AsFd> Tail<R> {
    fn new(pipe: Option<R>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            let flags = rustix::fs::fcntl_getfl(pipe)?;
            rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { pipe, bytes: Vec::new() })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    self.bytes.extend_from_slice(&buffer[..n]);
                    let surplus = self.bytes.len().saturating_sub(TAIL);
                    self.bytes.drain(..surplus);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline: Duration) -> Command<'_> {
        Command::new("sh", Path::new("/dev/null"), deadline).args(["-c", script])
    }

    #[test]
    fn program_gets_only_path_and_locale() {
        let output = shell("env | sort; pwd; cat", Duration::from_secs(10)).run().unwrap();
        let names: Vec<_> =
            output.stdout.lines().filter_map(|line| line.split_once('=').map(|(name, _)| name)).collect();
        assert_eq!(names, ["LC_ALL", "PATH", "PWD"], "PWD is the shell's own: {}", output.stdout);
        assert!(output.stdout.ends_with("\n/\n"), "{}", output.stdout);
    }

    #[test]
    fn failure_contains_the_end_of_the_output() {
        let script = "for i in $(seq 2000); do echo $i >&2; done; echo the end >&2; exit 3";
        let error = shell(script, Duration::from_secs(20)).run().unwrap_err();
        let Error::ProgramFailed { status, stderr, .. } = &error else { panic!("{error}") };
        assert_eq!(status, "exit code 3");
        assert!(stderr.ends_with("2000\nthe end") && stderr.len() <= TAIL, "{}", stderr.len());

        let error = shell("echo too small >&2; echo Usage: mkfs >&2; exit 1", Duration::from_secs(10)).run();
        assert!(error.unwrap_err().to_string().ends_with("too small"));

        let error = shell("echo only here; exit 1", Duration::from_secs(10)).run().unwrap_err();
        assert!(error.to_string().contains("only here"), "{error}");
    }

    #[test]
    fn run_any_exit_code_fails_if_program_is_killed() {
        let error = shell("kill -TERM $$", Duration::from_secs(10)).run_any_exit_code().unwrap_err();
        assert!(error.to_string().contains("signal 15"), "{error}");
    }

    #[test]
    fn deadline_kills_the_program_and_its_children() {
        let before = Instant::now();
        // A sleep duration that no other process on the machine uses.
        let error = shell("sleep 86.417 & sleep 86.417", Duration::from_millis(300)).run().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!(before.elapsed() < Duration::from_secs(5));
        let alive = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
                std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == b"sleep\x0086.417\x00")
            })
        };
        let end = Instant::now() + Duration::from_secs(5);
        while alive() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!alive());
    }

    /// N-M6. The kernel sends the parent's death signal when the thread that started the program exits.
    #[test]
    fn program_outlives_its_parent_only_if_it_must_not_be_interrupted() {
        let exit_code = |outlives_us| {
            let started = std::thread::spawn(move || {
                let command = shell("sleep 0.5; echo to a closed pipe; exit 7", Duration::from_secs(10));
                let command = if outlives_us { command.outlives_us() } else { command };
                command.spawn().unwrap()
            });
            let mut child = started.join().unwrap();
            drop(child.stdout.take());
            child.wait().unwrap().code()
        };
        assert_eq!((exit_code(true), exit_code(false)), (Some(7), None));
    }

    #[test]
    fn deadline_does_not_kill_a_program_that_must_not_be_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let done = dir.path().join("done");
        let script = format!("sleep 3; echo to a closed pipe; echo done >{}", done.display());
        let before = Instant::now();
        let error = shell(&script, Duration::from_millis(300)).outlives_us().run().unwrap_err();
        assert!(matches!(error, Error::TimedOut { killed: false, .. }), "{error}");
        assert!(before.elapsed() < Duration::from_secs(3), "{error}");
        let end = Instant::now() + Duration::from_secs(20);
        while !done.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(done.exists());
    }

    #[test]
    fn grandchild_that_keeps_pipe_open_does_not_delay_result() {
        let before = Instant::now();
        let output = shell("echo done; sleep 3 & exit 0", Duration::from_secs(20)).run().unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(before.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn missing_program_is_named_in_the_error() {
        let error = Command::new("no-such-mkfs", Path::new("/dev/null"), Duration::from_secs(1)).run();
        assert!(error.unwrap_err().to_string().contains("failed to start no-such-mkfs"));
    }
}
