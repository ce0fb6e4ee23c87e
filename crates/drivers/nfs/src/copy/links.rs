//! Hard links within a copied tree: the first name of an inode is copied, every other name is linked to that copy.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use rustix::fs::Stat;

/// Names of inodes with more than one link. `W` is what a name needs to be linked later.
#[derive(Debug)]
pub(crate) struct Links<W> {
    inodes: Mutex<HashMap<(u64, u64), Inode<W>>>,
}

#[derive(Debug)]
struct Inode<W> {
    /// The path of the copy, beneath the target.
    path: Vec<CString>,
    /// Names that were found while the first one is being copied; `None` once it is complete.
    waiting: Option<Vec<W>>,
    /// How many names were not seen yet. At zero the inode is dropped from the map.
    left: u64,
}

/// What to do with a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Copy the file, then call [`Links::complete`] or [`Links::abandon`].
    Copy,
    /// Another thread copies the file. It links this name when the copy is complete.
    Wait,
    /// Link the name to the copy at this path.
    Link(Vec<CString>),
}

impl<W> Default for Links<W> {
    fn default() -> Self {
        Self { inodes: Mutex::default() }
    }
}

impl<W> Links<W> {
    /// Claims one name of the inode `stat`, whose path is `path`.
    pub(crate) fn claim(
        &self,
        stat: &Stat,
        path: impl FnOnce() -> Vec<CString>,
        waiter: impl FnOnce() -> W,
    ) -> Claim {
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(inode) = inodes.get_mut(&key(stat)) else {
            #[allow(clippy::useless_conversion, reason = "st_nlink has 32 bits on aarch64")]
            let left = u64::from(stat.st_nlink).saturating_sub(1);
            inodes.insert(key(stat), Inode { path: path(), waiting: Some(Vec::new()), left });
            return Claim::Copy;
        };
        inode.left = inode.left.saturating_sub(1);
        if let Some(waiting) = &mut inode.waiting {
            waiting.push(waiter());
            return Claim::Wait;
        }
        let path = inode.path.clone();
        if inode.left == 0 {
            inodes.remove(&key(stat));
        }
        Claim::Link(path)
    }

    /// The first name is copied. Returns its path and the names to link to it.
    pub(crate) fn complete(&self, stat: &Stat) -> (Vec<CString>, Vec<W>) {
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(inode) = inodes.get_mut(&key(stat)) else { return (Vec::new(), Vec::new()) };
        let names = (inode.path.clone(), inode.waiting.take().unwrap_or_default());
        if inode.left == 0 {
            inodes.remove(&key(stat));
        }
        names
    }

    /// The first name vanished before it was copied. Returns the names that waited for it, to be copied themselves.
    pub(crate) fn abandon(&self, stat: &Stat) -> Vec<W> {
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        inodes.remove(&key(stat)).and_then(|inode| inode.waiting).unwrap_or_default()
    }
}

fn key(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
