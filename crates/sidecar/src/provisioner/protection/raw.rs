//! Finalizers on raw objects: read, edit, write back at the version that was read. Whoever else changes the object
//! in between is not overwritten; it is read again.

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster};
use wharf_model::{Api, Key};

/// So often an object may change under our hands. Many claims of one source want the same finalizer at once.
const TRIES: usize = 10;

/// Why a source is not protected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectError {
    #[error("{kind} {key}, which the volume is to be made from, is gone")]
    Gone { kind: &'static str, key: Key },
    #[error("{kind} {key}, which the volume is to be made from, is being deleted")]
    Deleting { kind: &'static str, key: Key },
    #[error("cannot protect the source: {0}")]
    Api(#[from] ApiError),
}

/// What an edit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// It is as it should be.
    Same,
    /// To be written back.
    Changed,
    /// An object in deletion takes no new finalizer.
    Refused,
}

/// Puts a finalizer on the object of this identity.
pub(super) async fn add(
    cluster: &Cluster,
    api: &Api,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ProtectError> {
    let edited = edit(cluster, api, key, uid, |object| with(object, finalizer)).await?;
    match edited {
        Some(Edit::Same | Edit::Changed) => Ok(()),
        Some(Edit::Refused) => Err(ProtectError::Deleting { kind: api.kind, key: key.clone() }),
        None => Err(ProtectError::Gone { kind: api.kind, key: key.clone() }),
    }
}

/// Takes a finalizer off the object of this identity. Well if there is none any more.
pub(super) async fn remove(
    cluster: &Cluster,
    api: &Api,
    key: &Key,
    uid: &str,
    finalizer: &str,
) -> Result<(), ApiError> {
    edit(cluster, api, key, uid, |object| without(object, finalizer)).await.map(drop)
}

/// Edits the object of this identity; `None` if the server has no such.
async fn edit(
    cluster: &Cluster,
    api: &Api,
    key: &Key,
    uid: &str,
    edit: impl Fn(&mut Value) -> Edit,
) -> Result<Option<Edit>, ApiError> {
    let mut tries = 0;
    loop {
        let Some(mut object) = cluster.get_raw(api, key).await? else { return Ok(None) };
        if object.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
            return Ok(None);
        }
        let edited = edit(&mut object);
        if edited != Edit::Changed {
            return Ok(Some(edited));
        }
        tries += 1;
        match cluster.update(api, key, None, &object).await {
            Ok(_) => return Ok(Some(edited)),
            Err(ApiError::Conflict(_)) if tries < TRIES => {}
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn with(object: &mut Value, finalizer: &str) -> Edit {
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers {
        Value::Array(list) if list.iter().any(|present| present == finalizer) => Edit::Same,
        _ if deleting => Edit::Refused,
        Value::Array(list) => {
            list.push(json!(finalizer));
            Edit::Changed
        }
        _ => {
            *finalizers = json!([finalizer]);
            Edit::Changed
        }
    }
}

fn without(object: &mut Value, finalizer: &str) -> Edit {
    let list = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
    let Some(list) = list else { return Edit::Same };
    let before = list.len();
    list.retain(|present| present != finalizer);
    if list.len() == before { Edit::Same } else { Edit::Changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits() {
        let object = |finalizers: Value, deleting: bool| {
            let mut object = json!({"metadata": {"uid": "u", "labels": {"a": "b"}}, "spec": {"x": 1}});
            if !finalizers.is_null() {
                object["metadata"]["finalizers"] = finalizers;
            }
            if deleting {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            object
        };
        for (finalizers, deleting, edit, after) in [
            (Value::Null, false, Edit::Changed, json!(["f"])),
            (json!(["x"]), false, Edit::Changed, json!(["x", "f"])),
            (json!(["f", "x"]), false, Edit::Same, json!(["f", "x"])),
            (json!(["f"]), true, Edit::Same, json!(["f"])),
            (json!(["x"]), true, Edit::Refused, json!(["x"])),
        ] {
            let mut edited = object(finalizers, deleting);
            assert_eq!(with(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, deleting));
        }
        for (finalizers, edit, after) in [
            (Value::Null, Edit::Same, Value::Null),
            (json!(["x"]), Edit::Same, json!(["x"])),
            (json!(["x", "f", "y", "f"]), Edit::Changed, json!(["x", "y"])),
            (json!(["f"]), Edit::Changed, json!([])),
        ] {
            let mut edited = object(finalizers, true);
            assert_eq!(without(&mut edited, "f"), edit);
            assert_eq!(edited, object(after, true));
        }
    }
}
