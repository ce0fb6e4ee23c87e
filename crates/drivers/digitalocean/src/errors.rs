//! Maps API errors to the SDK's errors, per operation. The SDK maps those to gRPC codes.
//!
//! The existing driver returns UNKNOWN or INTERNAL for most of them. Here a caller can distinguish temporary errors
//! (UNAVAILABLE, ABORTED) from those that need an operator.

use wharf_driver::backend::{
    BackendError, CreateError, DeleteError, ExpandError, PublishError, SnapshotError,
};

use crate::actions::OperationError;
use crate::client::{ApiError, ApiErrorKind, UnprocessableReason};
use crate::size::SizeError;

/// The message when the account's limit is reached.
const LIMIT_REACHED: &str = "volume limit has been reached. Please contact support, or delete volumes and snapshots that are not needed";

impl From<ApiError> for BackendError {
    fn from(error: ApiError) -> Self {
        let message = error.to_string();
        match error.kind() {
            ApiErrorKind::Unauthorized => {
                Self::Unauthenticated(format!("{message}; put a valid token into the Secret"))
            }
            ApiErrorKind::Forbidden | ApiErrorKind::CapacityLimit => Self::Forbidden(format!(
                "{message}; the token lacks a scope, or the account's limit is reached"
            )),
            ApiErrorKind::RateLimited
            | ApiErrorKind::SnapshotTooSoon
            | ApiErrorKind::Server
            | ApiErrorKind::Transport
            | ApiErrorKind::BadResponse => Self::Unavailable(message),
            // Another client is changing it.
            ApiErrorKind::Conflict | ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent) => {
                Self::Busy(message)
            }
            ApiErrorKind::NotFound
            | ApiErrorKind::BadRequest
            | ApiErrorKind::Unprocessable(
                UnprocessableReason::AlreadyAttached
                | UnprocessableReason::TooManyVolumes
                | UnprocessableReason::AttachmentNotFound
                | UnprocessableReason::Other,
            ) => Self::Internal(message),
        }
    }
}

/// A create failed to search for the volume. The error must be retryable, because an earlier call may have created it.
pub(crate) fn lookup(error: ApiError) -> BackendError {
    as_retryable(error.into())
}

/// The same message as a retryable error.
fn as_retryable(error: BackendError) -> BackendError {
    match error {
        BackendError::Busy(message) => BackendError::Busy(message),
        BackendError::Unavailable(message)
        | BackendError::Unauthenticated(message)
        | BackendError::Forbidden(message)
        | BackendError::Internal(message) => BackendError::Unavailable(message),
    }
}

/// Why POST /v2/volumes failed.
pub(crate) fn create(error: ApiError) -> CreateError {
    match error.kind() {
        ApiErrorKind::CapacityLimit => CreateError::Exhausted(format!("{LIMIT_REACHED} ({error})")),
        // Only the snapshot can be missing; it existed a moment ago.
        ApiErrorKind::NotFound => CreateError::NotFound(error.to_string()),
        ApiErrorKind::BadRequest | ApiErrorKind::Unprocessable(UnprocessableReason::Other) => {
            CreateError::Invalid(error.to_string())
        }
        _ => CreateError::Backend(error.into()),
    }
}

/// Why DELETE of a volume or snapshot failed.
pub(crate) fn delete(error: ApiError) -> DeleteError {
    match error.kind() {
        ApiErrorKind::Conflict => DeleteError::InUse(format!("{error}; detach it first")),
        _ => DeleteError::Backend(error.into()),
    }
}

/// Why POST of a snapshot failed.
pub(crate) fn snapshot(error: ApiError) -> SnapshotError {
    match error.kind() {
        ApiErrorKind::Conflict => SnapshotError::Exists(error.to_string()),
        ApiErrorKind::NotFound => SnapshotError::NotFound(error.to_string()),
        ApiErrorKind::CapacityLimit => SnapshotError::Exhausted(format!("{LIMIT_REACHED} ({error})")),
        ApiErrorKind::BadRequest | ApiErrorKind::Unprocessable(UnprocessableReason::Other) => {
            SnapshotError::Invalid(error.to_string())
        }
        // Nothing was created, and a later retry succeeds: snapshotters retry UNAVAILABLE.
        ApiErrorKind::SnapshotTooSoon => SnapshotError::Backend(BackendError::Unavailable(format!(
            "{error}; retry when ten minutes have passed since the last snapshot of this volume"
        ))),
        _ => SnapshotError::Backend(error.into()),
    }
}

