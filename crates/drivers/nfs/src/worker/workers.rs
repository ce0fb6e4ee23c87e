//! All workers of a driver: at most one share worker per export, jobs, and node workers for single operations.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::child::{self, Command, Handle};
use super::exports::Exports;
use super::jobs::Jobs;
use super::node_request::{NodeRequest, NodeResponse};
use super::process::{Blocked, WorkerProgram, admits};
use super::protocol::{MAX_LINE, Root, ToWorker, decode, encode};
use super::{Export, ShareClient, WorkerError};
use crate::agent::AgentAccess;
use crate::mount;
use crate::server::PROBE_DEADLINE;
use crate::share;

/// How long things may take, and where workers mount.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Name resolution and NULL call.
    pub probe: Duration,
    /// The start of a share worker: the mount.
    pub start: Duration,
    /// How long a killed worker may take to exit before it counts as blocked.
    pub kill_grace: Duration,
    /// When a share worker without requests ends.
    pub idle: Duration,
    /// How long a shutdown waits for running requests.
    pub shutdown_grace: Duration,
    /// The directory in which a worker mounts its export, in its own mount namespace.
    pub mount_dir: PathBuf,
    /// The agents of servers, by the server's name in StorageClasses.
    pub agents: BTreeMap<String, AgentAccess>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            probe: PROBE_DEADLINE,
            start: Duration::from_secs(20),
            kill_grace: Duration::from_secs(1),
            idle: Duration::from_secs(300),
            shutdown_grace: Duration::from_millis(400),
            mount_dir: PathBuf::from("/tmp"),
            agents: BTreeMap::new(),
        }
    }
}

/// Whether requests are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// Running requests may end, no new one starts.
    Draining,
    /// All workers are killed.
    Stopped,
}

/// The workers of a driver; clones share them.
#[derive(Clone)]
pub struct Workers {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) program: WorkerProgram,
    pub(super) options: WorkerOptions,
    pub(super) exports: Exports,
    pub(super) blocked: Arc<Blocked>,
    pub(super) jobs: Jobs,
    shares: Mutex<HashMap<Export, Slot>>,
    phase: watch::Sender<Phase>,
    running: AtomicUsize,
    probing: Mutex<HashMap<String, ()>>,
}

/// The worker of an export. The lock is held while it starts, so that only one starts.
type Slot = Arc<tokio::sync::Mutex<Option<Handle>>>;

