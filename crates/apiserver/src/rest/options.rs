//! What a request asks for besides its object: the options of lists, watches, writes and deletions, checked as
//! upstream checks them and turned into a plan.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::page::Token;
use super::query::Query;
use crate::status::{Cause, Refusal};
use crate::store::Revision;

/// Which state a list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum At {
    Newest,
    NotOlder(Revision),
    Exactly(Revision),
    /// What comes behind a page, in the state that the page is of.
    Behind(Token),
}

/// A list that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListPlan {
    pub(crate) at: At,
    /// 0 for all.
    pub(crate) limit: usize,
}

/// Where a watch begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// With all that is there, in a state not older than this; then a mark if `marked`, then changes.
    State { not_older: Revision, marked: bool },
    /// With the changes behind this.
    Behind(Revision),
    /// With what happens from now on.
    Now,
}

/// A watch that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WatchPlan {
    pub(crate) start: Start,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Option<Duration>,
}

const NOT_OLDER: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// The plan of a list.
pub(crate) fn list(query: &Query) -> Result<ListPlan, Refusal> {
    let (version, matching, token) =
        (query.text("resourceVersion"), query.text("resourceVersionMatch"), query.text("continue"));
    let forbidden = |detail: &str| Cause::forbidden("resourceVersionMatch", detail);
    let mut causes = Vec::new();
    if !matching.is_empty() {
        if version.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !token.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if matching != EXACT && matching != NOT_OLDER {
            causes.push(Cause::not_supported(
                "resourceVersionMatch",
                &matching.into(),
                &[EXACT, NOT_OLDER, ""],
            ));
        }
        if matching == EXACT && version == "0" {
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
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(ListPlan { at: At::Behind(Token::parse(token)?), limit });
    }
    let revision = revision(query)?;
    Ok(match (revision, matching) {
        (None, _) => ListPlan { at: At::Newest, limit },
        // Whoever takes any state gets it from memory and whole, as from upstream's watch cache.
        (Some(0), _) => ListPlan { at: At::Newest, limit: 0 },
        (Some(revision), EXACT) => ListPlan { at: At::Exactly(revision), limit },
        // The pages of a list are of one state, and this is the one that was named.
        (Some(revision), "") if limit > 0 => ListPlan { at: At::Exactly(revision), limit },
        (Some(revision), _) => ListPlan { at: At::NotOlder(revision), limit },
    })
}

/// The plan of a watch.
pub(crate) fn watch(query: &Query) -> Result<WatchPlan, Refusal> {
    let matching = query.text("resourceVersionMatch");
    let initial = query.flag("sendInitialEvents");
    let forbidden = |detail: &str| Cause::forbidden("resourceVersionMatch", detail);
    let mut causes = Vec::new();
    if initial.is_some() && matching != NOT_OLDER {
        causes.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !matching.is_empty() {
        if initial.is_none() {
            causes.push(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if matching != NOT_OLDER {
            causes.push(Cause::not_supported("resourceVersionMatch", &matching.into(), &[NOT_OLDER]));
        }
        if !query.text("continue").is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    refuse("ListOptions", causes)?;
    // To a watch upstream answers as if it were its own fault.
    let revision = parse(query.text("resourceVersion")).map_err(|why| Refusal::new(500, "", why))?;
    let bookmarks = query.flag("allowWatchBookmarks") == Some(true);
    let start = match (revision.unwrap_or(0), initial) {
        (not_older, Some(true)) => Start::State { not_older, marked: bookmarks },
        (0, None) => Start::State { not_older: 0, marked: false },
        (0, Some(false)) => Start::Now,
        (revision, _) => Start::Behind(revision),
    };
    let timeout = query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    Ok(WatchPlan {
        start,
        bookmarks,
        timeout: timeout.filter(|&seconds| seconds > 0).map(Duration::from_secs),
    })
}

/// The version that a read is to be not older than, if it is given.
pub(crate) fn revision(query: &Query) -> Result<Option<Revision>, Refusal> {
    parse(query.text("resourceVersion"))
        .map_err(|why| Refusal::bad_request(format!("invalid resource version: {why}")))
}

/// A version, if it is given; or what is wrong with it, as upstream's language says it.
fn parse(text: &str) -> Result<Option<Revision>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(revision) => Ok(Some(revision)),
        Err(_) => Err(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        )),
    }
}

/// What becomes of fields that nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) fields: FieldValidation,
}

impl WriteOptions {
    /// Of what the server does by itself.
    pub(crate) const INTERNAL: Self = Self { dry_run: false, fields: FieldValidation::Ignore };
}

/// The options of a write. `of` is the kind of the options, as errors name it.
pub(crate) fn write(query: &Query, of: &str) -> Result<WriteOptions, Refusal> {
    let mut causes = Vec::new();
    let manager = query.text("fieldManager");
    if manager.len() > 128 {
        let message = "Too long: may not be more than 128 bytes".into();
        causes.push(Cause { reason: "FieldValueTooLong", field: "fieldManager".into(), message });
    }
    let asked: Vec<&str> = query.all("dryRun").filter(|value| !value.is_empty()).collect();
    let dry_run = dry_run(&asked, &mut causes);
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

/// Whether nothing is to be done really. A value that we do not know is a mistake, not a real write.
fn dry_run(asked: &[&str], causes: &mut Vec<Cause>) -> bool {
    if asked.iter().any(|value| *value != "All") {
        let message = format!(
            "Unsupported value: [{}]: supported values: \"All\"",
            asked.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(",")
        );
        causes.push(Cause { reason: "FieldValueNotSupported", field: "dryRun".into(), message });
    }
    !asked.is_empty()
}

/// What becomes of the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// How to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    /// None if it was not said: the object's own finalizers decide.
    pub(crate) propagation: Option<Propagation>,
    /// It was said in the old way, by `orphanDependents`.
    pub(crate) old_way: bool,
    pub(crate) dry_run: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Asked {
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

/// The options of a deletion: from the body if there is one, else from the parameters.
pub(crate) fn delete(body: &[u8], query: &Query) -> Result<DeleteOptions, Refusal> {
    let asked = if body.iter().all(u8::is_ascii_whitespace) {
        let policy = query.text("propagationPolicy");
        let dry_run: Vec<String> = query.all("dryRun").map(str::to_owned).collect();
        Asked {
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
    check(asked)
}

/// The options that are part of another object: an eviction's.
pub(crate) fn delete_of(options: &Value) -> Result<DeleteOptions, Refusal> {
    match options {
        Value::Null => Ok(DeleteOptions::default()),
        options => check(read(options.to_string().as_bytes())?),
    }
}

fn read(body: &[u8]) -> Result<Asked, Refusal> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!(
            "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}"
        ))
    })?;
    match asked.kind.as_deref() {
        None | Some("" | "DeleteOptions") => Ok(asked),
        Some(_) => Err(Refusal::bad_request("decoded object cannot be converted to DeleteOptions")),
    }
}

fn check(asked: Asked) -> Result<DeleteOptions, Refusal> {
    let mut causes = Vec::new();
    let policy = asked.propagation_policy.as_deref();
    if let (Some(policy), Some(_)) = (policy, asked.orphan_dependents) {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        causes.push(Cause::invalid("propagationPolicy", &policy.into(), why));
    }
    let propagation = match (policy, asked.orphan_dependents) {
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
    let dry: Vec<String> = asked.dry_run.unwrap_or_default();
    let dry: Vec<&str> = dry.iter().map(String::as_str).filter(|value| !value.is_empty()).collect();
    let dry_run = dry_run(&dry, &mut causes);
    refuse("DeleteOptions", causes)?;
    let Preconditions { uid, resource_version } = asked.preconditions.unwrap_or_default();
    Ok(DeleteOptions {
        grace: asked.grace_period_seconds,
        uid,
        version: resource_version,
        propagation,
        old_way: asked.orphan_dependents.is_some(),
        dry_run,
    })
}

fn refuse(of: &str, causes: Vec<Cause>) -> Result<(), Refusal> {
    if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid("meta.k8s.io", of, "", causes)) }
}

#[cfg(test)]
mod tests;