impl From<SizeError> for CreateError {
    fn from(error: SizeError) -> Self {
        Self::OutOfRange(error.to_string())
    }
}

impl From<SizeError> for ExpandError {
    fn from(error: SizeError) -> Self {
        Self::OutOfRange(error.to_string())
    }
}

/// Why a volume was not attached or detached.
pub(crate) fn publish(error: OperationError) -> PublishError {
    match error {
        OperationError::NoVolume(_) | OperationError::NoDroplet(_) => {
            PublishError::NotFound(error.to_string())
        }
        OperationError::AttachedElsewhere { volume, droplet } => PublishError::InUse(format!(
            "volume {volume:?} is attached to the wrong droplet ({droplet}), detach the volume to fix it"
        )),
        OperationError::TooManyVolumes { attached, .. } => {
            let advice = attached
                .map(|attached| format!("; it has {attached}: run its node with --volume-limit {attached}"));
            PublishError::Exhausted(format!("{error}{}", advice.unwrap_or_default()))
        }
        other => PublishError::Backend(operation(other)),
    }
}

/// Why a volume did not grow.
pub(crate) fn expand(error: OperationError) -> ExpandError {
    match error {
        OperationError::NoVolume(_) => ExpandError::NotFound(error.to_string()),
        OperationError::Api { error: ref api, .. } if api.kind() == ApiErrorKind::CapacityLimit => {
            ExpandError::Exhausted(format!("{LIMIT_REACHED} ({error})"))
        }
        other => ExpandError::Backend(operation(other)),
    }
}

/// Why a resize during a create failed. The volume exists, so only a reached limit is a final error.
pub(crate) fn grow(error: OperationError) -> CreateError {
    match expand(error) {
        ExpandError::Exhausted(message) => CreateError::Exhausted(message),
        ExpandError::NotFound(message) | ExpandError::OutOfRange(message) | ExpandError::InUse(message) => {
            CreateError::Backend(BackendError::Unavailable(message))
        }
        ExpandError::Backend(error) => CreateError::Backend(as_retryable(error)),
    }
}

