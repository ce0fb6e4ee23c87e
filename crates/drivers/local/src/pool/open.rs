//! Opening a pool: for the driver, for maintenance, or read-only. The first two take the lock and recover. Read-only
//! access takes no lock and changes nothing, so it works while a driver runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wharf_linux::{FsType, Kernel, PathBeneath, PathKind, random_uuid};

use super::check::{Finding, Severity};
use super::copy::{self, Copies};
use super::identity::{IdentityProblem, PoolIdFile, StartAction, start_action};
use super::list::PoolContents;
use super::load::{Loaded, load};
use super::recover::{Unseen, thaw_interrupted};
use super::trash::{self, PurgedPath, Trash};
use super::{Pool, PoolCore};
use crate::Config;
use crate::config::ConfigError;
use crate::fault::During as _;
use crate::record::{PoolRecord, Timestamp, VERSION};
use crate::store::{self, LoadError, Store};

/// How long to wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory does not exist.
    #[error("the pool {} does not exist: create the directory, or mount its disk first", .0.display())]
    Missing(PathBuf),
    /// The path is not a directory.
    #[error("the pool {} is not a directory (symlinks are not followed): specify the directory itself", .0.display())]
    NotADirectory(PathBuf),
    /// The directory is neither a pool nor empty.
    #[error(
        "{} is not a pool, and a new pool is only created in an empty directory; it contains {found}",
        pool.display()
    )]
    NotEmpty {
        /// The directory.
        pool: PathBuf,
        /// One of the entries in it.
        found: String,
    },
    /// The directory is not a pool.
    #[error(
        "{} is not a pool (it has no pool.json): if it is the mount point of a disk, mount the disk; to create a new \
         pool, run `wharf local init --pool {}`",
        .0.display(), .0.display()
    )]
    NoPool(PathBuf),
    /// The directory is not the pool that was served before.
    #[error(
        "{} is not pool {expected}, which this driver served before (see {}), but {found}: mount the disk of that \
         pool; if the pool and its volumes are lost for good, remove that file",
        pool.display(), file.display()
    )]
    OtherPool {
        /// The directory.
        pool: PathBuf,
        /// The identity of the pool served before.
        expected: String,
        /// What the directory contains.
        found: String,
        /// The pool-id file.
        file: PathBuf,
    },
    /// The pool-id file cannot be used.
    #[error("the pool-id file {} {reason}", file.display())]
    PoolIdFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
    /// Another process holds the lock.
    #[error("the pool {} is in use by another process: stop that driver first", .0.display())]
    Locked(PathBuf),
    /// The pool's own record is newer or damaged.
    #[error("{0}")]
    Record(String),
    /// A system call failed.
    #[error("failed to open the pool: {0}")]
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
    /// Creates a pool in an empty directory and returns its identity. An existing pool is success.
    pub fn init(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<String, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        let config = Config { create_pool: true, ..Config::new("init", pool) };
        Ok(PoolCore::lock_pool(&store, &config)?.0.uuid)
    }

    /// Opens a pool to serve it: takes the lock, finishes or undoes interrupted operations, logs inconsistencies, and
    /// resumes copies and the emptying of the trash. Creates the pool only if the configuration allows it.
    pub fn open(kernel: Arc<dyn Kernel>, config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let store = Store { kernel, root: config.pool.clone() };
        let core = Arc::new(PoolCore::open(store, config)?);
        core.report();
        let workers = vec![copy::spawn(Arc::clone(&core)), trash::spawn(Arc::clone(&core))];
        Ok(Self { core, workers })
    }

    /// Thaws file systems that a driver froze before it was killed together with the process that holds the freeze, as
    /// happens if the driver is process 1 of its container. Does nothing while a driver runs. Returns whether it found
    /// such a freeze.
    pub fn thaw_abandoned(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<bool, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        must_be_directory(&store)?;
        // Else it would look for a freeze in the directory below a disk that is not mounted here.
        if store.stat(Path::new(store::POOL))?.is_none() {
            return Err(OpenError::NoPool(pool.to_owned()));
        }
        if store.stat(Path::new(store::FREEZE))?.is_none() {
            return Ok(false);
        }
        let Some(_lock) = store.kernel.try_lock(&store.at(Path::new(store::LOCK)))? else { return Ok(false) };
        Ok(thaw_interrupted(&store, Unseen::Keep)?)
    }

    /// Opens a pool for an operator while no driver runs: takes the lock and recovers, but starts no background
    /// threads.
    pub fn open_maintenance(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<Maintenance, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        let core = PoolCore::open(store, Config::new("maintenance", pool))?;
        Ok(Maintenance { core })
    }

    /// Opens a pool read-only. Works while a driver runs.
    pub fn open_read_only(kernel: Arc<dyn Kernel>, pool: &Path) -> Result<Inspection, OpenError> {
        let store = Store { kernel, root: pool.to_owned() };
        must_be_directory(&store)?;
        let record: PoolRecord =
            store.load(Path::new(store::POOL), None)?.ok_or_else(|| OpenError::NoPool(pool.to_owned()))?;
        let loaded = load(&store)?;
        let purgeable = loaded.purgeable();
        // Probing for reflinks would write. On these file systems blocks may be shared, which only the account uses here.
        let table = store.kernel.mount_table()?;
        let shares = |fs: &str| fs == FsType::Xfs.as_str() || fs == FsType::Btrfs.as_str();
        let reflink = pool
            .canonicalize()
            .is_ok_and(|path| table.holding(&path).is_some_and(|mount| shares(&mount.fs_type)));
        let core = PoolCore::new(store, Config::new("inspection", pool), record.uuid, reflink, loaded, None);
        Ok(Inspection { core, purgeable })
    }
}

