//! What the API refuses, and what goes wrong on the way to it, sorted by what can be done about it.
//!
//! Promise: an error names the call, the API's own words and the request's id, never the token; and it says
//! whether the call may have had its effect. "Not found" is believed only if the API itself said so: a proxy's
//! page proves nothing.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// A call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ApiError {
    kind: Kind,
    uncertain: bool,
    // Boxed: a Result should not be larger for its rare half.
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

/// Of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 401: the token is not, or no longer, good.
    Unauthorized,
    /// 403: the token may not do this.
    Forbidden,
    /// 403 or 422: the account's volumes or capacity are used up; DigitalOcean's support can raise it.
    CapacityLimit,
    /// 404, said by the API itself.
    NotFound,
    /// 409: the name is taken; on a delete, the volume is attached.
    Conflict,
    /// 422, by what it says.
    Unprocessable(Refused),
    /// Other 4xx, or nothing that could be sent: the request is wrong and stays so.
    BadRequest,
    /// 429, or our own budget is spent until then; [`ApiError::retry_after`] says for how long.
    RateLimited,
    /// 429 of the rule of one snapshot per volume in ten minutes. Has nothing to do with the budget.
    SnapshotTooSoon,
    /// 5xx.
    Server,
    /// No connection, a broken one, or no answer in time.
    Transport,
    /// An answer that cannot be understood: cut off, not JSON, or not what was asked for.
    BadAnswer,
}

/// What a 422 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The volume is attached already; to which droplet is not said.
    AlreadyAttached,
    /// The droplet (or volume) is busy with something else.
    PendingEvent,
    /// The droplet has as many volumes as it can have.
    TooManyVolumes,
    /// The volume is not attached there.
    AttachmentNotFound,
    /// Anything else.
    Other,
}

impl ApiError {
    /// Of which kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the effect of the call may have happened all the same. Never true of a GET.
    pub fn uncertain(&self) -> bool {
        self.uncertain
    }

    /// The HTTP status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        self.detail.status
    }

    /// The API's word for the error (`unprocessable_entity`), empty if it gave none.
    pub fn id(&self) -> &str {
        &self.detail.id
    }

    /// The API's own words, or what went wrong on the way.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// What DigitalOcean's support asks for.
    pub fn request_id(&self) -> Option<&str> {
        self.detail.request_id.as_deref()
    }

    /// When to ask again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.detail.retry_after
    }

    /// A failure without an answer. `sent` says whether the API may have seen the request.
    pub(crate) fn local(call: &CallName, kind: Kind, sent: bool, message: impl Into<String>) -> Self {
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

    /// A success whose body cannot be understood: it had its effect, but which?
    pub(crate) fn bad_answer(call: &CallName, status: u16, message: impl Into<String>) -> Self {
        let mut error = Self::local(call, Kind::BadAnswer, true, message);
        error.detail.status = Some(status);
        error
    }

    pub(crate) fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.detail.retry_after = after;
        self
    }
}

/// Names a call in errors and logs, without its query.
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

/// Longest piece of an answer that is no JSON to repeat: a page of a proxy is long and says little.
const EXCERPT: usize = 200;

/// Sorts an answer that is not a success.
pub(crate) fn classify(
    call: &CallName,
    status: u16,
    request_id: Option<&str>,
    retry_after: Option<Duration>,
    body: &[u8],
) -> ApiError {
    let told: Option<Body> = serde_json::from_slice(body).ok();
    let spoken = told.as_ref().is_some_and(|told| !told.id.is_empty());
    let told = told.unwrap_or_else(|| Body { message: excerpt(body), ..Body::default() });
    let kind = kind(status, spoken, &told.message);
    let message = if told.message.is_empty() { "no reason given".to_owned() } else { told.message };
    let detail = Detail {
        call: call.to_string(),
        status: Some(status),
        id: told.id,
        message,
        request_id: told.request_id.or_else(|| request_id.map(str::to_owned)),
        retry_after,
    };
    // A gateway's 5xx, or a page from who knows where, does not say how far the request had come.
    let unsure = matches!(kind, Kind::Server | Kind::BadAnswer);
    ApiError { kind, uncertain: unsure && call.has_effect(), detail: Box::new(detail) }
}