fn operation(error: OperationError) -> BackendError {
    let message = error.to_string();
    match error {
        OperationError::Busy { .. } => BackendError::Busy(message),
        OperationError::Unfinished { .. } => BackendError::Unavailable(message),
        // The operation's message, with the class of the API error.
        OperationError::Api { error, .. } => match BackendError::from(error) {
            BackendError::Unavailable(_) => BackendError::Unavailable(message),
            BackendError::Busy(_) => BackendError::Busy(message),
            other => other,
        },
        OperationError::Errored { .. }
        | OperationError::NoVolume(_)
        | OperationError::NoDroplet(_)
        | OperationError::AttachedElsewhere { .. }
        | OperationError::TooManyVolumes { .. } => BackendError::Internal(message),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;

    use super::*;
    use crate::client::{CallName, classify};

    /// An API error, as the client classifies it.
    fn api(method: Method, status: u16, message: &str) -> ApiError {
        let call = CallName { method, path: "/v2/volumes".into() };
        let body = format!(r#"{{"id":"some_error","message":"{message}"}}"#);
        classify(&call, status, None, None, body.as_bytes())
    }

    /// The gRPC code of each class, as in the SDK's table.
    fn backend(error: &BackendError) -> &'static str {
        match error {
            BackendError::Unavailable(_) => "UNAVAILABLE",
            BackendError::Busy(_) => "ABORTED",
            BackendError::Unauthenticated(_) => "UNAUTHENTICATED",
            BackendError::Forbidden(_) => "PERMISSION_DENIED",
            BackendError::Internal(_) => "INTERNAL",
        }
    }

    fn created(error: &CreateError) -> &'static str {
        match error {
            CreateError::Exists(_) => "ALREADY_EXISTS",
            CreateError::NotFound(_) => "NOT_FOUND",
            CreateError::Invalid(_) => "INVALID_ARGUMENT",
            CreateError::OutOfRange(_) => "OUT_OF_RANGE",
            CreateError::Exhausted(_) => "RESOURCE_EXHAUSTED",
            CreateError::Precondition(_) => "FAILED_PRECONDITION",
            CreateError::Backend(error) => backend(error),
        }
    }

    fn deleted(error: &DeleteError) -> &'static str {
        match error {
            DeleteError::InUse(_) => "FAILED_PRECONDITION",
            DeleteError::GroupMember(_) => "INVALID_ARGUMENT",
            DeleteError::Backend(error) => backend(error),
        }
    }

    fn snapshotted(error: &SnapshotError) -> &'static str {
        match error {
            SnapshotError::Exists(_) => "ALREADY_EXISTS",
            SnapshotError::NotFound(_) => "NOT_FOUND",
            SnapshotError::Invalid(_) => "INVALID_ARGUMENT",
            SnapshotError::OutOfRange(_) => "OUT_OF_RANGE",
            SnapshotError::Exhausted(_) => "RESOURCE_EXHAUSTED",
            SnapshotError::Precondition(_) => "FAILED_PRECONDITION",
            SnapshotError::Backend(error) => backend(error),
        }
    }

    fn published(error: &PublishError) -> &'static str {
        match error {
            PublishError::NotFound(_) => "NOT_FOUND",
            PublishError::Incompatible(_) => "ALREADY_EXISTS",
            PublishError::InUse(_) => "FAILED_PRECONDITION",
            PublishError::Exhausted(_) => "RESOURCE_EXHAUSTED",
            PublishError::Backend(error) => backend(error),
        }
    }

    fn grown(error: &ExpandError) -> &'static str {
        match error {
            ExpandError::NotFound(_) => "NOT_FOUND",
            // The SDK's table explains why.
            ExpandError::OutOfRange(_) | ExpandError::Exhausted(_) => "OUT_OF_RANGE",
            ExpandError::InUse(_) => "FAILED_PRECONDITION",
            ExpandError::Backend(error) => backend(error),
        }
    }

    #[test]
    fn api_errors_map_to_codes_in_every_operation() {
        const TOO_SOON: &str =
            "failed to create snapshot: this operation is rate-limited - one request per 10m0s";
        const FULL: &str = "volume/snapshot capacity limit exceeded";
        // status, message: read, create, delete, snapshot, attach or detach, expand
        let table = [
            (
                400,
                "bad",
                ["INTERNAL", "INVALID_ARGUMENT", "INTERNAL", "INVALID_ARGUMENT", "INTERNAL", "INTERNAL"],
            ),
            (401, "Unable to authenticate you.", ["UNAUTHENTICATED"; 6]),
            (403, "You are not authorized", ["PERMISSION_DENIED"; 6]),
            (
                403,
                FULL,
                [
                    "PERMISSION_DENIED",
                    "RESOURCE_EXHAUSTED",
                    "PERMISSION_DENIED",
                    "RESOURCE_EXHAUSTED",
                    "PERMISSION_DENIED",
                    "OUT_OF_RANGE",
                ],
            ),
            (404, "not found", ["INTERNAL", "NOT_FOUND", "INTERNAL", "NOT_FOUND", "INTERNAL", "INTERNAL"]),
            (
                409,
                "already exists",
                ["ABORTED", "ABORTED", "FAILED_PRECONDITION", "ALREADY_EXISTS", "ABORTED", "ABORTED"],
            ),
            (422, "Droplet already has a pending event.", ["ABORTED"; 6]),
            (
                422,
                "size is wrong",
                ["INTERNAL", "INVALID_ARGUMENT", "INTERNAL", "INVALID_ARGUMENT", "INTERNAL", "INTERNAL"],
            ),
            (429, "API Rate limit exceeded.", ["UNAVAILABLE"; 6]),
            (429, TOO_SOON, ["UNAVAILABLE"; 6]),
            (500, "server error", ["UNAVAILABLE"; 6]),
            (502, "bad gateway", ["UNAVAILABLE"; 6]),
            (503, "down", ["UNAVAILABLE"; 6]),
            (301, "elsewhere", ["UNAVAILABLE"; 6]),
        ];
        for (status, words, expected) in table {
            let error = || api(Method::POST, status, words);
            let operation = || OperationError::Api { what: "attach v".into(), error: error() };
            let codes = [
                backend(&error().into()),
                created(&create(error())),
                deleted(&delete(error())),
                snapshotted(&snapshot(error())),
                published(&publish(operation())),
                grown(&expand(operation())),
            ];
            assert_eq!(codes, expected, "{status} {words}");
        }
    }

    /// After a final error the caller does not retry, and an existing volume would leak.
    #[test]
    fn create_error_is_retryable_while_the_volume_may_exist() {
        const FULL: &str = "volume/snapshot capacity limit exceeded";
        // status, message: the search by name failed, the resize failed
        for (status, words, expected) in [
            (400, "bad", ["UNAVAILABLE"; 2]),
            (401, "Unable to authenticate you.", ["UNAVAILABLE"; 2]),
            (403, "You are not authorized", ["UNAVAILABLE"; 2]),
            // The volume is deleted then.
            (403, FULL, ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]),
            (404, "not found", ["UNAVAILABLE"; 2]),
            (409, "already exists", ["ABORTED"; 2]),
            (422, "Droplet already has a pending event.", ["ABORTED"; 2]),
            (422, "size is wrong", ["UNAVAILABLE"; 2]),
            (429, "API Rate limit exceeded.", ["UNAVAILABLE"; 2]),
            (500, "server error", ["UNAVAILABLE"; 2]),
        ] {
            let error = |method| api(method, status, words);
            let resize = OperationError::Api { what: "resize v".into(), error: error(Method::POST) };
            let (seen, grown) = (lookup(error(Method::GET)), grow(resize));
            assert_eq!([backend(&seen), created(&grown)], expected, "{status} {words}");
            assert!(seen.to_string().contains(words) && grown.to_string().contains(words), "{seen} {grown}");
        }
        for ended in [
            OperationError::Errored { what: "resize v".into(), action: 1 },
            OperationError::NoVolume("v".into()),
        ] {
            assert_eq!(created(&grow(ended.clone())), "UNAVAILABLE", "{ended}");
        }
    }

    #[test]
    fn operation_errors_map_to_codes() {
        let (what, waited, message) = (String::from("attach v"), Duration::from_secs(1), String::from("m"));
        let table = [
            (OperationError::NoVolume("v".into()), "NOT_FOUND", "NOT_FOUND"),
            (OperationError::NoDroplet(7), "NOT_FOUND", "INTERNAL"),
            (
                OperationError::AttachedElsewhere { volume: "v".into(), droplet: 7 },
                "FAILED_PRECONDITION",
                "INTERNAL",
            ),
            (
                OperationError::TooManyVolumes { droplet: 7, attached: Some(7), message: message.clone() },
                "RESOURCE_EXHAUSTED",
                "INTERNAL",
            ),
            // Reported at once, not at the timeout.
            (OperationError::Errored { what: what.clone(), action: 1 }, "INTERNAL", "INTERNAL"),
            (
                OperationError::Busy { what: what.clone(), waited, message: message.clone() },
                "ABORTED",
                "ABORTED",
            ),
            (OperationError::Unfinished { what, waited, message }, "UNAVAILABLE", "UNAVAILABLE"),
        ];
        for (error, attached, resized) in table {
            assert_eq!(published(&publish(error.clone())), attached, "{error}");
            assert_eq!(grown(&expand(error.clone())), resized, "{error}");
        }
        let words = publish(OperationError::AttachedElsewhere { volume: "v".into(), droplet: 7 }).to_string();
        assert_eq!(words, "volume \"v\" is attached to the wrong droplet (7), detach the volume to fix it");
    }
}
