//! What the driver is asked: each call with its parameters and the secret it needs, or why it is not even asked.

use std::collections::BTreeMap;

use wharf_csi::v1::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, GetSnapshotRequest, GetVolumeGroupSnapshotRequest,
    ListSnapshotsRequest,
};
use wharf_model::SecretRef;
use wharf_model::parameters::PREFIX;
use wharf_model::snapshot::secrets::{SnapshotSecret, SnapshotSecretError};

use super::view::{Class, NoSecret, Object, Source, View, Which};

/// A call, and its secret.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ask<C> {
    /// The call, without secrets.
    pub(super) call: C,
    /// The secret it gets.
    pub(super) secret: Option<SecretRef>,
    /// It is made without the secret if that is no more: what goes with its namespace must not hang on it.
    pub(super) without_secret: bool,
    /// It says all that was said at first. If not, a driver's refusal may be about what is missing, and proves nothing.
    pub(super) whole: bool,
}

/// A call that makes a snapshot or looks at it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    /// CreateSnapshot.
    Create(CreateSnapshotRequest),
    /// CreateVolumeGroupSnapshot.
    CreateGroup(CreateVolumeGroupSnapshotRequest),
    /// ListSnapshots, of one.
    List(ListSnapshotsRequest),
    /// GetSnapshot.
    Get(GetSnapshotRequest),
    /// GetVolumeGroupSnapshot.
    GetGroup(GetVolumeGroupSnapshotRequest),
    /// Nothing: a driver that cannot tell is believed to have it.
    Assume(String),
}

/// A call that deletes a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Deletion {
    /// DeleteSnapshot.
    Snapshot(DeleteSnapshotRequest),
    /// DeleteVolumeGroupSnapshot.
    Group(DeleteVolumeGroupSnapshotRequest),
}

/// Why the driver is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// What the call is made of is not there: its class, or the name of its secret.
    #[error("failed to get input parameters to create {noun} for content {content}: {lacks:?}")]
    Input { noun: &'static str, content: String, lacks: String },
    /// The class is gone, for a look.
    #[error("failed to get {noun} class {class} for {noun} content {content}: {kind} {class:?} not found")]
    ClassGoneToLook { noun: &'static str, content: String, kind: &'static str, class: String },
    /// Nobody asked for it.
    #[error("cannot create {noun}. {noun} content {content} not bound to a {noun}")]
    Unbound { noun: &'static str, content: String },
    /// A reserved key that nobody knows.
    #[error(
        "failed to remove CSI Parameters of prefixed keys: found unknown parameter key {key:?} with reserved \
         namespace {PREFIX}"
    )]
    UnknownParameter { key: String },
    /// No secret can be named.
    #[error(transparent)]
    Secret(#[from] NoSecret),
    /// No secret can be named for a look.
    #[error("failed to get secret reference for {noun} content {content}: {source}")]
    LookSecret { noun: &'static str, content: String, source: SnapshotSecretError },
    /// A group's deletion has to name its members.
    #[error("cannot delete group snapshot content {content}. No snapshots found in the group snapshot")]
    NoMembers { content: String },
    /// The group is not on one node.
    #[error(
        "volume {volume} is not on node {node}, where the first volume of the group is: a group snapshot is cut by \
         one node's driver at one moment, so all of its volumes have to be on one node; select others"
    )]
    AcrossNodes { volume: String, node: String },
    /// The driver has no groups.
    #[error(
        "driver {driver} has no group snapshots (CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT): take snapshots one by one"
    )]
    NoGroups { driver: String },
}

