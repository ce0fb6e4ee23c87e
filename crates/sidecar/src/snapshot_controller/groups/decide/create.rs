//! Making a content for a group that is to be taken.

use wharf_model::claim::ClaimPhase;
use wharf_model::snapshot::names;
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{Meta, PersistentVolume, VolumeGroupSnapshot, VolumeGroupSnapshotClass};

use super::super::super::decide::Fault;
use super::super::selector;
use super::super::view::{GroupNode, Source, View};
use super::{GroupCreation, Step};

/// What to do for a group snapshot without a content.
pub(super) fn decide(view: &View<'_>, group: &VolumeGroupSnapshot) -> Step {
    let class = match (&group.spec.volume_group_snapshot_class_name, view.class) {
        (Some(name), None) => return Step::Fail(no_class(name)),
        (Some(_), class) => class,
        (None, _) => None,
    };
    let Some(sources) = view.sources else { return Step::AskSources };
    match class {
        Some(class) => create(view, group, class, sources),
        None => choose(view, group, sources),
    }
}

/// The class is not there.
pub(super) fn no_class(name: &str) -> Fault {
    let message = format!(
        "failed to get group snapshot class with error volumegroupsnapshotclass.groupsnapshot.storage.k8s.io {name:?} not found"
    );
    Fault::new("GetGroupSnapshotClassFailed", message).aside()
}

/// Chooses the default class: the one that is marked, of the volumes' driver.
fn choose(view: &View<'_>, group: &VolumeGroupSnapshot, sources: &[Source]) -> Step {
    let failed = |why: String| {
        let message = format!("Failed to set default group snapshot class with error {why}");
        Step::Fail(Fault::new("SetDefaultGroupSnapshotClassFailed", message).aside())
    };
    let volumes = match volumes(group, sources) {
        Ok(volumes) => volumes,
        Err(why) => return failed(why),
    };
    let Some(csi) = volumes.first().and_then(|volume| volume.spec.csi.as_ref()) else {
        let key = group.metadata.key();
        return failed(format!("snapshotting non-CSI volumes is not supported, group snapshot:{key}"));
    };
    let defaults: Vec<_> = view.defaults.iter().filter(|class| class.driver == csi.driver).collect();
    match defaults[..] {
        [] => failed("cannot find default group snapshot class".to_owned()),
        [class] => Step::SetClass(class.metadata.name.clone()),
        _ => failed(format!("{} default snapshot classes were found", defaults.len())),
    }
}

/// The volumes that the group is to be taken of; at least one.
fn volumes<'a>(
    group: &VolumeGroupSnapshot,
    sources: &'a [Source],
) -> Result<Vec<&'a PersistentVolume>, String> {
    if sources.is_empty() {
        let selector = group.spec.source.selector.as_ref().map(selector::text).unwrap_or_default();
        return Err(format!("label selector {selector} for group snapshot not applied to any PVC"));
    }
    let volume = |source: &'a Source| {
        let Source { claim, volume } = source;
        let Meta { name, .. } = &claim.metadata;
        if claim.status.phase != ClaimPhase::Bound {
            return Err(format!(
                "the PVC {name} is not yet bound to a PV, will not attempt to take a group snapshot"
            ));
        }
        let Some(volume) = volume else {
            let name = &claim.spec.volume_name;
            let found = format!("persistentvolumes {name:?} not found");
            return Err(format!("failed to retrieve PV {name} from the API server: {found:?}"));
        };
        let is_bound = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
            Some(&reference.namespace) == claim.metadata.namespace.as_ref()
                && reference.name == *name
                && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
        });
        match is_bound {
            true => Ok(volume),
            false => Err("claim in dataSource not bound or invalid".to_owned()),
        }
    };
    sources.iter().map(volume).collect()
}

fn create(
    view: &View<'_>,
    group: &VolumeGroupSnapshot,
    class: &VolumeGroupSnapshotClass,
    sources: &[Source],
) -> Step {
    let key = group.metadata.key();
    let fault = |why: String| {
        let message = format!("failed to create group snapshot content with error {why}");
        Fault::new("GroupSnapshotContentCreationFailed", message)
    };
    let input = |why: String| {
        let name = &group.metadata.name;
        Step::Fail(fault(format!("failed to get input parameters to create group snapshot {name}: {why:?}")))
    };
    let volumes = match volumes(group, sources) {
        Ok(volumes) => volumes,
        Err(why) => return input(why),
    };
    let content = names::group_content_name(&group.metadata.uid);
    let secret = SnapshotSecret::GroupSnapshotter;
    let secret = match secret.reference(&class.parameters, &content, Some(&group.metadata)) {
        Ok(secret) => secret,
        Err(error) => return input(error.to_string()),
    };
    const FAILED: &str = "CreateGroupSnapshotContentFailed";
    let mut volume_handles = Vec::new();
    for volume in volumes {
        let name = &volume.metadata.name;
        let Some(csi) = &volume.spec.csi else {
            let fault = fault(format!("cannot snapshot a non-CSI volume for group snapshot {key}: {name}"));
            return Step::Fail(fault.beside(FAILED, format!("Cannot snapshot a non-CSI volume: {name}")));
        };
        if csi.driver != class.driver {
            let why = format!(
                "Volume CSI driver ({}) mismatch with VolumeGroupSnapshotClass ({}) {key}: {name}",
                csi.driver, class.driver
            );
            let fault = fault(format!("snapshot controller failed to update {key} on API server: {why}"));
            return Step::Fail(fault.beside(FAILED, why));
        }
        volume_handles.push(csi.volume_handle.clone());
    }
    let node = match view.node {
        GroupNode::Any => None,
        GroupNode::One(node) => Some(node.clone()),
        GroupNode::Apart => {
            let why = "its volumes are on different nodes, and each node takes snapshots of its own: ask for the volumes of one node";
            return Step::Fail(fault(why.to_owned()));
        }
    };
    Step::CreateContent(GroupCreation {
        class: class.metadata.name.clone(),
        driver: class.driver.clone(),
        policy: class.deletion_policy,
        volume_handles,
        node,
        secret,
    })
}
