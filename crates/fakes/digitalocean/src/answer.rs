//! Answers, and the errors in DigitalOcean's words.

use serde_json::{Value, json};

/// What the API says to a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// None for 204.
    pub(crate) body: Option<Value>,
    /// The header of a burst-limit 429, in seconds.
    pub(crate) retry_after: Option<i64>,
    /// Files to be copied before the answer goes out: `(from, to)`, named by the ids of volumes and snapshots.
    pub(crate) copy: Option<(String, String)>,
}

/// A request either has its answer or is refused with one.
pub(crate) type Outcome = Result<Answer, Answer>;

impl Answer {
    pub(crate) fn new(status: u16, body: Value) -> Self {
        Self { status, body: Some(body), retry_after: None, copy: None }
    }

    pub(crate) fn ok(body: Value) -> Self {
        Self::new(200, body)
    }

    pub(crate) fn nothing() -> Self {
        Self { status: 204, body: None, retry_after: None, copy: None }
    }

    /// An error as DigitalOcean writes it: the id goes with the status.
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

/// The usual message of a status, for faults that give none.
pub(crate) fn usual_message(status: u16) -> &'static str {
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
