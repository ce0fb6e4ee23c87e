//! Deleting: one rename into the trash, durable before anybody is told, and the slow part (freeing blocks)
//! afterwards in the background. Only names that are ours are purged, and in them only files that are ours.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;

use super::{Core, lock};
use crate::fault::{During as _, Fault};
use crate::ids::{self, Kind};
use crate::store;

/// Something that was removed for good, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Purged {
    /// Beneath the pool.
    pub path: PathBuf,
}

/// What waits to be purged.
pub(super) struct Trash {
    /// The next number: a name that comes again finds its place in the trash free.
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

    /// What is to be purged next, if there is something now.
    fn waiting(&self) -> Option<String> {
        lock(&self.queue).names.pop_front()
    }

    /// Waits for work; `None` at the end. What is there is still purged: it is quick, and an operator who
    /// stops the driver to look at the pool finds it tidy.
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
pub(super) fn spawn(core: Arc<Core>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(name) = core.trash.next() {
            core.purge_or_tell(&name);
        }
    })
}

impl Core {
    /// Moves a volume or snapshot into the trash. Proving that nobody uses it is the caller's.
    pub(super) fn discard(&self, id: &str) -> Result<(), Fault> {
        let dir = store::dir_of(id);
        let there = self.store.stat(&dir).during("look for its directory", id)?.is_some();
        if !there && let Err(reason) = self.ready() {
            // Not to be seen is not gone.
            let source = Box::new(wharf_linux::Error::State { path: self.store.root.clone(), reason });
            return Err(Fault { object: id.to_owned(), step: "look for its directory", source });
        }
        let name = format!("{id}.{}", self.trash.next.fetch_add(1, Ordering::Relaxed));
        let to = Path::new(store::TRASH).join(&name);
        if there {
            let rename = || {
                let moved = self.kernel().rename(&self.store.at(&dir), &self.store.at(&to));
                moved.during("move it into the trash", id)
            };
            match rename() {
                // A full pool may have no block for one name more in the trash: those that are in it go first.
                Err(fault) if fault.is_full() => {
                    while let Some(name) = self.trash.waiting() {
                        self.purge_or_tell(&name);
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
        if there {
            self.store.sync(Path::new(store::TRASH)).during("make its deletion durable", id)?;
            self.store.sync(Path::new(store::collection_of(id))).during("make its deletion durable", id)?;
            self.trash.enqueue(name);
        }
        Ok(())
    }

    /// Removes one thing in the trash for good, where nobody waits to hear how it went.
    fn purge_or_tell(&self, name: &str) {
        match self.purge(name) {
            Ok(()) => tracing::debug!(name, "purged"),
            // It stays where it is and is tried again at the next start: trying at once would spin.
            Err(error) => tracing::error!(name, %error, "could not purge"),
        }
    }

    /// Removes one thing in the trash for good.
    fn purge(&self, name: &str) -> wharf_linux::Result<()> {
        if ids::parse_trash(name).is_none() {
            return Ok(());
        }
        let dir = Path::new(store::TRASH).join(name);
        for file in self.store.list(&dir)? {
            let unfinished = file.strip_suffix(store::UNFINISHED) == Some(store::RECORD);
            if unfinished || file == store::RECORD || file == store::IMAGE {
                self.store.remove_file(&dir.join(file))?;
            }
        }
        // Anything else in it makes this fail, which reports it.
        self.kernel().remove_dir(&self.store.at(&dir))
    }

    /// Empties the trash now.
    pub(super) fn purge_all(&self) -> Result<Vec<Purged>, String> {
        let mut purged = Vec::new();
        while let Some(name) = self.trash.waiting() {
            self.purge(&name).map_err(|error| error.to_string())?;
            purged.push(Purged { path: Path::new(store::TRASH).join(name) });
        }
        Ok(purged)
    }
}
