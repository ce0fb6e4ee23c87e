//! redb on a medium, opened and left in one way only: as after a death.
//!
//! redb trusts a file that was closed in order, and reads its pages without a look at their checksums; a bad page
//! then is a panic, or a wrong answer. After a death it looks at all of them first, and so it does here at each
//! start, for at the end the medium takes no more writes. All pages are read at a start anyway, so that costs little
//! (with 10,000 objects, some tens of milliseconds); and it allows commits of one phase, which wait once for the
//! disk where quick repair waits twice.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Builder, Database, DatabaseError, StorageBackend};

/// All objects are in memory already; this is for the pages that a commit touches.
const CACHE: usize = 4 << 20;

/// An open database.
pub(super) struct Base {
    database: Database,
    sealed: Arc<AtomicBool>,
}

impl Base {
    /// Opens what is on a medium, or makes a database of an empty one. Without `sync` nothing waits for the disk.
    pub(super) fn open(medium: Box<dyn StorageBackend>, sync: bool) -> Result<Self, DatabaseError> {
        let sealed = Arc::new(AtomicBool::new(false));
        let medium = Medium { inner: medium, sync, sealed: sealed.clone() };
        let database = Builder::new().set_cache_size(CACHE).create_with_backend(medium)?;
        Ok(Self { database, sealed })
    }
}

impl Deref for Base {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.sealed.store(true, Ordering::Release);
    }
}

/// Any medium, until it is sealed. The lock on it is ours, not redb's.
#[derive(Debug)]
struct Medium {
    inner: Box<dyn StorageBackend>,
    sync: bool,
    sealed: Arc<AtomicBool>,
}

impl Medium {
    fn open(&self) -> io::Result<()> {
        if self.sealed.load(Ordering::Acquire) {
            Err(io::Error::other("it is left as it is"))
        } else {
            Ok(())
        }
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.open()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.open()?;
        if self.sync { self.inner.sync_data() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.open()?;
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
