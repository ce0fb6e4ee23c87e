//! Deletion rules: what happens to an object when its deletion is requested.
//!
//! [`decide`] contains all rules; its result is applied with one write. An object is removed at once, or it is marked
//! and remains until its finalizers are removed, its node has stopped it (a pod), or its content is deleted (a
//! namespace).

use std::time::Duration;

use serde_json::{Value, json};
use wharf_model::Time;

use super::meta;
use super::options::{DeleteOptions, Propagation};
use crate::kinds::Kind;
use crate::status::StatusError;

/// The finalizer that holds an owner until its dependents are orphaned.
pub(crate) const ORPHAN: &str = "orphan";
/// The finalizer that holds an owner until its dependents are deleted.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The outcome of a deletion request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Deletion {
    /// Remove the object; this is its last state.
    Remove(Value),
    /// Store this state, with a deletionTimestamp; the object remains for now.
    Mark(Value),
    /// The deletion is already in progress and does not change.
    Wait,
}

/// Decides what a deletion request does. Fails if a precondition does not hold.
pub(crate) fn decide(
    kind: &Kind,
    object: &Value,
    options: &DeleteOptions,
    now: Time,
) -> Result<Deletion, StatusError> {
    check(kind, object, options)?;
    let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
    if is_namespace && meta::is_deleting(object) && !meta::strings(object, "/spec/finalizers").is_empty() {
        return Ok(Deletion::Wait);
    }
    let mut next = object.clone();
    let graceful = match grace(kind, object, options) {
        Grace::None => None,
        Grace::Pending => return Ok(Deletion::Wait),
        Grace::Shorten(seconds, at) => {
            meta::set(&mut next, "deletionTimestamp", at.to_string().into());
            Some(seconds)
        }
        Grace::Start(seconds) => {
            let at = now.plus(Duration::from_secs(seconds.unsigned_abs()));
            bump_generation(&mut next);
            meta::set(&mut next, "deletionTimestamp", at.to_string().into());
            Some(seconds)
        }
    };
    let finalizers = finalizers(kind, object, options);
    meta::set(&mut next, "finalizers", json!(finalizers));
    if is_namespace && !meta::is_deleting(object) {
        meta::set(&mut next, "deletionTimestamp", now.to_string().into());
        meta::map(&mut next, "status").insert("phase".into(), "Terminating".into());
        return Ok(Deletion::Mark(next));
    }
    if let Some(seconds) = graceful {
        meta::set(&mut next, "deletionGracePeriodSeconds", seconds.into());
        let stays = seconds > 0 || !finalizers.is_empty();
        return Ok(if stays { Deletion::Mark(next) } else { Deletion::Remove(next) });
    }
    if finalizers.is_empty() {
        return Ok(Deletion::Remove(next));
    }
    if !meta::is_deleting(object) {
        bump_generation(&mut next);
        meta::set(&mut next, "deletionTimestamp", now.to_string().into());
    }
    meta::set(&mut next, "deletionGracePeriodSeconds", 0.into());
    Ok(if next == *object { Deletion::Wait } else { Deletion::Mark(next) })
}

fn check(kind: &Kind, object: &Value, options: &DeleteOptions) -> Result<(), StatusError> {
    // Upstream names the kind here, not the resource.
    let resource = crate::status::Resource { group: kind.group, plural: kind.kind };
    let conflict = |reason: String| Err(StatusError::conflict(resource, meta::name(object), &reason));
    match (&options.uid, meta::uid(object)) {
        (Some(expected), uid) if expected != uid => {
            return conflict(format!(
                "the UID in the precondition ({expected}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
            ));
        }
        _ => {}
    }
    match (&options.resource_version, meta::version(object)) {
        (Some(expected), version) if expected != version => conflict(format!(
            "the ResourceVersion in the precondition ({expected}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        )),
        _ => Ok(()),
    }
}

/// The state of a graceful deletion. The node completes it: it stops the pod and then deletes the object.
enum Grace {
    /// The deletion is not graceful.
    None,
    /// The grace period is running, and this request does not shorten it.
    Pending,
    /// The grace period is running and is shortened.
    Shorten(i64, Time),
    /// The grace period starts.
    Start(i64),
}

fn grace(kind: &Kind, object: &Value, options: &DeleteOptions) -> Grace {
    if !kind.graceful_deletion {
        return Grace::None;
    }
    if meta::is_deleting(object) {
        let Some(running) = meta::grace(object) else { return Grace::None };
        return match options.grace {
            Some(requested) if requested < running => {
                let at = meta::text(object, "/metadata/deletionTimestamp");
                let at: i64 = at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond);
                Grace::Shorten(
                    requested.max(0),
                    Time(at.saturating_sub((running - requested.max(0)).saturating_mul(1000))),
                )
            }
            _ => Grace::Pending,
        };
    }
    let pod_grace_period = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let requested = options.grace.or(pod_grace_period).unwrap_or(0);
    let is_finished = matches!(meta::text(object, "/status/phase"), "Failed" | "Succeeded");
    // No node runs the pod: there is nothing to wait for.
    let seconds = if meta::text(object, "/spec/nodeName").is_empty() || is_finished { 0 } else { requested };
    // The cap is far above any real value; it keeps the deadline within the range of a timestamp.
    Grace::Start(if seconds < 0 { 1 } else { seconds.min(i64::from(i32::MAX)) })
}

/// The finalizers of the object during deletion: its own, plus one for the requested propagation.
fn finalizers(kind: &Kind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let existing = meta::finalizers(object);
    if kind.plural == "events" {
        return existing.into_iter().map(Into::into).collect();
    }
    let wants = |propagation, finalizer| match options.propagation {
        Some(requested) => requested == propagation,
        None => existing.contains(&finalizer),
    };
    let (orphan, foreground) =
        (wants(Propagation::Orphan, ORPHAN), wants(Propagation::Foreground, FOREGROUND));
    if orphan == existing.contains(&ORPHAN) && foreground == existing.contains(&FOREGROUND) {
        return existing.into_iter().map(Into::into).collect();
    }
    let own = existing.into_iter().filter(|finalizer| *finalizer != ORPHAN && *finalizer != FOREGROUND);
    let requested = [(orphan, ORPHAN), (foreground, FOREGROUND)];
    let requested = requested.into_iter().filter_map(|(expected, finalizer)| expected.then_some(finalizer));
    own.chain(requested).map(Into::into).collect()
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) = object.pointer("/metadata/generation").and_then(Value::as_i64)
        && generation > 0
    {
        meta::set(object, "generation", generation.saturating_add(1).into());
    }
}

/// Whether upstream responds to a completed deletion with the object instead of a `Status`.
pub(crate) fn responds_with_object(kind: &Kind) -> bool {
    matches!(
        (kind.group, kind.plural),
        ("", "persistentvolumes" | "persistentvolumeclaims" | "serviceaccounts" | "namespaces" | "pods")
            | (
                "storage.k8s.io",
                "csidrivers"
                    | "csinodes"
                    | "storageclasses"
                    | "volumeattachments"
                    | "volumeattributesclasses"
            )
    )
}

/// The `Status` for a removed object.
pub(crate) fn success_status(kind: &Kind, object: &Value) -> Value {
    let mut details = json!({"name": meta::name(object), "kind": kind.plural, "uid": meta::uid(object)});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests;
