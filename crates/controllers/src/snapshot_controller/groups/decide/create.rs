//! Creation of a content for a dynamically provisioned group snapshot.

use wharf_model::claim::ClaimPhase;
use wharf_model::snapshot::names;
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{Meta, PersistentVolume, VolumeGroupSnapshot, VolumeGroupSnapshotClass};

use super::super::super::decide::Failure;
use super::super::selector;
use super::super::view::{GroupNode, SourceClaim, View};
use super::{NewGroupContent, Step};

/// The next step for a group snapshot without a content.
pub(super) fn decide(view: &View<'_>, group: &VolumeGroupSnapshot) -> Step {
    let class = match (&group.spec.volume_group_snapshot_class_name, view.class) {
        (Some(name), None) => return Step::Fail(class_not_found(name)),
        (Some(_), class) => class,
        (None, _) => None,
    };
    let Some(sources) = view.sources else { return Step::FetchSources };
    match class {
        Some(class) => create(view, group, class, sources),
        None => choose_default_class(view, group, sources),
    }
}

/// The class does not exist.
pub(super) fn class_not_found(name: &str) -> Failure {
    let message = format!(
        "failed to get group snapshot class with error volumegroupsnapshotclass.groupsnapshot.storage.k8s.io {name:?} not found"
    );
    Failure::new("GetGroupSnapshotClassFailed", message).without_readiness()
}

/// Chooses the default class of the volumes' driver.
fn choose_default_class(view: &View<'_>, group: &VolumeGroupSnapshot, sources: &[SourceClaim]) -> Step {
    let failed = |reason: String| {
        let message = format!("Failed to set default group snapshot class with error {reason}");
        Step::Fail(Failure::new("SetDefaultGroupSnapshotClassFailed", message).without_readiness())
    };
    let volumes = match volumes(group, sources) {
        Ok(volumes) => volumes,
        Err(reason) => return failed(reason),
    };
    let Some(csi) = volumes.first().and_then(|volume| volume.spec.csi.as_ref()) else {
        let key = group.metadata.key();
        return failed(format!("snapshotting non-CSI volumes is not supported, group snapshot:{key}"));
    };
    let defaults: Vec<_> = view.defaults.iter().filter(|class| class.driver == csi.driver).collect();
    match defaults[..] {
        [] => failed("cannot find default group snapshot class".to_owned()),
        [class] => Step::SetDefaultClass(class.metadata.name.clone()),
        _ => failed(format!("{} default snapshot classes were found", defaults.len())),
    }
}

/// The source volumes of the group; at least one.
fn volumes<'a>(
    group: &VolumeGroupSnapshot,
    sources: &'a [SourceClaim],
) -> Result<Vec<&'a PersistentVolume>, String> {
    if sources.is_empty() {
        let selector = group.spec.source.selector.as_ref().map(selector::to_query).unwrap_or_default();
        return Err(format!("label selector {selector} for group snapshot not applied to any PVC"));
    }
    let volume = |source: &'a SourceClaim| {
        let SourceClaim { claim, volume } = source;
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
    sources: &[SourceClaim],
) -> Step {
    let key = group.metadata.key();
    let failure = |reason: String| {
        let message = format!("failed to create group snapshot content with error {reason}");
        Failure::new("GroupSnapshotContentCreationFailed", message)
    };
    let input = |reason: String| {
        let name = &group.metadata.name;
        Step::Fail(failure(format!(
            "failed to get input parameters to create group snapshot {name}: {reason:?}"
        )))
    };
    let volumes = match volumes(group, sources) {
        Ok(volumes) => volumes,
        Err(reason) => return input(reason),
    };
    let content = names::group_content_name(&group.metadata.uid);
    let secret = SnapshotSecret::GroupSnapshotter;
    let secret = match secret.resolve(&class.parameters, &content, Some(&group.metadata)) {
        Ok(secret) => secret,
        Err(error) => return input(error.to_string()),
    };
    const FAILED: &str = "CreateGroupSnapshotContentFailed";
    let mut volume_handles = Vec::new();
    for volume in volumes {
        let name = &volume.metadata.name;
        let Some(csi) = &volume.spec.csi else {
            let failure =
                failure(format!("cannot snapshot a non-CSI volume for group snapshot {key}: {name}"));
            return Step::Fail(
                failure.with_extra_event(FAILED, format!("Cannot snapshot a non-CSI volume: {name}")),
            );
        };
        if csi.driver != class.driver {
            let reason = format!(
                "Volume CSI driver ({}) mismatch with VolumeGroupSnapshotClass ({}) {key}: {name}",
                csi.driver, class.driver
            );
            let failure =
                failure(format!("snapshot controller failed to update {key} on API server: {reason}"));
            return Step::Fail(failure.with_extra_event(FAILED, reason));
        }
        volume_handles.push(csi.volume_handle.clone());
    }
    let node = match view.node {
        GroupNode::Any => None,
        GroupNode::Node(node) => Some(node.clone()),
        GroupNode::NoCommonNode => {
            let reason = "its volumes are on different nodes, and each node takes the snapshots of its own volumes: select volumes of one node";
            return Step::Fail(failure(reason.to_owned()));
        }
    };
    Step::CreateContent(NewGroupContent {
        class: class.metadata.name.clone(),
        driver: class.driver.clone(),
        policy: class.deletion_policy,
        volume_handles,
        node,
        secret,
    })
}
