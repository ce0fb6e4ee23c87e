//! Errors of backend operations. `status.rs` maps each variant to a gRPC code; a backend needs no knowledge of gRPC.

/// A failure that is unrelated to the content of the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The storage is not reachable now; the same call may succeed later. (UNAVAILABLE)
    #[error("{0}")]
    Unavailable(String),
    /// An earlier operation on the same object is still running. (ABORTED)
    #[error("{0}")]
    Busy(String),
    /// The storage rejects our credentials: a token is wrong or was revoked. (UNAUTHENTICATED)
    #[error("{0}")]
    Unauthenticated(String),
    /// Our credentials are valid but lack a permission. (PERMISSION_DENIED)
    #[error("{0}")]
    Forbidden(String),
    /// An unexpected failure or an inconsistency that an operator must look at. (INTERNAL)
    #[error("{0}")]
    Internal(String),
}

/// Why a volume was not created or modified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A volume with that name exists and is not compatible with the request. (ALREADY_EXISTS)
    #[error("{0}")]
    Exists(String),
    /// The source snapshot or volume, or the volume to modify, does not exist. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The request is contradictory or uses something that this backend does not support. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// No volume of this size can be created. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// Not enough capacity now, or not in the required topology. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// Not possible in the current state of the storage. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume or snapshot was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// It is staged, published or attached, or another object depends on it. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// The snapshot belongs to a group, which can only be deleted as a whole. (INVALID_ARGUMENT)
    #[error("{0}")]
    GroupMember(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a snapshot was not created or not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A snapshot with that name exists with another source. (ALREADY_EXISTS)
    #[error("{0}")]
    Exists(String),
    /// The source volume or the snapshot does not exist. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The request is contradictory. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// The offset is past the end of the volume. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// Not enough capacity. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// Not possible in the current state of the storage. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume was not expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The volume does not exist. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// No volume can have that size. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// Not enough capacity now. (OUT_OF_RANGE, which tells callers that the operation has ended)
    #[error("{0}")]
    Exhausted(String),
    /// The volume cannot grow while it is in use. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume was not attached to or detached from a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The volume or node does not exist. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The volume is attached to this node with incompatible options. (ALREADY_EXISTS)
    #[error("{0}")]
    Incompatible(String),
    /// The volume is attached to another node, or still in use there. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// The node has reached its maximum number of volumes. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume's device or share is not available on this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The volume does not exist on this node. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The publish or volume context does not identify a device or share. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// A device was found, but its identity or size is not that of the volume. (FAILED_PRECONDITION)
    #[error("{0}")]
    WrongDevice(String),
    /// The device is still mounted, open or being copied. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a backend that mounts at targets itself did not mount, unmount or read a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The volume does not exist, or is not mounted at that path. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The volume context or the mount options are wrong. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// The volume is mounted there with incompatible options, or something else is. (ALREADY_EXISTS)
    #[error("{0}")]
    Incompatible(String),
    /// Not possible in the current state of this node. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// A failure unrelated to the request.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
