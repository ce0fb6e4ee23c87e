//! Changes of existing objects: PUT, and the changes of patches and subresources.
//!
//! A change is a function of the current object. If another write happens in between, the function runs again on the
//! new object, unless the request names the version that it expects.

use bytes::Bytes;
use serde_json::Value;

use super::create::set_namespace;
use super::options::WriteOptions;
use super::route::Target;
use super::{Api, encode, meta};
use crate::access::{User, restrict_node};
use crate::bounds;
use crate::kinds::{self, Admission, Kind, Operation};
use crate::status::{Cause, StatusError};
use crate::store::{Change, WriteError};

/// How often a change is retried. Each conflict means that another write succeeded, so there is progress.
const ATTEMPTS: usize = 30;

pub(super) const CONFLICT: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The result of an update.
pub(crate) struct Updated {
    pub(crate) stored: Bytes,
    /// The object did not exist before.
    pub(crate) created: bool,
}

/// Computes the new object from the current one, and adds warnings for the client.
pub(crate) type Mutate<'a> = dyn FnMut(&Value, &mut Vec<String>) -> Result<Value, StatusError> + Send + 'a;

impl Api {
    /// Replaces an object with a body that conforms to its schema.
    pub(crate) async fn update(
        &self,
        user: &User,
        target: &Target,
        object: Value,
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Updated, StatusError> {
        let mut object = object;
        set_namespace(&mut object, target)?;
        check_name(&object, &target.name)?;
        let existing = self.store().get(&encode::key(target.kind, &target.namespace, &target.name)).is_some();
        if !existing
            && target.kind.create_on_update
            && target.subresource.is_empty()
            && meta::uid(&object).is_empty()
        {
            meta::set(&mut object, "resourceVersion", Value::Null);
            let stored = self.create(user, target, object, options, warnings).await?;
            return Ok(Updated { stored, created: true });
        }
        (target.kind.default)(&mut object);
        let stored = self.change(user, target, options, warnings, &mut |_, _| Ok(object.clone())).await?;
        Ok(Updated { stored, created: false })
    }

    /// Changes an existing object. Returns it as stored. `mutate` gets the current object and may be called again.
    pub(crate) async fn change(
        &self,
        user: &User,
        target: &Target,
        options: WriteOptions,
        warnings: &mut Vec<String>,
        mutate: &mut Mutate<'_>,
    ) -> Result<Bytes, StatusError> {
        let kind = target.kind;
        let key = encode::key(kind, &target.namespace, &target.name);
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.store().get(&key) else {
                return Err(StatusError::not_found(kind.resource(), &target.name));
            };
            let old = encode::decode(kind, &entry.value)?;
            let mut new_warnings = Vec::new();
            let mutated = mutate(&old, &mut new_warnings)?;
            let new = self.admit_update(user, target, mutated, &old, &mut new_warnings)?;
            warnings.clear();
            warnings.append(&mut new_warnings);
            let removable = meta::can_be_removed(&new, &old);
            if options.dry_run || (new == old && !removable) {
                return Ok(encode::stored(kind, &new));
            }
            let body = encode::body(kind, &new, self.now());
            let change = if removable {
                Change::Delete(entry.revision, body)
            } else {
                Change::Update(entry.revision, body)
            };
            match self.store().write(key.clone(), change).await {
                Ok(entry) => return Ok(entry.value),
                // If the change names its expected version, the next attempt fails.
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(super::write_status_error(kind, &target.name, error)),
            }
        }
        Err(StatusError::conflict(kind.resource(), &target.name, CONFLICT))
    }

