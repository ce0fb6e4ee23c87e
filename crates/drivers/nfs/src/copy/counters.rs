//! The counters of a running copy.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{CopyReport, Progress};

/// The fields of [`CopyReport`], counted by several threads, and the bytes that are done so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) directories: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) symlinks: AtomicU64,
    pub(crate) fifos: AtomicU64,
    pub(crate) hard_links: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) allocated: AtomicU64,
    pub(crate) cloned: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) vanished: AtomicU64,
    pub(crate) sockets: AtomicU64,
    pub(crate) devices: AtomicU64,
    pub(crate) not_kept: AtomicU64,
    /// Bytes of complete and incomplete files.
    pub(crate) done: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds `amount`.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn report(&self) -> CopyReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyReport {
            directories: get(&self.directories),
            files: get(&self.files),
            symlinks: get(&self.symlinks),
            fifos: get(&self.fifos),
            hard_links: get(&self.hard_links),
            bytes: get(&self.bytes),
            allocated: Some(get(&self.allocated)),
            cloned: get(&self.cloned),
            changed: get(&self.changed),
            vanished: get(&self.vanished),
            sockets: get(&self.sockets),
            devices: get(&self.devices),
            not_kept: get(&self.not_kept),
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { entries: self.report().entries(), bytes: self.done.load(Ordering::Relaxed) }
    }
}
