//! Objects by key, with one global revision: what etcd is to a cluster.
//!
//! A write is acknowledged, and seen by readers and watchers, when it is durable; one that fails is seen by nobody.
//! Writers are one thread that commits whatever waits in one go. All objects and the tail of the log are in memory;
//! a list is a copy of handles, a watcher is a cursor into the shared log and costs nothing while nothing happens.
//! What is older than the log is gone ([`ListError::Compacted`]).
//!
//! ```text
//! write() → writer: plan (judge each, pure) → disk (one commit) → state (publish) → answers, watchers wake
//!           get(), list() ← state                                   watch() ← state: the log
//! ```

mod base;
mod copy;
mod disk;
mod guard;
mod memory;
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
use tokio::sync::{Notify, Semaphore, oneshot};

pub use self::copy::{BackupError, RestoreError};
use self::disk::Disk;
pub use self::disk::OpenError;
use self::memory::Memory;
use self::state::State;
pub use self::watch::{Seen, Watch, WatchEnd};
use self::writer::{Request, Writer};

/// One for the whole store; each write takes the next. Never 0 for an object.
pub type Revision = u64;

/// `group/plural/namespace/name`; the core group and cluster scope leave theirs empty (`/nodes//n1`).
pub type Key = Arc<str>;

/// An object as it is stored: JSON in which `metadata.resourceVersion` is its revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub key: Key,
    /// Of the write that made it so.
    pub revision: Revision,
    /// JSON.
    pub value: Bytes,
}

/// JSON with a place for the revision, which is known only when the write is done.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    /// JSON with `"resourceVersion":""` in it.
    pub json: Bytes,
    /// Where, between those quotes, the digits go.
    pub at: usize,
    /// When the store forgets the object by itself, in milliseconds of wall time.
    pub expires: Option<i64>,
}

/// What is to be done with a key, and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There must be none yet.
    Create(Body),
    /// It must be at this revision.
    Update(Revision, Body),
    /// It must be at this revision. The body is what watchers are told: the object as it was, at the revision of
    /// its deletion.
    Delete(Revision, Body),
}

/// One write, as watchers see it.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// Of this write.
    pub revision: Revision,
    /// Whose.
    pub key: Key,
    /// The object now; at a deletion its last state, with the revision of the deletion in it.
    pub value: Bytes,
    /// It is gone.
    pub deleted: bool,
    /// The object before; none if it was created.
    pub previous: Option<Bytes>,
}

// Values may be Secrets: what is logged is where and how much, never what.
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
        let what = if self.deleted { "deleted" } else { "written" };
        write!(f, "{}@{} {what} ({} bytes)", self.key, self.revision, self.value.len())
    }
}

/// How a store is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether a commit waits for the disk. Without, a write survives the death of the process but not of the
    /// machine: for tests alone.
    pub sync: bool,
    /// How many events are kept for watchers that lag and lists of older revisions.
    pub history: usize,
    /// How many bytes of values that are no longer current they may hold.
    pub history_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: true, history: 10_000, history_bytes: 32 << 20 }
    }
}

/// Why a write was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// There is one already: this.
    #[error("{} exists at revision {}", .0.key, .0.revision)]
    Exists(Entry),
    /// It is at another revision: this is how it stands.
    #[error("{} is at revision {}, not at the one that the write rests on", .0.key, .0.revision)]
    Changed(Entry),
    /// There is none.
    #[error("there is no such object")]
    Missing,
    /// Not for any fault of its own. Whether it was done is not known after [`Failure::Disk`]: read again.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why the store could not do what it would have done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The disk refused. The store goes on if it can; else the next write is told [`Failure::Closed`].
    #[error("the write did not reach the disk: {0}")]
    Disk(Arc<str>),
    /// No more writes: the store was closed, or what is on disk is no longer certain.
    #[error("the store takes no more writes: restart to read what is on disk")]
    Closed,
    /// A mistake of the caller.
    #[error("the body has no empty resourceVersion at byte {0}")]
    NoPlace(usize),
}

/// Why there is no list, or watch, from a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It is forgotten.
    #[error("the revision is compacted; the oldest known is {oldest}")]
    Compacted {
        /// The oldest revision that can be listed or watched from.
        oldest: Revision,
    },
    /// It has not been yet.
    #[error("the revision is yet to come; the latest is {current}")]
    Future {
        /// The latest.
        current: Revision,
    },
}

/// Part of a list, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// By key.
    pub entries: Vec<Entry>,
    /// What all of them are the truth at.
    pub revision: Revision,
    /// There are more after the last of them.
    pub more: bool,
    /// How many.
    pub remaining: usize,
}

/// How the store does, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Of the last durable write.
    pub revision: Revision,
    /// The oldest that can be listed or watched from.
    pub oldest: Revision,
    /// Objects.
    pub keys: usize,
    /// Of their values.
    pub bytes: usize,
    /// Events kept.
    pub log: usize,
    /// Of values that only they hold.
    pub log_bytes: usize,
    /// Open watches.
    pub watchers: usize,
    /// How long the last commit took.
    pub last_commit: Duration,
}

/// The store. Clones are handles of one; it closes when the last is gone.
#[derive(Clone)]
pub struct Store(Arc<Handle>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(f)
    }
}

struct Handle {
    shared: Arc<Shared>,
    writes: Writes,
}

/// Who does the writes.
enum Writes {
    /// A thread, which commits them to the disk.
    Thread {
        requests: Option<mpsc::Sender<Request>>,
        /// In KiB of bodies: what may wait for the writer, so that a storm of writes cannot take all memory.
        room: Arc<Semaphore>,
        writer: Option<JoinHandle<()>>,
    },
    /// Whoever asks for them, one after the other.
    Here(Mutex<Memory>),
}

