//! Processes in namespaces of a test's own. When the value goes, so does all that runs in them.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wharf_testkit::Beside;

const LOOK: Duration = Duration::from_millis(2);
/// For the kernel to start or end a process.
const PATIENCE: Duration = Duration::from_secs(20);

/// The first process keeps the namespaces and reaps orphans, as a machine's does.
const FIRST: &str =
    "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && while :; do sleep 1000 & wait; done";

/// Held for a moment by each who makes namespaces, for long by one who must be [`Alone`].
static MAKING: RwLock<()> = RwLock::new(());

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread alone makes namespaces. New ones have copies of all that the test has mounted, and keep its
/// devices busy.
pub(crate) struct Alone {
    _held: RwLockWriteGuard<'static, ()>,
}

impl Alone {
    pub(crate) fn new() -> Self {
        let held = MAKING.write().unwrap_or_else(PoisonError::into_inner);
        IS_ALONE.set(true);
        Self { _held: held }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}

/// Namespaces for mounts and processes: a machine, from its start to its end.
pub(crate) struct Namespaces {
    unshare: Beside,
    first: u32,
}

impl Namespaces {
    /// Makes them. `boot` holds what the machine says of which start this is.
    pub(crate) fn new(boot: &Path, log: &Path) -> Self {
        let _making = (!IS_ALONE.get()).then(|| MAKING.read().unwrap_or_else(PoisonError::into_inner));
        let file = boot.display().to_string();
        let args = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let args = [&args[..], &["bash", "-c", FIRST, &file]].concat();
        let unshare = Beside::start(Path::new("unshare"), &args, log);
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(first) = child_of(unshare.pid()) {
                let said = fs::read(format!("/proc/{first}/root/proc/sys/kernel/random/boot_id"));
                if said.is_ok_and(|said| Some(said) == fs::read(boot).ok()) {
                    return Self { unshare, first };
                }
            }
            assert!(Instant::now() < until, "there are no namespaces:\n{}", unshare.log());
            std::thread::sleep(LOOK);
        }
    }

    /// The process whose namespaces they are.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The words that a command begins with to run in them.
    pub(crate) fn enter(&self) -> [String; 5] {
        ["--target", &self.first.to_string(), "--mount", "--pid", "--"].map(str::to_owned)
    }

    /// Starts a program in them.
    pub(crate) fn start(&self, program: &Path, args: &[&str], env: &[(&str, &str)], log: &Path) -> Inside {
        let enter = self.enter();
        let program = program.display().to_string();
        let mut words: Vec<&str> = enter.iter().map(String::as_str).collect();
        words.extend(["setpriv", "--pdeathsig", "KILL", &program]);
        words.extend(args);
        Inside(Beside::start_with(Path::new("nsenter"), &words, env, log))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // All that runs there goes with the first process, and so do the mounts.
        self.unshare.kill();
        gone(self.first);
    }
}

/// A program in the namespaces: the child of the one that entered them.
pub(crate) struct Inside(Beside);

impl Inside {
    /// kill -9; returns when it is gone.
    pub(crate) fn kill(&mut self) {
        if !self.0.runs() {
            return;
        }
        // Who is stopped starts nothing any more, so that what is found is all there is.
        self.0.signal(Signal::STOP);
        let child = child_of(self.0.pid());
        child.into_iter().for_each(|child| signal(child, Signal::KILL));
        self.0.kill();
        child.into_iter().for_each(gone);
    }

    /// Kills it if it still runs, and starts it as it was started.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.0.restart();
    }

    /// SIGTERM; it has to end well.
    pub(crate) fn stop(&mut self) {
        let child = child_of(self.0.pid()).expect("it runs");
        signal(child, Signal::TERM);
        let until = Instant::now() + PATIENCE + PATIENCE;
        while self.0.runs() {
            assert!(Instant::now() < until, "it does not end:\n{}", self.0.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.0.runs()
    }

    /// What it said.
    pub(crate) fn log(&self) -> String {
        self.0.log()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Gone already is for others to find out.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Waits until a process is gone. As a zombie it may still have threads that end, and with them its locks.
fn gone(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while parent_of(pid).is_some() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// The parent of a process, if that is there.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may have anything in it, but ends with the last parenthesis; then state and parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The one child of a process.
fn child_of(parent: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| parent_of(*pid) == Some(parent))
}
