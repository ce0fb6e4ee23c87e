//! The ways in which the node half fails, and what each becomes on the wire: one table.

use tonic::Status;
use wharf_linux::FsError;

use crate::backend::{BackendError, DeviceError};
use crate::format::Refusal;

/// Why an operation on this node was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The request names what cannot be. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// No such volume, or not at that path. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// It is there already, in another way than asked for. (ALREADY_EXISTS)
    #[error("{0}")]
    Incompatible(String),
    /// Possible, but not while things are as they are. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// The volume does not have that size. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// This family of backends has no such operation. (UNIMPLEMENTED)
    #[error("{0}")]
    Unsupported(&'static str),
    /// Safe format says no. (FAILED_PRECONDITION)
    #[error("{device} is neither formatted nor mounted, and not one byte was written: {refusal}")]
    Refused {
        /// The volume's device.
        device: String,
        /// Why.
        refusal: Refusal,
    },
    /// The file system needs somebody's help before it can be mounted. (FAILED_PRECONDITION)
    #[error("{0}; repair it by hand or restore the volume from a snapshot or backup")]
    Damaged(FsError),
    /// The machine. (INTERNAL)
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A bug. (INTERNAL)
    #[error("{0}; this is a bug in the driver, please report it with its log")]
    Bug(String),
    /// See there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl NodeError {
    /// What the caller of an operation on this volume is told.
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
