//! New objects.

use bytes::Bytes;
use serde_json::Value;

use super::options::WriteOptions;
use super::route::Target;
use super::{Api, encode, meta, random};
use crate::access::{User, restrict_node};
use crate::bounds;
use crate::kinds::{Admission, Kind, Operation};
use crate::status::{Cause, Refusal};
use crate::store::{Change, WriteError};

/// How often a name is made up before the server gives in, as upstream's.
const NAMES_TRIED: usize = 8;

impl Api {
    /// Makes an object, which is one of its kind already; answers how it is stored.
    pub(crate) async fn create(
        &self,
        user: &User,
        target: &Target,
        object: Value,
        options: WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Bytes, Refusal> {
        let generated =
            meta::name(&object).is_empty() && !meta::text(&object, "/metadata/generateName").is_empty();
        let mut tries = if generated { NAMES_TRIED } else { 1 };
        loop {
            tries -= 1;
            let mut told = Vec::new();
            match self.create_once(user, target, object.clone(), options, &mut told).await {
                Err(refusal) if refusal.reason == "AlreadyExists" && generated => {
                    if tries == 0 {
                        return Err(refusal);
                    }
                }
                answer => {
                    warnings.append(&mut told);
                    return answer;
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
    ) -> Result<Bytes, Refusal> {
        let kind = target.kind;
        // Nothing comes into a namespace after its end has begun: that waits for us, and we for it.
        let _open = if kind.namespaced { Some(self.ends_of_namespaces().read().await) } else { None };
        let object = self.admitted(user, target, object, warnings)?;
        let name = meta::name(&object);
        let key = encode::key(kind, &target.namespace, name);
        if options.dry_run {
            return match self.store().get(&key) {
                Some(there) => Err(exists(kind, name, &there.value)),
                None => Ok(encode::stored(kind, &object)),
            };
        }
        match self.store().write(key, Change::Create(encode::body(kind, &object, self.now()))).await {
            Ok(entry) => Ok(entry.value),
            Err(WriteError::Exists(there)) => Err(exists(kind, name, &there.value)),
            Err(error) => Err(super::write_refusal(kind, name, error)),
        }
    }

    /// The object as it would be made: all rules but the store's.
    fn admitted(
        &self,
        user: &User,
        target: &Target,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Refusal> {
        let kind = target.kind;
        place(&mut object, target)?;
        if !meta::version(&object).is_empty() {
            return Err(Refusal::new(500, "", "resourceVersion should not be set on objects to be created"));
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
            self.namespace_is_open(kind, &target.namespace, &name)?;
        }
        let lookup = self.objects();
        let admission =
            Admission { operation: Operation::Create, subresource: "", old: None, lookup: &lookup };
        (kind.admit)(&mut object, &admission)?;
        (kind.on_create)(&mut object, self.now());
        bounds::check(&object)?;
        let causes = kind.invalid_on_create(&object);
        if !causes.is_empty() {
            return Err(kind.refuse_invalid(&name, causes));
        }
        warnings.extend((kind.warnings)(&object, None));
        (kind.confirm)(&object, &admission)?;
        let asked = Target { name, ..target.clone() };
        restrict_node(user, &super::attributes(&asked, ""), Some(&object), None, &lookup)?;
        Ok(object)
    }

    fn namespace_is_open(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Refusal> {
        let namespaces = super::core_kind("namespaces")?;
        let Some(found) = crate::kinds::Lookup::get(&self.objects(), namespaces, "", namespace) else {
            return Err(Refusal::not_found(namespaces.resource(), namespace));
        };
        if meta::text(&found, "/status/phase") != "Terminating" {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut refusal = Refusal::forbidden(kind.resource(), name, &why);
        refusal.details.causes.push(Cause {
            reason: "NamespaceTerminating",
            field: "metadata.namespace".into(),
            message: format!("namespace {namespace} is being terminated"),
        });
        Err(refusal)
    }
}

/// Puts the object where the request is addressed to, unless it says that it is of another place.
pub(crate) fn place(object: &mut Value, target: &Target) -> Result<(), Refusal> {
    let said = meta::text(object, "/metadata/namespace");
    let expected = if target.kind.namespaced { target.namespace.as_str() } else { "" };
    // Upstream overlooks a namespace on what has none, and so do we: the namespace is dropped.
    if !said.is_empty() && !expected.is_empty() && said != expected {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta::set(object, "namespace", expected.into());
    Ok(())
}

fn exists(kind: &Kind, name: &str, there: &[u8]) -> Refusal {
    let mut refusal = Refusal::already_exists(kind.resource(), name);
    let deleting = encode::decode(kind, there).is_ok_and(|there| meta::is_deleting(&there));
    if deleting {
        refusal.message = format!("object is being deleted: {}", refusal.message);
    }
    refusal
}
