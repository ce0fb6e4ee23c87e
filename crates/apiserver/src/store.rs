//! Objects by key, with one global revision. The store is to this API server what etcd is to kube-apiserver.
//!
//! A write is acknowledged, and becomes visible to readers and watchers, once it is durable. A failed write is never
//! visible. One writer thread commits all queued writes in one transaction. All objects and the tail of the log are
//! in memory: a list copies handles, and a watcher is a cursor into the shared log that costs nothing while idle.
//! Revisions older than the log cannot be read ([`ListError::Compacted`]).
//!
//! ```text
//! write() → writer: plan (check each write, pure) → disk (one commit) → state (publish) → replies, watchers wake
//!           get(), list() ← state                                   watch() ← state: the log
//! ```
//!
//! Start with [`Store`]; the rules for writes are in `plan`.

mod backup;
mod database;
mod dir_lock;
mod disk;
mod first_revision;
mod in_memory;
mod plan;
mod state;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

pub use self::backup::{BackupError, RestoreError};
use self::disk::Disk;
pub use self::disk::OpenError;
use self::in_memory::InMemoryWriter;
use self::state::State;
pub use self::watch::{Watch, WatchEnd, WatchItem};
use self::writer::{Request, Writer};
use crate::memory_budget::MemoryBudget;

/// The store-wide revision. Each write takes the next one. Never 0 for an object.
pub type Revision = u64;

/// `group/plural/namespace/name`; the core group and cluster scope leave theirs empty (`/nodes//n1`).
pub type Key = Arc<str>;

/// A stored object: JSON in which `metadata.resourceVersion` is its revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The object's key.
    pub key: Key,
    /// The revision of the write that created this version.
    pub revision: Revision,
    /// The object as JSON.
    pub value: Bytes,
}

/// JSON with an empty slot for the revision, which is assigned when the write is committed.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    /// JSON that contains `"resourceVersion":""`.
    pub json: Bytes,
    /// The offset between those quotes, where the digits are inserted.
    pub revision_offset: usize,
    /// When the store deletes the object on its own, in milliseconds of wall time.
    pub expires: Option<i64>,
}

/// A write to one key, with its precondition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key must not exist.
    Create(Body),
    /// The object must be at this revision.
    Update(Revision, Body),
    /// The object must be at this revision. The body is what watchers receive: the last state of the object, at the
    /// revision of the deletion.
    Delete(Revision, Body),
}

/// One write, as watchers receive it.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// The revision of this write.
    pub revision: Revision,
    /// The key of the written object.
    pub key: Key,
    /// The new object. For a deletion, its last state with the revision of the deletion.
    pub value: Bytes,
    /// The object was deleted.
    pub deleted: bool,
    /// The object before the write. None if it was created.
    pub previous: Option<Bytes>,
}

// Values may be Secrets: log the key and the size, never the content.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.key, self.revision, self.value.len())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes, expires {:?})", self.json.len(), self.expires)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = if self.deleted { "deleted" } else { "written" };
        write!(f, "{}@{} {action} ({} bytes)", self.key, self.revision, self.value.len())
    }
}

/// How the store persists writes and how much history it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether a commit waits for the disk. Without it a write survives a crash of the process but not of the machine:
    /// for tests only.
    pub sync: bool,
    /// How many events the log keeps for slow watchers and for lists of older revisions.
    pub history: usize,
    /// How many bytes of outdated values the log may hold.
    pub history_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: true, history: 10_000, history_bytes: 32 << 20 }
    }
}

/// Why a write was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The key exists; this is the existing object.
    #[error("{} exists at revision {}", .0.key, .0.revision)]
    AlreadyExists(Entry),
    /// The object is at another revision; this is its current state.
    #[error("{} is at revision {}, which is not the revision that the write expects", .0.key, .0.revision)]
    Conflict(Entry),
    /// The object does not exist.
    #[error("the object does not exist")]
    NotFound,
    /// The store failed. After [`Failure::Disk`] the write may or may not have been committed: read again.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why the store could not process a valid write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The commit failed. The store continues if it can; otherwise the next write gets [`Failure::Closed`].
    #[error("the write did not reach the disk: {0}")]
    Disk(Arc<str>),
    /// The store accepts no more writes: it was closed, or the content of its file is no longer certain.
    #[error("the store accepts no more writes: restart to reload it from disk")]
    Closed,
    /// A bug in the caller.
    #[error("the body has no empty resourceVersion at byte {0}")]
    NoRevisionSlot(usize),
}

