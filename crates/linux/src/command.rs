//! Child processes that cannot hang, surprise or outlive us: a deadline, an environment of two variables,
//! nothing on standard input, and the end of what they wrote in the error.

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

/// How much of a child's output is kept: its end, where programs say what went wrong.
const TAIL: usize = 2048;

/// How long a killed child may take to go before we stop waiting (it sits in the kernel, on a dead disk).
const KILL_GRACE: Duration = Duration::from_secs(5);

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that works on one object, a device or a mount point.
pub(crate) struct Command<'a> {
    program: &'a str,
    object: &'a Path,
    deadline: Duration,
    arguments: Vec<String>,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    status: ExitStatus,
    /// The end of its standard output.
    pub(crate) stdout: String,
    /// The end of its standard error.
    pub(crate) stderr: String,
}

impl Ended {
    /// The exit code; `None` if a signal ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Exit code or signal, in words.
    fn words(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "neither exit code nor signal".to_owned(),
        }
    }
}

impl<'a> Command<'a> {
    /// `program` on `object`; the object is named in errors, and not an argument by itself.
    pub(crate) fn new(program: &'a str, object: &'a Path, deadline: Duration) -> Self {
        Self { program, object, deadline, arguments: Vec::new() }
    }

    /// Adds arguments.
    pub(crate) fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs it; anything but exit code 0 is an error.
    pub(crate) fn run(self) -> Result<Ended> {
        let (program, object) = (self.program, self.object);
        let ended = self.finish()?;
        if ended.code() == Some(0) {
            return Ok(ended);
        }
        // Some programs complain on standard output only.
        let words = if ended.stderr.trim().is_empty() { &ended.stdout } else { &ended.stderr };
        Err(Error::Program {
            program: program.to_owned(),
            path: object.to_owned(),
            status: ended.words(),
            stderr: without_usage(words).to_owned(),
        })
    }

    /// Runs it and hands back whatever exit code it has; an end by signal is an error.
    pub(crate) fn finish(self) -> Result<Ended> {
        let mut child = self.spawn()?;
        let ended = match self.watch(&mut child) {
            Ok(ended) => ended,
            Err(error) => {
                abandon(child);
                return Err(error);
            }
        };
        if ended.status.signal().is_some() {
            return Err(Error::Program {
                program: self.program.to_owned(),
                path: self.object.to_owned(),
                status: ended.words(),
                stderr: ended.stderr.trim().to_owned(),
            });
        }
        Ok(ended)
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
            // A group of its own: the deadline kills what the program itself started, too.
            .process_group(0);
        // SAFETY: between fork and exec the closure makes two system calls and no allocation.
        unsafe {
            command.pre_exec(move || {
                // The signal comes when the thread that started the child ends. That thread waits for the
                // child, so it comes when our process dies and not before.
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the request: then nobody would send the signal.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(libc::ESRCH))
                }
            });
        }
        command.spawn().map_err(|source| Error::Start { program: self.program.to_owned(), source })
    }

    /// Reads the child's output until it has ended or its time is up.
    fn watch(&self, child: &mut Child) -> Result<Ended> {
        let failed = |call| move |source: io::Error| Error::call(call, Path::new(self.program), source);
        let pid = Pid::from_child(child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| failed("pidfd_open")(errno.into()))?;
        let mut stdout = Tail::of(child.stdout.take()).map_err(failed("fcntl"))?;
        let mut stderr = Tail::of(child.stderr.take()).map_err(failed("fcntl"))?;
        let end = Instant::now() + self.deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline {
                    program: self.program.to_owned(),
                    path: self.object.to_owned(),
                    deadline: self.deadline,
                });
            }
            let ended = wait(pidfd.as_fd(), [stdout.fd(), stderr.fd()], left).map_err(failed("poll"))?;
            stdout.drain().map_err(failed("read"))?;
            stderr.drain().map_err(failed("read"))?;
            if ended {
                // What the child started may still hold the pipes; its own words are read by now.
                let status = child.wait().map_err(failed("waitpid"))?;
                return Ok(Ended { status, stdout: stdout.text(), stderr: stderr.text() });
            }
        }
    }
}

/// What went wrong, without the list of options that some programs put after it.
fn without_usage(words: &str) -> &str {
    words.split("\nUsage:").next().unwrap_or(words).trim()
}

/// Waits until the process has ended (true) or there is something to read (false).
fn wait(pidfd: BorrowedFd<'_>, pipes: [Option<BorrowedFd<'_>>; 2], left: Duration) -> io::Result<bool> {
    let mut fds = vec![PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    fds.extend(pipes.into_iter().flatten().map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
    let timeout = Timespec::try_from(left).ok();
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Kills the child's whole group and reaps the child; if the kernel does not let go of it, a thread waits on.
fn abandon(mut child: Child) {
    let pid = Pid::from_child(&child);
    // Both may fail only because everything is gone already.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let _ = child.kill();
    let end = Instant::now() + KILL_GRACE;
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::spawn(move || child.wait());
}

/// The last bytes of a pipe, read without blocking.
struct Tail<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + std::os::fd::AsFd> Tail<R> {
    fn of(pipe: Option<R>) -> io::Result<Self> {
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
    fn the_environment_is_closed() {
        let ended = shell("env | sort; pwd; cat", Duration::from_secs(10)).run().unwrap();
        let names: Vec<_> =
            ended.stdout.lines().filter_map(|line| line.split_once('=').map(|(name, _)| name)).collect();
        assert_eq!(names, ["LC_ALL", "PATH", "PWD"], "PWD is the shell's own: {}", ended.stdout);
        assert!(ended.stdout.ends_with("\n/\n"), "{}", ended.stdout);
    }

    #[test]
    fn a_failure_carries_the_end_of_what_the_program_said() {
        let script = "for i in $(seq 2000); do echo $i >&2; done; echo the end >&2; exit 3";
        let error = shell(script, Duration::from_secs(20)).run().unwrap_err();
        let Error::Program { status, stderr, .. } = &error else { panic!("{error}") };
        assert_eq!(status, "exit code 3");
        assert!(stderr.ends_with("2000\nthe end") && stderr.len() <= TAIL, "{}", stderr.len());

        let error = shell("echo too small >&2; echo Usage: mkfs >&2; exit 1", Duration::from_secs(10)).run();
        assert!(error.unwrap_err().to_string().ends_with("too small"));

        let error = shell("echo only here; exit 1", Duration::from_secs(10)).run().unwrap_err();
        assert!(error.to_string().contains("only here"), "{error}");
    }

    #[test]
    fn a_signal_is_a_failure_even_where_exit_codes_are_judged_by_the_caller() {
        let error = shell("kill -TERM $$", Duration::from_secs(10)).finish().unwrap_err();
        assert!(error.to_string().contains("signal 15"), "{error}");
    }

    #[test]
    fn the_deadline_kills_the_program_and_what_it_started() {
        let before = Instant::now();
        // Both sleeps have a length that nothing else on the machine uses.
        let error = shell("sleep 86.417 & sleep 86.417", Duration::from_millis(300)).run().unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
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

    #[test]
    fn a_program_whose_offspring_keeps_the_pipe_does_not_hold_us_up() {
        let before = Instant::now();
        let ended = shell("echo done; sleep 3 & exit 0", Duration::from_secs(20)).run().unwrap();
        assert_eq!(ended.stdout, "done\n");
        assert!(before.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Command::new("no-such-mkfs", Path::new("/dev/null"), Duration::from_secs(1)).run();
        assert!(error.unwrap_err().to_string().contains("no-such-mkfs could not be started"));
    }
}
