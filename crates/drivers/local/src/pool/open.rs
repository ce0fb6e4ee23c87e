//! Opening a pool: for a driver, for an operator who changes something, or just to look. The first two take
//! the lock and recover; looking takes none and changes nothing, so it works beside a running driver.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wharf_linux::{Beneath, Kernel, PathKind, random_uuid};

use super::check::{Finding, Severity};
use super::copy::{self, Copies};
use super::list::Contents;
use super::load::{Loaded, load};
use super::trash::{self, Purged, Trash};
use super::{Core, Pool};
use crate::Config;
use crate::config::ConfigError;
use crate::fault::During as _;
use crate::record::{Moment, PoolRecord, VERSION};
use crate::store::{self, LoadError, Store};

/// How long the lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Why a pool was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no such directory.
    #[error("the pool {} does not exist: create the directory, or mount its disk first", .0.display())]
    Missing(PathBuf),
    /// It is something else.
    #[error("the pool {} is not a directory (symlinks are not followed): give the directory itself", .0.display())]
    NotADirectory(PathBuf),
    /// It is a directory, but not of a pool.
    #[error(
        "{} is no pool, and a new one is only made in an empty directory; it holds {found}",
        pool.display()
    )]
    NotEmpty {
        /// The directory.
        pool: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// There is no pool to look at.
    #[error("{} is no pool: it has no pool.json", .0.display())]
    NoPool(PathBuf),
    /// Another process has it.
    #[error("the pool {} is in use by another process: stop that driver first", .0.display())]
    Locked(PathBuf),
    /// The pool's own record is newer or damaged.
    #[error("{0}")]
    Record(String),
    /// The kernel refused.
    #[error("the pool could not be opened: {0}")]
    Kernel(#[from] wharf_linux::Error),
}

impl From<LoadError> for OpenError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Record(error) => Self::Record(error.to_string()),
            LoadError::Kernel(error) => Self::Kernel(error),
        }
    }
}

impl Pool {
    /// Opens a pool to serve it: takes the lock, makes the pool if the directory is empty, finishes or undoes
    /// what was in flight, reports what does not add up, and resumes copies and the emptying of the trash.
    pub fn open(kernel: Arc<dyn Kernel>, config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let store = Store { kernel, root: config.pool.clone() };
        let core = Arc::new(Core::open(store, config, true)?);
        core.report();
        let workers = vec![copy::spawn(Arc::clone(&core)), trash::spawn(Arc::clone(&core))];
        Ok(Self { core, workers })
    }

    /// Opens a pool for an operator who changes something while no driver runs: lock and recovery, but
    /// nothing goes on in the background.
    pub fn open_maintenance(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<Maintenance, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        let core = Core::open(store, Config::new("maintenance", pool), false)?;
        Ok(Maintenance { core })
    }

    /// Opens a pool to look at it; also while a driver runs.
    pub fn open_read_only(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<Inspection, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        must_be_directory(&store)?;
        let record: PoolRecord =
            store.load(Path::new(store::POOL), None)?.ok_or_else(|| OpenError::NoPool(pool.to_owned()))?;
        let loaded = load(&store)?;
        let purgeable = loaded.purgeable();
        let core = Core::new(store, Config::new("inspection", pool), record.uuid, false, loaded, None);
        Ok(Inspection { core, purgeable })
    }
}

/// A pool that is only looked at.
pub struct Inspection {
    core: Core,
    purgeable: Vec<Purged>,
}

impl Inspection {
    /// What the pool holds.
    pub fn list(&self) -> Result<Contents, String> {
        self.core.contents()
    }

    /// What does not add up. What a running driver is just doing shows as information.
    pub fn check(&self) -> Vec<Finding> {
        self.core.check()
    }

    /// What [`Maintenance::purge`] would remove.
    pub fn purgeable(&self) -> &[Purged] {
        &self.purgeable
    }
}

/// A pool under an operator's hands.
pub struct Maintenance {
    core: Core,
}

impl Maintenance {
    /// What the pool holds.
    pub fn list(&self) -> Result<Contents, String> {
        self.core.contents()
    }

    /// What does not add up.
    pub fn check(&self) -> Vec<Finding> {
        self.core.check()
    }

    /// Empties the trash; answers what was removed. (What a crash had left unfinished was undone by opening.)
    pub fn purge(&self) -> Result<Vec<Purged>, String> {
        self.core.purge_all()
    }

    /// Accepts the image that is there now as the volume's or snapshot's own, after the operator has made
    /// sure that it is: a pool that was restored from a backup has all its images in new files.
    pub fn adopt(&self, id: &str) -> Result<(), String> {
        self.core.adopt(id)
    }
}

