//! A failed system call or program: the step, the object and the cause. This module maps it to the SDK's errors.

use std::io::ErrorKind;

use crate::account::REMEDY;
use wharf_driver::backend::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, PublishError, SnapshotError,
};

/// A step that failed in the kernel or in a program.
#[derive(Debug, thiserror::Error)]
#[error("{object}: failed to {step}: {source}")]
pub(crate) struct Fault {
    pub object: String,
    pub step: &'static str,
    /// Boxed because it is large: the success path should not pay for it.
    pub source: Box<wharf_linux::Error>,
}

impl Fault {
    fn kind(&self) -> Option<ErrorKind> {
        self.source.errno().map(|errno| std::io::Error::from_raw_os_error(errno).kind())
    }

    /// The pool's file system is out of space.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.kind(), Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
    }

    /// The object is still open or mounted.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(*self.source, wharf_linux::Error::InUse { .. })
            || self.kind() == Some(ErrorKind::ResourceBusy)
    }

    fn is_too_large(&self) -> bool {
        self.kind() == Some(ErrorKind::FileTooLarge)
    }

    /// The error message, with a remedy where there is one.
    fn message(&self) -> String {
        match self.kind() {
            Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                format!("{self}; the pool is out of space: {REMEDY}")
            }
            Some(ErrorKind::FileTooLarge) => {
                format!("{self}; the pool's file system does not support files of that size")
            }
            Some(ErrorKind::ReadOnlyFilesystem) => {
                format!(
                    "{self}; the pool's file system is read-only: check the kernel log, repair and remount it"
                )
            }
            _ => self.to_string(),
        }
    }
}

/// Adds the step and its object to a kernel error.
pub(crate) trait During<T> {
    fn during(self, step: &'static str, object: &str) -> Result<T, Fault>;
}

impl<T> During<T> for wharf_linux::Result<T> {
    fn during(self, step: &'static str, object: &str) -> Result<T, Fault> {
        self.map_err(|source| Fault { object: object.to_owned(), step, source: Box::new(source) })
    }
}

impl From<Fault> for BackendError {
    fn from(fault: Fault) -> Self {
        Self::Internal(fault.message())
    }
}

/// Errors of operations that allocate space: these have codes for "out of space" and "too large".
macro_rules! takes_room {
    ($($error:ident),*) => {$(
        impl From<Fault> for $error {
            fn from(fault: Fault) -> Self {
                match &fault {
                    fault if fault.is_full() => Self::Exhausted(fault.message()),
                    fault if fault.is_too_large() => Self::OutOfRange(fault.message()),
                    _ => Self::Backend(fault.into()),
                }
            }
        }
    )*};
}

takes_room!(CreateError, SnapshotError, ExpandError);

macro_rules! takes_none {
    ($($error:ident),*) => {$(
        impl From<Fault> for $error {
            fn from(fault: Fault) -> Self {
                Self::Backend(fault.into())
            }
        }
    )*};
}

takes_none!(DeleteError, PublishError, DeviceError);

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn fault(errno: i32) -> Fault {
        let source = wharf_linux::Error::call(
            "fallocate",
            Path::new("image"),
            std::io::Error::from_raw_os_error(errno),
        );
        Fault { object: "vol-1".into(), step: "reserve its blocks", source: Box::new(source) }
    }

    #[test]
    fn errno_maps_to_backend_error() {
        const ENOSPC: i32 = 28;
        const EDQUOT: i32 = 122;
        const EFBIG: i32 = 27;
        const EIO: i32 = 5;
        const EBUSY: i32 = 16;
        assert!(matches!(CreateError::from(fault(ENOSPC)), CreateError::Exhausted(_)));
        assert!(matches!(SnapshotError::from(fault(EDQUOT)), SnapshotError::Exhausted(_)));
        assert!(matches!(ExpandError::from(fault(EFBIG)), ExpandError::OutOfRange(_)));
        assert!(matches!(CreateError::from(fault(EIO)), CreateError::Backend(BackendError::Internal(_))));
        assert!(matches!(DeleteError::from(fault(ENOSPC)), DeleteError::Backend(_)));
        assert!(fault(EBUSY).is_busy());
        let message = CreateError::from(fault(ENOSPC)).to_string();
        assert!(
            message.contains("vol-1") && message.contains("reserve its blocks") && message.contains("delete"),
            "{message}"
        );
    }
}
