//! Errors of API requests, classified by what a controller can do about them.
//!
//! Guarantees: an error contains the method, the object and the server's message, and never the body of a request.
//! For Secrets the server's message is left out too, since a validation message may quote a value.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use wharf_model::ApiResource;

/// A failed request: its method, its object and the error message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP method, or `WATCH`.
    pub method: &'static str,
    /// The kind and the object's key, or the kind alone.
    pub object: String,
    /// The server's message, or the connection error.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.method, self.object, self.message)
    }
}

/// An error of an API request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The object does not exist; the server reported this for this very object.
    #[error("{0}")]
    NotFound(Refusal),
    /// The server does not serve the kind: a missing CRD or API version. Proves nothing about the object.
    #[error("{0}")]
    NotServed(Refusal),
    /// The object has changed, or a precondition is not met: read it and decide again.
    #[error("{0}")]
    Conflict(Refusal),
    /// An object of this name exists.
    #[error("{0}")]
    AlreadyExists(Refusal),
    /// RBAC, quota or admission forbids it.
    #[error("{0}")]
    Forbidden(Refusal),
    /// The namespace is being deleted, so nothing can be created in it.
    #[error("{0}")]
    Terminating(Refusal),
    /// The request is invalid; an unchanged retry fails again.
    #[error("{0}")]
    Invalid(Refusal),
    /// The server is overloaded and names a delay before the next attempt.
    #[error("{refusal}")]
    TooManyRequests {
        /// The failed request.
        refusal: Refusal,
        /// How long to wait before a retry.
        retry_after: Duration,
    },
    /// The requested resource version is no longer available.
    #[error("{0}")]
    Gone(Refusal),
    /// No response, or the server is unavailable. A write may or may not have happened.
    #[error("{0}")]
    Unavailable(Refusal),
    /// Anything else, with the HTTP status (0 if there was none).
    #[error("{refusal} (HTTP {status})")]
    Other {
        /// The failed request.
        refusal: Refusal,
        /// The HTTP status.
        status: u16,
    },
}

impl ApiError {
    /// The failed request.
    pub fn refusal(&self) -> &Refusal {
        match self {
            Self::NotFound(refusal)
            | Self::NotServed(refusal)
            | Self::Conflict(refusal)
            | Self::AlreadyExists(refusal)
            | Self::Forbidden(refusal)
            | Self::Terminating(refusal)
            | Self::Invalid(refusal)
            | Self::Gone(refusal)
            | Self::Unavailable(refusal)
            | Self::TooManyRequests { refusal, .. }
            | Self::Other { refusal, .. } => refusal,
        }
    }

    /// A stable name for metrics and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NotFound",
            Self::NotServed(_) => "NotServed",
            Self::Conflict(_) => "Conflict",
            Self::AlreadyExists(_) => "AlreadyExists",
            Self::Forbidden(_) => "Forbidden",
            Self::Terminating(_) => "Terminating",
            Self::Invalid(_) => "Invalid",
            Self::TooManyRequests { .. } => "TooManyRequests",
            Self::Gone(_) => "Gone",
            Self::Unavailable(_) => "Unavailable",
            Self::Other { .. } => "Other",
        }
    }
}

/// The parts of a `Status` we read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) details: StatusDetails,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusDetails {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) retry_after_seconds: u64,
    pub(crate) causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cause {
    pub(crate) reason: String,
}

/// The method and object of a request, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) method: &'static str,
    pub(crate) api: &'a ApiResource,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    /// The object to be created in a collection; it is not part of the path.
    pub(crate) creating: Option<&'a str>,
}

impl Subject<'_> {
    /// Whether the request changes anything.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.method, "GET" | "LIST" | "WATCH")
    }
}

impl Subject<'_> {
    pub(crate) fn refusal(&self, message: impl Into<String>) -> Refusal {
        let mut object = self.api.kind.to_owned();
        for part in [self.namespace, self.name, self.creating].into_iter().flatten() {
            object.push(if object == self.api.kind { ' ' } else { '/' });
            object.push_str(part);
        }
        Refusal { method: self.method, object, message: message.into() }
    }
}

