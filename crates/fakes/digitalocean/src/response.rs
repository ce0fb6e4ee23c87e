//! API responses, with DigitalOcean's error messages.

use serde_json::{Value, json};

/// A response of the API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    /// None for 204.
    pub(crate) body: Option<Value>,
    /// The header of a burst-limit 429, in seconds.
    pub(crate) retry_after: Option<i64>,
    /// Files to copy before the response is sent: `(from, to)`, as ids of volumes and snapshots.
    pub(crate) copy: Option<(String, String)>,
}

/// A success or an error response.
pub(crate) type Outcome = Result<ApiResponse, ApiResponse>;

impl ApiResponse {
    pub(crate) fn new(status: u16, body: Value) -> Self {
        Self { status, body: Some(body), retry_after: None, copy: None }
    }

    pub(crate) fn ok(body: Value) -> Self {
        Self::new(200, body)
    }

    pub(crate) fn no_content() -> Self {
        Self { status: 204, body: None, retry_after: None, copy: None }
    }

    /// An error in DigitalOcean's format, with the id that belongs to the status.
    pub(crate) fn error(status: u16, message: &str) -> Self {
        Self::new(status, json!({ "id": error_id(status), "message": message }))
    }

    pub(crate) fn not_found() -> Self {
        Self::error(404, "The resource you requested could not be found.")
    }

    pub(crate) fn unauthorized() -> Self {
        Self::error(401, "Unable to authenticate you.")
    }

    pub(crate) fn unprocessable(message: &str) -> Self {
        Self::error(422, message)
    }

    pub(crate) fn conflict(message: &str) -> Self {
        Self::error(409, message)
    }

    pub(crate) fn capacity(what: &str) -> Self {
        Self::error(403, &format!("failed to {what}: volume/snapshot capacity limit exceeded"))
    }
}

/// The id that belongs to a status.
fn error_id(status: u16) -> &'static str {
    match status {
        400 => "bad_request",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not_found",
        409 => "conflict",
        422 => "unprocessable_entity",
        429 => "too_many_requests",
        503 => "service_unavailable",
        _ => "server_error",
    }
}

/// The default message of a status, for faults without one.
pub(crate) fn default_message(status: u16) -> &'static str {
    match status {
        401 => "Unable to authenticate you.",
        403 => "You are not authorized to perform this operation",
        404 => "The resource you requested could not be found.",
        409 => "The resource is in conflict with another.",
        422 => "The request could not be processed.",
        429 => "API Rate limit exceeded.",
        _ => "Server Error",
    }
}
