//! Copies of directory trees on the server's own file system. A copy runs until it ends, as long as somebody asks for it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::{AgentError, AgentErrorKind, CopyStatus};
use crate::copy::{CopyError, CopyOptions, Progress, copy_tree};

/// How many copies run at the same time. Others start when their callers ask again.
const MAX_RUNNING: usize = 4;
/// A copy whose progress no client requested during this time is stopped, and a result is forgotten. Drivers ask every second.
const ABANDONED: Duration = Duration::from_secs(60);

/// What identifies a copy: the share, and the staging directory that it fills.
pub(super) type CopyKey = (String, String);

/// The copies of an agent.
#[derive(Default)]
pub(super) struct Copies(Mutex<BTreeMap<CopyKey, Arc<Copy>>>);

struct Copy {
    state: Mutex<Result<CopyStatus, AgentError>>,
    asked: Mutex<Instant>,
}

impl Copy {
    fn is_running(&self) -> bool {
        matches!(&*lock(&self.state), Ok(CopyStatus::Running(_)))
    }

    fn is_abandoned(&self) -> bool {
        lock(&self.asked).elapsed() > ABANDONED
    }
}

impl Copies {
    /// The status of a copy. Starts it if it is not known; `open` returns its source and its empty target.
    pub(super) fn status(
        &self,
        key: CopyKey,
        open: impl FnOnce() -> Result<(OwnedFd, OwnedFd), AgentError>,
    ) -> Result<CopyStatus, AgentError> {
        let mut copies = lock(&self.0);
        copies.retain(|_, copy| copy.is_running() || !copy.is_abandoned());
        if let Some(copy) = copies.get(&key) {
            *lock(&copy.asked) = Instant::now();
            return lock(&copy.state).clone();
        }
        let waiting = CopyStatus::Running(Progress::default());
        if copies.values().filter(|copy| copy.is_running()).count() >= MAX_RUNNING {
            return Ok(waiting);
        }
        let (from, to) = open()?;
        let copy =
            Arc::new(Copy { state: Mutex::new(Ok(waiting.clone())), asked: Mutex::new(Instant::now()) });
        copies.insert(key, copy.clone());
        std::thread::spawn(move || run(&copy, &from, &to));
        Ok(waiting)
    }
}

fn run(copy: &Copy, from: &OwnedFd, to: &OwnedFd) {
    let progress = |progress: Progress| {
        *lock(&copy.state) = Ok(CopyStatus::Running(progress));
        if copy.is_abandoned() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        copy_tree(from.as_fd(), to.as_fd(), &CopyOptions::default(), &progress)
    }));
    let result = match copied {
        Ok(copied) => copied.map(CopyStatus::Done).map_err(|error| failed(&error)),
        Err(_) => Err(AgentError::new(AgentErrorKind::Failed, "the copy failed: see the agent's log")),
    };
    if let Err(error) = &result {
        tracing::warn!(%error, "failed to copy directory");
    }
    *lock(&copy.state) = result;
}

fn failed(error: &CopyError) -> AgentError {
    let full = error.io().is_some_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
    });
    let kind = if full { AgentErrorKind::OutOfSpace } else { AgentErrorKind::Failed };
    AgentError::new(kind, format!("failed to copy on the server: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
