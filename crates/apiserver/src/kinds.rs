//! The kinds that are served: names, defaults, admission, validation and table columns.
//!
//! A [`Kind`] is everything that the server knows about a kind. All functions are pure: a rule reads other objects
//! through a [`Lookup`]. A write runs these steps in this order:
//!
//! ```text
//! create:  default, admit, (name, namespace, uid, creationTimestamp), prepare_create, invalid_on_create,
//!          validate_admission
//! update:  default, admit, prepare_update, invalid_on_update, validate_admission
//! status:  default, admit, prepare_status, invalid_on_status, validate_admission
//! delete:  admit, validate_admission
//! ```

use serde_json::Value;
use wharf_model::Time;

use crate::status::{Cause, Resource, StatusError};

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

/// One served kind.
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// The only version that is served.
    pub version: &'static str,
    /// The name in the `kind` field: `PersistentVolume`.
    pub kind: &'static str,
    /// The resource name in paths: `persistentvolumes`.
    pub plural: &'static str,
    /// The singular resource name, which kubectl accepts too.
    pub singular: &'static str,
    /// Abbreviations that kubectl accepts: `pv`.
    pub short_names: &'static [&'static str],
    /// Groups of resources that kubectl accepts: `all`.
    pub categories: &'static [&'static str],
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Supported verbs, sorted. Kinds without `list` are not stored, such as reviews and bindings.
    pub verbs: &'static [&'static str],
    /// Supported subresources.
    pub subresources: &'static [Subresource],
    /// Whether deletion has a grace period, after which the node agent removes the object. True for pods only.
    pub graceful_deletion: bool,
    /// Whether a PUT without a resourceVersion is accepted.
    pub unconditional_update: bool,
    /// Whether a PUT creates a missing object.
    pub create_on_update: bool,
    /// Sets defaults. Runs on request bodies and on the results of patches.
    pub default: fn(&mut Value),
    /// Prepares a new object: drops fields that a client cannot set, and sets initial values.
    pub on_create: fn(&mut Value, Time),
    /// Prepares an update: the first object is the new one, the second the stored one. Restores the fields that an
    /// update cannot change.
    pub on_update: fn(&mut Value, &Value, Time),
    /// Prepares a status update: restores all fields that a status update cannot change.
    pub on_status: fn(&mut Value, &Value, Time),
    /// Validates a new object.
    pub validate: fn(&Value) -> Vec<Cause>,
    /// Validates an update: the first object is the new one, the second the stored one.
    pub validate_update: fn(&Value, &Value) -> Vec<Cause>,
    /// Validates a status update.
    pub validate_status: fn(&Value, &Value) -> Vec<Cause>,
    /// Warnings that accompany a successful write. An update passes the old object.
    pub warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// Mutating admission, before validation.
    pub admit: fn(&mut Value, &Admission<'_>) -> Result<(), StatusError>,
    /// Validating admission, after validation.
    pub validate_admission: fn(&Value, &Admission<'_>) -> Result<(), StatusError>,
    /// Supported field selectors in addition to `metadata.name` and `metadata.namespace`.
    pub fields: &'static [Field],
    /// Table columns.
    pub columns: &'static [Column],
    /// The cells of an object's table row, one for each column.
    pub row: fn(&Value, Time) -> Vec<Value>,
    /// Conditions of an object's table row, such as Completed for a pod.
    pub row_conditions: fn(&Value) -> Vec<Value>,
}

/// A field that field selectors can use, and the function that reads its value from an object.
pub type Field = (&'static str, fn(&Value) -> String);

/// A subresource: `status`, `binding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    /// The last segment of its path.
    pub name: &'static str,
    /// The group of the request body; empty for the core group.
    pub group: &'static str,
    /// The version of the request body.
    pub version: &'static str,
    /// The kind of the request body.
    pub kind: &'static str,
    /// Supported verbs, sorted.
    pub verbs: &'static [&'static str],
}

/// A table column (`metav1.TableColumnDefinition`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The header, which kubectl prints in capitals.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub data_type: &'static str,
    /// `name` for the column that identifies the row.
    pub format: &'static str,
    /// What the column shows, in a sentence.
    pub description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// The operation that is being admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object is created.
    Create,
    /// An existing object is changed.
    Update,
    /// An existing object is deleted.
    Delete,
}

/// The inputs of admission in addition to the object.
pub struct Admission<'a> {
    /// The operation that is being admitted.
    pub operation: Operation,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The stored object, for an update.
    pub old: Option<&'a Value>,
    /// Access to all other objects.
    pub lookup: &'a dyn Lookup,
}

