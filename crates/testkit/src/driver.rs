//! A local driver as a child process, which a test can kill and restart on the same pool and socket.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How to start a driver.
#[derive(Debug, Clone, Default)]
pub struct DriverOptions {
    /// Crash right after this effect; see [`crate::CrashKernel`].
    pub crash_after: Option<u64>,
    /// Serve ControllerPublish and ControllerUnpublish.
    pub attach: bool,
    /// Pause before each piece of a copy, so that a test can interrupt it.
    pub slow_copies: bool,
}

/// A driver process, running or exited.
pub struct TestDriver {
    program: PathBuf,
    pool: PathBuf,
    work: PathBuf,
    child: Child,
}

impl TestDriver {
    /// Starts `program` (the binary `test-driver` of `crates/e2e`) on `pool`, its socket, log and trace in `work`.
    pub fn start(program: &Path, pool: &Path, work: &Path, options: &DriverOptions) -> Self {
        let child = spawn(program, pool, work, options);
        let driver =
            Self { program: program.to_owned(), pool: pool.to_owned(), work: work.to_owned(), child };
        driver.wait_for_socket(options)
    }

    /// Restarts the driver with other options. It must have exited.
    pub fn restart(&mut self, options: &DriverOptions) {
        self.kill();
        self.child = spawn(&self.program, &self.pool, &self.work, options);
        self.wait_until_listening(options);
    }

    /// Kills the driver with SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let status = self.child.wait().expect("failed to wait for the driver");
        assert!(status.success(), "the driver exited with {status}:\n{}", self.log());
    }

    /// Whether SIGKILL ended it. Waits up to a second, since a connection breaks before its process exits.
    pub fn was_killed(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            match self.child.try_wait().expect("failed to query the driver's status") {
                Some(status) => return status.signal() == Some(9),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        false
    }

    /// Whether it has exited.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("failed to query the driver's status").is_some()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.work.join("csi.sock")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.work.join("driver.log")).unwrap_or_default()
    }

    /// The effects of all its runs, in order.
    pub fn trace(&self) -> Vec<String> {
        let text = fs::read_to_string(self.work.join("trace")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_for_socket(mut self, options: &DriverOptions) -> Self {
        self.wait_until_listening(options);
        self
    }

    fn wait_until_listening(&mut self, options: &DriverOptions) {
        let until = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            if let Some(status) = self.child.try_wait().expect("failed to query the driver's status") {
                // A driver with a planned crash may exit before it listens.
                assert!(
                    options.crash_after.is_some() && status.signal() == Some(9),
                    "the driver exited with {status}:\n{}",
                    self.log()
                );
                return;
            }
            assert!(Instant::now() < until, "the driver did not start to listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestDriver {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(program: &Path, pool: &Path, work: &Path, options: &DriverOptions) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(work.join("driver.log"))
        .expect("failed to open the log");
    let mut command = Command::new(program);
    command.arg(work.join("csi.sock")).arg(pool).arg(work.join("trace"));
    if let Some(crash_after) = options.crash_after {
        command.env("DIE_AFTER", crash_after.to_string());
    }
    if options.attach {
        command.env("ATTACH", "1");
    }
    if options.slow_copies {
        command.env("SLOW_COPIES", "1");
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("failed to start the driver")
}
