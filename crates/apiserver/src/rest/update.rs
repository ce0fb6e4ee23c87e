//! Changes of objects that are there: PUT, and what a patch or a subresource makes of one.
//!
//! The change is a function of the object as it is. If somebody else writes between our reading and our writing, it
//! is made anew from what is there then, unless who asks named the version that it rests on.

use bytes::Bytes;
use serde_json::Value;

use super::create::place;
use super::options::WriteOptions;
use super::route::Target;
use super::{Api, encode, meta};
use crate::access::{User, restrict_node};
use crate::bounds;
use crate::kinds::{self, Admission, Kind, Operation};
use crate::status::{Cause, Refusal};
use crate::store::{Change, WriteError};

/// How often a change is made anew. Each time somebody else got through, so there is progress.
const TRIES: usize = 30;

pub(super) const CONFLICT: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What an update came to.
pub(crate) struct Updated {
    pub(crate) stored: Bytes,
    /// There was none before.
    pub(crate) created: bool,
}

/// What an object becomes, given how it is; and warnings for who asked.
pub(crate) type Make<'a> = dyn FnMut(&Value, &mut Vec<String>) -> Result<Value, Refusal> + Send + 'a;

impl Api {
    /// Replaces an object by a body, which is one of its kind already.
    pub(crate) async fn update(
        &self,
        user: &User,
        target: &Target,
        object: Value,
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Updated, Refusal> {
        let mut object = object;
        place(&mut object, target)?;
        check_name(&object, &target.name)?;
        let there = self.store().get(&encode::key(target.kind, &target.namespace, &target.name)).is_some();
        if !there
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

    /// Changes an object that is there; answers how it is stored. `make` is called with it as it is, and may be
    /// called again.
    pub(crate) async fn change(
        &self,
        user: &User,
        target: &Target,
        options: WriteOptions,
        warnings: &mut Vec<String>,
        make: &mut Make<'_>,
    ) -> Result<Bytes, Refusal> {
        let kind = target.kind;
        let key = encode::key(kind, &target.namespace, &target.name);
        for _ in 0..TRIES {
            let Some(entry) = self.store().get(&key) else {
                return Err(Refusal::not_found(kind.resource(), &target.name));
            };
            let old = encode::decode(kind, &entry.value)?;
            let mut told = Vec::new();
            let made = make(&old, &mut told)?;
            let new = self.settle(user, target, made, &old, &mut told)?;
            warnings.clear();
            warnings.append(&mut told);
            let released = meta::is_released(&new, &old);
            if options.dry_run || (new == old && !released) {
                return Ok(encode::stored(kind, &new));
            }
            let body = encode::body(kind, &new, self.now());
            let change = if released {
                Change::Delete(entry.revision, body)
            } else {
                Change::Update(entry.revision, body)
            };
            match self.store().write(key.clone(), change).await {
                Ok(entry) => return Ok(entry.value),
                // If the change names the version that it rests on, the next look refuses it.
                Err(WriteError::Changed(_)) => {}
                Err(error) => return Err(super::write_refusal(kind, &target.name, error)),
            }
        }
        Err(Refusal::conflict(kind.resource(), &target.name, CONFLICT))
    }

    /// What becomes of the object if it is changed like this: all rules but the store's.
    fn settle(
        &self,
        user: &User,
        target: &Target,
        mut new: Value,
        old: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Refusal> {
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
                // Its spec and the new status together.
                bounds::check(&new)?;
                kind.invalid_on_status(&new, old)
            }
            "finalize" => {
                kinds::prepare_finalize(&mut new, old);
                kinds::invalid_on_finalize(&new, old)
            }
            _ => {
                kind.prepare_update(&mut new, old, self.now());
                // With its defaults, which may be many: what is stored can be sent again.
                bounds::check(&new)?;
                kind.invalid_on_update(&new, old)
            }
        };
        if !causes.is_empty() {
            return Err(kind.refuse_invalid(&target.name, causes));
        }
        warnings.extend((kind.warnings)(&new, Some(old)));
        (kind.confirm)(&new, &admission)?;
        restrict_node(user, &super::attributes(target, ""), Some(&new), Some(old), &lookup)?;
        Ok(new)
    }
}

/// That the object has the name by which it is asked for.
pub(super) fn check_name(object: &Value, asked: &str) -> Result<(), Refusal> {
    match meta::name(object) {
        "" => Err(Refusal::bad_request(format!(
            "the name of the object ({asked} based on URL) was undeterminable: name must be provided"
        ))),
        name if name != asked => Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({asked})"
        ))),
        _ => Ok(()),
    }
}

/// That the change is of this object, in this version of it; afterwards it says so.
fn same_object(kind: &Kind, name: &str, new: &mut Value, old: &Value) -> Result<(), Refusal> {
    let uid = meta::uid(new);
    if !uid.is_empty() && uid != meta::uid(old) {
        // With the words of upstream's store, its keys included.
        let (resource, namespace) = (kind.plural, meta::text(old, "/metadata/namespace"));
        let resource = match (kind.group, resource) {
            ("", "nodes") => "minions".into(),
            (group, _) if encode::is_custom(kind) => format!("{group}/{resource}"),
            _ => resource.to_owned(),
        };
        let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{resource}{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(old)
        );
        return Err(Refusal::conflict(kind.resource(), name, &why));
    }
    match meta::version(new) {
        "" | "0" if kind.unconditional_update => {}
        "" | "0" => {
            let cause =
                Cause::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            return Err(Refusal::invalid(kind.group, kind.plural, name, vec![cause]));
        }
        version if version != meta::version(old) => {
            return Err(Refusal::conflict(kind.resource(), name, CONFLICT));
        }
        _ => {}
    }
    meta::keep(new, old, &["resourceVersion"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_is_of_the_object_that_it_says() {
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
                (Err(refusal), Some((code, words))) => {
                    assert_eq!(refusal.code, code);
                    assert!(refusal.message.contains(words), "{refusal}");
                }
                (answer, expected) => panic!("{answer:?} {expected:?}"),
            }
        }
    }
}
