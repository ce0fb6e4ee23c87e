//! The worker's side: what runs in the worker process.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wharf_linux::sandbox::{self, Namespaces};
use wharf_linux::{Linux, MountRequest, Mounts as _};

use super::node_request::{self, NodeRequest};
use super::protocol::{FromWorker, Root, ToWorker, encode, read};
use super::{SUBCOMMAND, WorkerErrorKind, WorkerLog};
use crate::agent::{AgentAccess, AgentClient, ServerAgent};
use crate::mount::{self, MountFailure, Version, libc_errno};
use crate::share::{ErrorKind, Share, ShareEnvironment, ShareError};

/// How many requests a share worker serves at the same time.
const MAX_THREADS: usize = 16;

/// How often a job reports that it makes progress.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// How far the job of this process has come: any number that grows.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Records how far the job of this process has come, in any unit. A job whose number does not change for a while is killed.
pub fn report_progress(done: u64) {
    PROGRESS.store(done, Ordering::Relaxed);
}

/// Records that the job of this process has done something.
pub fn made_progress() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Runs a worker if the process was started as one: if its first argument is [`SUBCOMMAND`]. Call it at the start of `main`,
/// before any thread exists.
pub fn main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let kind = args.next().unwrap_or_default();
    WorkerLog::parse(args).init();
    raise_open_files();
    let served = match kind.to_str() {
        Some("share") => serve_share(Kind::Share),
        Some("job") => serve_share(Kind::Job),
        Some("node") => serve_node(),
        _ => Err(io::Error::other("this subcommand is internal to the NFS driver: use `wharf driver nfs`")),
    };
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfs-worker: {error}");
            ExitCode::FAILURE
        }
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Share,
    Job,
}

fn serve_node() -> io::Result<()> {
    sandbox::die_with_parent()?;
    let Some(request) = read::<NodeRequest>(&mut io::stdin().lock())? else { return Ok(()) };
    let line = encode(&node_request::perform(request))?;
    io::stdout().write_all(&line)
}

fn serve_share(kind: Kind) -> io::Result<()> {
    sandbox::die_with_parent()?;
    let mut input = io::stdin().lock();
    let Some(ToWorker::Open { root, mount_dir, agent }) = read(&mut input)? else { return Ok(()) };
    // Lines of the share name the export.
    let span = match &root {
        Root::Export(plan) => tracing::info_span!("worker", export = plan.source),
        Root::Directory(path) => tracing::info_span!("worker", export = %path.display()),
    };
    let (share, root, version) = match open(&root, &mount_dir, agent) {
        Ok(opened) => opened,
        Err(failure) => return send(&FromWorker::Failed(failure)),
    };
    send(&FromWorker::Ready(version))?;
    if kind == Kind::Job {
        std::thread::spawn(heartbeat);
    }
    let (share, limit) = (Arc::new(share), Arc::new(Limit::default()));
    while let Some(message) = read(&mut input)? {
        let ToWorker::Request { id, request } = message else {
            return Err(io::Error::other("unexpected message"));
        };
        limit.enter();
        let (share, root, limit, span) = (share.clone(), root.clone(), limit.clone(), span.clone());
        std::thread::Builder::new().spawn(move || {
            let _entered = span.entered();
            let handled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| share.handle(request)));
            // The driver sees the end of a worker at once, but not of a thread. It has the panic's message on stderr.
            let Ok(response) = handled else { std::process::exit(101) };
            if send(&FromWorker::Response { id, response }).is_err() || is_stale(&root) {
                // After ESTALE only a new mount helps, which the next worker makes.
                std::process::exit(0);
            }
            limit.leave();
        })?;
    }
    // The driver has closed the pipe. Requests that still run are safe to interrupt.
    std::process::exit(0)
}

/// Allows as many open files as the process may have: each level of a tree that is copied needs two per thread, and containers often
/// start with 1024.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

/// Writes one message; threads take turns.
fn send(message: &FromWorker) -> io::Result<()> {
    let line = encode(message)?;
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}

fn heartbeat() {
    let mut last = PROGRESS.load(Ordering::Relaxed);
    loop {
        std::thread::sleep(HEARTBEAT);
        let done = PROGRESS.load(Ordering::Relaxed);
        if done != last && send(&FromWorker::Progress).is_err() {
            return;
        }
        last = done;
    }
}

fn open(
    root: &Root,
    mount_dir: &Path,
    agent: Option<AgentAccess>,
) -> Result<(Share, PathBuf, Option<Version>), MountFailure> {
    let (path, version) = match root {
        Root::Directory(path) => (path.clone(), None),
        Root::Export(plan) => {
            let target = private_dir(mount_dir).map_err(|error| {
                MountFailure::internal(format!("failed to set up the mount namespace of a worker: {error}"))
            })?;
            (target.clone(), Some(mount::perform(&Linux::new(), plan, &target)?))
        }
    };
    let agent = agent.map(|access| Arc::new(AgentClient::new(access)) as Arc<dyn ServerAgent>);
    let environment = ShareEnvironment { agent, ..ShareEnvironment::default() };
    let share = Share::open(&path, environment).map_err(|error| failure_of(&error))?;
    Ok((share, path, version))
}

/// An empty directory that no other process sees: on a tmpfs over `dir`, so nothing is created on the node's disk. Mounts in it
/// end with this process.
fn private_dir(dir: &Path) -> io::Result<PathBuf> {
    // Unmounts of the node propagate here, so that this namespace keeps no volume busy; nothing propagates back.
    sandbox::unshare(Namespaces::Mount)?;
    let options = ["mode=0700".to_owned(), "size=64k".to_owned()];
    let request = MountRequest {
        source: "wharf-nfs",
        target: dir,
        fs_type: "tmpfs",
        options: &options,
        read_only: false,
    };
    Linux::new().mount(&request).map_err(io::Error::other)?;
    let target = dir.join("export");
    std::fs::create_dir(&target)?;
    Ok(target)
}

fn failure_of(error: &ShareError) -> MountFailure {
    let kind = match error.kind {
        ErrorKind::Invalid => WorkerErrorKind::Invalid,
        ErrorKind::NotFound => WorkerErrorKind::NotFound,
        ErrorKind::Forbidden => WorkerErrorKind::Denied,
        ErrorKind::Unavailable | ErrorKind::InProgress { .. } => WorkerErrorKind::Unavailable,
        ErrorKind::Precondition | ErrorKind::InUse | ErrorKind::AlreadyExists | ErrorKind::OutOfSpace => {
            WorkerErrorKind::Precondition
        }
        ErrorKind::Internal => WorkerErrorKind::Internal,
    };
    MountFailure { kind, message: error.message.clone() }
}

fn is_stale(root: &Path) -> bool {
    std::fs::metadata(root).is_err_and(|error| error.raw_os_error() == Some(libc_errno::ESTALE))
}

/// Limits the number of threads.
#[derive(Default)]
struct Limit {
    running: Mutex<usize>,
    ended: Condvar,
}

impl Limit {
    fn enter(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= MAX_THREADS {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
    }

    fn leave(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.ended.notify_one();
    }
}
