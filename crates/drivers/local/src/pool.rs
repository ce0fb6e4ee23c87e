//! A pool: a directory of images with a durable record each. What it promises:
//!
//! - Intent before effect. A record says `creating`, `copying`, `growing` or `deleting` before anything
//!   happens, and [`Pool::open`] finishes or undoes whatever a crash left in between.
//! - Nothing is deleted but by moving it into the trash, as a whole and in one step; the trash is emptied in
//!   the background.
//! - What does not add up (an image without a record, a record that cannot be read, a file that is not ours)
//!   is reported and left alone; its id is neither used nor overwritten.
//! - No lock is held across a call of the kernel, except the one that keeps freezes apart.
//!
//! Start reading at [`open`](Pool::open) and `volumes.rs`.

mod blocks;
mod check;
mod copy;
mod cut;
mod devices;
mod expand;
mod groups;
mod health;
mod list;
mod load;
mod open;
mod publish;
mod recover;
mod snapshots;
mod trash;
mod volumes;

use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use wharf_driver::backend::{BackendError, Topology};
use wharf_linux::{Kernel, Usage};

use crate::Config;
use crate::capacity::{self, Fullness, Room};
use crate::claims::Claims;
use crate::fault::{During as _, Fault};
use crate::index::Index;
use crate::plan;
use crate::record::{GroupRecord, Phase, SnapshotRecord, VolumeRecord};
use crate::store::{self, Store};

pub use check::{Finding, Severity};
pub use list::{Contents, GroupEntry, PoolEntry, SnapshotEntry, VolumeEntry};
pub use open::{Inspection, Maintenance, OpenError};
pub use trash::Purged;

use copy::Copies;
use trash::Trash;

/// An open pool, with the two threads that copy images and empty the trash. Dropping it stops them (a copy
/// under way is resumed at the next start) and releases the lock.
pub struct Pool {
    core: Arc<Core>,
    workers: Vec<JoinHandle<()>>,
}

/// The operations of a pool; had through a [`Pool`].
pub struct Core {
    store: Store,
    config: Config,
    uuid: String,
    reflink: bool,
    index: Mutex<Index>,
    /// What was in the directory at the start and is none of ours.
    found: Vec<Finding>,
    claims: Claims,
    copies: Copies,
    trash: Trash,
    /// One freeze at a time: there is one intent file.
    freezing: Mutex<()>,
    /// The fullness that was logged last, so that each change is said once.
    said: AtomicU8,
    /// Keeps a second driver out; `None` where nothing is changed.
    _lock: Option<Box<dyn Send + Sync>>,
}

impl std::ops::Deref for Pool {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.copies.stop();
        self.core.trash.stop();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already.
            let _ = worker.join();
        }
    }
}

impl Core {
    /// Whether images can share extents here: whether snapshots are instant.
    pub fn can_reflink(&self) -> bool {
        self.reflink
    }

    /// The identity that the pool got when it was made.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    fn kernel(&self) -> &dyn Kernel {
        &*self.store.kernel
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // The index is changed by single calls that leave it whole: a panic elsewhere does not spoil it.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topology(&self) -> Vec<Topology> {
        vec![plan::topology_of(&self.config.node_id)]
    }

    /// Refuses an id whose place is taken by something unreadable.
    fn refuse_broken(&self, id: &str) -> Result<(), BackendError> {
        match self.index().broken(id) {
            Some(why) => Err(BackendError::Internal(format!("{id} cannot be used: {why}"))),
            None => Ok(()),
        }
    }

    /// A volume that is whole.
    fn ready_volume(&self, id: &str) -> Result<Option<VolumeRecord>, BackendError> {
        self.refuse_broken(id)?;
        Ok(self.index().volume(id).filter(|record| record.state == Phase::Ready).cloned())
    }

    fn save_volume(&self, record: VolumeRecord) -> Result<(), Fault> {
        self.store.save(&store::record_of(&record.id), &record).during("write its record", &record.id)?;
        self.index().put_volume(record);
        Ok(())
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

    /// Makes the directory of a new volume or snapshot, whose record is the next thing to be written.
    fn make_dir(&self, id: &str) -> Result<(), Fault> {
        self.kernel().create_dir(&self.store.at(&store::dir_of(id))).during("create its directory", id)?;
        self.store.sync(Path::new(store::collection_of(id))).during("make its directory durable", id)
    }

    /// Makes a finished image durable, and answers its inode.
    fn seal(&self, id: &str) -> Result<u64, Fault> {
        let image = store::image_of(id);
        let stat = self.store.stat(&image).during("look at its image", id)?;
        let Some(stat) = stat else {
            let reason = "vanished while it was being made".to_owned();
            let source = Box::new(wharf_linux::Error::State { path: self.store.root.join(image), reason });
            return Err(Fault { object: id.to_owned(), step: "make its image durable", source });
        };
        self.store.sync(&image).during("make its image durable", id)?;
        self.store.sync(&store::dir_of(id)).during("make its image durable", id)?;
        Ok(stat.id.inode)
    }

    fn usage(&self) -> Result<Usage, Fault> {
        self.kernel().usage(&self.store.root).during("ask for its free space", "the pool")
    }

    /// What can be promised now. Says so in the log when the pool became full, or no longer is.
    fn room(&self, usage: &Usage, committed: u128) -> Room {
        let room = capacity::room(usage, committed, &self.config);
        let percent = room.percent;
        let (before, now) = (self.said.swap(room.fullness as u8, Ordering::Relaxed), room.fullness);
        if before != now as u8 {
            match now {
                Fullness::Fine => tracing::info!(percent, "the pool has room again"),
                Fullness::NearlyFull => tracing::warn!(percent, "the pool is nearly full"),
                Fullness::Full => {
                    tracing::error!(percent, "the pool is full: no new volumes, snapshots or expansions")
                }
            }
        }
        room
    }

    /// Whether the pool can serve: it is still there, and still this one.
    pub fn ready(&self) -> Result<(), String> {
        let record = self.store.load::<crate::record::PoolRecord>(Path::new(store::POOL), None);
        match record.map_err(|error| error.to_string())? {
            Some(record) if record.uuid == self.uuid => Ok(()),
            Some(record) => Err(format!(
                "another pool ({}) is mounted at {} by now, this driver serves {}: restart it",
                record.uuid,
                self.store.root.display(),
                self.uuid
            )),
            None => Err(format!("{} is no pool any more: is its disk mounted?", self.store.root.display())),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded data is replaced by whole assignments only: it is sound even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
