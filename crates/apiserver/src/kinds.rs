//! What each kind is: its names, its defaults, what is done to it at a write, what it may be, how it is printed.
//!
//! A [`Kind`] is one description and the server knows nothing else of it. All of it is pure: what a rule needs of
//! other objects it takes from a [`Lookup`]. A write goes through the steps in this order:
//!
//! ```text
//! create:  default, admit, (name, namespace, uid, creationTimestamp), prepare_create, invalid_on_create, confirm
//! update:  default, admit, prepare_update, invalid_on_update, confirm
//! status:  default, admit, prepare_status, invalid_on_status, confirm
//! delete:  admit, confirm
//! ```

use serde_json::Value;
use wharf_model::Time;

use crate::status::{Cause, Refusal, Resource};

mod age;
mod attachment;
mod attributes_class;
mod capacity;
mod claim;
mod config_map;
mod csi_driver;
mod csi_node;
mod custom;
mod diff;
mod event;
mod go;
mod group_snapshot;
mod json;
mod lease;
mod legacy;
mod meta;
mod names;
mod namespace;
mod node;
mod pod;
mod review;
mod secret;
mod service_account;
mod snapshot;
mod storage_class;
#[cfg(test)]
mod testing;
mod topology;
mod volume;

pub use age::age;
pub use event::{event_from_core, event_to_core};
pub use namespace::{invalid_on_finalize, prepare_finalize};

/// One kind of object.
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// The one version in which it is served.
    pub version: &'static str,
    /// As in `kind: PersistentVolume`.
    pub kind: &'static str,
    /// As in paths.
    pub plural: &'static str,
    /// As kubectl takes it too.
    pub singular: &'static str,
    /// As kubectl takes it too.
    pub short_names: &'static [&'static str],
    /// `all` and the like.
    pub categories: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// What can be done with it, sorted. A kind that cannot be listed is not stored: it is an answer to a question.
    pub verbs: &'static [&'static str],
    /// What hangs below an object.
    pub subresources: &'static [Subresource],
    /// Whether it is deleted in two steps, the second one by the node: pods.
    pub graceful: bool,
    /// Whether a PUT without a resourceVersion is taken.
    pub unconditional_update: bool,
    /// Whether a PUT makes the object if there is none.
    pub create_on_update: bool,
    /// Fills in what was left out. Done to bodies and to what a patch makes.
    pub default: fn(&mut Value),
    /// What a new object cannot bring with it, and what every new one has.
    pub on_create: fn(&mut Value, Time),
    /// What a write of the object (first) cannot change from what it was (second).
    pub on_update: fn(&mut Value, &Value, Time),
    /// What a write of the status cannot change.
    pub on_status: fn(&mut Value, &Value, Time),
    /// What is wrong with a new object.
    pub validate: fn(&Value) -> Vec<Cause>,
    /// What is wrong with a change from the second to the first.
    pub validate_update: fn(&Value, &Value) -> Vec<Cause>,
    /// What is wrong with a change of the status.
    pub validate_status: fn(&Value, &Value) -> Vec<Cause>,
    /// What the user is told though the write is done. The old object is there at an update.
    pub warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// Admission before validation: may change the object.
    pub admit: fn(&mut Value, &Admission<'_>) -> Result<(), Refusal>,
    /// Admission after validation: only says yes or no.
    pub confirm: fn(&Value, &Admission<'_>) -> Result<(), Refusal>,
    /// What field selectors may name besides `metadata.name` and `metadata.namespace`.
    pub fields: &'static [Field],
    /// Of tables.
    pub columns: &'static [Column],
    /// A cell for each column.
    pub row: fn(&Value, Time) -> Vec<Value>,
    /// What a table says of the whole row: that a pod is done.
    pub row_conditions: fn(&Value) -> Vec<Value>,
}

/// What a field selector names, and what it compares with.
pub type Field = (&'static str, fn(&Value) -> String);

/// What hangs below an object: `status`, `binding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    /// As in paths.
    pub name: &'static str,
    /// The group of what is sent there; the core group's is empty.
    pub group: &'static str,
    /// And its version.
    pub version: &'static str,
    /// And its kind.
    pub kind: &'static str,
    /// What can be done, sorted.
    pub verbs: &'static [&'static str],
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its head, which kubectl shouts.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub of: &'static str,
    /// `name` for the one that identifies the row.
    pub format: &'static str,
    /// What it tells.
    pub description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// Another state of one that is there.
    Update,
    /// The object that is there is to go.
    Delete,
}

/// What admission sees besides the object.
pub struct Admission<'a> {
    /// What is being done.
    pub operation: Operation,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The object as it is, at an update.
    pub old: Option<&'a Value>,
    /// All other objects.
    pub lookup: &'a dyn Lookup,
}

/// Other objects, as they are now.
pub trait Lookup {
    /// One. `namespace` is empty for kinds without.
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value>;
    /// All of a namespace, or all for an empty one.
    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value>;
}

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A kind without rules of its own; each kind says only what it has.
const BASE: Kind = Kind {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: false,
    verbs: ALL,
    subresources: &[],
    graceful: false,
    unconditional_update: true,
    create_on_update: false,
    default: |_| (),
    on_create: |_, _| (),
    on_update: |_, _, _| (),
    on_status: |_, _, _| (),
    validate: |_| Vec::new(),
    validate_update: |_, _| Vec::new(),
    validate_status: |_, _| Vec::new(),
    warnings: |_, _| Vec::new(),
    admit: |_, _| Ok(()),
    confirm: |_, _| Ok(()),
    fields: &[],
    columns: &[NAME, CREATED],
    row: |object, _| {
        vec![json::text(object, "/metadata/name").into(), json::at(object, "/metadata/creationTimestamp")]
    },
    row_conditions: |_| Vec::new(),
};