const ROOM_KIB: u32 = 32 << 10;

impl Drop for Handle {
    /// What was asked is done first; then the file is closed, so that it can be opened again at once.
    fn drop(&mut self) {
        let Writes::Thread { requests, writer, .. } = &mut self.writes else { return };
        drop(requests.take());
        if let Some(writer) = writer.take() {
            let _ = writer.join(); // If it panicked, that was reported by the panic.
        }
    }
}

/// What readers, watchers and the writer share.
struct Shared {
    state: RwLock<State>,
    published: Published,
    watchers: AtomicUsize,
    commit_micros: AtomicU64,
}

/// Wakes watchers in the order in which they wait, so that on one thread they are told the same way each time.
#[derive(Default)]
struct Published {
    wake: Notify,
    closed: AtomicBool,
}

/// The writer's end: when it is gone, watchers learn that.
struct Publish(Arc<Shared>);

impl Publish {
    /// A write is visible.
    fn published(&self) {
        self.0.published.wake.notify_waiters();
    }
}

impl Drop for Publish {
    fn drop(&mut self) {
        self.0.published.closed.store(true, Ordering::Release);
        self.published();
    }
}

impl Shared {
    fn new(state: State) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(state),
            published: Published::default(),
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
    /// Opens the store in a directory, which is made if there is none; one process at a time.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        let (disk, state) = Disk::open(dir, options.sync)?;
        Ok(Self::start(disk, state, options))
    }

    /// A store that is nowhere but in memory, and gone with its last handle. It has no thread: a write is done where it
    /// is asked for, at once. For tests that must run the same way twice.
    pub fn in_memory(options: Options) -> Self {
        let shared = Shared::new(State::empty());
        let memory = Memory::new(Publish(shared.clone()), options);
        Self(Arc::new(Handle { shared, writes: Writes::Here(Mutex::new(memory)) }))
    }

    fn start(disk: Disk, state: State, options: Options) -> Self {
        let shared = Shared::new(state);
        let (requests, waiting) = mpsc::channel();
        let writer = Writer::new(disk, Publish(shared.clone()), waiting, options);
        let writes = Writes::Thread {
            requests: Some(requests),
            room: Arc::new(Semaphore::new(ROOM_KIB as usize)),
            writer: Some(std::thread::spawn(move || writer.run())),
        };
        Self(Arc::new(Handle { shared, writes }))
    }

    /// Of the last durable write.
    pub fn revision(&self) -> Revision {
        self.0.shared.read().revision()
    }

    /// The object of a key.
    pub fn get(&self, key: &str) -> Option<Entry> {
        self.0.shared.read().get(key)
    }

    /// Does one change, and returns when it is durable. Dropping the future does not take it back. For a deletion
    /// the entry is the last state, as watchers see it.
    pub async fn write(&self, key: Key, change: Change) -> Result<Entry, WriteError> {
        let (requests, room) = match &self.0.writes {
            Writes::Thread { requests, room, .. } => (requests, room),
            Writes::Here(memory) => {
                return memory.lock().unwrap_or_else(PoisonError::into_inner).write(key, &change);
            }
        };
        let (Change::Create(body) | Change::Update(_, body) | Change::Delete(_, body)) = &change;
        let kib = u32::try_from(body.json.len() >> 10).unwrap_or(u32::MAX).saturating_add(1).min(ROOM_KIB);
        let room = room.clone().acquire_many_owned(kib).await.map_err(|_| Failure::Closed)?;
        let (answer, answered) = oneshot::channel();
        let request = Request { key, change, answer, _room: room };
        let requests = requests.as_ref().ok_or(Failure::Closed)?;
        requests.send(request).map_err(|_| Failure::Closed)?;
        answered.await.map_err(|_| Failure::Closed)?
    }

    /// The objects whose keys begin so, by key: as they are, or as they were at a revision; those after a key; at
    /// most `limit` (0: all).
    pub fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, ListError> {
        self.0.shared.read().list(prefix, at, after, limit)
    }

    /// All that happens after a revision to objects whose keys begin so.
    pub fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, ListError> {
        self.0.shared.read().reach(from)?;
        Ok(Watch::new(self.0.shared.clone(), prefix, from))
    }

    /// What happened after a revision to objects whose keys begin so, and up to where that is all.
    pub fn since(&self, prefix: &str, from: Revision) -> Result<(Vec<Arc<Event>>, Revision), ListError> {
        let state = self.0.shared.read();
        state.reach(from)?;
        let events = state.since(from).map(|record| &record.event);
        let events = events.filter(|event| event.key.starts_with(prefix)).cloned().collect();
        Ok((events, state.revision()))
    }

    /// Writes all objects, as they are now, to a new file, which is there whole or not at all.
    pub async fn backup(&self, to: &Path) -> Result<Revision, BackupError> {
        let (shared, to): (_, PathBuf) = (self.0.shared.clone(), to.into());
        let copying = tokio::task::spawn_blocking(move || copy::backup(&shared, &to));
        copying.await.map_err(|_| BackupError::Stopped)?
    }

    /// Makes a store of a backup, in a directory that has none. Revisions go on far above all that clients can
    /// have seen, so those that watched the lost store list again and miss nothing.
    pub fn restore(from: &Path, dir: &Path) -> Result<Revision, RestoreError> {
        copy::restore(from, dir)
    }

    /// How it does.
    pub fn figures(&self) -> Figures {
        let shared = &self.0.shared;
        let state = shared.read();
        Figures {
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
