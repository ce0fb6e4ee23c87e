//! The ways in which a backend's operations fail. What becomes of each on the wire is decided once, in
//! `status.rs`; a backend knows nothing of gRPC.

/// A failure that has nothing to do with what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The storage cannot be reached now; the same call may succeed later. (UNAVAILABLE)
    #[error("{0}")]
    Unavailable(String),
    /// An earlier operation on the same object is still under way. (ABORTED)
    #[error("{0}")]
    Busy(String),
    /// The storage does not know who we are: a token is wrong or was revoked. (UNAUTHENTICATED)
    #[error("{0}")]
    Unauthenticated(String),
    /// The storage knows us, and does not let us. (PERMISSION_DENIED)
    #[error("{0}")]
    Forbidden(String),
    /// Something broke, or does not add up; somebody has to look. (INTERNAL)
    #[error("{0}")]
    Internal(String),
}

/// Why a volume was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A volume of that name exists and is not what is asked for now. (ALREADY_EXISTS)
    #[error("{0}")]
    Exists(String),
    /// The snapshot or volume to copy from does not exist; or the volume to modify. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The request contradicts itself or names what this backend does not have. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// No volume of such a size can be made. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// No room now, or not where the volume must be. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// Possible, but not while things are as they are. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume or snapshot was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// It is staged, published, attached, or something depends on it. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// A snapshot of a group, which goes only as a whole. (INVALID_ARGUMENT)
    #[error("{0}")]
    Member(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a snapshot was not made or not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A snapshot of that name exists with another source. (ALREADY_EXISTS)
    #[error("{0}")]
    Exists(String),
    /// The source volume or the snapshot does not exist. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The request contradicts itself. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// An offset past the end. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// No room. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// Possible, but not while things are as they are. (FAILED_PRECONDITION)
    #[error("{0}")]
    Precondition(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume did not grow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// No such volume. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// No volume can have that size. (OUT_OF_RANGE)
    #[error("{0}")]
    OutOfRange(String),
    /// No room now. (OUT_OF_RANGE: it has ended)
    #[error("{0}")]
    Exhausted(String),
    /// Not while it is in use. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume was not attached to or detached from a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No such volume or node. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// Attached to this node in another, incompatible way. (ALREADY_EXISTS)
    #[error("{0}")]
    Incompatible(String),
    /// Attached elsewhere, or still in use there. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// The node has no room for another volume. (RESOURCE_EXHAUSTED)
    #[error("{0}")]
    Exhausted(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a volume's device or share cannot be had on this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No such volume on this node. (NOT_FOUND)
    #[error("{0}")]
    NotFound(String),
    /// The publish or volume context does not name a device or share as it must. (INVALID_ARGUMENT)
    #[error("{0}")]
    Invalid(String),
    /// There is a device, but it is not this volume's own: other identity, other size. (FAILED_PRECONDITION)
    #[error("{0}")]
    NotOurs(String),
    /// Still mounted, open, or being copied. (FAILED_PRECONDITION)
    #[error("{0}")]
    InUse(String),
    /// See there.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
