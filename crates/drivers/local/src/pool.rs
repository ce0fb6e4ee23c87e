//! A pool: a directory of images, each with a durable record. Guarantees:
//!
//! - Intent before effect. A record says `creating`, `copying`, `growing` or `deleting` before anything
//!   happens, and [`Pool::open`] finishes or undoes whatever a crash interrupted.
//! - Objects are deleted only by moving them to the trash as a whole, with one rename. A background thread empties
//!   the trash.
//! - Inconsistencies (an image without a record, an unreadable record, an unknown file) are reported and not
//!   touched. The affected id is neither used nor overwritten.
//! - No mutex is held across a system call, except those that serialize freezes and admissions.
//!
//! Start reading at [`open`](Pool::open) and `volumes.rs`.

mod blocks;
mod check;
mod copy;
mod devices;
mod expand;
mod groups;
mod health;
mod identity;
mod list;
mod load;
mod loops;
mod open;
mod publish;
mod recover;
mod reflink;
mod snapshots;
mod space;
mod trash;
mod volumes;

use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use wharf_driver::backend::{BackendError, Topology};
use wharf_linux::{FsUsage, Kernel};

use crate::Config;
use crate::account::Account;
use crate::fault::{During as _, Fault};
use crate::index::Index;
use crate::locks::{VolumeLock, VolumeLocks};
use crate::plan;
use crate::record::{GroupRecord, Phase, SnapshotRecord, VolumeRecord};
use crate::store::{self, Store};

pub use check::{Finding, Severity};
pub use list::{GroupEntry, PoolContents, PoolEntry, SnapshotEntry, VolumeEntry};
pub use open::{Inspection, Maintenance, OpenError};
pub use trash::PurgedPath;

use copy::Copies;
use trash::Trash;

/// An open pool, with the two threads that copy images and empty the trash. Dropping it stops them (the next
/// start resumes a running copy) and releases the pool's lock.
pub struct Pool {
    core: Arc<PoolCore>,
    workers: Vec<JoinHandle<()>>,
}

/// The operations of a pool; [`Pool`] dereferences to it.
pub struct PoolCore {
    store: Store,
    config: Config,
    uuid: String,
    reflink: bool,
    index: Mutex<Index>,
    /// Unknown files found in the directory at startup.
    load_findings: Vec<Finding>,
    locks: VolumeLocks,
    copies: Copies,
    trash: Trash,
    /// One new promise of space at a time.
    admission: Mutex<()>,
    /// The last account for metrics and health, and when it was computed.
    recent_account: Mutex<Option<(Instant, Account)>>,
    /// One freeze at a time: there is only one intent file.
    freezing: Mutex<()>,
    /// The fullness that was logged last, so that each change is logged once.
    logged_fullness: AtomicU8,
    /// The pool's file lock, which excludes a second driver; `None` for read-only access.
    _pool_lock: Option<Box<dyn Send + Sync>>,
}

impl std::ops::Deref for Pool {
    type Target = PoolCore;

    fn deref(&self) -> &PoolCore {
        &self.core
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.copies.stop();
        self.core.trash.stop();
        for worker in self.workers.drain(..) {
            // A panic was already reported by the panic hook.
            let _ = worker.join();
        }
    }
}

impl PoolCore {
    /// Whether the pool's file system supports reflinks, which makes snapshots instant.
    pub fn can_reflink(&self) -> bool {
        self.reflink
    }

    /// The pool's UUID, assigned when it was created.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    fn kernel(&self) -> &dyn Kernel {
        &*self.store.kernel
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Each call leaves the index consistent, so a panic elsewhere does not invalidate it.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topology(&self) -> Vec<Topology> {
        vec![plan::topology_of(&self.config.node_id)]
    }

    /// Refuses an id whose record cannot be read.
    fn refuse_broken(&self, id: &str) -> Result<(), BackendError> {
        match self.index().broken(id) {
            Some(reason) => Err(BackendError::Internal(format!("{id} cannot be used: {reason}"))),
            None => Ok(()),
        }
    }

