//! What becomes of an object whose deletion is asked for.
//!
//! [`decide`] is the whole rule; doing it is one write. An object goes at once, or it is marked and stays until its
//! finalizers are gone, its node has let go of it, or (for a namespace) its content is deleted.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_model::Time;

use super::meta;
use super::options::{DeleteOptions, Propagation};
use crate::kinds::Kind;
use crate::status::Refusal;

/// Holds an owner until its dependents are set free.
pub(crate) const ORPHAN: &str = "orphan";
/// Holds an owner until its dependents are gone.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Deletion {
    /// It goes; this is its last state.
    Remove(Value),
    /// It stays for now, like this.
    Mark(Value),
    /// It is on its way already.
    Wait,
}

/// Decides. Preconditions that do not hold are refused.
pub(crate) fn decide(
    kind: &Kind,
    object: &Value,
    options: &DeleteOptions,
    now: Time,
) -> Result<Deletion, Refusal> {
    check(kind, object, options)?;
    let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
    if is_namespace && meta::is_deleting(object) && !meta::texts(object, "/spec/finalizers").is_empty() {
        return Ok(Deletion::Wait);
    }
    let mut next = object.clone();
    let graceful = match grace(kind, object, options) {
        Grace::None => None,
        Grace::Pending => return Ok(Deletion::Wait),
        Grace::Shorter(seconds, at) => {
            meta::set(&mut next, "deletionTimestamp", at.to_string().into());
            Some(seconds)
        }
        Grace::Begins(seconds) => {
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

fn check(kind: &Kind, object: &Value, options: &DeleteOptions) -> Result<(), Refusal> {
    // Upstream names the kind here, not the resource.
    let resource = crate::status::Resource { group: kind.group, plural: kind.kind };
    let refuse = |why: String| Err(Refusal::conflict(resource, meta::name(object), &why));
    match (&options.uid, meta::uid(object)) {
        (Some(wanted), uid) if wanted != uid => {
            return refuse(format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
            ));
        }
        _ => {}
    }
    match (&options.version, meta::version(object)) {
        (Some(wanted), version) if wanted != version => refuse(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        )),
        _ => Ok(()),
    }
}

/// How a deletion in two steps, the second by the node, stands.
enum Grace {
    /// There is none.
    None,
    /// It runs, and this request does not make it shorter.
    Pending,
    /// It runs, and ends earlier now.
    Shorter(i64, Time),
    /// It begins.
    Begins(i64),
}

fn grace(kind: &Kind, object: &Value, options: &DeleteOptions) -> Grace {
    if !kind.graceful {
        return Grace::None;
    }
    if meta::is_deleting(object) {
        let Some(running) = meta::grace(object) else { return Grace::None };
        return match options.grace {
            Some(asked) if asked < running => {
                let at = meta::text(object, "/metadata/deletionTimestamp");
                let at: i64 = at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond);
                Grace::Shorter(
                    asked.max(0),
                    Time(at.saturating_sub((running - asked.max(0)).saturating_mul(1000))),
                )
            }
            _ => Grace::Pending,
        };
    }
    let of_the_pod = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let asked = options.grace.or(of_the_pod).unwrap_or(0);
    let is_over = matches!(meta::text(object, "/status/phase"), "Failed" | "Succeeded");
    // Nobody runs it: there is nothing to wait for.
    let seconds = if meta::text(object, "/spec/nodeName").is_empty() || is_over { 0 } else { asked };
    // A bound far beyond all use, so that the end is a time that can be written down.
    Grace::Begins(if seconds < 0 { 1 } else { seconds.min(i64::from(i32::MAX)) })
}

/// The finalizers that the object goes on with: its own, and one for what is to become of its dependents.
fn finalizers(kind: &Kind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let had = meta::finalizers(object);
    if kind.plural == "events" {
        return had.into_iter().map(Into::into).collect();
    }
    let wants = |propagation, finalizer| match options.propagation {
        Some(asked) => asked == propagation,
        None => had.contains(&finalizer),
    };
    let (orphan, foreground) =
        (wants(Propagation::Orphan, ORPHAN), wants(Propagation::Foreground, FOREGROUND));
    if orphan == had.contains(&ORPHAN) && foreground == had.contains(&FOREGROUND) {
        return had.into_iter().map(Into::into).collect();
    }
    let own = had.into_iter().filter(|finalizer| *finalizer != ORPHAN && *finalizer != FOREGROUND);
    let asked = [(orphan, ORPHAN), (foreground, FOREGROUND)];
    let asked = asked.into_iter().filter_map(|(wanted, finalizer)| wanted.then_some(finalizer));
    own.chain(asked).map(Into::into).collect()
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) = object.pointer("/metadata/generation").and_then(Value::as_i64)
        && generation > 0
    {
        meta::set(object, "generation", (generation + 1).into());
    }
}

/// Whether upstream answers a deletion that is done with the object rather than with a word of success.
pub(crate) fn answers_with_object(kind: &Kind) -> bool {
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

/// The word of success for an object that is gone.
pub(crate) fn success(kind: &Kind, object: &Value) -> Value {
    let mut details = json!({"name": meta::name(object), "kind": kind.plural, "uid": meta::uid(object)});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests;
