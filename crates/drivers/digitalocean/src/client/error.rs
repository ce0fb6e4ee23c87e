//! API and transport errors, classified by how to handle them.
//!
//! An error names the call, the API's message and the request id, never the token, and says whether the call may have
//! taken effect. "Not found" counts only if the API itself returned it: a proxy's error page proves nothing.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// A call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ApiError {
    kind: ApiErrorKind,
    uncertain: bool,
    // Boxed: the error case should not enlarge every Result.
    detail: Box<Detail>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Detail {
    call: String,
    status: Option<u16>,
    id: String,
    message: String,
    request_id: Option<String>,
    retry_after: Option<Duration>,
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.message)?;
        match (self.status, &self.request_id) {
            (Some(status), Some(request)) => write!(f, " (HTTP {status}, request {request})"),
            (Some(status), None) => write!(f, " (HTTP {status})"),
            (None, _) => Ok(()),
        }
    }
}

/// The kind of an [`ApiError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// 401: the token is invalid or revoked.
    Unauthorized,
    /// 403: the token is not allowed to do this.
    Forbidden,
    /// 403 or 422: the account's volume or capacity limit is reached; DigitalOcean support can raise it.
    CapacityLimit,
    /// 404, returned by the API itself.
    NotFound,
    /// 409: the name is taken; on a delete, the volume is attached.
    Conflict,
    /// 422, by its message.
    Unprocessable(UnprocessableReason),
    /// Other 4xx, or a request that could not be built: a retry does not help.
    BadRequest,
    /// 429, or the client's own rate limit is used up; see [`ApiError::retry_after`].
    RateLimited,
    /// 429 for the limit of one snapshot per volume in ten minutes; independent of the rate limit.
    SnapshotTooSoon,
    /// 5xx.
    Server,
    /// No connection, a broken connection, or a timeout.
    Transport,
    /// An unusable response: truncated, not JSON, or unexpected content.
    BadResponse,
}

/// The reason of a 422.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnprocessableReason {
    /// The volume is already attached; the API does not name the droplet.
    AlreadyAttached,
    /// The droplet or volume has another pending event.
    PendingEvent,
    /// The droplet's volume limit is reached.
    TooManyVolumes,
    /// The volume is not attached to that droplet.
    AttachmentNotFound,
    /// Anything else.
    Other,
}

impl ApiError {
    /// The kind of the error.
    pub fn kind(&self) -> ApiErrorKind {
        self.kind
    }

    /// Whether the call may have taken effect despite the error. Never true for a GET.
    pub fn uncertain(&self) -> bool {
        self.uncertain
    }

    /// The HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        self.detail.status
    }

    /// The API's error id (`unprocessable_entity`); empty if it gave none.
    pub fn id(&self) -> &str {
        &self.detail.id
    }

    /// The API's message, or the transport error.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// The request id, for DigitalOcean support.
    pub fn request_id(&self) -> Option<&str> {
        self.detail.request_id.as_deref()
    }

    /// When to retry.
    pub fn retry_after(&self) -> Option<Duration> {
        self.detail.retry_after
    }

    /// A failure without a response. `sent` says whether the API may have received the request.
    pub(crate) fn local(call: &CallName, kind: ApiErrorKind, sent: bool, message: impl Into<String>) -> Self {
        let detail = Detail {
            call: call.to_string(),
            status: None,
            id: String::new(),
            message: message.into(),
            request_id: None,
            retry_after: None,
        };
        Self { kind, uncertain: sent && call.has_effect(), detail: Box::new(detail) }
    }

    /// A successful status with an unusable body: the call took effect, but its result is unknown.
    pub(crate) fn bad_response(call: &CallName, status: u16, message: impl Into<String>) -> Self {
        let mut error = Self::local(call, ApiErrorKind::BadResponse, true, message);
        error.detail.status = Some(status);
        error
    }

    pub(crate) fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.detail.retry_after = after;
        self
    }
}

/// A call's name for errors and logs, without its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallName {
    pub(crate) method: http::Method,
    pub(crate) path: String,
}

