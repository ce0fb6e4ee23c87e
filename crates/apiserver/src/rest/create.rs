//! The create verb.

use bytes::Bytes;
use serde_json::Value;

use super::options::WriteOptions;
use super::route::Target;
use super::{Api, encode, meta, random};
use crate::access::{User, restrict_node};
use crate::bounds;
use crate::kinds::{Admission, Kind, Operation};
use crate::status::{Cause, StatusError};
use crate::store::{Change, WriteError};

/// How many names are generated before the create fails, as in upstream.
const GENERATE_NAME_ATTEMPTS: usize = 8;

impl Api {
    /// Creates an object that conforms to its schema. Returns it as stored.
    pub(crate) async fn create(
        &self,
        user: &User,
        target: &Target,
        object: Value,
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Bytes, StatusError> {
        let generated =
            meta::name(&object).is_empty() && !meta::text(&object, "/metadata/generateName").is_empty();
        let mut attempts = if generated { GENERATE_NAME_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let mut new_warnings = Vec::new();
            match self.create_once(user, target, object.clone(), options, &mut new_warnings).await {
                Err(status_error) if status_error.reason == "AlreadyExists" && generated => {
                    if attempts == 0 {
                        return Err(status_error);
                    }
                }
                result => {
                    warnings.append(&mut new_warnings);
                    return result;
                }
            }
        }
    }

    async fn create_once(
        &self,
        user: &User,
        target: &Target,
        object: Value,
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Bytes, StatusError> {
        let kind = target.kind;
        // Excludes the start of a namespace deletion: no object is created in a terminating namespace.
        let _lock = if kind.namespaced { Some(self.namespace_deletion_lock().read().await) } else { None };
        let object = self.admit_create(user, target, object, warnings)?;
        let name = meta::name(&object);
        let key = encode::key(kind, &target.namespace, name);
        if options.dry_run {
            return match self.store().get(&key) {
                Some(existing) => Err(already_exists(kind, name, &existing.value)),
                None => Ok(encode::stored(kind, &object)),
            };
        }
        match self.store().write(key, Change::Create(encode::body(kind, &object, self.now()))).await {
            Ok(entry) => Ok(entry.value),
            Err(WriteError::AlreadyExists(existing)) => Err(already_exists(kind, name, &existing.value)),
            Err(error) => Err(super::write_status_error(kind, name, error)),
        }
    }

    /// The object as it would be created: applies all rules except the store's.
    fn admit_create(
        &self,
        user: &User,
        target: &Target,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> Result<Value, StatusError> {
        let kind = target.kind;
        set_namespace(&mut object, target)?;
        if !meta::version(&object).is_empty() {
            return Err(StatusError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        (kind.default)(&mut object);
        let prefix = meta::text(&object, "/metadata/generateName");
        if meta::name(&object).is_empty() && !prefix.is_empty() {
            let name = random::name(prefix);
            meta::set(&mut object, "name", name.into());
        }
        meta::set(&mut object, "uid", random::uid().into());
        meta::set(&mut object, "creationTimestamp", self.now().to_string().into());
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta::set(&mut object, field, Value::Null);
        }
        let name = meta::name(&object).to_owned();
        if kind.namespaced {
            self.check_namespace_active(kind, &target.namespace, &name)?;
        }
        let lookup = self.objects();
        let admission =
            Admission { operation: Operation::Create, subresource: "", old: None, lookup: &lookup };
        (kind.admit)(&mut object, &admission)?;
        (kind.on_create)(&mut object, self.now());
        bounds::check(&object)?;
        let causes = kind.invalid_on_create(&object);
        if !causes.is_empty() {
            return Err(kind.invalid_error(&name, causes));
        }
        warnings.extend((kind.warnings)(&object, None));
        (kind.validate_admission)(&object, &admission)?;
        let named = Target { name, ..target.clone() };
        restrict_node(user, &super::attributes(&named, ""), Some(&object), None, &lookup)?;
        Ok(object)
    }

    fn check_namespace_active(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), StatusError> {
        let namespaces = super::core_kind("namespaces")?;
        let Some(found) = crate::kinds::Lookup::get(&self.objects(), namespaces, "", namespace) else {
            return Err(StatusError::not_found(namespaces.resource(), namespace));
        };
        if meta::text(&found, "/status/phase") != "Terminating" {
            return Ok(());
        }
        let reason =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status_error = StatusError::forbidden(kind.resource(), name, &reason);
        status_error.details.causes.push(Cause {
            reason: "NamespaceTerminating",
            field: "metadata.namespace".into(),
            message: format!("namespace {namespace} is being terminated"),
        });
        Err(status_error)
    }
}

/// Sets the namespace of the request, unless the object names another one.
pub(crate) fn set_namespace(object: &mut Value, target: &Target) -> Result<(), StatusError> {
    let given = meta::text(object, "/metadata/namespace");
    let expected = if target.kind.namespaced { target.namespace.as_str() } else { "" };
    // As in upstream, the namespace of a cluster-scoped object is dropped.
    if !given.is_empty() && !expected.is_empty() && given != expected {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta::set(object, "namespace", expected.into());
    Ok(())
}

fn already_exists(kind: &Kind, name: &str, existing: &[u8]) -> StatusError {
    let mut status_error = StatusError::already_exists(kind.resource(), name);
    let deleting = encode::decode(kind, existing).is_ok_and(|existing| meta::is_deleting(&existing));
    if deleting {
        status_error.message = format!("object is being deleted: {}", status_error.message);
    }
    status_error
}
