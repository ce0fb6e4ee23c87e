//! The options of lists, watches, writes and deletions, validated as upstream does and converted to a plan.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::continue_token::ContinueToken;
use super::query::{Query, go_reason};
use crate::status::{Cause, StatusError};
use crate::store::Revision;

/// The revision that a list is read at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RevisionMatch {
    Newest,
    NotOlderThan(Revision),
    Exact(Revision),
    /// The next page, at the revision of the first page.
    Continue(ContinueToken),
}

/// A requested list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListPlan {
    pub(crate) at: RevisionMatch,
    /// 0: no limit.
    pub(crate) limit: usize,
}

/// Where a watch starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the existing objects at a revision not older than this, then a bookmark if `initial_bookmark`, then
    /// changes.
    InitialState { not_older_than: Revision, initial_bookmark: bool },
    /// With the changes after this revision.
    After(Revision),
    /// With changes from now on.
    Now,
}

/// A requested watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WatchPlan {
    pub(crate) start: Start,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Option<Duration>,
}

/// The longest timeout of a watch. A client may ask for any number of seconds; added to the current time, the largest
/// ones overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

const NOT_OLDER_THAN: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// Parses the options of a list.
pub(crate) fn list(query: &Query) -> Result<ListPlan, StatusError> {
    let (version, version_match, token) =
        (query.text("resourceVersion"), query.text("resourceVersionMatch"), query.text("continue"));
    let forbidden = |detail: &str| Cause::forbidden("resourceVersionMatch", detail);
    let mut causes = Vec::new();
    if !version_match.is_empty() {
        if version.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !token.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if version_match != EXACT && version_match != NOT_OLDER_THAN {
            causes.push(Cause::not_supported(
                "resourceVersionMatch",
                &version_match.into(),
                &[EXACT, NOT_OLDER_THAN, ""],
            ));
        }
        if version_match == EXACT && version == "0" {
            causes.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    if query.flag("sendInitialEvents").is_some() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    refuse("ListOptions", causes)?;
    let limit = query.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
    if !token.is_empty() {
        if !matches!(version, "" | "0") {
            return Err(StatusError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(ListPlan { at: RevisionMatch::Continue(ContinueToken::parse(token)?), limit });
    }
    let revision = revision(query)?;
    Ok(match (revision, version_match) {
        (None, _) => ListPlan { at: RevisionMatch::Newest, limit },
        // A client that accepts any version gets the whole list from memory, as from upstream's watch cache.
        (Some(0), _) => ListPlan { at: RevisionMatch::Newest, limit: 0 },
        (Some(revision), EXACT) => ListPlan { at: RevisionMatch::Exact(revision), limit },
        // All pages of a list have one revision, and the request names it.
        (Some(revision), "") if limit > 0 => ListPlan { at: RevisionMatch::Exact(revision), limit },
        (Some(revision), _) => ListPlan { at: RevisionMatch::NotOlderThan(revision), limit },
    })
}

/// Parses the options of a watch.
pub(crate) fn watch(query: &Query) -> Result<WatchPlan, StatusError> {
    let version_match = query.text("resourceVersionMatch");
    let initial = query.flag("sendInitialEvents");
    let forbidden = |detail: &str| Cause::forbidden("resourceVersionMatch", detail);
    let mut causes = Vec::new();
    if initial.is_some() && version_match != NOT_OLDER_THAN {
        causes.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !version_match.is_empty() {
        if initial.is_none() {
            causes.push(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if version_match != NOT_OLDER_THAN {
            causes.push(Cause::not_supported(
                "resourceVersionMatch",
                &version_match.into(),
                &[NOT_OLDER_THAN],
            ));
        }
        if !query.text("continue").is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    refuse("ListOptions", causes)?;
    // For a watch, upstream responds with an internal error.
    let revision =
        parse(query.text("resourceVersion")).map_err(|reason| StatusError::new(500, "", reason))?;
    let bookmarks = query.flag("allowWatchBookmarks") == Some(true);
    let start = match (revision.unwrap_or(0), initial) {
        (not_older_than, Some(true)) => Start::InitialState { not_older_than, initial_bookmark: bookmarks },
        (0, None) => Start::InitialState { not_older_than: 0, initial_bookmark: false },
        (0, Some(false)) => Start::Now,
        (revision, _) => Start::After(revision),
    };
    let timeout = query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let timeout = timeout.filter(|&seconds| seconds > 0).map(Duration::from_secs);
    Ok(WatchPlan { start, bookmarks, timeout: timeout.map(|timeout| timeout.min(MAX_TIMEOUT)) })
}

/// The minimum revision of a read, if given.
pub(crate) fn revision(query: &Query) -> Result<Option<Revision>, StatusError> {
    parse(query.text("resourceVersion"))
        .map_err(|reason| StatusError::bad_request(format!("invalid resource version: {reason}")))
}

/// A revision, if given, or the error in the format of Go's parser.
fn parse(text: &str) -> Result<Option<Revision>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // Rust's parser accepts a sign.
    let reason = match text.parse() {
        Ok(revision) if !text.starts_with('+') => return Ok(Some(revision)),
        Ok(_) => "invalid syntax",
        Err(error) => go_reason(&error),
    };
    Err(format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {reason}"))
}

/// How unknown fields are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The options of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) fields: FieldValidation,
}

impl WriteOptions {
    /// The options of the server's own writes.
    pub(crate) const INTERNAL: Self = Self { dry_run: false, fields: FieldValidation::Ignore };
}

/// Parses the options of a write. `of` is the kind of the options in error messages.
pub(crate) fn write(query: &Query, of: &str) -> Result<WriteOptions, StatusError> {
    let mut causes = Vec::new();
    let manager = query.text("fieldManager");
    if manager.len() > 128 {
        let message = "Too long: may not be more than 128 bytes".into();
        causes.push(Cause { reason: "FieldValueTooLong", field: "fieldManager".into(), message });
    }
    let values: Vec<&str> = query.all("dryRun").filter(|value| !value.is_empty()).collect();
    let dry_run = dry_run(&values, &mut causes);
    let fields = match query.text("fieldValidation") {
        "" | "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        "Strict" => FieldValidation::Strict,
        other => {
            let known = ["", "Ignore", "Strict", "Warn"];
            causes.push(Cause::not_supported("fieldValidation", &other.into(), &known));
            FieldValidation::Strict
        }
    };
    refuse(of, causes)?;
    Ok(WriteOptions { dry_run, fields })
}

/// Whether this is a dry run. An unknown value is an error, never a real write.
fn dry_run(values: &[&str], causes: &mut Vec<Cause>) -> bool {
    if values.iter().any(|value| *value != "All") {
        let message = format!(
            "Unsupported value: [{}]: supported values: \"All\"",
            values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(",")
        );
        causes.push(Cause { reason: "FieldValueNotSupported", field: "dryRun".into(), message });
    }
    !values.is_empty()
}

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    /// None if not specified: the object's finalizers decide.
    pub(crate) propagation: Option<Propagation>,
    /// The request used the deprecated `orphanDependents`.
    pub(crate) uses_orphan_dependents: bool,
    pub(crate) dry_run: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawDeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    orphan_dependents: Option<bool>,
    propagation_policy: Option<String>,
    dry_run: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Parses the options of a deletion, from the body if there is one, otherwise from the query.
pub(crate) fn delete(body: &[u8], query: &Query) -> Result<DeleteOptions, StatusError> {
    let raw = if body.iter().all(u8::is_ascii_whitespace) {
        let policy = query.text("propagationPolicy");
        let dry_run: Vec<String> = query.all("dryRun").map(str::to_owned).collect();
        RawDeleteOptions {
            kind: None,
            grace_period_seconds: query.number("gracePeriodSeconds")?,
            preconditions: None,
            orphan_dependents: query.flag("orphanDependents"),
            propagation_policy: (!policy.is_empty()).then(|| policy.to_owned()),
            dry_run: Some(dry_run),
        }
    } else {
        read(body)?
    };
    check(raw)
}

/// Parses options that are part of another object, such as an Eviction.
pub(crate) fn delete_from(options: &Value) -> Result<DeleteOptions, StatusError> {
    match options {
        Value::Null => Ok(DeleteOptions::default()),
        options => check(read(options.to_string().as_bytes())?),
    }
}

fn read(body: &[u8]) -> Result<RawDeleteOptions, StatusError> {
    let raw: RawDeleteOptions = serde_json::from_slice(body).map_err(|error| {
        StatusError::bad_request(format!(
            "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}"
        ))
    })?;
    match raw.kind.as_deref() {
        None | Some("" | "DeleteOptions") => Ok(raw),
        Some(_) => Err(StatusError::bad_request("decoded object cannot be converted to DeleteOptions")),
    }
}

fn check(raw: RawDeleteOptions) -> Result<DeleteOptions, StatusError> {
    let mut causes = Vec::new();
    let policy = raw.propagation_policy.as_deref();
    if let (Some(policy), Some(_)) = (policy, raw.orphan_dependents) {
        let reason = "orphanDependents and deletionPropagation cannot be both set";
        causes.push(Cause::invalid("propagationPolicy", &policy.into(), reason));
    }
    let propagation = match (policy, raw.orphan_dependents) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
        (Some("Foreground"), _) => Some(Propagation::Foreground),
        (None, None) => None,
        (Some(other), _) => {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            causes.push(Cause::not_supported("propagationPolicy", &other.into(), &known));
            None
        }
    };
    let dry: Vec<String> = raw.dry_run.unwrap_or_default();
    let dry: Vec<&str> = dry.iter().map(String::as_str).filter(|value| !value.is_empty()).collect();
    let dry_run = dry_run(&dry, &mut causes);
    refuse("DeleteOptions", causes)?;
    let Preconditions { uid, resource_version } = raw.preconditions.unwrap_or_default();
    Ok(DeleteOptions {
        grace: raw.grace_period_seconds,
        uid,
        resource_version,
        propagation,
        uses_orphan_dependents: raw.orphan_dependents.is_some(),
        dry_run,
    })
}

fn refuse(of: &str, causes: Vec<Cause>) -> Result<(), StatusError> {
    if causes.is_empty() { Ok(()) } else { Err(StatusError::invalid("meta.k8s.io", of, "", causes)) }
}

#[cfg(test)]
mod tests;
