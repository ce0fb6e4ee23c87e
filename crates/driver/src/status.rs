//! Maps backend errors to gRPC codes: one exhaustive table for each error type.

use tonic::Status;

use crate::backend::{
    BackendError, CreateError, DeleteError, DeviceError, ExpandError, PublishError, SnapshotError,
    TargetError,
};

impl From<BackendError> for Status {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Unavailable(message) => Self::unavailable(message),
            BackendError::Busy(message) => Self::aborted(message),
            BackendError::Unauthenticated(message) => Self::unauthenticated(message),
            BackendError::Forbidden(message) => Self::permission_denied(message),
            BackendError::Internal(message) => Self::internal(message),
        }
    }
}

impl From<CreateError> for Status {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Exists(message) => Self::already_exists(message),
            CreateError::NotFound(message) => Self::not_found(message),
            CreateError::Invalid(message) => Self::invalid_argument(message),
            CreateError::OutOfRange(message) => Self::out_of_range(message),
            CreateError::Exhausted(message) => Self::resource_exhausted(message),
            CreateError::Precondition(message) => Self::failed_precondition(message),
            CreateError::Backend(error) => error.into(),
        }
    }
}

impl From<DeleteError> for Status {
    fn from(error: DeleteError) -> Self {
        match error {
            DeleteError::InUse(message) => Self::failed_precondition(message),
            DeleteError::GroupMember(message) => Self::invalid_argument(message),
            DeleteError::Backend(error) => error.into(),
        }
    }
}

impl From<SnapshotError> for Status {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Exists(message) => Self::already_exists(message),
            SnapshotError::NotFound(message) => Self::not_found(message),
            SnapshotError::Invalid(message) => Self::invalid_argument(message),
            SnapshotError::OutOfRange(message) => Self::out_of_range(message),
            SnapshotError::Exhausted(message) => Self::resource_exhausted(message),
            SnapshotError::Precondition(message) => Self::failed_precondition(message),
            SnapshotError::Backend(error) => error.into(),
        }
    }
}

impl From<ExpandError> for Status {
    fn from(error: ExpandError) -> Self {
        match error {
            ExpandError::NotFound(message) => Self::not_found(message),
            // CSI has no other code for it. Kubernetes takes RESOURCE_EXHAUSTED for an expansion that may still be
            // running, and then does not let the user go back to a smaller size.
            ExpandError::OutOfRange(message) | ExpandError::Exhausted(message) => Self::out_of_range(message),
            ExpandError::InUse(message) => Self::failed_precondition(message),
            ExpandError::Backend(error) => error.into(),
        }
    }
}

impl From<PublishError> for Status {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::NotFound(message) => Self::not_found(message),
            PublishError::Incompatible(message) => Self::already_exists(message),
            PublishError::InUse(message) => Self::failed_precondition(message),
            PublishError::Exhausted(message) => Self::resource_exhausted(message),
            PublishError::Backend(error) => error.into(),
        }
    }
}

impl From<DeviceError> for Status {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::NotFound(message) => Self::not_found(message),
            DeviceError::Invalid(message) => Self::invalid_argument(message),
            DeviceError::WrongDevice(message) | DeviceError::InUse(message) => {
                Self::failed_precondition(message)
            }
            DeviceError::Backend(error) => error.into(),
        }
    }
}

impl From<TargetError> for Status {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::NotFound(message) => Self::not_found(message),
            TargetError::Invalid(message) => Self::invalid_argument(message),
            TargetError::Incompatible(message) => Self::already_exists(message),
            TargetError::Precondition(message) => Self::failed_precondition(message),
            TargetError::Backend(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn backend_errors_have_distinct_codes() {
        for (error, code) in [
            (BackendError::Unavailable as fn(String) -> BackendError, Code::Unavailable),
            (BackendError::Busy, Code::Aborted),
            (BackendError::Unauthenticated, Code::Unauthenticated),
            (BackendError::Forbidden, Code::PermissionDenied),
            (BackendError::Internal, Code::Internal),
        ] {
            assert_eq!(Status::from(error("reason".into())).code(), code);
        }
    }

    /// Callers classify this code as final, so that a user can request a smaller size.
    #[test]
    fn expansion_without_capacity_is_out_of_range() {
        let status = Status::from(ExpandError::Exhausted("pool is full".to_owned()));
        assert_eq!((status.code(), status.message()), (Code::OutOfRange, "pool is full"));
    }
}
