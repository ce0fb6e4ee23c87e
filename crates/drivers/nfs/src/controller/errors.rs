//! Errors of shares and workers as errors of the SDK.

use wharf_driver::backend::{BackendError, CreateError, DeleteError, ExpandError, SnapshotError};

use crate::share::{ErrorKind, ShareError};
use crate::worker::{WorkerError, WorkerErrorKind};

/// Why a request to a share failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Share(#[from] ShareError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// The kind of either error.
fn kind(error: &CallError) -> ErrorKind {
    match error {
        CallError::Share(error) => error.kind,
        CallError::Worker(error) => match error.kind() {
            WorkerErrorKind::Unavailable => ErrorKind::Unavailable,
            WorkerErrorKind::Denied => ErrorKind::Forbidden,
            WorkerErrorKind::NotFound => ErrorKind::NotFound,
            WorkerErrorKind::Invalid => ErrorKind::Invalid,
            WorkerErrorKind::Precondition => ErrorKind::Precondition,
            WorkerErrorKind::Internal => ErrorKind::Internal,
        },
    }
}

impl From<CallError> for BackendError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match kind(&error) {
            ErrorKind::InProgress { .. } => Self::Busy(message),
            ErrorKind::Forbidden => Self::Forbidden(message),
            ErrorKind::Unavailable => Self::Unavailable(message),
            ErrorKind::Invalid
            | ErrorKind::AlreadyExists
            | ErrorKind::NotFound
            | ErrorKind::InUse
            | ErrorKind::Precondition
            | ErrorKind::OutOfSpace
            | ErrorKind::Internal => Self::Internal(message),
        }
    }
}

impl From<CallError> for CreateError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match kind(&error) {
            ErrorKind::Invalid => Self::Invalid(message),
            ErrorKind::AlreadyExists => Self::Exists(message),
            ErrorKind::NotFound => Self::NotFound(message),
            ErrorKind::InUse | ErrorKind::Precondition => Self::Precondition(message),
            ErrorKind::OutOfSpace => Self::Exhausted(message),
            ErrorKind::InProgress { .. }
            | ErrorKind::Forbidden
            | ErrorKind::Unavailable
            | ErrorKind::Internal => Self::Backend(error.into()),
        }
    }
}

impl From<CallError> for SnapshotError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match kind(&error) {
            ErrorKind::Invalid => Self::Invalid(message),
            ErrorKind::AlreadyExists => Self::Exists(message),
            ErrorKind::NotFound => Self::NotFound(message),
            ErrorKind::InUse | ErrorKind::Precondition => Self::Precondition(message),
            ErrorKind::OutOfSpace => Self::Exhausted(message),
            ErrorKind::InProgress { .. }
            | ErrorKind::Forbidden
            | ErrorKind::Unavailable
            | ErrorKind::Internal => Self::Backend(error.into()),
        }
    }
}

impl From<CallError> for DeleteError {
    fn from(error: CallError) -> Self {
        match kind(&error) {
            ErrorKind::InUse | ErrorKind::Precondition => Self::InUse(error.to_string()),
            ErrorKind::Invalid
            | ErrorKind::AlreadyExists
            | ErrorKind::NotFound
            | ErrorKind::InProgress { .. }
            | ErrorKind::Forbidden
            | ErrorKind::OutOfSpace
            | ErrorKind::Unavailable
            | ErrorKind::Internal => Self::Backend(error.into()),
        }
    }
}

impl From<CallError> for ExpandError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match kind(&error) {
            ErrorKind::NotFound => Self::NotFound(message),
            ErrorKind::OutOfSpace => Self::Exhausted(message),
            ErrorKind::InUse | ErrorKind::Precondition => Self::InUse(message),
            ErrorKind::Invalid
            | ErrorKind::AlreadyExists
            | ErrorKind::InProgress { .. }
            | ErrorKind::Forbidden
            | ErrorKind::Unavailable
            | ErrorKind::Internal => Self::Backend(error.into()),
        }
    }
}
