//! Generates the schemas of all kinds as Rust tables, so that the server parses nothing at startup. Built-in kinds come
//! from k8s-openapi, snapshot kinds from the CustomResourceDefinitions that Wharf installs. `src/schema/fields.txt` adds
//! what neither specifies.

#[path = "build/custom.rs"]
mod custom;
#[path = "build/emit.rs"]
mod emit;
#[path = "build/facts.rs"]
mod facts;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use k8s_openapi::Resource;
use k8s_openapi::api::{
    authentication::v1 as authentication, authorization::v1 as authorization,
    coordination::v1 as coordination, core::v1 as core, events::v1 as events, policy::v1 as policy,
    storage::v1 as storage,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::{JsonSchema, SchemaGenerator};

/// A group, a version and a kind.
#[derive(Clone)]
struct GroupVersionKind {
    group: String,
    version: String,
    kind: String,
}

/// Adds the schema of a kind, with all schemas that it refers to, by definition name.
fn take<T: JsonSchema + Resource>(
    generator: &mut SchemaGenerator,
    kinds: &mut BTreeMap<String, GroupVersionKind>,
) {
    generator.subschema_for::<T>();
    let (group, version, kind) = (T::GROUP.into(), T::VERSION.into(), T::KIND.into());
    kinds.insert(T::schema_name().into_owned(), GroupVersionKind { group, version, kind });
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/schema/fields.txt");
    println!("cargo::rerun-if-changed=../../deploy/crds");

    let mut generator = SchemaGenerator::default();
    let mut kinds = BTreeMap::new();
    macro_rules! take {
        ($($kind:ty),* $(,)?) => { $(take::<$kind>(&mut generator, &mut kinds);)* };
    }
    take!(
        core::Namespace,
        core::Node,
        core::Pod,
        core::PersistentVolume,
        core::PersistentVolumeClaim,
        core::Secret,
        core::ConfigMap,
        core::Event,
        core::ServiceAccount,
        core::Binding,
        events::Event,
        storage::StorageClass,
        storage::CSIDriver,
        storage::CSINode,
        storage::CSIStorageCapacity,
        storage::VolumeAttachment,
        storage::VolumeAttributesClass,
        coordination::Lease,
        policy::Eviction,
        authentication::TokenReview,
        authentication::TokenRequest,
        authentication::SelfSubjectReview,
        authorization::SubjectAccessReview,
        authorization::LocalSubjectAccessReview,
        authorization::SelfSubjectAccessReview,
        authorization::SelfSubjectRulesReview,
        meta::Status,
    );
    generator.subschema_for::<meta::ListMeta>();
    generator.subschema_for::<meta::DeleteOptions>();
    kinds.insert(
        meta::DeleteOptions::schema_name().into_owned(),
        GroupVersionKind { group: String::new(), version: "v1".into(), kind: "DeleteOptions".into() },
    );

    let facts = facts::read(&fs::read_to_string("src/schema/fields.txt")?)?;
    let mut emitter = emit::Emitter::new(facts, kinds);
    for (name, definition) in generator.definitions() {
        emitter.native(name, definition)?;
    }
    let mut files: Vec<PathBuf> = fs::read_dir("../../deploy/crds")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    files.sort();
    for file in files {
        let (kind, schema) = custom::read(&fs::read_to_string(&file)?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        emitter.custom(kind, &schema)?;
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("schemas.rs"), emitter.finish()?)?;
    Ok(())
}