/// Access to the current state of other objects.
pub trait Lookup {
    /// Returns one object. `namespace` is empty for cluster-scoped kinds.
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value>;
    /// Returns the objects of a namespace, or of all namespaces if it is empty.
    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Value>;
}

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A kind without rules. Each kind overrides only what differs.
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
    graceful_deletion: false,
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
    validate_admission: |_, _| Ok(()),
    fields: &[],
    columns: &[NAME, CREATED],
    row: |object, _| {
        vec![json::text(object, "/metadata/name").into(), json::at(object, "/metadata/creationTimestamp")]
    },
    row_conditions: |_| Vec::new(),
};

const NAME: Column = Column {
    name: "Name",
    data_type: "string",
    format: "name",
    description: "The name of the object, unique within its kind and namespace.",
    priority: 0,
};

const CREATED: Column = Column {
    name: "Created At",
    data_type: "date",
    format: "",
    description: "The time when the object was created.",
    priority: 0,
};

const AGE: Column = Column {
    name: "Age",
    data_type: "string",
    format: "",
    description: "The time since the object was created.",
    priority: 0,
};

impl Column {
    const fn new(name: &'static str, data_type: &'static str, description: &'static str) -> Self {
        Self { name, data_type, format: "", description, priority: 0 }
    }

    const fn text(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", description)
    }

    const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

impl Subresource {
    /// The `status` subresource of a kind.
    const fn status(group: &'static str, kind: &'static str) -> Self {
        Self { name: "status", group, version: "v1", kind, verbs: &["get", "patch", "update"] }
    }
}

impl Kind {
    /// The `apiVersion` of objects: `v1` or `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The resource, as error messages name it.
    pub fn resource(&self) -> Resource<'static> {
        Resource { group: self.group, plural: self.plural }
    }

    /// Whether objects of this kind are stored.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"list")
    }

    /// Returns the subresource with that name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Prepares a new object for validation and storage.
    pub fn prepare_create(&self, object: &mut Value, now: Time) {
        if let Some(metadata) = object.get_mut("metadata") {
            json::remove(metadata, "deletionTimestamp");
            json::remove(metadata, "deletionGracePeriodSeconds");
        }
        (self.on_create)(object, now);
    }

    /// Prepares an updated object for validation and storage.
    pub fn prepare_update(&self, object: &mut Value, old: &Value, now: Time) {
        meta::preserve_generation(object, old);
        (self.on_update)(object, old, now);
        meta::preserve_system_fields(object, old);
    }

    /// Prepares an object with an updated status for validation and storage.
    pub fn prepare_status(&self, object: &mut Value, old: &Value, now: Time) {
        meta::preserve_generation(object, old);
        (self.on_status)(object, old, now);
        meta::preserve_system_fields(object, old);
    }

    /// Validates a new object.
    pub fn invalid_on_create(&self, object: &Value) -> Vec<Cause> {
        let causes = (self.validate)(object);
        if causes.is_empty() && self.is_stored() {
            return meta::validate_lenient(object, self.namespaced, names::path_segment);
        }
        causes
    }

    /// Validates an update of the object.
    pub fn invalid_on_update(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_common(object, old, self.namespaced);
        causes.extend((self.validate_update)(object, old));
        causes
    }

    /// Validates a status update.
    pub fn invalid_on_status(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = meta::validate_common(object, old, self.namespaced);
        causes.extend((self.validate_status)(object, old));
        causes
    }

    /// The 422 error for an invalid object.
    pub fn invalid_error(&self, name: &str, causes: Vec<Cause>) -> StatusError {
        // Upstream names the core group for events of both groups.
        let group = if self.kind == "Event" { "" } else { self.group };
        StatusError::invalid(group, self.kind, name, causes)
    }

    /// Returns the function that reads a selectable field from an object; `None` if the field is not supported.
    pub fn field(&self, name: &str) -> Option<fn(&Value) -> String> {
        match name {
            "metadata.name" => Some(|object| json::text(object, "/metadata/name").into()),
            "metadata.namespace" if self.namespaced => {
                Some(|object| json::text(object, "/metadata/namespace").into())
            }
            name => self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value),
        }
    }
}

/// All kinds, ordered by group, as discovery lists them.
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
    &event::EVENTS_GROUP_EVENT,
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

/// Finds the kind that a path names.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    let kind = KINDS.iter().find(|kind| kind.group == group && kind.plural == plural)?;
    (kind.version == version).then_some(*kind)
}

/// Finds a kind by the `apiVersion` and `kind` of an object.
pub fn by_kind(group: &str, version: &str, name: &str) -> Option<&'static Kind> {
    let kind = KINDS.iter().find(|kind| kind.group == group && kind.kind == name)?;
    (kind.version == version).then_some(*kind)
}

/// The error for a request in a version that is not served. It names the served version.
pub fn unserved_version_error(group: &str, version: &str, plural: &str) -> Option<StatusError> {
    let kind =
        KINDS.iter().find(|kind| kind.group == group && kind.plural == plural && kind.version != version)?;
    let message =
        format!("{} is not served in version {version}: use {}", kind.resource(), kind.api_version());
    Some(StatusError::new(404, "NotFound", message))
}
