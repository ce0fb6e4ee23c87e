//! Starts and ends worker processes, and counts those that do not end.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{SUBCOMMAND, WorkerLog};

/// From this number on, no more workers are started for a server that does not answer.
pub(super) const MAX_BLOCKED: usize = 4;

/// From this number on, none are started for a server, whatever it answers. One whose file system is frozen answers NULL calls, and would
/// otherwise get one more blocked worker for each of them.
const MAX_BLOCKED_EVER: usize = 16;

/// The program of the workers.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    program: PathBuf,
    arguments: Vec<String>,
    log: WorkerLog,
}

impl Default for WorkerProgram {
    /// This program. `/proc/self/exe` also works after an upgrade has replaced the file.
    fn default() -> Self {
        Self::new("/proc/self/exe", &[SUBCOMMAND])
    }
}

impl WorkerProgram {
    /// Another program, for tests. The kind of worker and what it logs are appended to its arguments.
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { program: program.into(), arguments, log: WorkerLog::default() }
    }

    /// What the workers log.
    pub fn log(mut self, log: WorkerLog) -> Self {
        self.log = log;
        self
    }

    /// Starts a worker for a server. The worker asks to be killed when the thread that starts it ends, so call this only from
    /// a thread of the runtime that lives as long as the driver, never from a blocking thread.
    pub(super) fn start(&self, kind: &str, server: &str, blocked: &Arc<Blocked>) -> io::Result<Process> {
        let mut command = Command::new(&self.program);
        command
            .arg0("wharf")
            .args(&self.arguments)
            .arg(kind)
            .args(self.log.arguments())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's Ctrl-C is for the driver, which then ends its workers.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the worker has no pipes"));
        };
        let child = Some(child);
        let process = Process {
            child,
            server: server.to_owned(),
            blocked: blocked.clone(),
            pipes: Some((input, output)),
        };
        Ok(process)
    }
}

/// A worker. It is killed when this is dropped; a task then waits for its end.
pub(super) struct Process {
    child: Option<Child>,
    server: String,
    blocked: Arc<Blocked>,
    pipes: Option<(ChildStdin, ChildStdout)>,
}

impl Process {
    /// The worker's standard input and output. The first call returns them.
    pub(super) fn pipes(&mut self) -> io::Result<(ChildStdin, ChildStdout)> {
        self.pipes.take().ok_or_else(|| io::Error::other("the worker's pipes are in use"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // Fails only if the worker has ended.
        let _ = child.start_kill();
        let (server, blocked) = (self.server.clone(), self.blocked.clone());
        // Without a runtime the process is about to exit, and the kernel cleans up.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if timeout(blocked.grace, child.wait()).await.is_err() {
                    let pid = child.id();
                    let counted = blocked.add(&server);
                    tracing::warn!(
                        server,
                        pid,
                        blocked = blocked.count(&server),
                        "worker does not exit after SIGKILL: it is blocked on the NFS server"
                    );
                    let _ = child.wait().await;
                    drop(counted);
                    tracing::info!(server, pid, "blocked worker has exited");
                }
            });
        }
    }
}

/// The workers that did not exit after SIGKILL, by server.
#[derive(Debug)]
pub(super) struct Blocked {
    /// How long a killed worker may take to exit.
    grace: Duration,
    servers: Mutex<HashMap<String, (usize, SystemTime)>>,
}

impl Blocked {
    pub(super) fn new(grace: Duration) -> Arc<Self> {
        Arc::new(Self { grace, servers: Mutex::default() })
    }

    pub(super) fn count(&self, server: &str) -> usize {
        self.lock().get(server).map_or(0, |(count, _)| *count)
    }

    /// All blocked workers.
    pub(super) fn total(&self) -> usize {
        self.lock().values().map(|(count, _)| count).sum()
    }

    /// When the last worker blocked.
    pub(super) fn last(&self, server: &str) -> Option<SystemTime> {
        self.lock().get(server).map(|(_, last)| *last)
    }

    /// Counts one until the guard is dropped.
    pub(super) fn add(self: &Arc<Self>, server: &str) -> BlockedGuard {
        let mut servers = self.lock();
        let (count, last) = servers.entry(server.to_owned()).or_insert((0, SystemTime::UNIX_EPOCH));
        *count += 1;
        *last = SystemTime::now();
        BlockedGuard { blocked: self.clone(), server: server.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (usize, SystemTime)>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One blocked worker.
pub(super) struct BlockedGuard {
    blocked: Arc<Blocked>,
    server: String,
}

impl Drop for BlockedGuard {
    fn drop(&mut self) {
        let mut servers = self.blocked.lock();
        if let Some((count, _)) = servers.get_mut(&self.server) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                servers.remove(&self.server);
            }
        }
    }
}

/// Whether another worker may be started: few are blocked, or the server has answered since the last one blocked and they are
/// not too many.
pub(super) fn admits(blocked: usize, last: Option<SystemTime>, answered: Option<SystemTime>) -> bool {
    let has_answered = matches!((last, answered), (Some(last), Some(answered)) if answered > last);
    blocked < MAX_BLOCKED || (has_answered && blocked < MAX_BLOCKED_EVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fourth_blocked_worker_stops_new_ones_until_the_server_answers() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for (blocked, last, answered, admitted) in [
            (0, None, None, true),
            (3, at(5), None, true),
            (4, at(5), None, false),
            (4, at(5), at(4), false),
            (4, at(5), at(5), false),
            (4, at(5), at(6), true),
            (9, at(7), at(6), false),
            (15, at(7), at(8), true),
            (16, at(7), at(8), false),
        ] {
            assert_eq!(admits(blocked, last, answered), admitted, "{blocked} {last:?} {answered:?}");
        }
    }

    #[test]
    fn blocked_workers_are_counted_per_server_until_they_exit() {
        let blocked = Blocked::new(Duration::ZERO);
        let guards = [blocked.add("a"), blocked.add("a"), blocked.add("b")];
        assert_eq!(
            (blocked.count("a"), blocked.count("b"), blocked.count("c"), blocked.total()),
            (2, 1, 0, 3)
        );
        drop(guards);
        assert_eq!((blocked.total(), blocked.last("a")), (0, None));
    }
}
