//! Creation of a content for a dynamically provisioned snapshot.

use wharf_model::claim::ClaimPhase;
use wharf_model::snapshot::names;
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{Meta, PersistentVolume, VolumeSnapshot, VolumeSnapshotClass};

use super::super::view::{Lookup, NodeChoice, View};
use super::{Failure, NewContent, Step};

/// The next step for a snapshot without a content.
pub(super) fn decide(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    match (&snapshot.spec.volume_snapshot_class_name, view.class) {
        (Some(name), None) => Step::Fail(class_not_found(name)),
        (Some(_), Some(class)) => create(view, snapshot, class),
        (None, _) => choose_default_class(view, snapshot),
    }
}

/// Whether nothing was created for the snapshot or bound to it yet.
pub(super) fn is_new(view: &View<'_>, snapshot: &VolumeSnapshot) -> bool {
    let is_bound = match view.content {
        Lookup::Found(content) => content.is_bound_to(&snapshot.metadata),
        Lookup::NotCached | Lookup::NotFound => false,
    };
    !is_bound
        && snapshot.bound_content().is_none()
        && !snapshot.is_created()
        && snapshot.owning_group().is_none()
}

/// Checks the class before anything else: without a class the snapshot does not even get a finalizer.
pub(super) fn check_class(view: &View<'_>, snapshot: &VolumeSnapshot) -> Option<Step> {
    if !is_new(view, snapshot) {
        return None;
    }
    match (&snapshot.spec.volume_snapshot_class_name, view.class) {
        (Some(name), None) => Some(Step::Fail(class_not_found(name))),
        (Some(_), Some(_)) => None,
        (None, _) if snapshot.pre_provisioned_content().is_some() => None,
        (None, _) => Some(choose_default_class(view, snapshot)),
    }
}

/// The class does not exist.
fn class_not_found(name: &str) -> Failure {
    let message = format!(
        "Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io {name:?} not found"
    );
    Failure::new("GetSnapshotClassFailed", message).without_readiness()
}

/// Chooses the default class of the volume's driver.
fn choose_default_class(view: &View<'_>, snapshot: &VolumeSnapshot) -> Step {
    let failed = |reason: String| {
        let message = format!("Failed to set default snapshot class with error {reason}");
        Step::Fail(Failure::new("SetDefaultSnapshotClassFailed", message).without_readiness())
    };
    let volume = match source_volume(view, snapshot) {
        Ok(volume) => volume,
        Err(VolumeUnavailable::Fetch(name)) => return Step::FetchVolume(name),
        Err(VolumeUnavailable::Failed(reason)) => return failed(reason),
    };
    let Some(csi) = &volume.spec.csi else {
        let key = snapshot.metadata.key();
        return failed(format!("snapshotting non-CSI volumes is not supported, snapshot:{key}"));
    };
    let defaults: Vec<_> = view.defaults.iter().filter(|class| class.driver == csi.driver).collect();
    match defaults[..] {
        [] => failed("cannot find default snapshot class".to_owned()),
        [class] => Step::SetDefaultClass(class.metadata.name.clone()),
        _ => failed(format!("{} default snapshot classes were found", defaults.len())),
    }
}

/// Why there is no volume to snapshot.
enum VolumeUnavailable {
    /// The volume of this name has to be read from the API server.
    Fetch(String),
    /// The claim has no usable volume.
    Failed(String),
}

/// The source volume of the snapshot.
fn source_volume<'a>(
    view: &View<'a>,
    snapshot: &VolumeSnapshot,
) -> Result<&'a PersistentVolume, VolumeUnavailable> {
    let failed = |reason: String| Err(VolumeUnavailable::Failed(reason));
    let Some(claim) = view.claim else {
        let name = snapshot.source_claim_name().unwrap_or_default();
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
        Lookup::NotCached => return Err(VolumeUnavailable::Fetch(volume_name.clone())),
        Lookup::NotFound => {
            let found = format!("persistentvolumes {volume_name:?} not found");
            return failed(format!("failed to retrieve PV {volume_name} from the API server: {found:?}"));
        }
        Lookup::Found(volume) => volume,
    };
    match is_bound(volume, &claim.metadata) {
        true => Ok(volume),
        false => failed("claim in dataSource not bound or invalid".to_owned()),
    }
}

