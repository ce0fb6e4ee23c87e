//! What the server answers when it does not do what was asked: `metav1.Status`, with upstream's reasons and words.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Value, json};

/// One thing that is wrong with an object, at a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid` and the like.
    pub reason: &'static str,
    /// As `spec.accessModes[0]`.
    pub field: String,
    /// As upstream words it, without the field: `Invalid value: "x": ...`.
    pub message: String,
}

impl Cause {
    /// A field that has to be there.
    pub fn required(field: &str, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    /// A field with a value that cannot be.
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            message: format!("Invalid value: {value}: {detail}"),
        }
    }

    /// A field that may not be set, or may not change.
    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {detail}") }
    }

    /// A value that is none of those known.
    pub fn not_supported(field: &str, value: &Value, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|known| format!("{known:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    /// The same value twice.
    pub fn duplicate(field: &str, value: &Value) -> Self {
        Self {
            reason: "FieldValueDuplicate",
            field: field.into(),
            message: format!("Duplicate value: {value}"),
        }
    }

    /// A value with more bytes than it may have. It is not repeated.
    pub fn too_long(field: &str, most: usize) -> Self {
        let message = format!("Too long: may not be more than {most} bytes");
        Self { reason: "FieldValueTooLong", field: field.into(), message }
    }

    /// A list with more items than it may have.
    pub fn too_many(field: &str, items: usize, most: usize) -> Self {
        let message = format!("Too many: {items}: must have at most {most} items");
        Self { reason: "FieldValueTooMany", field: field.into(), message }
    }

    /// A reference to something that is not there.
    pub fn not_found(field: &str, value: &Value) -> Self {
        Self { reason: "FieldValueNotFound", field: field.into(), message: format!("Not found: {value}") }
    }
}

/// A request that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP's.
    pub code: u16,
    /// `NotFound` and the like; empty for none.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// What it is about. Boxed, since most results are no refusals.
    pub details: Box<Details>,
}

/// What a refusal is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The resource (`pods`), or the kind where upstream names that.
    pub kind: String,
    /// What is wrong with it.
    pub causes: Vec<Cause>,
    /// When to come again.
    pub retry_after_seconds: Option<u32>,
    /// They are sent though there is nothing in them: upstream's way of answering what no handler has seen.
    pub sent: bool,
    /// Where a list can be taken up again, though not consistently; empty for nowhere.
    pub continues: String,
}

/// A resource, as messages name it: `persistentvolumes`, `storageclasses.storage.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Plural.
    pub plural: &'a str,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// What one refusal tells of.
const MOST_CAUSES: usize = 256;

impl Refusal {
    /// Any refusal without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Box::default() }
    }

    fn about(mut self, resource: Resource<'_>, name: &str) -> Self {
        let Details { name: of, group, kind, .. } = &mut *self.details;
        (*of, *group, *kind) = (name.into(), resource.group.into(), resource.plural.into());
        self
    }

    /// There is no such object.
    pub fn not_found(resource: Resource<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} {name:?} not found")).about(resource, name)
    }

    /// There is one already.
    pub fn already_exists(resource: Resource<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} {name:?} already exists")).about(resource, name)
    }

    /// Somebody else was quicker, or a precondition does not hold.
    pub fn conflict(resource: Resource<'_>, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// Who asks may not.
    pub fn forbidden(resource: Resource<'_>, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// The object cannot be as it is. `kind` as `PersistentVolumeClaim`.
    pub fn invalid(group: &str, kind: &str, name: &str, mut causes: Vec<Cause>) -> Self {
        // There can be as many as a body has room for. Who has read so many has read enough.
        let left_out = causes.len().saturating_sub(MOST_CAUSES);
        causes.truncate(MOST_CAUSES);
        let mut seen = HashSet::new();
        let words = |cause: &Cause| format!("{}: {}", cause.field, cause.message);
        let mut all: Vec<String> =
            causes.iter().map(words).filter(|words| seen.insert(words.clone())).collect();
        if left_out > 0 {
            all.push(format!("and {left_out} more"));
        }
        let all = if let [one] = all.as_slice() { one.clone() } else { format!("[{}]", all.join(", ")) };
        let resource = Resource { group, plural: kind };
        let mut refusal =
            Self::new(422, "Invalid", format!("{resource} {name:?} is invalid: {all}")).about(resource, name);
        refusal.details.causes = causes;
        refusal
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A request that came to no handler, or whose answer says no more than the code does.
    pub fn generic(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut refusal = Self::new(code, reason, message);
        refusal.details.sent = true;
        refusal
    }

    /// The revision asked for is no longer known.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// There is no room for it now.
    pub fn too_many(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(429, "TooManyRequests", message);
        refusal.details.retry_after_seconds = Some(1);
        refusal
    }

    /// As `metav1.Status`.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        let Details { name, group, kind, causes, retry_after_seconds, sent, continues } = &*self.details;
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
    fn each_cause_is_said_once_and_in_order() {
        let cause = |at: usize| Cause::required(&format!("a[{at}]"), "");
        let twice = Refusal::invalid("", "Pod", "p", vec![cause(1), cause(0), cause(1)]);
        assert_eq!(twice.message, "Pod \"p\" is invalid: [a[1]: Required value, a[0]: Required value]");
        assert_eq!(twice.details.causes.len(), 3);
        let one = Refusal::invalid("", "Pod", "p", vec![cause(1), cause(1)]);
        assert_eq!(one.message, "Pod \"p\" is invalid: a[1]: Required value");
        let many = Refusal::invalid("", "Pod", "p", (0..300).map(cause).collect());
        assert_eq!(many.details.causes.len(), 256);
        assert_eq!(many.message.matches("Required value").count(), 256);
        assert!(many.message.ends_with("a[255]: Required value, and 44 more]"), "{many}");
    }
}