/// Why a revision cannot be listed or watched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The revision is older than the log.
    #[error("the revision is compacted; the oldest available is {oldest}")]
    Compacted {
        /// The oldest revision that can be listed or watched from.
        oldest: Revision,
    },
    /// The revision does not exist yet.
    #[error("the revision does not exist yet; the latest is {current}")]
    Future {
        /// The latest revision.
        current: Revision,
    },
}

/// One page of a list, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// The objects, ordered by key.
    pub entries: Vec<Entry>,
    /// The revision at which all entries were read.
    pub revision: Revision,
    /// Whether more objects follow the last entry.
    pub more: bool,
    /// How many objects follow.
    pub remaining: usize,
}

/// Store statistics, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// The revision of the last durable write.
    pub revision: Revision,
    /// The oldest revision that can be listed or watched from.
    pub oldest: Revision,
    /// The number of objects.
    pub keys: usize,
    /// The total size of their values.
    pub bytes: usize,
    /// The number of events in the log.
    pub log: usize,
    /// The size of the values that only the log holds.
    pub log_bytes: usize,
    /// The number of open watches.
    pub watchers: usize,
    /// How long the last commit took.
    pub last_commit: Duration,
}

/// A handle to the store. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub struct Store(Arc<Handle>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

struct Handle {
    shared: Arc<Shared>,
    backend: WriteBackend,
}

/// Where writes are processed.
enum WriteBackend {
    /// A writer thread commits them to the disk.
    Thread {
        requests: Option<mpsc::Sender<Request>>,
        /// Limits the size of queued bodies, so that a burst of writes cannot exhaust memory.
        queue_budget: MemoryBudget,
        writer: Option<JoinHandle<()>>,
    },
    /// The calling task processes them, one at a time.
    Inline(Mutex<InMemoryWriter>),
}

const QUEUE_BUDGET: usize = 32 << 20;

impl Drop for Handle {
    /// Finishes the queued writes, then closes the file, so that it can be opened again at once.
    fn drop(&mut self) {
        let WriteBackend::Thread { requests, writer, .. } = &mut self.backend else { return };
        drop(requests.take());
        if let Some(writer) = writer.take() {
            let _ = writer.join(); // The panic hook has reported a panic already.
        }
    }
}

/// State shared by readers, watchers and the writer.
struct Shared {
    state: RwLock<State>,
    signal: WatchSignal,
    watchers: AtomicUsize,
    commit_micros: AtomicU64,
}

/// Wakes watchers in the order in which they wait, so that on one thread the order is deterministic.
#[derive(Default)]
struct WatchSignal {
    wake: Notify,
    closed: AtomicBool,
}

/// The writer's handle. Dropping it closes all watches.
struct Publisher(Arc<Shared>);

impl Publisher {
    fn notify_watchers(&self) {
        self.0.signal.wake.notify_waiters();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.0.signal.closed.store(true, Ordering::Release);
        self.notify_watchers();
    }
}