/// Whether the volume is bound to the claim, or reserved for it by name.
fn is_bound(volume: &PersistentVolume, claim: &Meta) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name == claim.name
            && Some(&reference.namespace) == claim.namespace.as_ref()
            && (reference.uid.is_empty() || reference.uid == claim.uid)
    })
}

fn create(view: &View<'_>, snapshot: &VolumeSnapshot, class: &VolumeSnapshotClass) -> Step {
    let refused = |name: &str, reason: &str| {
        creation_failed(format!("snapshot controller failed to update {name} on API server: {reason}"))
    };
    let Some(claim) = view.claim else {
        return refused(&snapshot.metadata.name, "cannot get claim from snapshot");
    };
    match (claim.metadata.has_finalizer(names::CLAIM_PROTECTION), claim.metadata.is_deleting()) {
        (true, _) => plan_content(view, snapshot, class),
        (false, true) => {
            refused(&claim.metadata.name, "cannot add finalizer on claim because it is being deleted")
        }
        (false, false) => Step::ProtectClaim,
    }
}

fn creation_failed(reason: String) -> Step {
    let message = format!("Failed to create snapshot content with error {reason}");
    Step::Fail(Failure::new("SnapshotContentCreationFailed", message))
}

/// The content to create once the claim is protected, or the reason why there can be none.
pub(super) fn plan_content(view: &View<'_>, snapshot: &VolumeSnapshot, class: &VolumeSnapshotClass) -> Step {
    let name = &snapshot.metadata.name;
    let input = |reason: String| {
        creation_failed(format!("failed to get input parameters to create snapshot {name}: {reason:?}"))
    };
    let volume = match source_volume(view, snapshot) {
        Ok(volume) => volume,
        Err(VolumeUnavailable::Fetch(name)) => return Step::FetchVolume(name),
        Err(VolumeUnavailable::Failed(reason)) => return input(reason),
    };
    let content = names::content_name(&snapshot.metadata.uid);
    let secret =
        match SnapshotSecret::Snapshotter.resolve(&class.parameters, &content, Some(&snapshot.metadata)) {
            Ok(secret) => secret,
            Err(error) => return input(error.to_string()),
        };
    let Some(csi) = &volume.spec.csi else {
        let volume = &volume.metadata.name;
        return creation_failed(format!("cannot find CSI PersistentVolumeSource for volume {volume}"));
    };
    // Another driver may have a volume with the same handle.
    if csi.driver != class.driver {
        let (volume, class, of) = (&volume.metadata.name, &class.metadata.name, &class.driver);
        return input(format!(
            "volume {volume} belongs to driver {} and class {class} to driver {of}: use a class of the volume's driver",
            csi.driver
        ));
    }
    let node = match view.node {
        NodeChoice::Any => None,
        NodeChoice::Node(node) => Some(node.to_owned()),
        // No snapshotter would handle a content without a node label, even after the node is back.
        NodeChoice::Unreachable => {
            let volume = &volume.metadata.name;
            return creation_failed(format!(
                "no known node can reach volume {volume}, and each node takes the snapshots of its own volumes: bring its node back"
            ));
        }
    };
    let mode = volume.spec.volume_mode.filter(|_| view.record_volume_mode);
    Step::CreateContent(NewContent {
        class: class.metadata.name.clone(),
        driver: class.driver.clone(),
        policy: class.deletion_policy,
        volume_handle: csi.volume_handle.clone(),
        volume_mode: mode.map(wharf_model::VolumeMode::as_str),
        node,
        secret,
    })
}
