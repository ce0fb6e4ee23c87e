//! Processes in mount and PID namespaces of one test. Dropping the namespaces ends all processes in them.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wharf_testkit::ChildProcess;

const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long the kernel may take to start or end a process.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The first process holds the namespaces open and reaps orphans, as init does.
const FIRST: &str =
    "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && while :; do sleep 1000 & wait; done";

/// Read-locked briefly while namespaces are created, write-locked for long by [`ExclusiveAccess`].
static MAKING: RwLock<()> = RwLock::new(());

thread_local! {
    static HAS_EXCLUSIVE_ACCESS: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, only this thread creates namespaces. New namespaces copy all mounts of the test and would keep
/// its devices busy.
pub(crate) struct ExclusiveAccess {
    _held: RwLockWriteGuard<'static, ()>,
}

impl ExclusiveAccess {
    pub(crate) fn new() -> Self {
        let held = MAKING.write().unwrap_or_else(PoisonError::into_inner);
        HAS_EXCLUSIVE_ACCESS.set(true);
        Self { _held: held }
    }
}

impl Drop for ExclusiveAccess {
    fn drop(&mut self) {
        HAS_EXCLUSIVE_ACCESS.set(false);
    }
}

/// Mount and PID namespaces: a simulated machine from boot to power-off.
pub(crate) struct Namespaces {
    unshare: ChildProcess,
    first: u32,
}

impl Namespaces {
    /// Creates the namespaces. `boot` holds the boot ID of this start.
    pub(crate) fn new(boot: &Path, log: &Path) -> Self {
        let _making =
            (!HAS_EXCLUSIVE_ACCESS.get()).then(|| MAKING.read().unwrap_or_else(PoisonError::into_inner));
        let file = boot.display().to_string();
        let args = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let args = [&args[..], &["bash", "-c", FIRST, &file]].concat();
        let unshare = ChildProcess::start(Path::new("unshare"), &args, log);
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(first) = child_of(unshare.pid()) {
                let output = fs::read(format!("/proc/{first}/root/proc/sys/kernel/random/boot_id"));
                if output.is_ok_and(|output| Some(output) == fs::read(boot).ok()) {
                    return Self { unshare, first };
                }
            }
            assert!(Instant::now() < until, "failed to create namespaces:\n{}", unshare.log());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The first process in the namespaces.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The command prefix that enters the namespaces.
    pub(crate) fn enter(&self) -> [String; 5] {
        ["--target", &self.first.to_string(), "--mount", "--pid", "--"].map(str::to_owned)
    }

    /// Starts a program in the namespaces.
    pub(crate) fn start(
        &self,
        program: &Path,
        args: &[&str],
        env: &[(&str, &str)],
        log: &Path,
    ) -> NamespacedProcess {
        let enter = self.enter();
        let program = program.display().to_string();
        let mut words: Vec<&str> = enter.iter().map(String::as_str).collect();
        words.extend(["setpriv", "--pdeathsig", "KILL", &program]);
        words.extend(args);
        NamespacedProcess(ChildProcess::start_with(Path::new("nsenter"), &words, env, log))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // All processes and mounts of the namespaces end with the first process.
        self.unshare.kill();
        wait_for_exit(self.first);
    }
}

/// A program in the namespaces: the child of the process that entered them.
pub(crate) struct NamespacedProcess(ChildProcess);

impl NamespacedProcess {
    /// Kills it with SIGKILL; returns when it has exited.
    pub(crate) fn kill(&mut self) {
        if !self.0.is_running() {
            return;
        }
        // A stopped process starts no children, so the list found here is complete.
        self.0.signal(Signal::STOP);
        let child = child_of(self.0.pid());
        child.into_iter().for_each(|child| signal(child, Signal::KILL));
        self.0.kill();
        child.into_iter().for_each(wait_for_exit);
    }

    /// Kills it if it is still running, and starts it again with the same arguments.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.0.restart();
    }

    /// Sends SIGTERM; it must exit cleanly.
    pub(crate) fn stop(&mut self) {
        let child = child_of(self.0.pid()).expect("the program is running");
        signal(child, Signal::TERM);
        let until = Instant::now() + TIMEOUT + TIMEOUT;
        while self.0.is_running() {
            assert!(Instant::now() < until, "the program did not exit:\n{}", self.0.log());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether it is running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.0.is_running()
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        self.0.log()
    }
}

impl Drop for NamespacedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have exited already; the caller finds out.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Waits until a process has exited. A zombie may still have threads that are exiting and hold its locks.
fn wait_for_exit(pid: u32) {
    let until = Instant::now() + TIMEOUT;
    while parent_of(pid).is_some() && Instant::now() < until {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The parent of a process, if the process exists.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name may contain anything and ends with the last parenthesis; state and parent follow.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The only child of a process.
fn child_of(parent: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| parent_of(*pid) == Some(parent))
}
