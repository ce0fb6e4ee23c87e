//! Errors of share operations. They cross the process boundary, so they are plain data.

use serde::{Deserialize, Serialize};

/// Why an operation failed: each kind is one class of CSI errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorKind {
    /// The request is contradictory or names a path that is not allowed.
    Invalid,
    /// An object with that name exists and differs.
    AlreadyExists,
    /// A volume or snapshot that the request names does not exist.
    NotFound,
    /// The operation has started and continues in the background.
    InProgress {
        /// How much is done, if it is known: 0 to 100.
        percent: Option<u8>,
    },
    /// Another object depends on it.
    InUse,
    /// Not possible in the current state of the share.
    Precondition,
    /// The server or its export denies the operation.
    Forbidden,
    /// The share is out of space, inodes or quota.
    OutOfSpace,
    /// The server did not answer, or another controller works on the same object.
    Unavailable,
    /// An inconsistency that an operator must look at.
    Internal,
}

/// A failed operation. The message names the object, the step and the way out, and has no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ShareError {
    /// The class of the error.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
}

impl ShareError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Adds the step and its object to an error of a file operation.
pub(crate) trait During<T> {
    fn during(self, step: &str, object: &str) -> Result<T, ShareError>;
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, step: &str, object: &str) -> Result<T, ShareError> {
        self.map_err(|error| {
            let (kind, remedy) = classify(&error);
            ShareError::new(kind, format!("failed to {step} {object}: {error}{remedy}"))
        })
    }
}

/// The kind of a failed system call, and what to do about it.
pub(super) fn classify(error: &std::io::Error) -> (ErrorKind, &'static str) {
    use std::io::ErrorKind as Io;

    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => {
            (ErrorKind::OutOfSpace, "; the share is full: delete data, or enlarge it or its quota")
        }
        Io::PermissionDenied => (
            ErrorKind::Forbidden,
            "; the server denies it: export the share with no_root_squash to the controller, or give the squashed user access",
        ),
        Io::ReadOnlyFilesystem => {
            (ErrorKind::Precondition, "; the share is read-only: export it with rw and mount it without ro")
        }
        Io::TimedOut
        | Io::HostUnreachable
        | Io::NetworkUnreachable
        | Io::NetworkDown
        | Io::ConnectionRefused => (ErrorKind::Unavailable, "; the NFS server does not answer"),
        Io::StaleNetworkFileHandle => (
            ErrorKind::Unavailable,
            "; the server no longer knows the file handle: the export is mounted again",
        ),
        _ => (ErrorKind::Internal, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_decides_the_kind_and_the_remedy() {
        const TABLE: [(i32, ErrorKind, &str); 7] = [
            (28, ErrorKind::OutOfSpace, "full"),
            (122, ErrorKind::OutOfSpace, "quota"),
            (13, ErrorKind::Forbidden, "no_root_squash"),
            (1, ErrorKind::Forbidden, "no_root_squash"),
            (30, ErrorKind::Precondition, "read-only"),
            (110, ErrorKind::Unavailable, "does not answer"),
            (5, ErrorKind::Internal, "failed to create volume v"),
        ];
        for (errno, kind, text) in TABLE {
            let failed: std::io::Result<()> = Err(std::io::Error::from_raw_os_error(errno));
            let error = failed.during("create", "volume v").unwrap_err();
            assert_eq!(error.kind, kind, "{errno}");
            assert!(error.message.contains(text), "{errno}: {error}");
        }
    }
}
