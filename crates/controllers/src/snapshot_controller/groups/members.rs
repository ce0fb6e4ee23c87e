//! The members of a created group: a snapshot and a content for each volume.

use wharf_model::VolumeGroupSnapshot;
use wharf_model::VolumeMode;

use super::decide::Step;
use super::view::Member;

/// The next step for a member; `None` if it is complete.
pub(crate) fn next_step(group: &VolumeGroupSnapshot, member: &Member) -> Option<Step> {
    let Member { info, volume, snapshot, content } = member;
    let Some(snapshot) = snapshot else {
        let claim = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref());
        let here = claim.filter(|claim| Some(&claim.namespace) == group.metadata.namespace.as_ref());
        let claim = here.map(|claim| claim.name.clone()).unwrap_or_default();
        return Some(Step::CreateMember { info: info.clone(), claim });
    };
    let uid = snapshot.metadata.uid.clone();
    let Some(content) = content else {
        let mode = volume.as_ref().and_then(|volume| volume.spec.volume_mode);
        let volume_mode = mode.map(VolumeMode::as_str);
        return Some(Step::CreateMemberContent { info: info.clone(), volume_mode, snapshot: uid });
    };
    if content.spec.volume_snapshot_ref.uid != uid {
        let content = content.metadata.name.clone();
        return Some(Step::BindMemberContent { content, snapshot: uid });
    }
    let has_status = content.status.as_ref().is_some_and(|status| {
        status.snapshot_handle.is_some() && status.volume_group_snapshot_handle.is_some()
    });
    if !has_status {
        return Some(Step::WriteMemberStatus(info.clone()));
    }
    snapshot.bound_content().is_none().then(|| Step::BindMember(info.clone()))
}
