//! Making a content for a snapshot that is to be taken.

use wharf_model::claim::ClaimPhase;
use wharf_model::snapshot::names;
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{Meta, PersistentVolume, VolumeSnapshot, VolumeSnapshotClass};

use super::super::view::{
    Found, Taker, View, bound, claim_of, is_created, owner, points_back, pre_provisioned,
};
use super::{Creation, Fault, Step};

/// What to do for a snapshot without a content.
pub(super) fn decide(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    match (&snapshot.spec.volume_snapshot_class_name, view.class) {
        (Some(name), None) => Step::Fail(no_class(name)),
        (Some(_), Some(class)) => create(view, snapshot, class),
        (None, _) => choose(view, snapshot),
    }
}

/// Whether nothing was made for it yet, or bound to it.
pub(super) fn is_new(view: &View<'_>, snapshot: &VolumeSnapshot) -> bool {
    let is_bound = match view.content {
        Found::Here(content) => points_back(content, &snapshot.metadata),
        Found::NotSeen | Found::Gone => false,
    };
    !is_bound && bound(snapshot).is_none() && !is_created(snapshot) && owner(snapshot).is_none()
}

/// What has to be done about its class, before anything else: one that has no class has not even a finalizer.
pub(super) fn class(view: &View<'_>, snapshot: &VolumeSnapshot) -> Option<Step> {
    if !is_new(view, snapshot) {
        return None;
    }
    match (&snapshot.spec.volume_snapshot_class_name, view.class) {
        (Some(name), None) => Some(Step::Fail(no_class(name))),
        (Some(_), Some(_)) => None,
        (None, _) if pre_provisioned(snapshot).is_some() => None,
        (None, _) => Some(choose(view, snapshot)),
    }
}

/// The class is not there.
fn no_class(name: &str) -> Fault {
    let message = format!(
        "Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io {name:?} not found"
    );
    Fault::new("GetSnapshotClassFailed", message).aside()
}

/// Chooses the default class: the one that is marked, of the volume's driver.
fn choose(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let failed = |why: String| {
        let message = format!("Failed to set default snapshot class with error {why}");
        Step::Fail(Fault::new("SetDefaultSnapshotClassFailed", message).aside())
    };
    let volume = match volume(view, snapshot) {
        Ok(volume) => volume,
        Err(Unknown::Ask(name)) => return Step::AskVolume(name),
        Err(Unknown::Failed(why)) => return failed(why),
    };
    let Some(csi) = &volume.spec.csi else {
        let key = snapshot.metadata.key();
        return failed(format!("snapshotting non-CSI volumes is not supported, snapshot:{key}"));
    };
    let defaults: Vec<_> = view.defaults.iter().filter(|class| class.driver == csi.driver).collect();
    match defaults[..] {
        [] => failed("cannot find default snapshot class".to_owned()),
        [class] => Step::SetClass(class.metadata.name.clone()),
        _ => failed(format!("{} default snapshot classes were found", defaults.len())),
    }
}

/// Why the volume is not known.
enum Unknown {
    /// The server has to be asked for the one of this name.
    Ask(String),
    /// There is none to take a snapshot of.
    Failed(String),
}

/// The volume that the snapshot is to be taken of.
fn volume<'a>(view: &View<'a>, snapshot: &VolumeSnapshot) -> Result<&'a PersistentVolume, Unknown> {
    let failed = |why: String| Err(Unknown::Failed(why));
    let Some(claim) = view.claim else {
        let name = claim_of(snapshot).unwrap_or_default();
        let found = format!("persistentvolumeclaim {name:?} not found");
        return failed(format!("failed to retrieve PVC {name} from the lister: {found:?}"));
    };
    let name = &claim.metadata.name;
    if claim.status.phase != ClaimPhase::Bound {
        return failed(format!(
            "the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot"
        ));
    }
    let volume_name = &claim.spec.volume_name;
    let volume = match view.volume {
        Found::NotSeen => return Err(Unknown::Ask(volume_name.clone())),
        Found::Gone => {
            let found = format!("persistentvolumes {volume_name:?} not found");
            return failed(format!("failed to retrieve PV {volume_name} from the API server: {found:?}"));
        }
        Found::Here(volume) => volume,
    };
    match is_bound(volume, &claim.metadata) {
        true => Ok(volume),
        false => failed("claim in dataSource not bound or invalid".to_owned()),
    }
}

