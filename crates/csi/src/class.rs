//! What a failed call means for the one who made it. The tables are those of the Kubernetes sidecars, so that
//! a driver written against them finds the same consequences here.

use tonic::Code;

/// What kind of operation failed; the same code means different things to different operations.
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

/// What a failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The operation may still run, or may have succeeded: the same call must be repeated until it gives a
    /// final answer, or what it made would leak.
    StillRunning,
    /// The operation has ended and has made nothing. It may be repeated, changed or given up.
    Final,
    /// As final, and repeating it soon is of no use: what was asked for has to change first.
    Infeasible,
}

/// The class of an error. `Ok` is no error; as an answer it is final.
///
/// [`crate::Client`] answers UNAVAILABLE where a call got no gRPC answer at all, so that is still running too.
pub fn classify(operation: Operation, code: Code) -> ErrorClass {
    use ErrorClass::{Final, Infeasible, StillRunning};

    match code {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => StillRunning,
        Code::ResourceExhausted => match operation {
            // Here it means that there is no room, which is the moment to try another place.
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

/// Whether a final answer is about what was asked, and so would be the answer to every call that asks the same. Others
/// are about how this one call went, and say nothing of calls before it: those may have made what was asked for.
pub fn speaks_of_the_request(code: Code) -> bool {
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

    /// One row a code: still running (r), final (f) or infeasible (i) for create, attach, expand, modify,
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
    fn every_code_of_every_operation() {
        use Operation::{Attach, Create, Expand, Modify, Snapshot};

        for (number, (code, row)) in TABLE.into_iter().enumerate() {
            assert_eq!(code as usize, number, "the table names each code once");
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