    /// A volume that is `Ready`.
    fn ready_volume(&self, id: &str) -> Result<Option<VolumeRecord>, BackendError> {
        self.refuse_broken(id)?;
        Ok(self.index().volume(id).filter(|record| record.state == Phase::Ready).cloned())
    }

    /// Locks a snapshot that is `Ready`, so that it stays as it is. `None` if it does not exist.
    fn lock_ready_snapshot(
        &self,
        id: &str,
    ) -> Result<Option<(VolumeLock<'_>, SnapshotRecord)>, BackendError> {
        self.refuse_broken(id)?;
        if self.index().snapshot(id).is_none() {
            return Ok(None);
        }
        let lock = self.locks.shared(id)?;
        let Some(record) = self.index().snapshot(id).cloned() else { return Ok(None) };
        match record.state {
            Phase::Ready => Ok(Some((lock, record))),
            _ => Err(BackendError::Unavailable(format!("{}: retry when it is ready", self.progress(id)))),
        }
    }

    fn save_volume(&self, record: VolumeRecord) -> Result<(), Fault> {
        let path = store::record_of(&record.id);
        self.store.save_reserved(&path, &record).during("write its record", &record.id)?;
        self.index().put_volume(record);
        Ok(())
    }

    /// Reserves blocks for the record of a volume, so that it can be detached from a full pool.
    fn reserve_record(&self, record: &VolumeRecord) -> Result<(), Fault> {
        let path = store::record_of(&record.id);
        self.store.reserve(&path, record).during("reserve blocks for its record", &record.id)
    }

    fn save_snapshot(&self, record: SnapshotRecord) -> Result<(), Fault> {
        self.store.save(&store::record_of(&record.id), &record).during("write its record", &record.id)?;
        self.index().put_snapshot(record);
        Ok(())
    }

    fn save_group(&self, record: GroupRecord) -> Result<(), Fault> {
        self.store.save(&store::record_of(&record.id), &record).during("write its record", &record.id)?;
        self.index().put_group(record);
        Ok(())
    }

    /// Creates the directory of a new volume or snapshot. The caller writes the record next.
    fn create_dir(&self, id: &str) -> Result<(), Fault> {
        self.kernel().create_dir(&self.store.at(&store::dir_of(id))).during("create its directory", id)?;
        self.store.sync(Path::new(store::collection_of(id))).during("make its directory durable", id)
    }

    /// Makes a finished image durable and returns its inode.
    fn persist_image(&self, id: &str) -> Result<u64, Fault> {
        let image = store::image_of(id);
        let stat = self.store.stat(&image).during("stat its image", id)?;
        let Some(stat) = stat else {
            let reason = "disappeared while it was being created".to_owned();
            let source =
                Box::new(wharf_linux::Error::InvalidState { path: self.store.root.join(image), reason });
            return Err(Fault { object: id.to_owned(), step: "make its image durable", source });
        };
        self.store.sync(&image).during("make its image durable", id)?;
        self.store.sync(&store::dir_of(id)).during("make its image durable", id)?;
        Ok(stat.id.inode)
    }

    fn usage(&self) -> Result<FsUsage, Fault> {
        self.kernel().usage(&self.store.root).during("read its free space", "the pool")
    }

    /// Readiness: the pool is still mounted, and it is still the same pool.
    pub fn ready(&self) -> Result<(), String> {
        let record = self.store.load::<crate::record::PoolRecord>(Path::new(store::POOL), None);
        match record.map_err(|error| error.to_string())? {
            Some(record) if record.uuid == self.uuid => Ok(()),
            Some(record) => Err(format!(
                "another pool ({}) is now mounted at {}, but this driver serves {}: restart the driver",
                record.uuid,
                self.store.root.display(),
                self.uuid
            )),
            None => Err(format!(
                "{} is no longer a pool: check that its disk is mounted",
                self.store.root.display()
            )),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded data changes only by complete assignments, so it is valid even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
