//! Per-object locks: one operation at a time on a volume, snapshot or group.
//!
//! The SDK serializes calls by volume and by name. These locks cover every object that an operation touches,
//! including the source of a copy, and every caller.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use wharf_driver::backend::BackendError;

/// The lock table: which objects are locked, and how.
#[derive(Debug, Default)]
pub(crate) struct VolumeLocks {
    held: Mutex<BTreeMap<String, LockState>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockState {
    /// Held by one operation that may change the object.
    Exclusive,
    /// Held by this many operations that only need the object to stay unchanged.
    Shared(usize),
}

/// A lock on one object; released on drop.
#[derive(Debug)]
pub(crate) struct VolumeLock<'a> {
    locks: &'a VolumeLocks,
    id: String,
}

impl VolumeLocks {
    /// Locks `id` for an operation that changes it.
    pub(crate) fn exclusive(&self, id: &str) -> Result<VolumeLock<'_>, BackendError> {
        self.take(id, |held| match held {
            None => Some(LockState::Exclusive),
            Some(_) => None,
        })
    }

    /// Locks `id` for an operation that needs it unchanged.
    pub(crate) fn shared(&self, id: &str) -> Result<VolumeLock<'_>, BackendError> {
        self.take(id, |held| match held {
            None => Some(LockState::Shared(1)),
            Some(LockState::Shared(others)) => Some(LockState::Shared(others + 1)),
            Some(LockState::Exclusive) => None,
        })
    }

    fn take(
        &self,
        id: &str,
        next: impl FnOnce(Option<LockState>) -> Option<LockState>,
    ) -> Result<VolumeLock<'_>, BackendError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(hold) = next(held.get(id).copied()) else {
            return Err(BackendError::Busy(format!("{id}: another operation is in progress; retry")));
        };
        held.insert(id.to_owned(), hold);
        Ok(VolumeLock { locks: self, id: id.to_owned() })
    }
}

impl Drop for VolumeLock<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.remove(&self.id) {
            Some(LockState::Shared(others)) if others > 1 => {
                held.insert(std::mem::take(&mut self.id), LockState::Shared(others - 1));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_allows_one_writer_or_many_readers() {
        let locks = VolumeLocks::default();
        let writer = locks.exclusive("a").unwrap();
        assert!(locks.exclusive("a").is_err());
        assert!(locks.shared("a").is_err());
        assert!(locks.exclusive("b").is_ok());
        drop(writer);
        let first = locks.shared("a").unwrap();
        let second = locks.shared("a").unwrap();
        assert!(locks.exclusive("a").is_err());
        drop(first);
        assert!(locks.exclusive("a").is_err());
        drop(second);
        assert!(locks.exclusive("a").is_ok());
        assert!(locks.held.lock().unwrap().is_empty());
    }
}