const NAME: Column = Column {
    name: "Name",
    of: "string",
    format: "name",
    description: "Unique among its kind and namespace.",
    priority: 0,
};

const CREATED: Column = Column {
    name: "Created At",
    of: "date",
    format: "",
    description: "When the object was made.",
    priority: 0,
};

const AGE: Column = Column {
    name: "Age",
    of: "string",
    format: "",
    description: "How long ago the object was made.",
    priority: 0,
};

impl Column {
    const fn new(name: &'static str, of: &'static str, description: &'static str) -> Self {
        Self { name, of, format: "", description, priority: 0 }
    }

    const fn text(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", description)
    }

    const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

impl Subresource {
    /// The status of a kind.
    const fn status(group: &'static str, kind: &'static str) -> Self {
        Self { name: "status", group, version: "v1", kind, verbs: &["get", "patch", "update"] }
    }
}

impl Kind {
    /// `v1` or `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// As messages name it.
    pub fn resource(&self) -> Resource<'static> {
        Resource { group: self.group, plural: self.plural }
    }

    /// Whether objects of it are kept.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"list")
    }

    /// The subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Makes of what a client sent what is stored of a new object.
    pub fn prepare_create(&self, object: &mut Value, now: Time) {
        if let Some(metadata) = object.get_mut("metadata") {
            json::remove(metadata, "deletionTimestamp");
            json::remove(metadata, "deletionGracePeriodSeconds");
        }
        (self.on_create)(object, now);
    }

    /// Makes of what a client sent what is stored of a changed object.
    pub fn prepare_update(&self, object: &mut Value, old: &Value, now: Time) {
        meta::keep_generation(object, old);
        (self.on_update)(object, old, now);
        meta::keep_system_fields(object, old);
    }

    /// Makes of what a client sent what is stored of an object with a changed status.
    pub fn prepare_status(&self, object: &mut Value, old: &Value, now: Time) {
        meta::keep_generation(object, old);
        (self.on_status)(object, old, now);
        meta::keep_system_fields(object, old);
    }

    /// What is wrong with a new object.
    pub fn invalid_on_create(&self, object: &Value) -> Vec<Cause> {
        let causes = (self.validate)(object);
        if causes.is_empty() && self.is_stored() {
            return meta::validate_any(object, self.namespaced, names::path_segment);
        }
        causes
    }

    /// What is wrong with a change of the object.
    pub fn invalid_on_update(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_common(object, old, self.namespaced);
        causes.extend((self.validate_update)(object, old));
        causes
    }

    /// What is wrong with a change of the status.
    pub fn invalid_on_status(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_common(object, old, self.namespaced);
        causes.extend((self.validate_status)(object, old));
        causes
    }

    /// The refusal of an object that is not as it should be.
    pub fn refuse_invalid(&self, name: &str, causes: Vec<Cause>) -> Refusal {
        // Events are the core group's, whichever way they come.
        let group = if self.kind == "Event" { "" } else { self.group };
        Refusal::invalid(group, self.kind, name, causes)
    }

    /// What a field selector sees under that name; none if it cannot be selected by.
    pub fn field(&self, name: &str) -> Option<fn(&Value) -> String> {
        match name {
            "metadata.name" => Some(|object| json::text(object, "/metadata/name").into()),
            "metadata.namespace" if self.namespaced => {
                Some(|object| json::text(object, "/metadata/namespace").into())
            }
            name => self.fields.iter().find(|(field, _)| *field == name).map(|(_, of)| *of),
        }
    }
}

/// All kinds, groups together, in the order of discovery.
pub static KINDS: &[&Kind] = &[
    &review::BINDING,
    &config_map::CONFIG_MAP,
    &event::EVENT,
    &namespace::NAMESPACE,
    &node::NODE,
    &claim::CLAIM,
    &volume::VOLUME,
    &pod::POD,
    &secret::SECRET,
    &service_account::SERVICE_ACCOUNT,
    &event::NEW_EVENT,
    &review::SELF_SUBJECT_REVIEW,
    &review::TOKEN_REVIEW,
    &review::LOCAL_SUBJECT_ACCESS_REVIEW,
    &review::SELF_SUBJECT_ACCESS_REVIEW,
    &review::SELF_SUBJECT_RULES_REVIEW,
    &review::SUBJECT_ACCESS_REVIEW,
    &csi_driver::CSI_DRIVER,
    &csi_node::CSI_NODE,
    &capacity::CAPACITY,
    &storage_class::STORAGE_CLASS,
    &attachment::ATTACHMENT,
    &attributes_class::ATTRIBUTES_CLASS,
    &lease::LEASE,
    &group_snapshot::CLASS,
    &group_snapshot::CONTENT,
    &group_snapshot::SNAPSHOT,
    &snapshot::CLASS,
    &snapshot::CONTENT,
    &snapshot::SNAPSHOT,
];

/// The kind at a path.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    let kind = KINDS.iter().find(|kind| kind.group == group && kind.plural == plural)?;
    (kind.version == version).then_some(*kind)
}

/// The kind that an object says it is of.
pub fn by_kind(group: &str, version: &str, name: &str) -> Option<&'static Kind> {
    let kind = KINDS.iter().find(|kind| kind.group == group && kind.kind == name)?;
    (kind.version == version).then_some(*kind)
}

/// The answer to who asks for a kind in a version in which it is not served: which one to take.
pub fn other_version(group: &str, version: &str, plural: &str) -> Option<Refusal> {
    let kind =
        KINDS.iter().find(|kind| kind.group == group && kind.plural == plural && kind.version != version)?;
    let message =
        format!("{} is not served in version {version}: use {}", kind.resource(), kind.api_version());
    Some(Refusal::new(404, "NotFound", message))
}
