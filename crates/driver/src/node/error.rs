//! Errors of the Node service, and the gRPC code of each.

use tonic::Status;
use wharf_linux::FsError;

use crate::backend::{BackendError, DeviceError, TargetError};
use crate::format::Refusal;

/// Why an operation on this node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The request is invalid. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// The volume does not exist, or not at that path. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The volume is already staged or published with incompatible options. (ALREADY_EXISTS)
    #[error("{0}")]
    Incompatible(String),
    /// Not possible in the current state. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// The volume does not have that size. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// This type of backend does not have the operation. (UNIMPLEMENTED)
    #[error("{0}")]
    Unsupported(&'static str),
    /// Safe format refused the device. (FAILED_PRECONDITION)
    #[error("refused to format or mount {device}, and not one byte was written: {refusal}")]
    Refused { device: String, refusal: Refusal },
    /// The file system must be repaired before it can be mounted. (FAILED_PRECONDITION)
    #[error("{0}; repair it manually or restore the volume from a snapshot or backup")]
    Damaged(FsError),
    /// A system call or program failed. (INTERNAL)
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A bug in the driver. (INTERNAL)
    #[error("{0}; this is a bug in the driver, please report it with its log")]
    Bug(String),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Target(#[from] TargetError),
}

impl NodeError {
    /// The gRPC status for an operation on this volume.
    pub(crate) fn status(self, volume: &str) -> Status {
        let message = format!("volume {volume}: {self}");
        match self {
            Self::Invalid(_) => Status::invalid_argument(message),
            Self::NotFound(_) => Status::not_found(message),
            Self::Incompatible(_) => Status::already_exists(message),
            Self::Precondition(_) | Self::Refused { .. } | Self::Damaged(_) => {
                Status::failed_precondition(message)
            }
            Self::OutOfRange(_) => Status::out_of_range(message),
            Self::Unsupported(_) => Status::unimplemented(message),
            Self::Kernel(_) | Self::Bug(_) => Status::internal(message),
            Self::Device(error) => error.into(),
            Self::Backend(error) => error.into(),
            Self::Target(error) => error.into(),
        }
    }
}

impl From<FsError> for NodeError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Damaged { .. } => Self::Damaged(error),
            FsError::Check(error) => Self::Kernel(error),
        }
    }
}
