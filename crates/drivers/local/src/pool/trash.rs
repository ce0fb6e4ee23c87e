//! Deletion: one rename to the trash, durable before the call returns; the slow part (freeing blocks) runs in the
//! background. Purging removes only entries with valid names, and in them only the pool's own files.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;

use super::{PoolCore, lock};
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::store;

/// A path that was permanently removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PurgedPath {
    /// Relative to the pool.
    pub path: PathBuf,
}

/// The entries that wait to be purged.
pub(super) struct Trash {
    /// The next number: an object that is created and deleted again gets a new name in the trash.
    next: AtomicU64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    names: VecDeque<String>,
    stop: bool,
}

impl Trash {
    pub(super) fn new(names: Vec<String>) -> Self {
        let last = names.iter().filter_map(|name| ids::parse_trash(name)).map(|(_, number)| number).max();
        let next = AtomicU64::new(last.map_or(0, |last| last.saturating_add(1)));
        Self { next, queue: Mutex::new(Queue { names: names.into(), stop: false }), changed: Condvar::new() }
    }

    pub(super) fn stop(&self) {
        lock(&self.queue).stop = true;
        self.changed.notify_all();
    }

    fn enqueue(&self, name: String) {
        lock(&self.queue).names.push_back(name);
        self.changed.notify_all();
    }

    /// The next entry to purge, without waiting.
    fn pop(&self) -> Option<String> {
        lock(&self.queue).names.pop_front()
    }

    /// Waits for the next entry; `None` on shutdown. Queued entries are still purged on shutdown: it is quick, and an
    /// operator who stops the driver to inspect the pool finds an empty trash.
    fn next(&self) -> Option<String> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(name) = queue.names.pop_front() {
                return Some(name);
            }
            if queue.stop {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Starts the thread that empties the trash.
pub(super) fn spawn(core: Arc<PoolCore>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(name) = core.trash.next() {
            // Without this thread no space would be reclaimed.
            if std::panic::catch_unwind(AssertUnwindSafe(|| core.purge_and_log(&name))).is_err() {
                tracing::error!(name, "purging a trash entry panicked; the next start retries");
            }
        }
    })
}

impl PoolCore {
    /// Moves a volume or snapshot to the trash. The caller has verified that it is not in use.
    pub(super) fn discard(&self, id: &str) -> Result<(), Fault> {
        let dir = store::dir_of(id);
        let exists = self.store.stat(&dir).during("stat its directory", id)?.is_some();
        if !exists && let Err(reason) = self.ready() {
            // Without the pool mounted, a missing directory does not mean that the object is deleted.
            let source = Box::new(wharf_linux::Error::InvalidState { path: self.store.root.clone(), reason });
            return Err(Fault { object: id.to_owned(), step: "stat its directory", source });
        }
        let name = format!("{id}.{}", self.trash.next.fetch_add(1, Ordering::Relaxed));
        let to = Path::new(store::TRASH).join(&name);
        if exists {
            let rename = || {
                let moved = self.kernel().rename(&self.store.at(&dir), &self.store.at(&to));
                moved.during("move it to the trash", id)
            };
            match rename() {
                // A full pool may have no block for another directory entry: purge the existing entries first.
                Err(fault) if fault.is_full() => {
                    while let Some(name) = self.trash.pop() {
                        self.purge_and_log(&name);
                    }
                    rename()?;
                }
                moved => moved?,
            }
        }
        if ids::is(Kind::Snapshot, id) {
            self.index().remove_snapshot(id);
        } else {
            self.index().remove_volume(id);
        }
        if exists {
            self.store.sync(Path::new(store::TRASH)).during("make its deletion durable", id)?;
            self.store.sync(Path::new(store::collection_of(id))).during("make its deletion durable", id)?;
            self.trash.enqueue(name);
        }
        Ok(())
    }

    /// Purges one entry and logs the result.
    fn purge_and_log(&self, name: &str) {
        match self.purge(name) {
            Ok(()) => tracing::debug!(name, "purged trash entry"),
            // It stays and is retried at the next start: retrying at once would spin.
            Err(error) => {
                tracing::error!(name, %error, "failed to purge trash entry; the next start retries")
            }
        }
    }

    /// Permanently removes one entry.
    fn purge(&self, name: &str) -> wharf_linux::Result<()> {
        if ids::parse_trash(name).is_none() {
            return Ok(());
        }
        let dir = Path::new(store::TRASH).join(name);
        for file in self.store.list(&dir)? {
            let unfinished = file.strip_suffix(store::UNFINISHED) == Some(store::RECORD);
            if unfinished || [store::RECORD, store::SPARE, store::IMAGE].contains(&file.as_str()) {
                self.store.remove_file(&dir.join(file))?;
            }
        }
        // Fails if the directory contains anything else, which reports it.
        self.kernel().remove_dir(&self.store.at(&dir))
    }

    /// Purges all entries now.
    pub(super) fn purge_all(&self) -> Result<Vec<PurgedPath>, String> {
        let mut purged = Vec::new();
        while let Some(name) = self.trash.pop() {
            self.purge(&name).map_err(|error| error.to_string())?;
            purged.push(PurgedPath { path: Path::new(store::TRASH).join(name) });
        }
        Ok(purged)
    }
}