    /// The object as it would be stored after this change: applies all rules except the store's.
    fn admit_update(
        &self,
        user: &User,
        target: &Target,
        mut new: Value,
        old: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<Value, StatusError> {
        let kind = target.kind;
        same_object(kind, &target.name, &mut new, old)?;
        let lookup = self.objects();
        let subresource = target.subresource.as_str();
        let admission =
            Admission { operation: Operation::Update, subresource, old: Some(old), lookup: &lookup };
        if subresource != "finalize" {
            (kind.admit)(&mut new, &admission)?;
        }
        let causes = match subresource {
            "status" => {
                kind.prepare_status(&mut new, old, self.now());
                // The spec and the new status together.
                bounds::check(&new)?;
                kind.invalid_on_status(&new, old)
            }
            "finalize" => {
                kinds::prepare_finalize(&mut new, old);
                kinds::invalid_on_finalize(&new, old)
            }
            _ => {
                kind.prepare_update(&mut new, old, self.now());
                // Including defaults, which may be many: what is stored can be sent back.
                bounds::check(&new)?;
                kind.invalid_on_update(&new, old)
            }
        };
        if !causes.is_empty() {
            return Err(kind.invalid_error(&target.name, causes));
        }
        warnings.extend((kind.warnings)(&new, Some(old)));
        (kind.validate_admission)(&new, &admission)?;
        restrict_node(user, &super::attributes(target, ""), Some(&new), Some(old), &lookup)?;
        Ok(new)
    }
}

/// Checks that the object has the name in the URL.
pub(super) fn check_name(object: &Value, requested: &str) -> Result<(), StatusError> {
    match meta::name(object) {
        "" => Err(StatusError::bad_request(format!(
            "the name of the object ({requested} based on URL) was undeterminable: name must be provided"
        ))),
        name if name != requested => Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({requested})"
        ))),
        _ => Ok(()),
    }
}

/// Checks that the change is for this object and version, and sets the version.
fn same_object(kind: &Kind, name: &str, new: &mut Value, old: &Value) -> Result<(), StatusError> {
    let uid = meta::uid(new);
    if !uid.is_empty() && uid != meta::uid(old) {
        // In the wording of upstream's storage layer, including its keys.
        let (resource, namespace) = (kind.plural, meta::text(old, "/metadata/namespace"));
        let resource = match (kind.group, resource) {
            ("", "nodes") => "minions".into(),
            (group, _) if encode::is_custom(kind) => format!("{group}/{resource}"),
            _ => resource.to_owned(),
        };
        let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
        let reason = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{resource}{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(old)
        );
        return Err(StatusError::conflict(kind.resource(), name, &reason));
    }
    match meta::version(new) {
        "" | "0" if kind.unconditional_update => {}
        "" | "0" => {
            let cause =
                Cause::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            return Err(StatusError::invalid(kind.group, kind.plural, name, vec![cause]));
        }
        version if version != meta::version(old) => {
            return Err(StatusError::conflict(kind.resource(), name, CONFLICT));
        }
        _ => {}
    }
    meta::copy_fields(new, old, &["resourceVersion"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn change_must_match_uid_and_version() {
        let old = json!({"metadata": {"name": "x", "uid": "u", "resourceVersion": "3"}});
        let claims = kinds::find("", "v1", "persistentvolumeclaims").unwrap();
        let leases = kinds::find("coordination.k8s.io", "v1", "leases").unwrap();
        for (kind, metadata, expected) in [
            (claims, json!({}), None),
            (claims, json!({"uid": "u", "resourceVersion": "3"}), None),
            (claims, json!({"resourceVersion": "2"}), Some((409, "the object has been modified"))),
            (claims, json!({"uid": "v"}), Some((409, "UID in precondition: v, UID in object meta: u"))),
            (
                leases,
                json!({}),
                Some((422, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")),
            ),
        ] {
            let mut new = json!({"metadata": metadata});
            match (same_object(kind, "x", &mut new, &old), expected) {
                (Ok(()), None) => assert_eq!(meta::version(&new), "3"),
                (Err(status_error), Some((code, message))) => {
                    assert_eq!(status_error.code, code);
                    assert!(status_error.message.contains(message), "{status_error}");
                }
                (result, expected) => panic!("{result:?} {expected:?}"),
            }
        }
    }
}
