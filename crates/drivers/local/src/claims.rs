//! One operation at a time on an object. The SDK promises that for one volume or one name; here it holds for
//! everything that an operation touches, a source as well, whoever calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use wharf_driver::backend::BackendError;

/// Who works on what.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    held: Mutex<BTreeMap<String, Hold>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// One operation, which may change it.
    Exclusive,
    /// That many operations, which only need it to stay as it is.
    Shared(usize),
}

/// The right to work on an object; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    id: String,
}

impl Claims {
    /// For an operation that changes `id`.
    pub(crate) fn exclusive(&self, id: &str) -> Result<Claim<'_>, BackendError> {
        self.take(id, |held| match held {
            None => Some(Hold::Exclusive),
            Some(_) => None,
        })
    }

    /// For an operation that needs `id` to stay as it is.
    pub(crate) fn shared(&self, id: &str) -> Result<Claim<'_>, BackendError> {
        self.take(id, |held| match held {
            None => Some(Hold::Shared(1)),
            Some(Hold::Shared(others)) => Some(Hold::Shared(others + 1)),
            Some(Hold::Exclusive) => None,
        })
    }

    fn take(
        &self,
        id: &str,
        next: impl FnOnce(Option<Hold>) -> Option<Hold>,
    ) -> Result<Claim<'_>, BackendError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(hold) = next(held.get(id).copied()) else {
            return Err(BackendError::Busy(format!("{id}: another operation is under way, call again")));
        };
        held.insert(id.to_owned(), hold);
        Ok(Claim { claims: self, id: id.to_owned() })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut held = self.claims.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.remove(&self.id) {
            Some(Hold::Shared(others)) if others > 1 => {
                held.insert(std::mem::take(&mut self.id), Hold::Shared(others - 1));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_or_many_readers() {
        let claims = Claims::default();
        let writer = claims.exclusive("a").unwrap();
        assert!(claims.exclusive("a").is_err());
        assert!(claims.shared("a").is_err());
        assert!(claims.exclusive("b").is_ok());
        drop(writer);
        let first = claims.shared("a").unwrap();
        let second = claims.shared("a").unwrap();
        assert!(claims.exclusive("a").is_err());
        drop(first);
        assert!(claims.exclusive("a").is_err());
        drop(second);
        assert!(claims.exclusive("a").is_ok());
        assert!(claims.held.lock().unwrap().is_empty());
    }
}
