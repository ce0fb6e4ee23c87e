//! A redb database that is always opened as after a crash.
//!
//! redb trusts a file that was closed cleanly and reads its pages without verifying their checksums; a bad page then
//! causes a panic or a wrong result. After a crash it verifies all pages first. [`CrashOnlyDatabase`] forces that at
//! each start: when it is dropped, the backend rejects further writes, so redb cannot mark the file as cleanly closed.
//! All pages are read at a start anyway, so this costs little (some tens of milliseconds for 10,000 objects). It also
//! allows one-phase commits, which wait for the disk once where quick repair waits twice.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Builder, Database, DatabaseError, StorageBackend};

/// All objects are in memory already; the cache only serves the pages that a commit touches.
const CACHE: usize = 4 << 20;

/// An open database that is never closed cleanly.
pub(super) struct CrashOnlyDatabase {
    database: Database,
    sealed: Arc<AtomicBool>,
}

impl CrashOnlyDatabase {
    /// Opens the database on a backend, or creates one on an empty backend. Without `sync` nothing waits for the disk.
    pub(super) fn open(backend: Box<dyn StorageBackend>, sync: bool) -> Result<Self, DatabaseError> {
        let sealed = Arc::new(AtomicBool::new(false));
        let backend = SealableBackend { inner: backend, sync, sealed: sealed.clone() };
        let database = Builder::new().set_cache_size(CACHE).create_with_backend(backend)?;
        Ok(Self { database, sealed })
    }
}

impl Deref for CrashOnlyDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for CrashOnlyDatabase {
    fn drop(&mut self) {
        self.sealed.store(true, Ordering::Release);
    }
}

/// A backend that rejects writes once it is sealed. The file lock is the store's, not redb's.
#[derive(Debug)]
struct SealableBackend {
    inner: Box<dyn StorageBackend>,
    sync: bool,
    sealed: Arc<AtomicBool>,
}

impl SealableBackend {
    fn check_writable(&self) -> io::Result<()> {
        if self.sealed.load(Ordering::Acquire) {
            Err(io::Error::other("the database is sealed"))
        } else {
            Ok(())
        }
    }
}

impl StorageBackend for SealableBackend {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check_writable()?;
        if self.sync { self.inner.sync_data() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