/// A pool opened read-only.
pub struct Inspection {
    core: PoolCore,
    purgeable: Vec<PurgedPath>,
}

impl Inspection {
    /// The pool's contents.
    pub fn list(&self) -> Result<PoolContents, String> {
        self.core.contents()
    }

    /// The pool's inconsistencies. Operations of a running driver appear as [`Severity::Info`].
    pub fn check(&self) -> Vec<Finding> {
        self.core.check()
    }

    /// What [`Maintenance::purge`] would remove.
    pub fn purgeable(&self) -> &[PurgedPath] {
        &self.purgeable
    }
}

/// A pool opened for maintenance by an operator.
pub struct Maintenance {
    core: PoolCore,
}

impl Maintenance {
    /// The pool's contents.
    pub fn list(&self) -> Result<PoolContents, String> {
        self.core.contents()
    }

    /// The pool's inconsistencies.
    pub fn check(&self) -> Vec<Finding> {
        self.core.check()
    }

    /// Empties the trash and returns what was removed. (Opening the pool already removed leftovers of a crash.)
    pub fn purge(&self) -> Result<Vec<PurgedPath>, String> {
        self.core.purge_all()
    }

    /// Accepts the current image file as the volume's or snapshot's own. The operator vouches for it: a pool
    /// restored from a backup has all its images in new files.
    pub fn adopt(&self, id: &str) -> Result<(), String> {
        self.core.adopt(id)
    }
}