/// Classifies a response that is not a success.
pub(crate) fn classify(
    subject: Subject<'_>,
    http: u16,
    retry_after: Option<Duration>,
    body: &[u8],
) -> ApiError {
    let status: Option<Status> = serde_json::from_slice(body).ok();
    let status = status.unwrap_or_default();
    let secret = subject.api.group.is_empty() && subject.api.plural == "secrets";
    let message = match (secret, status.message.is_empty()) {
        (false, false) => status.message,
        _ => format!("HTTP {http} {}", status.reason).trim_end().to_owned(),
    };
    let refusal = subject.refusal(message);
    match http {
        // The 404 for a path that is not served does not name the object, and neither does a proxy's. Neither proves
        // that the object does not exist.
        404 if subject.name.is_some_and(|name| name == status.details.name) => ApiError::NotFound(refusal),
        // The 404 for a create names the missing namespace, or nothing.
        404 if subject.name.is_none() && status.reason == "NotFound" && !status.details.name.is_empty() => {
            ApiError::NotFound(refusal)
        }
        404 => ApiError::NotServed(refusal),
        409 if status.reason == "AlreadyExists" => ApiError::AlreadyExists(refusal),
        409 => ApiError::Conflict(refusal),
        403 if status.details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating") => {
            ApiError::Terminating(refusal)
        }
        403 => ApiError::Forbidden(refusal),
        400 | 413 | 422 => ApiError::Invalid(refusal),
        429 => {
            let requested = Duration::from_secs(status.details.retry_after_seconds.clamp(1, 60));
            ApiError::TooManyRequests { refusal, retry_after: retry_after.unwrap_or(requested) }
        }
        410 => ApiError::Gone(refusal),
        500 | 502 | 503 | 504 => ApiError::Unavailable(refusal),
        status => ApiError::Other { refusal, status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_model::Scope;

    const PODS: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Pod", plural: "pods", scope: Scope::Namespaced };
    const SECRETS: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Secret", plural: "secrets", scope: Scope::Namespaced };

    fn of(api: &ApiResource, name: Option<&str>, http: u16, body: &str) -> ApiError {
        let subject = Subject { method: "PUT", api, namespace: Some("ns"), name, creating: None };
        classify(subject, http, None, body.as_bytes())
    }

    #[test]
    fn responses_are_classified() {
        let table = [
            (404, r#"{"reason":"NotFound","details":{"name":"a"}}"#, "NotFound"),
            (404, r#"{"reason":"NotFound","details":{"name":"other"}}"#, "NotServed"),
            (404, "404 page not found", "NotServed"),
            (404, "<html>", "NotServed"),
            (409, r#"{"reason":"Conflict"}"#, "Conflict"),
            (409, r#"{"reason":"AlreadyExists"}"#, "AlreadyExists"),
            (403, r#"{"reason":"Forbidden"}"#, "Forbidden"),
            (
                403,
                r#"{"reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating"}]}}"#,
                "Terminating",
            ),
            (400, "", "Invalid"),
            (422, "", "Invalid"),
            (429, "", "TooManyRequests"),
            (410, "", "Gone"),
            (500, "", "Unavailable"),
            (503, "", "Unavailable"),
            (504, "", "Unavailable"),
            (401, "", "Other"),
            (418, "", "Other"),
        ];
        for (http, body, reason) in table {
            assert_eq!(of(&PODS, Some("a"), http, body).reason(), reason, "{http} {body}");
        }
    }

    #[test]
    fn retry_after_is_parsed_and_bounded() {
        for (body, seconds) in [
            ("", 1),
            (r#"{"details":{"retryAfterSeconds":7}}"#, 7),
            (r#"{"details":{"retryAfterSeconds":7000}}"#, 60),
        ] {
            let ApiError::TooManyRequests { retry_after, .. } = of(&PODS, None, 429, body) else { panic!() };
            assert_eq!(retry_after, Duration::from_secs(seconds), "{body}");
        }
    }

    #[test]
    fn errors_name_the_object_and_redact_secrets() {
        let body = r#"{"reason":"Invalid","message":"data: hunter2 is wrong"}"#;
        assert_eq!(of(&PODS, Some("a"), 422, body).to_string(), "PUT Pod ns/a: data: hunter2 is wrong");
        assert_eq!(of(&SECRETS, Some("a"), 422, body).to_string(), "PUT Secret ns/a: HTTP 422 Invalid");
        assert_eq!(of(&PODS, None, 503, "down").to_string(), "PUT Pod ns: HTTP 503");
    }
}
