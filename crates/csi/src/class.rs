//! What a failed call means for its caller. The tables are those of the Kubernetes sidecars, so a driver written
//! against them behaves the same here. Start at [`classify`].

use tonic::Code;

/// The operation that failed: the same code means different things for different operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// CreateVolume.
    Create,
    /// ControllerPublishVolume.
    Attach,
    /// ControllerExpandVolume.
    Expand,
    /// ControllerModifyVolume.
    Modify,
    /// CreateSnapshot and CreateVolumeGroupSnapshot.
    Snapshot,
}

/// What a failure means for the state of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The operation may still be running, or may have succeeded. The caller must repeat the same call until it gets
    /// a final result, or whatever the call created leaks.
    StillRunning,
    /// The operation has ended and created nothing. The caller may repeat it, change it or give up.
    Final,
    /// Final, and a retry cannot succeed until the request changes.
    Infeasible,
}

/// The class of an error. `Ok` is not an error; as a result it is final.
///
/// [`crate::Client`] returns UNAVAILABLE for a call that got no gRPC response at all, so UNAVAILABLE counts as still
/// running.
pub fn classify(operation: Operation, code: Code) -> ErrorClass {
    use ErrorClass::{Final, Infeasible, StillRunning};

    match code {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => StillRunning,
        Code::ResourceExhausted => match operation {
            // For CreateVolume it means that the storage is full, so the caller can try another topology segment.
            Operation::Create => Final,
            Operation::Attach | Operation::Expand | Operation::Modify | Operation::Snapshot => StillRunning,
        },
        Code::InvalidArgument => match operation {
            Operation::Create | Operation::Expand | Operation::Modify => Infeasible,
            Operation::Attach | Operation::Snapshot => Final,
        },
        Code::OutOfRange | Code::NotFound => match operation {
            Operation::Expand => Infeasible,
            Operation::Create | Operation::Attach | Operation::Modify | Operation::Snapshot => Final,
        },
        Code::Ok
        | Code::Unknown
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Final,
    }
}

/// Whether a final error is caused by the request, so that every call with the same request would fail alike. Other
/// errors describe this one call only: an earlier call with the same request may have succeeded.
///
/// This is a belief about the driver. If an earlier call created something and a later one with the same request gets
/// such an error, what was created leaks.
pub fn is_request_error(code: Code) -> bool {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => true,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::PermissionDenied
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row per code: still running (r), final (f) or infeasible (i), for create, attach, expand, modify and
    /// snapshot.
    const TABLE: [(Code, &str); 17] = [
        (Code::Ok, "fffff"),
        (Code::Cancelled, "rrrrr"),
        (Code::Unknown, "fffff"),
        (Code::InvalidArgument, "ifiif"),
        (Code::DeadlineExceeded, "rrrrr"),
        (Code::NotFound, "ffiff"),
        (Code::AlreadyExists, "fffff"),
        (Code::PermissionDenied, "fffff"),
        (Code::ResourceExhausted, "frrrr"),
        (Code::FailedPrecondition, "fffff"),
        (Code::Aborted, "rrrrr"),
        (Code::OutOfRange, "ffiff"),
        (Code::Unimplemented, "fffff"),
        (Code::Internal, "fffff"),
        (Code::Unavailable, "rrrrr"),
        (Code::DataLoss, "fffff"),
        (Code::Unauthenticated, "fffff"),
    ];

    #[test]
    fn every_code_has_a_class_for_every_operation() {
        use Operation::{Attach, Create, Expand, Modify, Snapshot};

        for (number, (code, row)) in TABLE.into_iter().enumerate() {
            assert_eq!(code as usize, number, "the table must list each code once");
            let classes =
                [Create, Attach, Expand, Modify, Snapshot].map(|operation| match classify(operation, code) {
                    ErrorClass::StillRunning => 'r',
                    ErrorClass::Final => 'f',
                    ErrorClass::Infeasible => 'i',
                });
            assert_eq!(classes.iter().collect::<String>(), row, "{code:?}");
        }
    }
}