impl PoolCore {
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
            load_findings: loaded.findings,
            index: Mutex::new(loaded.index),
            locks: Default::default(),
            copies: Copies::default(),
            admission: Mutex::new(()),
            recent_account: Mutex::default(),
            freezing: Mutex::new(()),
            logged_fullness: AtomicU8::new(0),
            _pool_lock: lock,
        }
    }

    /// Locks the pool that the configuration allows, and creates it if it allows that.
    fn lock_pool(store: &Store, config: &Config) -> Result<(PoolRecord, Box<dyn Send + Sync>), OpenError> {
        must_be_directory(store)?;
        let id_file =
            config.pool_id_file.as_deref().map(|path| PoolIdFile::new(&*store.kernel, path)).transpose()?;
        let remembered = id_file.as_ref().map(PoolIdFile::read).transpose()?.flatten();
        let pool = Path::new(store::POOL);
        let decide = |record: &Option<PoolRecord>| {
            let found = record.as_ref().map(|record| record.uuid.as_str());
            start_action(found, remembered.as_deref(), config.create_pool).map_err(|problem| {
                let other = |found: String| OpenError::OtherPool {
                    pool: store.root.clone(),
                    expected: remembered.clone().unwrap_or_default(),
                    found,
                    file: config.pool_id_file.clone().unwrap_or_default(),
                };
                match problem {
                    IdentityProblem::NoPool => OpenError::NoPool(store.root.clone()),
                    IdentityProblem::Lost => other("no pool at all".to_owned()),
                    IdentityProblem::Other => other(format!("pool {}", found.unwrap_or_default())),
                }
            })
        };
        // Before the lock: a directory that is not a pool must not even get a lock file.
        if decide(&store.load(pool, None)?)? == StartAction::Create {
            must_be_empty(store)?;
        }
        let lock = acquire_lock(store)?;
        let record = store.load(pool, None)?;
        let action = decide(&record)?;
        let record = match record {
            Some(record) => record,
            None => {
                // Another disk may have been mounted before the lock was taken.
                must_be_empty(store)?;
                create(store)?
            }
        };
        if let Some(file) = id_file.filter(|_| action != StartAction::Serve) {
            file.write(&record.uuid)?;
        }
        Ok((record, lock))
    }

    fn open(store: Store, config: Config) -> Result<Self, OpenError> {
        let (record, lock) = Self::lock_pool(&store, &config)?;
        // Not only for a new pool: the first start may have been interrupted after it wrote pool.json.
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
            "opened pool"
        );
        let core = Self::new(store, config, record.uuid, reflink, loaded, Some(lock));
        core.recover(&leftovers)?;
        Ok(core)
    }

    /// Logs the pool's inconsistencies.
    fn report(&self) {
        for finding in self.check().iter().filter(|finding| finding.severity > Severity::Info) {
            tracing::warn!(
                object = finding.object,
                problem = finding.problem,
                remedy = finding.remedy,
                "pool is inconsistent"
            );
        }
    }
}

/// Takes the pool's lock. Waits briefly: a child of a killed driver, between fork and exec, can hold the lock a moment
/// longer. If the pool's disk is mounted in the meantime, the lock file was that of the directory below; then the lock
/// file of the mounted disk is locked instead.
fn acquire_lock(store: &Store) -> Result<Box<dyn Send + Sync>, OpenError> {
    let until = Instant::now() + LOCK_TIMEOUT;
    let identity = || Ok::<_, OpenError>(store.stat(Path::new(store::LOCK))?.map(|stat| stat.id));
    loop {
        let before = identity()?;
        match store.kernel.try_lock(&store.at(Path::new(store::LOCK)))? {
            Some(lock) if before.is_some() && identity()? == before => return Ok(lock),
            // It was created, or it is another file now.
            Some(_) if Instant::now() < until => {}
            None if Instant::now() < until => std::thread::sleep(LOCK_TIMEOUT / 40),
            _ => return Err(OpenError::Locked(store.root.clone())),
        }
    }
}

/// Whether the file system supports reflinks. If it has no space for the probe files, reflink the empty lock file to
/// itself: that needs no space, and still fails on a file system without reflinks. A wrong "no" is harmless, because
/// a full pool creates no snapshots anyway; but the pool must start so that it can be emptied.
fn can_reflink(store: &Store) -> Result<bool, OpenError> {
    match store.kernel.can_reflink(&store.root).during("probe for reflink support", "the pool") {
        Err(fault) if fault.is_full() => {
            let lock = store.at(Path::new(store::LOCK));
            let shared = store.kernel.reflink(&lock, &lock);
            tracing::warn!(reflink = shared.is_ok(), "pool has no free blocks");
            Ok(shared.is_ok())
        }
        result => result.map_err(|fault| OpenError::Kernel(*fault.source)),
    }
}

fn must_be_directory(store: &Store) -> Result<(), OpenError> {
    match store.kernel.path_kind(&store.root)? {
        Some(PathKind::Directory) => Ok(()),
        Some(_) => Err(OpenError::NotADirectory(store.root.clone())),
        None => Err(OpenError::Missing(store.root.clone())),
    }
}

/// A new pool's directory must contain only what mkfs creates and what an interrupted first start leaves.
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
    let record = PoolRecord { version: VERSION, uuid: random_uuid()?, created: Timestamp::now() };
    let path = Path::new(store::POOL);
    wharf_linux::write_durably(
        &*store.kernel,
        &PathBeneath::new(&store.root, path),
        &crate::record::to_bytes(&record),
    )?;
    Ok(record)
}