impl Workers {
    /// Workers that run `program` and serve `exports`. Starts nothing yet.
    pub fn new(program: WorkerProgram, exports: Exports, options: WorkerOptions) -> Self {
        let blocked = Blocked::new(options.kill_grace);
        let inner = Inner {
            program,
            options,
            exports,
            blocked,
            jobs: Jobs::default(),
            shares: Mutex::default(),
            phase: watch::Sender::new(Phase::Running),
            running: AtomicUsize::new(0),
            probing: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Where the exports are.
    pub fn exports(&self) -> &Exports {
        &self.inner.exports
    }

    /// Number of workers that did not exit after SIGKILL.
    pub fn blocked(&self) -> usize {
        self.inner.blocked.total()
    }

    /// Number of workers that are blocked on this server.
    pub fn blocked_on(&self, server: &str) -> usize {
        self.inner.blocked.count(server)
    }

    /// Runs one operation of the node service in a process of its own, in the driver's mount namespace. `server` is the one
    /// that the operation may wait for; `None` if it is not known or there is none.
    pub async fn node(
        &self,
        server: Option<&str>,
        request: NodeRequest,
        allowed: Duration,
    ) -> Result<NodeResponse, WorkerError> {
        let _running = self.inner.enter()?;
        let server = server.unwrap_or_default();
        if !request.is_cleanup() && !server.is_empty() {
            self.inner.admit(server)?;
        }
        let subject = request.subject();
        let internal = |error: std::io::Error| WorkerError::Internal(format!("{subject}: {error}"));
        let mut process = self.inner.program.start("node", server, &self.inner.blocked).map_err(internal)?;
        let (mut input, output) = process.pipes().map_err(internal)?;
        let line = encode(&request).map_err(internal)?;
        let exchange = async {
            let _ = input.write_all(&line).await;
            drop(input);
            let mut answer = Vec::new();
            BufReader::new(output).take(MAX_LINE).read_until(b'\n', &mut answer).await.map_err(internal)?;
            match answer.is_empty() {
                true => Err(WorkerError::Lost {
                    subject: subject.clone(),
                    reason: "it exited without an answer".to_owned(),
                }),
                false => decode::<Result<NodeResponse, mount::MountFailure>>(&answer)
                    .map_err(internal)?
                    .map_err(WorkerError::Mount),
            }
        };
        let timed_out = |_| WorkerError::TimedOut {
            server: server.to_owned(),
            subject: subject.clone(),
            deadline: allowed,
        };
        let deadline = Instant::now() + allowed;
        self.inner.unless_stopped(async { timeout_at(deadline, exchange).await.map_err(timed_out)? }).await
    }

    /// Accepts no more requests, waits a moment for running ones, and kills all workers. Never waits for a worker to exit.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.phase.send_replace(Phase::Draining);
        let end = Instant::now() + inner.options.shutdown_grace;
        while inner.running.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        inner.phase.send_replace(Phase::Stopped);
        // The tasks of the workers drop their processes, which kills them.
        tokio::task::yield_now().await;
    }
}

/// Counts a running request.
struct Running<'a>(&'a Inner);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    fn enter(&self) -> Result<Running<'_>, WorkerError> {
        if *self.phase.borrow() != Phase::Running {
            return Err(WorkerError::ShuttingDown);
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        Ok(Running(self))
    }

    pub(super) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The result of `work`, unless all workers are killed first.
    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, WorkerError>>,
    ) -> Result<T, WorkerError> {
        let mut phase = self.phase();
        tokio::select! {
            biased;
            result = work => result,
            _ = phase.wait_for(|phase| *phase == Phase::Stopped) => Err(WorkerError::ShuttingDown),
        }
    }

    /// Refuses requests for a server on which too many workers are blocked, and checks in the background whether it answers.
    pub(super) fn admit(self: &Arc<Self>, server: &str) -> Result<(), WorkerError> {
        let blocked = self.blocked.count(server);
        if admits(blocked, self.blocked.last(server), self.exports.answered(server)) {
            return Ok(());
        }
        if let Some(servers) = self.exports.servers().cloned()
            && lock(&self.probing).insert(server.to_owned(), ()).is_none()
        {
            let (this, server) = (self.clone(), server.to_owned());
            tokio::spawn(async move {
                servers.recheck(&server, this.options.probe).await;
                lock(&this.probing).remove(&server);
            });
        }
        Err(WorkerError::Suspended { server: server.to_owned(), blocked })
    }

    /// The running worker of an export, or a new one.
    async fn share_worker(
        self: &Arc<Self>,
        export: &Export,
        deadline: Instant,
    ) -> Result<Handle, WorkerError> {
        let slot = lock(&self.shares).entry(export.clone()).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(handle) = slot.as_ref().filter(|handle| !handle.is_closed()) {
            return Ok(handle.clone());
        }
        let (process, input, lines) = self.open("share", export, deadline).await?;
        let (idle, phase) = (self.options.idle, self.phase());
        let handle = child::run(process, input, lines, export.clone(), idle, phase);
        *slot = Some(handle.clone());
        tracing::info!(%export, "started worker");
        Ok(handle)
    }

    /// Starts a share or job worker and waits until its export is open.
    pub(super) async fn open(
        self: &Arc<Self>,
        kind: &str,
        export: &Export,
        deadline: Instant,
    ) -> Result<(super::process::Process, tokio::process::ChildStdin, child::Lines), WorkerError> {
        let options = mount::controller_options(&export.options);
        let root =
            self.exports.root(&export.server, &export.share, &options, false, self.options.probe).await?;
        let plan = match &root {
            Root::Export(plan) => Some(plan.clone()),
            Root::Directory(_) => None,
        };
        let started = self.program.start(kind, &export.server, &self.blocked);
        let mut process =
            started.map_err(|error| WorkerError::Internal(format!("failed to start: {error}")))?;
        let allowed = self.options.start.min(deadline.saturating_duration_since(Instant::now()));
        let opened = child::open(
            &mut process,
            ToWorker::Open {
                root,
                mount_dir: self.options.mount_dir.clone(),
                agent: self.options.agents.get(&export.server).cloned(),
            },
            export,
            Instant::now() + allowed,
            allowed,
        )
        .await;
        if let (Err(WorkerError::TimedOut { .. }), Some(servers)) = (&opened, self.exports.servers()) {
            servers.timed_out(&export.server, "a mount did not finish in time");
        }
        let (input, lines, version) = opened?;
        if let (Some(version), Some(plan), Some(servers)) = (version, plan, self.exports.servers()) {
            servers.mounted(&export.server, plan.negotiated(version));
        }
        Ok((process, input, lines))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl ShareClient for Workers {
    async fn call(
        &self,
        export: &Export,
        request: share::Request,
        allowed: Duration,
    ) -> Result<share::Response, WorkerError> {
        let inner = &self.inner;
        let _running = inner.enter()?;
        inner.admit(&export.server)?;
        let deadline = Instant::now() + allowed;
        let work = async {
            loop {
                let handle = inner.share_worker(export, deadline).await?;
                let (reply, answer) = oneshot::channel();
                let command = Command { request: request.clone(), deadline, allowed, reply };
                // An error means that the worker ended before it got the request (it was idle): start another one.
                if handle.send(command).await.is_ok()
                    && let Ok(answer) = answer.await
                {
                    return answer;
                }
            }
        };
        let timed_out = |_| WorkerError::TimedOut {
            server: export.server.clone(),
            subject: format!("a request on {export}"),
            deadline: allowed,
        };
        // The worker's task enforces the deadline and kills the worker; a little later also the wait for it ends.
        let limit = deadline + Duration::from_millis(100);
        inner.unless_stopped(async { timeout_at(limit, work).await.map_err(timed_out)? }).await
    }

    async fn start_job(
        &self,
        export: &Export,
        key: &str,
        request: share::Request,
        stall: Duration,
    ) -> Result<(), WorkerError> {
        let _running = self.inner.enter()?;
        self.inner.admit(&export.server)?;
        self.inner.jobs.start(self.inner.clone(), export.clone(), key, request, stall);
        Ok(())
    }

    fn job_runs(&self, key: &str) -> bool {
        self.inner.jobs.runs(key)
    }

    fn job_failed(&self, key: &str) -> bool {
        self.inner.jobs.has_failed(key)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::server::Servers;

    /// Requests fail at once while four workers are blocked, until the server answers.
    #[tokio::test]
    async fn blocked_workers_suspend_a_server_until_it_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let exports = Exports::Servers(Arc::new(Servers::default()));
        let options = WorkerOptions { probe: Duration::from_millis(200), ..WorkerOptions::default() };
        let workers = Workers::new(WorkerProgram::new("/bin/false", &[]), exports, options);
        let export = Export::new("127.0.0.1", "/x", &[format!("port={},vers=4.2", address.port())]);
        let call = || workers.call(&export, share::Request::Capacity, Duration::from_secs(20));
        let unreachable = call().await.unwrap_err();
        assert!(matches!(unreachable, WorkerError::Unreachable { .. }), "{unreachable}");
        let guards: Vec<_> = (0..4).map(|_| workers.inner.blocked.add("127.0.0.1")).collect();
        for _ in 0..3 {
            let started = Instant::now();
            let error = call().await.unwrap_err();
            assert!(matches!(error, WorkerError::Suspended { blocked: 4, .. }), "{error}");
            assert!(started.elapsed() < Duration::from_millis(150), "not at once");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Unmounting goes on, and so do other servers.
        let cleanup = NodeRequest::RemoveTarget("/nonexistent".into());
        let error = workers.node(Some("127.0.0.1"), cleanup, Duration::from_secs(20)).await.unwrap_err();
        assert!(matches!(error, WorkerError::Lost { .. }), "{error}");
        assert!(workers.inner.admit("other").is_ok());

        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), mut call) = (stream, [0; 44]) else { return };
                if stream.read_exact(&mut call).is_ok() {
                    let reply = [&[0x80, 0, 0, 24], &call[4..8], &[0, 0, 0, 1], &[0; 16]].concat();
                    let _ = stream.write_all(&reply);
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(20);
        let error = loop {
            match call().await.unwrap_err() {
                WorkerError::Suspended { .. } if Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                error => break error,
            }
        };
        // The program of this test does nothing, but it was started.
        assert!(matches!(error, WorkerError::Lost { .. }), "{error}");
        drop(guards);
    }
}
