//! Builds the requests to the driver with their parameters and secret, or returns the reason why the driver must not be
//! called. No I/O.

use std::collections::BTreeMap;

use wharf_csi::v1::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, GetSnapshotRequest, GetVolumeGroupSnapshotRequest,
    ListSnapshotsRequest,
};
use wharf_model::SecretRef;
use wharf_model::parameters::PREFIX;
use wharf_model::snapshot::secrets::{SnapshotSecret, SnapshotSecretError};

use super::view::{Class, ContentKind, IncompleteSecretRef, Object, Source, View};

/// A call and its secret.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallRequest<C> {
    /// The call, without secrets.
    pub(super) call: C,
    /// The secret to add.
    pub(super) secret: Option<SecretRef>,
    /// Send the call without the secret if the secret does not exist: when a namespace is deleted, the secret may be
    /// deleted before the content.
    pub(super) secret_optional: bool,
    /// Whether the call has all parameters of the first call. The driver may reject an incomplete call because of the
    /// missing parameters; such an error does not prove that no snapshot exists.
    pub(super) complete: bool,
}

/// A call that creates a snapshot or reads its state.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    /// CreateSnapshot.
    Create(CreateSnapshotRequest),
    /// CreateVolumeGroupSnapshot.
    CreateGroup(CreateVolumeGroupSnapshotRequest),
    /// ListSnapshots for one snapshot.
    List(ListSnapshotsRequest),
    /// GetSnapshot.
    Get(GetSnapshotRequest),
    /// GetVolumeGroupSnapshot.
    GetGroup(GetVolumeGroupSnapshotRequest),
    /// No call: the driver cannot report snapshots, so this one is assumed to exist and to be ready.
    AssumeReady(String),
}

/// A call that deletes a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum DeleteCall {
    /// DeleteSnapshot.
    Snapshot(DeleteSnapshotRequest),
    /// DeleteVolumeGroupSnapshot.
    Group(DeleteVolumeGroupSnapshotRequest),
}

/// Why the driver is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The class does not exist, or the secret reference is incomplete.
    #[error("failed to get input parameters to create {noun} for content {content}: {reason:?}")]
    InvalidInput { noun: &'static str, content: String, reason: String },
    /// The class does not exist when the state of a snapshot is read.
    #[error(
        "failed to get {noun} class {class} for {noun} content {content}: {resource} {class:?} not found"
    )]
    ClassNotFound { noun: &'static str, content: String, resource: &'static str, class: String },
    /// The content is not bound to a VolumeSnapshot.
    #[error("cannot create {noun}. {noun} content {content} not bound to a {noun}")]
    Unbound { noun: &'static str, content: String },
    /// The class has an unknown parameter with the reserved prefix.
    #[error(
        "failed to remove CSI Parameters of prefixed keys: found unknown parameter key {key:?} with reserved \
         namespace {PREFIX}"
    )]
    UnknownParameter { key: String },
    /// The secret reference is incomplete.
    #[error(transparent)]
    Secret(#[from] IncompleteSecretRef),
    /// The class has an invalid reference to the secret for reading the state.
    #[error("failed to get secret reference for {noun} content {content}: {source}")]
    StatusSecret { noun: &'static str, content: String, source: SnapshotSecretError },
    /// DeleteVolumeGroupSnapshot has to name the members.
    #[error("cannot delete group snapshot content {content}. No snapshots found in the group snapshot")]
    NoMembers { content: String },
    /// The volumes of the group are on different nodes.
    #[error(
        "volume {volume} is not on node {node}, where the first volume of the group is: one node's driver takes a \
         group snapshot, so all of its volumes must be on one node; select volumes of one node"
    )]
    SpansNodes { volume: String, node: String },
    /// The driver does not support group snapshots.
    #[error(
        "driver {driver} does not support group snapshots (CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT): create \
             VolumeSnapshots one by one"
    )]
    GroupsUnsupported { driver: String },
}

/// The name of the snapshot in the driver, as [`create`] requests it.
pub(super) fn name(view: &View<'_>) -> Result<String, Refusal> {
    let (object, rules) = (view.object, view.rules);
    let naming = match object.kind() {
        ContentKind::Snapshot => &rules.naming,
        ContentKind::Group => &rules.group_naming,
    };
    let (noun, content) = (object.constants().noun, object.meta().name.clone());
    naming.name(&object.reference().uid).map_err(|_| Refusal::Unbound { noun, content })
}

