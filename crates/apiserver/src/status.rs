//! Errors that the server returns to clients: `metav1.Status`, with upstream's reasons and messages.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Value, json};

/// One error of an object, at a field (`metav1.StatusCause`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The reason: `FieldValueInvalid`.
    pub reason: &'static str,
    /// The path of the field: `spec.accessModes[0]`.
    pub field: String,
    /// Upstream's message, without the field: `Invalid value: "x": ...`.
    pub message: String,
}

impl Cause {
    /// A required field is missing.
    pub fn required(field: &str, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    /// A field has an invalid value.
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            message: format!("Invalid value: {value}: {detail}"),
        }
    }

    /// A field must not be set, or must not change.
    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {detail}") }
    }

    /// A value is not one of the supported values.
    pub fn not_supported(field: &str, value: &Value, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|known| format!("{known:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    /// A value occurs twice.
    pub fn duplicate(field: &str, value: &Value) -> Self {
        Self {
            reason: "FieldValueDuplicate",
            field: field.into(),
            message: format!("Duplicate value: {value}"),
        }
    }

    /// A value exceeds its maximum number of bytes. The message does not repeat the value.
    pub fn too_long(field: &str, most: usize) -> Self {
        let message = format!("Too long: may not be more than {most} bytes");
        Self { reason: "FieldValueTooLong", field: field.into(), message }
    }

    /// A list exceeds its maximum number of items.
    pub fn too_many(field: &str, items: usize, most: usize) -> Self {
        let message = format!("Too many: {items}: must have at most {most} items");
        Self { reason: "FieldValueTooMany", field: field.into(), message }
    }

    /// A referenced object does not exist.
    pub fn not_found(field: &str, value: &Value) -> Self {
        Self { reason: "FieldValueNotFound", field: field.into(), message: format!("Not found: {value}") }
    }
}

/// An error response (upstream's `errors.StatusError`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StatusError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason: `NotFound`; empty for none.
    pub reason: &'static str,
    /// The human-readable message.
    pub message: String,
    /// The object of the error. Boxed to keep results small.
    pub details: Box<Details>,
}

/// The details of an error (`metav1.StatusDetails`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// The group of the object.
    pub group: String,
    /// The resource (`pods`), or the kind where upstream uses the kind.
    pub kind: String,
    /// The errors of the object.
    pub causes: Vec<Cause>,
    /// When the client should retry.
    pub retry_after_seconds: Option<u32>,
    /// Whether the details are sent even if they are empty, as upstream does for requests that reach no handler.
    pub send_empty: bool,
    /// A token to continue an expired list inconsistently; empty for none.
    pub continue_token: String,
}

/// A resource, as error messages name it: `persistentvolumes`, `storageclasses.storage.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The plural name of the resource.
    pub plural: &'a str,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// The maximum number of causes in an error.
const MAX_CAUSES: usize = 256;

impl StatusError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Box::default() }
    }

    fn with_resource(mut self, resource: Resource<'_>, name: &str) -> Self {
        let details = &mut *self.details;
        details.name = name.into();
        details.group = resource.group.into();
        details.kind = resource.plural.into();
        self
    }

    /// The request panicked. The message is in the server's log only.
    pub(crate) fn panicked() -> Self {
        let message = "Internal error occurred: the request caused a panic: see the log of the API server";
        Self::new(500, "InternalError", message)
    }

    /// The object does not exist.
    pub fn not_found(resource: Resource<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} {name:?} not found")).with_resource(resource, name)
    }

    /// An object with that name already exists.
    pub fn already_exists(resource: Resource<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} {name:?} already exists"))
            .with_resource(resource, name)
    }

    /// The object was modified concurrently, or a precondition failed.
    pub fn conflict(resource: Resource<'_>, name: &str, reason: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {reason}");
        Self::new(409, "Conflict", message).with_resource(resource, name)
    }

    /// The user, or the state of the object, does not permit the request.
    pub fn forbidden(resource: Resource<'_>, name: &str, reason: &str) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {reason}")
        } else {
            format!("{resource} {name:?} is forbidden: {reason}")
        };
        Self::new(403, "Forbidden", message).with_resource(resource, name)
    }

    /// The object is invalid. `kind` is the kind, not the resource: `PersistentVolumeClaim`.
    pub fn invalid(group: &str, kind: &str, name: &str, mut causes: Vec<Cause>) -> Self {
        // A large body can cause any number of errors: report only the first ones.
        let left_out = causes.len().saturating_sub(MAX_CAUSES);
        causes.truncate(MAX_CAUSES);
        let mut seen = HashSet::new();
        let message = |cause: &Cause| format!("{}: {}", cause.field, cause.message);
        let mut all: Vec<String> =
            causes.iter().map(message).filter(|message| seen.insert(message.clone())).collect();
        if left_out > 0 {
            all.push(format!("and {left_out} more"));
        }
        let all = if let [one] = all.as_slice() { one.clone() } else { format!("[{}]", all.join(", ")) };
        let resource = Resource { group, plural: kind };
        let mut error = Self::new(422, "Invalid", format!("{resource} {name:?} is invalid: {all}"))
            .with_resource(resource, name);
        error.details.causes = causes;
        error
    }

    /// The request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A generic response (upstream's `NewGenericServerResponse`): no handler was reached, or the response says no more
    /// than the code.
    pub fn generic(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(code, reason, message);
        error.details.send_empty = true;
        error
    }

    /// The requested revision is no longer available.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The server has reached a limit. The client should retry after a second.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.details.retry_after_seconds = Some(1);
        error
    }

    /// Converts the error to a `metav1.Status`.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        let Details {
            name,
            group,
            kind,
            causes,
            retry_after_seconds,
            send_empty: sent,
            continue_token: continues,
        } = &*self.details;
        if !continues.is_empty() {
            status["metadata"]["continue"] = continues.as_str().into();
        }
        let mut details = serde_json::Map::new();
        for (field, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(field.into(), value.as_str().into());
            }
        }
        if !causes.is_empty() {
            let cause = |cause: &Cause| {
                let mut json = json!({"reason": cause.reason, "message": cause.message});
                if !cause.field.is_empty() {
                    json["field"] = cause.field.as_str().into();
                }
                json
            };
            details.insert("causes".into(), causes.iter().map(cause).collect());
        }
        if let Some(seconds) = retry_after_seconds {
            details.insert("retryAfterSeconds".into(), (*seconds).into());
        }
        if *sent || !details.is_empty() {
            status["details"] = details.into();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_lists_each_cause_once_in_order() {
        let cause = |at: usize| Cause::required(&format!("a[{at}]"), "");
        let twice = StatusError::invalid("", "Pod", "p", vec![cause(1), cause(0), cause(1)]);
        assert_eq!(twice.message, "Pod \"p\" is invalid: [a[1]: Required value, a[0]: Required value]");
        assert_eq!(twice.details.causes.len(), 3);
        let one = StatusError::invalid("", "Pod", "p", vec![cause(1), cause(1)]);
        assert_eq!(one.message, "Pod \"p\" is invalid: a[1]: Required value");
        let many = StatusError::invalid("", "Pod", "p", (0..300).map(cause).collect());
        assert_eq!(many.details.causes.len(), 256);
        assert_eq!(many.message.matches("Required value").count(), 256);
        assert!(many.message.ends_with("a[255]: Required value, and 44 more]"), "{many}");
    }
}