impl CallName {
    /// Whether the call changes anything.
    pub(crate) fn has_effect(&self) -> bool {
        self.method != http::Method::GET
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    id: String,
    message: String,
    request_id: Option<String>,
}

/// Maximum excerpt of a response that is not JSON: a proxy's page is long and says little.
const EXCERPT: usize = 200;

/// Classifies an error response.
pub(crate) fn classify(
    call: &CallName,
    status: u16,
    request_id: Option<&str>,
    retry_after: Option<Duration>,
    body: &[u8],
) -> ApiError {
    let parsed: Option<Body> = serde_json::from_slice(body).ok();
    let from_api = parsed.as_ref().is_some_and(|parsed| !parsed.id.is_empty());
    let parsed = parsed.unwrap_or_else(|| Body { message: excerpt(body), ..Body::default() });
    let kind = kind(status, from_api, &parsed.message);
    let message = if parsed.message.is_empty() { "no reason given".to_owned() } else { parsed.message };
    let detail = Detail {
        call: call.to_string(),
        status: Some(status),
        id: parsed.id,
        message,
        request_id: parsed.request_id.or_else(|| request_id.map(str::to_owned)),
        retry_after,
    };
    // A gateway's 5xx or an unknown page does not show whether the API processed the request.
    let may_have_effect = matches!(kind, ApiErrorKind::Server | ApiErrorKind::BadResponse);
    ApiError { kind, uncertain: may_have_effect && call.has_effect(), detail: Box::new(detail) }
}

fn kind(status: u16, from_api: bool, message: &str) -> ApiErrorKind {
    let message_contains = |words: &str| message.contains(words);
    match status {
        401 => ApiErrorKind::Unauthorized,
        403 | 422 if message_contains("capacity limit exceeded") => ApiErrorKind::CapacityLimit,
        403 => ApiErrorKind::Forbidden,
        404 if from_api => ApiErrorKind::NotFound,
        // The id belongs to another type of object, so no snapshot has it.
        400 if from_api && message_contains("is not a snapshot") => ApiErrorKind::NotFound,
        409 => ApiErrorKind::Conflict,
        422 if message_contains("This volume is already attached") => {
            ApiErrorKind::Unprocessable(UnprocessableReason::AlreadyAttached)
        }
        422 if message_contains("already has a pending event") => {
            ApiErrorKind::Unprocessable(UnprocessableReason::PendingEvent)
        }
        422 if message_contains("cannot attach more") => {
            ApiErrorKind::Unprocessable(UnprocessableReason::TooManyVolumes)
        }
        422 if message_contains("Attachment not found") => {
            ApiErrorKind::Unprocessable(UnprocessableReason::AttachmentNotFound)
        }
        422 => ApiErrorKind::Unprocessable(UnprocessableReason::Other),
        429 if message_contains("failed to create snapshot") => ApiErrorKind::SnapshotTooSoon,
        429 => ApiErrorKind::RateLimited,
        500..=599 => ApiErrorKind::Server,
        400..=499 if from_api => ApiErrorKind::BadRequest,
        // A redirect that is not followed, or a proxy's own refusal: not a response of the API.
        _ => ApiErrorKind::BadResponse,
    }
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn classified(method: Method, status: u16, body: &str) -> ApiError {
        let call = CallName { method, path: "/v2/volumes/v".into() };
        classify(&call, status, Some("header-id"), None, body.as_bytes())
    }

    fn from_api(id: &str, message: &str) -> String {
        format!(r#"{{"id":"{id}","message":"{message}","request_id":"r"}}"#)
    }

    #[test]
    fn responses_are_classified_by_status_and_message() {
        use ApiErrorKind::*;
        let unprocessable = |message: &str| from_api("unprocessable_entity", message);
        let page = "<html><body>502 Bad Gateway</body></html>".to_owned();
        // status, body, kind, whether a POST may have taken effect
        let table = [
            (400, from_api("bad_request", "no"), BadRequest, false),
            (400, from_api("bad_request", "the resource is not a snapshot"), NotFound, false),
            (401, from_api("unauthorized", "Unable to authenticate you."), Unauthorized, false),
            (403, from_api("forbidden", "You are not authorized"), Forbidden, false),
            (403, from_api("forbidden", "volume/snapshot capacity limit exceeded"), CapacityLimit, false),
            (422, unprocessable("volume/snapshot capacity limit exceeded"), CapacityLimit, false),
            (404, from_api("not_found", "The resource you requested could not be found."), NotFound, false),
            (404, page.clone(), BadResponse, true),
            (404, String::new(), BadResponse, true),
            (404, "{}".into(), BadResponse, true),
            (409, from_api("conflict", "already exists"), Conflict, false),
            (
                422,
                unprocessable("This volume is already attached"),
                Unprocessable(UnprocessableReason::AlreadyAttached),
                false,
            ),
            (
                422,
                unprocessable("Droplet already has a pending event."),
                Unprocessable(UnprocessableReason::PendingEvent),
                false,
            ),
            (
                422,
                unprocessable("cannot attach more volumes to the Droplet"),
                Unprocessable(UnprocessableReason::TooManyVolumes),
                false,
            ),
            (
                422,
                unprocessable("cannot attach more than 7 volumes to a single Droplet"),
                Unprocessable(UnprocessableReason::TooManyVolumes),
                false,
            ),
            (
                422,
                unprocessable("Attachment not found"),
                Unprocessable(UnprocessableReason::AttachmentNotFound),
                false,
            ),
            (422, unprocessable("size is wrong"), Unprocessable(UnprocessableReason::Other), false),
            (429, from_api("too_many_requests", "API Rate limit exceeded."), RateLimited, false),
            (429, String::new(), RateLimited, false),
            (
                429,
                from_api(
                    "too_many_requests",
                    "failed to create snapshot: this operation is rate-limited - one request per 10m0s",
                ),
                SnapshotTooSoon,
                false,
            ),
            (500, from_api("server_error", "Unexpected server-side error"), Server, true),
            (502, page.clone(), Server, true),
            (503, String::new(), Server, true),
            (301, String::new(), BadResponse, true),
            (407, page, BadResponse, true),
        ];
        for (status, body, kind, uncertain) in table {
            let error = classified(Method::POST, status, &body);
            assert_eq!((error.kind(), error.uncertain()), (kind, uncertain), "{status} {body}");
            assert!(
                !classified(Method::GET, status, &body).uncertain(),
                "a GET changes nothing: {status} {body}"
            );
        }
    }

    #[test]
    fn error_names_call_message_and_request_id() {
        let error =
            classified(Method::DELETE, 409, &from_api("conflict", "attached volume cannot be deleted"));
        assert_eq!(
            error.to_string(),
            "DELETE /v2/volumes/v: attached volume cannot be deleted (HTTP 409, request r)"
        );
        let error = classified(Method::GET, 503, &format!("<p>\n {}", "x".repeat(5000)));
        assert!(error.to_string().len() < 300, "{error}");
        assert_eq!(error.request_id(), Some("header-id"));
    }
}
