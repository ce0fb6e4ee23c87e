//! File operations that stop at a chosen call, or lose replies.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::share::CapacityInfo;
use crate::share::files::{Entry, LinuxFiles, RemovedEntries, ShareFiles};

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before the call.
    Before,
    /// The process dies after the call took effect.
    After,
    /// The call takes effect, and a retransmission reports EEXIST or ENOENT.
    LostReply,
    /// The call takes effect, and reports that the share is full, as a server can when it writes what it has buffered.
    Full,
}

/// The real operations with one fault.
pub(crate) struct FaultyFiles {
    files: LinuxFiles,
    fault: Fault,
    at: u64,
    calls: AtomicU64,
    dead: AtomicBool,
    refused: Mutex<Vec<&'static str>>,
}

impl FaultyFiles {
    pub(crate) fn new(root: &Path, fault: Fault, at: u64) -> Self {
        let files = LinuxFiles::open(root).unwrap();
        let (calls, dead) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { files, fault, at, calls, dead, refused: Mutex::default() }
    }

    /// Files without a fault, except that the server refuses these calls once each.
    pub(crate) fn refusing(root: &Path, calls: &[&'static str]) -> Self {
        let files = Self::new(root, Fault::Before, u64::MAX);
        files.refused.lock().unwrap().extend(calls);
        files
    }

    fn refuse(&self, call: &str) -> io::Result<()> {
        let mut refused = self.refused.lock().unwrap();
        match refused.iter().position(|refused| *refused == call) {
            Some(index) => {
                refused.remove(index);
                Err(io::Error::from_raw_os_error(5))
            }
            None => Ok(()),
        }
    }

    /// Whether the chosen call was reached.
    pub(crate) fn reached(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > self.at
    }

    /// Runs a call. `lost` is what a retransmission reports; `None` for calls that can be repeated.
    fn call<T>(
        &self,
        lost: Option<io::ErrorKind>,
        call: impl FnOnce(&LinuxFiles) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(killed());
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) != self.at {
            return call(&self.files);
        }
        match (self.fault, lost) {
            (Fault::Before, _) => {
                self.dead.store(true, Ordering::Relaxed);
                Err(killed())
            }
            (Fault::After, _) => {
                self.dead.store(true, Ordering::Relaxed);
                let _ = call(&self.files);
                Err(killed())
            }
            (Fault::Full, _) => {
                call(&self.files)?;
                Err(io::ErrorKind::StorageFull.into())
            }
            (Fault::LostReply, None) => call(&self.files),
            (Fault::LostReply, Some(kind)) => {
                call(&self.files)?;
                Err(kind.into())
            }
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("killed")
}

const EXISTS: Option<io::ErrorKind> = Some(io::ErrorKind::AlreadyExists);
const MISSING: Option<io::ErrorKind> = Some(io::ErrorKind::NotFound);

impl ShareFiles for FaultyFiles {
    fn read(&self, file: &Path) -> io::Result<Option<Vec<u8>>> {
        self.call(None, |files| files.read(file))
    }
    fn create_file(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        self.call(EXISTS, |files| files.create_file(file, bytes))
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.call(None, |files| files.sync(path))
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(EXISTS, |files| files.link(from, to))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(MISSING, |files| files.rename(from, to))
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(EXISTS, |files| files.create_dir(dir))
    }
    fn set_owner(&self, dir: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.refuse("set_owner")?;
        self.call(None, |files| files.set_owner(dir, uid, gid))
    }
    fn set_mode(&self, dir: &Path, mode: u32) -> io::Result<()> {
        self.call(None, |files| files.set_mode(dir, mode))
    }
    fn set_mode_of(&self, dir: &Path, file_id: u64, mode: u32) -> io::Result<()> {
        self.call(None, |files| files.set_mode_of(dir, file_id, mode))
    }
    fn stat(&self, path: &Path) -> io::Result<Option<Entry>> {
        self.call(None, |files| files.stat(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Option<Vec<OsString>>> {
        self.call(None, |files| files.list(dir))
    }
    fn remove_file(&self, file: &Path) -> io::Result<()> {
        self.call(MISSING, |files| files.remove_file(file))
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(MISSING, |files| files.remove_dir(dir))
    }
    fn remove_entries(&self, dir: &Path, max: u64) -> io::Result<RemovedEntries> {
        self.call(None, |files| files.remove_entries(dir, max))
    }
    fn set_id(&self, dir: &Path, id: &str) -> io::Result<bool> {
        self.refuse("set_id")?;
        self.call(None, |files| files.set_id(dir, id))
    }
    fn id(&self, dir: &Path) -> io::Result<Option<String>> {
        self.call(None, |files| files.id(dir))
    }
    fn open_dir(&self, dir: &Path) -> io::Result<OwnedFd> {
        self.call(None, |files| files.open_dir(dir))
    }
    fn open_file(&self, file: &Path) -> io::Result<File> {
        self.call(None, |files| files.open_file(file))
    }
    fn open_new_file(&self, file: &Path) -> io::Result<File> {
        self.call(EXISTS, |files| files.open_new_file(file))
    }
    fn capacity(&self) -> io::Result<CapacityInfo> {
        self.call(None, |files| files.capacity())
    }
}