impl Core {
    fn new(
        store: Store,
        config: Config,
        uuid: String,
        reflink: bool,
        loaded: Loaded,
        lock: Option<Box<dyn Send + Sync>>,
    ) -> Self {
        Self {
            store,
            config,
            uuid,
            reflink,
            trash: Trash::new(loaded.trash),
            found: loaded.findings,
            index: Mutex::new(loaded.index),
            claims: Default::default(),
            copies: Copies::default(),
            freezing: Mutex::new(()),
            said: AtomicU8::new(0),
            _lock: lock,
        }
    }

    fn open(store: Store, config: Config, may_create: bool) -> Result<Self, OpenError> {
        must_be_directory(&store)?;
        let pool = Path::new(store::POOL);
        // Before the lock: not even a lock file is left in a directory that is none of ours.
        if store.load::<PoolRecord>(pool, None)?.is_none() {
            if !may_create {
                return Err(OpenError::NoPool(store.root));
            }
            must_be_empty(&store)?;
        }
        let lock = take_lock(&store)?;
        let record = match store.load::<PoolRecord>(pool, None)? {
            Some(record) => record,
            None => create(&store)?,
        };
        // Not only when it is new: the first start may have been cut short behind pool.json.
        for dir in [store::VOLUMES, store::SNAPSHOTS, store::GROUPS, store::TRASH] {
            store.kernel.create_dir(&store.at(Path::new(dir)))?;
        }
        store.sync(Path::new("."))?;
        let reflink = can_reflink(&store)?;
        let loaded = load(&store)?;
        let leftovers = loaded.leftovers.clone();
        tracing::info!(
            pool = %store.root.display(), uuid = record.uuid, reflink,
            volumes = loaded.index.volumes().count(), snapshots = loaded.index.snapshots().count(),
            "pool opened"
        );
        let core = Self::new(store, config, record.uuid, reflink, loaded, Some(lock));
        core.recover(&leftovers)?;
        Ok(core)
    }

    /// Says what does not add up.
    fn report(&self) {
        for finding in self.check().iter().filter(|finding| finding.severity > Severity::Info) {
            tracing::warn!(object = finding.object, problem = finding.problem, way_out = finding.way_out);
        }
    }
}

/// Takes the pool's lock, with a little patience: a driver that was just killed may have had a child between
/// fork and exec, which holds the lock for a moment longer.
fn take_lock(store: &Store) -> Result<Box<dyn Send + Sync>, OpenError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match store.kernel.try_lock(&store.at(Path::new(store::LOCK)))? {
            Some(lock) => return Ok(lock),
            None if Instant::now() < until => std::thread::sleep(LOCK_PATIENCE / 40),
            None => return Err(OpenError::Locked(store.root.clone())),
        }
    }
}

/// Whether images can share extents. A pool that has not even room to try is asked by its lock, which is empty:
/// sharing that with itself takes no room, and a file system that cannot share says so all the same. A wrong
/// "no" would harm nothing, and a full pool makes no snapshots anyway; but it must start, to be emptied.
fn can_reflink(store: &Store) -> Result<bool, OpenError> {
    match store.kernel.can_reflink(&store.root).during("try whether extents can be shared", "the pool") {
        Err(fault) if fault.is_full() => {
            let lock = store.at(Path::new(store::LOCK));
            let shared = store.kernel.reflink(&lock, &lock);
            tracing::warn!(reflink = shared.is_ok(), "the pool has no room at all");
            Ok(shared.is_ok())
        }
        answer => answer.map_err(|fault| OpenError::Kernel(*fault.source)),
    }
}

fn must_be_directory(store: &Store) -> Result<(), OpenError> {
    match store.kernel.path_kind(&store.root)? {
        Some(PathKind::Directory) => Ok(()),
        Some(_) => Err(OpenError::NotADirectory(store.root.clone())),
        None => Err(OpenError::Missing(store.root.clone())),
    }
}

/// What may be in a directory that becomes a pool: what mkfs puts there, and what a first start that was cut
/// short leaves.
fn must_be_empty(store: &Store) -> Result<(), OpenError> {
    let unfinished = format!("{}{}", store::POOL, store::UNFINISHED);
    let names = store.list(Path::new("."))?;
    let ours = |name: &String| name == "lost+found" || name == store::LOCK || *name == unfinished;
    match names.into_iter().find(|name| !ours(name)) {
        Some(found) => Err(OpenError::NotEmpty { pool: store.root.clone(), found }),
        None => Ok(()),
    }
}

fn create(store: &Store) -> Result<PoolRecord, OpenError> {
    let record = PoolRecord { version: VERSION, uuid: random_uuid()?, created: Moment::now() };
    let path = Path::new(store::POOL);
    wharf_linux::write_durably(
        &*store.kernel,
        &Beneath::new(&store.root, path),
        &crate::record::to_bytes(&record),
    )?;
    Ok(record)
}