/// The call that creates the snapshot. Repeating it polls the creation, because the name identifies the snapshot.
pub(super) fn create(view: &View<'_>) -> Result<CallRequest<Call>, Refusal> {
    let (object, rules) = (view.object, view.rules);
    let (noun, content) = (object.constants().noun, object.meta().name.clone());
    // For a content in deletion only the name matters; a missing class or secret must not block it.
    let deleting = object.is_being_deleted();
    let class_parameters = match view.class {
        Class::Found { driver, parameters } if driver == rules.driver => Some(parameters),
        Class::Found { .. } | Class::None | Class::NotListed | Class::NotFound(_) if deleting => None,
        Class::Found { .. } | Class::None | Class::NotListed => {
            let reason = format!("failed to take {noun} {content} without a {noun} class");
            return Err(Refusal::InvalidInput { noun, content, reason });
        }
        Class::NotFound(class) => {
            let reason = format!("{} {class:?} not found", object.constants().class_resource);
            return Err(Refusal::InvalidInput { noun, content, reason });
        }
    };
    let (mut parameters, complete) = match (class_parameters.map(driver_parameters), deleting) {
        (Some(Ok(parameters)), _) => (parameters, true),
        (Some(Err(refusal)), false) => return Err(refusal),
        (Some(Err(_)), true) | (None, _) => (BTreeMap::new(), false),
    };
    if rules.extra_create_metadata {
        parameters.extend(metadata(object));
    }
    let name = name(view)?;
    let volumes = match object.source() {
        Source::Volumes(volumes) => volumes.into_iter().map(str::to_owned).collect(),
        Source::Existing { .. } | Source::GroupMember | Source::Unspecified => Vec::new(),
    };
    let call = match object.kind() {
        ContentKind::Snapshot => Call::Create(CreateSnapshotRequest {
            source_volume_id: volumes.into_iter().next().unwrap_or_default(),
            name,
            parameters: parameters.into_iter().collect(),
            ..CreateSnapshotRequest::default()
        }),
        ContentKind::Group => Call::CreateGroup(CreateVolumeGroupSnapshotRequest {
            name,
            source_volume_ids: volumes,
            parameters: parameters.into_iter().collect(),
            ..CreateVolumeGroupSnapshotRequest::default()
        }),
    };
    let invalid_secret =
        |error: IncompleteSecretRef| Refusal::InvalidInput { noun, content, reason: error.to_string() };
    Ok(CallRequest {
        call,
        secret: object.secret().map_err(invalid_secret)?,
        secret_optional: deleting,
        complete,
    })
}

/// sidecars.md 1.5 "Params": the parameters of a class that are passed to the driver.
fn driver_parameters(parameters: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refusal> {
    let ours: Vec<String> = SnapshotSecret::ALL.into_iter().flat_map(SnapshotSecret::keys).collect();
    let mut driver = BTreeMap::new();
    for (key, value) in parameters {
        if !key.starts_with(PREFIX) {
            driver.insert(key.clone(), value.clone());
        } else if !ours.contains(key) {
            return Err(Refusal::UnknownParameter { key: key.clone() });
        }
    }
    Ok(driver)
}

fn metadata(object: &Object) -> [(String, String); 3] {
    let stem = match object.kind() {
        ContentKind::Snapshot => "volumesnapshot",
        ContentKind::Group => "volumegroupsnapshot",
    };
    let reference = object.reference();
    [
        (format!("{PREFIX}{stem}/name"), reference.name.clone()),
        (format!("{PREFIX}{stem}/namespace"), reference.namespace.clone()),
        (format!("{PREFIX}{stem}content/name"), object.meta().name.clone()),
    ]
}

/// The call that reads the state of an existing snapshot.
pub(super) fn check(view: &View<'_>, handle: &str) -> Result<CallRequest<Call>, Refusal> {
    let object = view.object;
    let secret = if object.group_handle().is_some() {
        // Members of a group have no class.
        object.secret()?
    } else {
        class_secret(view)?
    };
    let snapshot_id = handle.to_owned();
    let call = match object.kind() {
        ContentKind::Group => Call::GetGroup(GetVolumeGroupSnapshotRequest {
            group_snapshot_id: snapshot_id,
            snapshot_ids: object.members(),
            ..GetVolumeGroupSnapshotRequest::default()
        }),
        ContentKind::Snapshot if view.rules.capabilities.get_snapshot => {
            Call::Get(GetSnapshotRequest { snapshot_id, ..GetSnapshotRequest::default() })
        }
        ContentKind::Snapshot if view.rules.capabilities.list_snapshots => {
            Call::List(ListSnapshotsRequest { snapshot_id, ..ListSnapshotsRequest::default() })
        }
        ContentKind::Snapshot => Call::AssumeReady(snapshot_id),
    };
    Ok(CallRequest { call, secret, secret_optional: false, complete: true })
}

fn class_secret(view: &View<'_>) -> Result<Option<SecretRef>, Refusal> {
    let constants = view.object.constants();
    let (noun, content) = (constants.noun, view.object.meta().name.clone());
    let purpose = match view.object.kind() {
        ContentKind::Snapshot => SnapshotSecret::SnapshotterList,
        ContentKind::Group => SnapshotSecret::GroupSnapshotterGet,
    };
    match view.class {
        Class::None | Class::NotListed => Ok(None),
        Class::NotFound(class) => Err(Refusal::ClassNotFound {
            noun,
            content,
            resource: constants.class_resource,
            class: class.to_owned(),
        }),
        Class::Found { parameters, .. } => purpose
            .resolve(parameters, &content, None)
            .map_err(|source| Refusal::StatusSecret { noun, content, source }),
    }
}

/// The call that deletes the snapshot.
pub(super) fn delete(object: &Object, handle: &str) -> Result<CallRequest<DeleteCall>, Refusal> {
    let call = match object.kind() {
        ContentKind::Snapshot => DeleteCall::Snapshot(DeleteSnapshotRequest {
            snapshot_id: handle.to_owned(),
            ..DeleteSnapshotRequest::default()
        }),
        ContentKind::Group => {
            let snapshot_ids = object.members();
            if snapshot_ids.is_empty() {
                return Err(Refusal::NoMembers { content: object.meta().name.clone() });
            }
            DeleteCall::Group(DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: handle.to_owned(),
                snapshot_ids,
                ..DeleteVolumeGroupSnapshotRequest::default()
            })
        }
    };
    Ok(CallRequest { call, secret: object.secret()?, secret_optional: true, complete: true })
}