fn kind(status: u16, spoken: bool, message: &str) -> Kind {
    let says = |words: &str| message.contains(words);
    match status {
        401 => Kind::Unauthorized,
        403 | 422 if says("capacity limit exceeded") => Kind::CapacityLimit,
        403 => Kind::Forbidden,
        404 if spoken => Kind::NotFound,
        // The id is another thing's, so no snapshot has it.
        400 if spoken && says("is not a snapshot") => Kind::NotFound,
        409 => Kind::Conflict,
        422 if says("This volume is already attached") => Kind::Unprocessable(Refused::AlreadyAttached),
        422 if says("already has a pending event") => Kind::Unprocessable(Refused::PendingEvent),
        422 if says("cannot attach more") => Kind::Unprocessable(Refused::TooManyVolumes),
        422 if says("Attachment not found") => Kind::Unprocessable(Refused::AttachmentNotFound),
        422 => Kind::Unprocessable(Refused::Other),
        429 if says("failed to create snapshot") => Kind::SnapshotTooSoon,
        429 => Kind::RateLimited,
        500..=599 => Kind::Server,
        400..=499 if spoken => Kind::BadRequest,
        // A redirect we do not follow, a proxy's own refusal: it was not the API that spoke.
        _ => Kind::BadAnswer,
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

    fn sorted(method: Method, status: u16, body: &str) -> ApiError {
        let call = CallName { method, path: "/v2/volumes/v".into() };
        classify(&call, status, Some("header-id"), None, body.as_bytes())
    }

    fn spoken(id: &str, message: &str) -> String {
        format!(r#"{{"id":"{id}","message":"{message}","request_id":"r"}}"#)
    }

    #[test]
    fn every_answer_has_its_kind() {
        use Kind::*;
        let unprocessable = |message: &str| spoken("unprocessable_entity", message);
        let page = "<html><body>502 Bad Gateway</body></html>".to_owned();
        // status, body, kind, whether a POST may have had its effect
        let table = [
            (400, spoken("bad_request", "no"), BadRequest, false),
            (400, spoken("bad_request", "the resource is not a snapshot"), NotFound, false),
            (401, spoken("unauthorized", "Unable to authenticate you."), Unauthorized, false),
            (403, spoken("forbidden", "You are not authorized"), Forbidden, false),
            (403, spoken("forbidden", "volume/snapshot capacity limit exceeded"), CapacityLimit, false),
            (422, unprocessable("volume/snapshot capacity limit exceeded"), CapacityLimit, false),
            (404, spoken("not_found", "The resource you requested could not be found."), NotFound, false),
            (404, page.clone(), BadAnswer, true),
            (404, String::new(), BadAnswer, true),
            (404, "{}".into(), BadAnswer, true),
            (409, spoken("conflict", "already exists"), Conflict, false),
            (
                422,
                unprocessable("This volume is already attached"),
                Unprocessable(Refused::AlreadyAttached),
                false,
            ),
            (
                422,
                unprocessable("Droplet already has a pending event."),
                Unprocessable(Refused::PendingEvent),
                false,
            ),
            (
                422,
                unprocessable("cannot attach more volumes to the Droplet"),
                Unprocessable(Refused::TooManyVolumes),
                false,
            ),
            (
                422,
                unprocessable("cannot attach more than 7 volumes to a single Droplet"),
                Unprocessable(Refused::TooManyVolumes),
                false,
            ),
            (422, unprocessable("Attachment not found"), Unprocessable(Refused::AttachmentNotFound), false),
            (422, unprocessable("size is wrong"), Unprocessable(Refused::Other), false),
            (429, spoken("too_many_requests", "API Rate limit exceeded."), RateLimited, false),
            (429, String::new(), RateLimited, false),
            (
                429,
                spoken(
                    "too_many_requests",
                    "failed to create snapshot: this operation is rate-limited - one request per 10m0s",
                ),
                SnapshotTooSoon,
                false,
            ),
            (500, spoken("server_error", "Unexpected server-side error"), Server, true),
            (502, page.clone(), Server, true),
            (503, String::new(), Server, true),
            (301, String::new(), BadAnswer, true),
            (407, page, BadAnswer, true),
        ];
        for (status, body, kind, uncertain) in table {
            let error = sorted(Method::POST, status, &body);
            assert_eq!((error.kind(), error.uncertain()), (kind, uncertain), "{status} {body}");
            assert!(
                !sorted(Method::GET, status, &body).uncertain(),
                "a GET changes nothing: {status} {body}"
            );
        }
    }

    #[test]
    fn names_the_call_the_words_and_the_request() {
        let error = sorted(Method::DELETE, 409, &spoken("conflict", "attached volume cannot be deleted"));
        assert_eq!(
            error.to_string(),
            "DELETE /v2/volumes/v: attached volume cannot be deleted (HTTP 409, request r)"
        );
        let error = sorted(Method::GET, 503, &format!("<p>\n {}", "x".repeat(5000)));
        assert!(error.to_string().len() < 300, "{error}");
        assert_eq!(error.request_id(), Some("header-id"));
    }
}