/// Asks to make it, or how far that has come: the name is the same, so it is the same snapshot.
pub(super) fn create(view: &View<'_>) -> Result<Ask<Call>, Refusal> {
    let (object, rules) = (view.object, view.rules);
    let (noun, content) = (object.words().noun, object.meta().name.clone());
    // On the way to its deletion everything that is missing can be done without: what counts is the name.
    let going = object.is_going();
    let given = match view.class {
        Class::Found { driver, parameters } if driver == rules.driver => Some(parameters),
        Class::Found { .. } | Class::None | Class::Unknown | Class::Gone(_) if going => None,
        Class::Found { .. } | Class::None | Class::Unknown => {
            let lacks = format!("failed to take {noun} {content} without a {noun} class");
            return Err(Refusal::Input { noun, content, lacks });
        }
        Class::Gone(class) => {
            let lacks = format!("{} {class:?} not found", object.words().class);
            return Err(Refusal::Input { noun, content, lacks });
        }
    };
    let (mut parameters, whole) = match (given.map(for_driver), going) {
        (Some(Ok(parameters)), _) => (parameters, true),
        (Some(Err(refusal)), false) => return Err(refusal),
        (Some(Err(_)), true) | (None, _) => (BTreeMap::new(), false),
    };
    if rules.extra_create_metadata {
        parameters.extend(metadata(object));
    }
    let uid = &object.reference().uid;
    let naming = match object.which() {
        Which::Snapshot => &rules.naming,
        Which::Group => &rules.group_naming,
    };
    let unbound = |_| Refusal::Unbound { noun, content: content.clone() };
    let name = naming.name(uid).map_err(unbound)?;
    let volumes = match object.source() {
        Source::Take(volumes) => volumes.into_iter().map(str::to_owned).collect(),
        Source::There { .. } | Source::InGroup | Source::Nowhere => Vec::new(),
    };
    let call = match object.which() {
        Which::Snapshot => Call::Create(CreateSnapshotRequest {
            source_volume_id: volumes.into_iter().next().unwrap_or_default(),
            name,
            parameters: parameters.into_iter().collect(),
            ..CreateSnapshotRequest::default()
        }),
        Which::Group => Call::CreateGroup(CreateVolumeGroupSnapshotRequest {
            name,
            source_volume_ids: volumes,
            parameters: parameters.into_iter().collect(),
            ..CreateVolumeGroupSnapshotRequest::default()
        }),
    };
    let nameless = |error: NoSecret| Refusal::Input { noun, content, lacks: error.to_string() };
    Ok(Ask { call, secret: object.secret().map_err(nameless)?, without_secret: going, whole })
}

/// sidecars.md 1.5 "Params": what the driver gets of a class's parameters.
fn for_driver(parameters: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refusal> {
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
    let stem = match object.which() {
        Which::Snapshot => "volumesnapshot",
        Which::Group => "volumegroupsnapshot",
    };
    let reference = object.reference();
    [
        (format!("{PREFIX}{stem}/name"), reference.name.clone()),
        (format!("{PREFIX}{stem}/namespace"), reference.namespace.clone()),
        (format!("{PREFIX}{stem}content/name"), object.meta().name.clone()),
    ]
}

/// Asks how what is there already is.
pub(super) fn look(view: &View<'_>, handle: &str) -> Result<Ask<Call>, Refusal> {
    let object = view.object;
    let secret = if object.group_handle().is_some() {
        // Members of a group have no class.
        object.secret()?
    } else {
        of_class(view)?
    };
    let snapshot_id = handle.to_owned();
    let call = match object.which() {
        Which::Group => Call::GetGroup(GetVolumeGroupSnapshotRequest {
            group_snapshot_id: snapshot_id,
            snapshot_ids: object.members(),
            ..GetVolumeGroupSnapshotRequest::default()
        }),
        Which::Snapshot if view.rules.can.get_snapshot => {
            Call::Get(GetSnapshotRequest { snapshot_id, ..GetSnapshotRequest::default() })
        }
        Which::Snapshot if view.rules.can.list_snapshots => {
            Call::List(ListSnapshotsRequest { snapshot_id, ..ListSnapshotsRequest::default() })
        }
        Which::Snapshot => Call::Assume(snapshot_id),
    };
    Ok(Ask { call, secret, without_secret: false, whole: true })
}

fn of_class(view: &View<'_>) -> Result<Option<SecretRef>, Refusal> {
    let words = view.object.words();
    let (noun, content) = (words.noun, view.object.meta().name.clone());
    let purpose = match view.object.which() {
        Which::Snapshot => SnapshotSecret::SnapshotterList,
        Which::Group => SnapshotSecret::GroupSnapshotterGet,
    };
    match view.class {
        Class::None | Class::Unknown => Ok(None),
        Class::Gone(class) => {
            Err(Refusal::ClassGoneToLook { noun, content, kind: words.class, class: class.to_owned() })
        }
        Class::Found { parameters, .. } => purpose
            .reference(parameters, &content, None)
            .map_err(|source| Refusal::LookSecret { noun, content, source }),
    }
}

/// Asks to delete it.
pub(super) fn delete(object: &Object, handle: &str) -> Result<Ask<Deletion>, Refusal> {
    let call = match object.which() {
        Which::Snapshot => Deletion::Snapshot(DeleteSnapshotRequest {
            snapshot_id: handle.to_owned(),
            ..DeleteSnapshotRequest::default()
        }),
        Which::Group => {
            let snapshot_ids = object.members();
            if snapshot_ids.is_empty() {
                return Err(Refusal::NoMembers { content: object.meta().name.clone() });
            }
            Deletion::Group(DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: handle.to_owned(),
                snapshot_ids,
                ..DeleteVolumeGroupSnapshotRequest::default()
            })
        }
    };
    Ok(Ask { call, secret: object.secret()?, without_secret: true, whole: true })
}