impl Shared {
    fn new(state: State) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(state),
            signal: WatchSignal::default(),
            watchers: AtomicUsize::new(0),
            commit_micros: AtomicU64::new(0),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens the store in a directory, creating it if necessary. Only one process may have it open. A new store begins
    /// above the revisions of every earlier store, as [`Store::restore`] describes.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        let (disk, state) = Disk::open(dir, options.sync)?;
        Ok(Self::start(disk, state, options))
    }

    /// Creates a store in memory that is dropped with its last handle. It has no writer thread: [`Store::write`]
    /// completes in the calling task. For deterministic tests.
    pub fn in_memory(options: Options) -> Self {
        let shared = Shared::new(State::empty());
        let writer = InMemoryWriter::new(Publisher(shared.clone()), options);
        Self(Arc::new(Handle { shared, backend: WriteBackend::Inline(Mutex::new(writer)) }))
    }

    fn start(disk: Disk, state: State, options: Options) -> Self {
        let shared = Shared::new(state);
        let (requests, receiver) = mpsc::channel();
        let writer = Writer::new(disk, Publisher(shared.clone()), receiver, options);
        let backend = WriteBackend::Thread {
            requests: Some(requests),
            queue_budget: MemoryBudget::new(QUEUE_BUDGET),
            writer: Some(std::thread::spawn(move || writer.run())),
        };
        Self(Arc::new(Handle { shared, backend }))
    }

    /// The revision of the last durable write.
    pub fn revision(&self) -> Revision {
        self.0.shared.read().revision()
    }

    /// The object at a key.
    pub fn get(&self, key: &str) -> Option<Entry> {
        self.0.shared.read().get(key)
    }

    /// Performs one write and returns when it is durable. Dropping the future does not cancel the write. For a
    /// deletion, the entry is the last state as watchers receive it.
    pub async fn write(&self, key: Key, change: Change) -> Result<Entry, WriteError> {
        let (requests, queue_budget) = match &self.0.backend {
            WriteBackend::Thread { requests, queue_budget, .. } => (requests, queue_budget),
            WriteBackend::Inline(writer) => {
                return writer.lock().unwrap_or_else(PoisonError::into_inner).write(key, &change);
            }
        };
        let (Change::Create(body) | Change::Update(_, body) | Change::Delete(_, body)) = &change;
        let share = queue_budget.acquire(body.json.len()).await.ok_or(Failure::Closed)?;
        let (reply, response) = oneshot::channel();
        let request = Request { key, change, reply, _share: share };
        let requests = requests.as_ref().ok_or(Failure::Closed)?;
        requests.send(request).map_err(|_| Failure::Closed)?;
        response.await.map_err(|_| Failure::Closed)?
    }

    /// Lists the objects whose keys start with `prefix`, ordered by key: the current ones or those at revision `at`,
    /// only those after the key `after`, and at most `limit` (0: all).
    pub fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, ListError> {
        self.0.shared.read().list(prefix, at, after, limit)
    }

    /// Watches all writes after a revision to keys that start with `prefix`.
    pub fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, ListError> {
        self.0.shared.read().check_revision(from)?;
        Ok(Watch::new(self.0.shared.clone(), prefix, from))
    }

    /// The writes after a revision to keys that start with `prefix`, and the revision up to which they are complete.
    pub fn events_since(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<(Vec<Arc<Event>>, Revision), ListError> {
        let state = self.0.shared.read();
        state.check_revision(from)?;
        let events = state.since(from).map(|record| &record.event);
        let events = events.filter(|event| event.key.starts_with(prefix)).cloned().collect();
        Ok((events, state.revision()))
    }

    /// Writes all current objects to a new file. The file is complete or does not exist.
    pub async fn backup(&self, to: &Path) -> Result<Revision, BackupError> {
        let (shared, to): (_, PathBuf) = (self.0.shared.clone(), to.into());
        let task = tokio::task::spawn_blocking(move || backup::backup(&shared, &to));
        task.await.map_err(|_| BackupError::Stopped)?
    }

    /// Creates a store from a backup, in a directory without one. Revisions continue far above any that clients can
    /// have seen, so clients that watched the lost store list again and miss nothing.
    pub fn restore(from: &Path, dir: &Path) -> Result<Revision, RestoreError> {
        backup::restore(from, dir)
    }

    /// Current statistics.
    pub fn stats(&self) -> Stats {
        let shared = &self.0.shared;
        let state = shared.read();
        Stats {
            revision: state.revision(),
            oldest: state.oldest(),
            keys: state.keys(),
            bytes: state.bytes(),
            log: state.log_len(),
            log_bytes: state.log_bytes(),
            watchers: shared.watchers.load(Ordering::Relaxed),
            last_commit: Duration::from_micros(shared.commit_micros.load(Ordering::Relaxed)),
        }
    }
}