/// Whether the volume is the claim's, or kept for it by name.
fn is_bound(volume: &PersistentVolume, claim: &Meta) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name == claim.name
            && Some(&reference.namespace) == claim.namespace.as_ref()
            && (reference.uid.is_empty() || reference.uid == claim.uid)
    })
}

fn create(view: &View<'_>, snapshot: &VolumeSnapshot, class: &VolumeSnapshotClass) -> Step {
    let refused = |name: &str, why: &str| {
        failed(format!("snapshot controller failed to update {name} on API server: {why}"))
    };
    let Some(claim) = view.claim else {
        return refused(&snapshot.metadata.name, "cannot get claim from snapshot");
    };
    match (claim.metadata.has_finalizer(names::CLAIM_PROTECTION), claim.metadata.is_deleting()) {
        (true, _) => plan(view, snapshot, class),
        (false, true) => {
            refused(&claim.metadata.name, "cannot add finalizer on claim because it is being deleted")
        }
        (false, false) => Step::ProtectClaim,
    }
}

fn failed(why: String) -> Step {
    let message = format!("Failed to create snapshot content with error {why}");
    Step::Fail(Fault::new("SnapshotContentCreationFailed", message))
}

/// The content that is to be made once the claim is protected, or why there can be none.
pub(super) fn plan(view: &View<'_>, snapshot: &VolumeSnapshot, class: &VolumeSnapshotClass) -> Step {
    let name = &snapshot.metadata.name;
    let input =
        |why: String| failed(format!("failed to get input parameters to create snapshot {name}: {why:?}"));
    let volume = match volume(view, snapshot) {
        Ok(volume) => volume,
        Err(Unknown::Ask(name)) => return Step::AskVolume(name),
        Err(Unknown::Failed(why)) => return input(why),
    };
    let content = names::content_name(&snapshot.metadata.uid);
    let secret =
        match SnapshotSecret::Snapshotter.reference(&class.parameters, &content, Some(&snapshot.metadata)) {
            Ok(secret) => secret,
            Err(error) => return input(error.to_string()),
        };
    let Some(csi) = &volume.spec.csi else {
        let volume = &volume.metadata.name;
        return failed(format!("cannot find CSI PersistentVolumeSource for volume {volume}"));
    };
    // Another driver may have a volume of that handle too.
    if csi.driver != class.driver {
        let (volume, class, of) = (&volume.metadata.name, &class.metadata.name, &class.driver);
        return input(format!(
            "volume {volume} is of driver {} and class {class} of driver {of}: name a class of the volume's driver",
            csi.driver
        ));
    }
    let node = match view.node {
        Taker::Any => None,
        Taker::One(node) => Some(node.to_owned()),
        // A content without a node would be nobody's, also when the node is back.
        Taker::Nobody => {
            let volume = &volume.metadata.name;
            return failed(format!(
                "no node is known from which volume {volume} can be reached, and each node takes snapshots of its own: bring its node back"
            ));
        }
    };
    let mode = volume.spec.volume_mode.filter(|_| view.note_volume_mode);
    Step::CreateContent(Creation {
        class: class.metadata.name.clone(),
        driver: class.driver.clone(),
        policy: class.deletion_policy,
        volume_handle: csi.volume_handle.clone(),
        volume_mode: mode.map(wharf_model::VolumeMode::as_str),
        node,
        secret,
    })
}
