//! The controller's steps for groups.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeSnapshot,
};

use super::super::groups::decide::{Step, decide};
use super::super::groups::view::{GroupNode, Member, SourceClaim, View, expected_content_name, is_ready};
use super::super::groups::write;
use super::super::view::{GroupWithContent, Lookup};
use super::super::write as snapshot_write;
use super::snapshots::volume_of;
use super::world::{Kind, is_deleting, text};
use super::{Bug, CLAIMS, Fetched, Running, Simulation, Violation, parse};

/// A step for a group, and its inputs.
pub(super) struct PendingStep {
    step: Step,
    group: VolumeGroupSnapshot,
    content: Option<VolumeGroupSnapshotContent>,
    fetched: Fetched,
}

impl Simulation {
    /// The cached group of this name and its content.
    pub(super) fn parent_group(&self, name: &str) -> Option<GroupWithContent> {
        let group: VolumeGroupSnapshot = self.cached(Kind::Group, name)?;
        let content = self.cached(Kind::GroupContent, &expected_content_name(&group)).map(Arc::new);
        Some(GroupWithContent { group: Arc::new(group), content })
    }

    /// The name of the group whose content has this handle.
    pub(super) fn group_with_handle(&self, handle: &str) -> Option<String> {
        let mut contents = self.world.cached.iter().filter(|(key, _)| key.0 == Kind::GroupContent);
        let (_, content) =
            contents.find(|(_, content)| text(content, "/status/volumeGroupSnapshotHandle") == handle)?;
        Some(text(content, "/spec/volumeGroupSnapshotRef/name").to_owned())
    }

    fn seen_claims(&self) -> Vec<PersistentVolumeClaim> {
        let claims = self.world.cached.iter().filter(|(key, _)| key.0 == Kind::Claim);
        claims.map(|(_, claim)| parse(claim)).collect()
    }

    pub(super) fn decide_group(&self, name: &str, fetched: Fetched) -> Option<Running> {
        let group: VolumeGroupSnapshot = self.cached(Kind::Group, name)?;
        let content_name = expected_content_name(&group);
        let content: Option<VolumeGroupSnapshotContent> = self.cached(Kind::GroupContent, &content_name);
        let class: Option<VolumeGroupSnapshotClass> = self.class.as_ref().map(|_| {
            parse(&json!({"metadata": {"name": "group"}, "driver": "d", "deletionPolicy": "Delete"}))
        });
        let known = fetched.content.as_ref() == Some(&content_name) || self.bug == Bug::TrustsCacheForGroups;
        let (mut member_snapshots, mut members) = (Vec::new(), Vec::new());
        if group.metadata.is_deleting() {
            let all = self.world.cached.iter().filter(|(key, _)| key.0 == Kind::Snapshot);
            let all = all.map(|(_, snapshot)| Arc::new(parse::<VolumeSnapshot>(snapshot)));
            member_snapshots = all
                .filter(|it| it.owning_group().is_some_and(|owner| owner.uid == group.metadata.uid))
                .collect();
        } else if let Some(status) = content.as_ref().and_then(|content| content.status.as_ref())
            && !is_ready(&group)
        {
            for info in status.volume_snapshot_info_list.as_deref().unwrap_or_default() {
                let (snapshot, content) = names::member_names(&group.metadata.uid, &info.volume_handle);
                let claim: Option<PersistentVolumeClaim> = self.cached(Kind::Claim, &info.volume_handle);
                members.push(Member {
                    info: info.clone(),
                    volume: claim.as_ref().map(volume_of).map(Arc::new),
                    snapshot: self.cached(Kind::Snapshot, &snapshot).map(Arc::new),
                    content: self.cached(Kind::Content, &content).map(Arc::new),
                });
            }
        }
        let restored: Vec<Key> =
            self.seen_claims().iter().flat_map(PersistentVolumeClaim::restore_sources).collect();
        let restoring =
            member_snapshots.iter().map(|member| member.metadata.key()).find(|key| restored.contains(key));
        let step = decide(&View {
            group: Some(&group),
            content: Lookup::new(content.as_ref(), known),
            content_fetched: known,
            class: class.as_ref(),
            defaults: &[],
            sources: fetched.sources.as_deref(),
            node: &GroupNode::Any,
            members: &members,
            member_snapshots: &member_snapshots,
            restoring: restoring.as_ref(),
        });
        let idle =
            matches!(step, Step::DropState | Step::Idle | Step::WaitForRestore(_) | Step::WaitForContent);
        (!idle).then(|| Running::Group(Box::new(PendingStep { step, group, content, fetched })))
    }

    pub(super) fn decide_group_content(&self, name: &str) -> Option<Running> {
        let content: VolumeGroupSnapshotContent = self.cached(Kind::GroupContent, name)?;
        let guarded = content.metadata.has_finalizer(names::GROUP_CONTENT_PROTECTION);
        let wanted = !guarded && !content.metadata.is_deleting();
        wanted.then(|| Running::AddGroupFinalizer(Box::new(content)))
    }

    /// Creates an object, unless one with that name exists.
    fn create_object(&mut self, kind: Kind, mut counter: Value) {
        let name = text(&counter, "/metadata/name").to_owned();
        self.counter += 1;
        counter["metadata"]["uid"] = json!(format!("uid-{name}-{}", self.counter));
        if self.world.get(kind, &name).is_none() {
            self.world.put(kind, counter);
        }
        self.world.read(kind, &name);
    }

    /// Executes a step; `false` if the worker pauses.
    pub(super) fn act_on_group(&mut self, pending: PendingStep) -> Result<(bool, Fetched), Violation> {
        let PendingStep { step, group, content, mut fetched } = pending;
        let (meta, name) = (&group.metadata, group.metadata.name.as_str());
        let content_name = expected_content_name(&group);
        match (step, &content) {
            (
                Step::DropState | Step::Idle | Step::WaitForRestore(_) | Step::WaitForContent | Step::Fail(_),
                _,
            ) => {
                return Ok((false, fetched));
            }
            (Step::FetchContent(name), _) => {
                self.world.read(Kind::GroupContent, &name);
                fetched.content = Some(name);
            }
            (Step::FetchSources, _) => {
                let claims = CLAIMS.iter().filter_map(|name| self.world.get(Kind::Claim, name));
                let sources = claims.map(parse::<PersistentVolumeClaim>).map(|claim| {
                    let volume = Some(volume_of(&claim));
                    SourceClaim { claim, volume }
                });
                fetched.sources = Some(sources.collect());
            }
            (Step::AddFinalizer, _) => {
                if let Some(patch) = patch::add_finalizer(meta, names::GROUP_PROTECTION) {
                    self.world.patch(Kind::Group, name, &patch);
                }
            }
            (Step::CreateContent(new_content), _) => {
                self.create_object(Kind::GroupContent, write::content(&group, &new_content));
            }
            (Step::CreateMember { info, claim }, _) => {
                self.create_object(Kind::Snapshot, write::member(&group, &info, &claim));
            }
            (Step::CreateMemberContent { info, volume_mode, snapshot }, Some(content)) => {
                let counter = write::member_content(&group, content, &info, volume_mode, &snapshot);
                self.create_object(Kind::Content, counter);
            }
            (Step::BindMemberContent { content, snapshot }, _) => {
                if let Some(object) =
                    self.cached::<wharf_model::VolumeSnapshotContent>(Kind::Content, &content)
                {
                    let patch = write::bind_member_content(&object.metadata, &snapshot);
                    self.world.patch(Kind::Content, &content, &patch);
                }
            }
            (Step::WriteMemberStatus(info), Some(content)) => {
                let (_, member) = names::member_names(&meta.uid, &info.volume_handle);
                let handle =
                    content.status.as_ref().and_then(|it| it.volume_group_snapshot_handle.as_deref());
                let status = write::member_status(handle, &info);
                if let Some(object) =
                    self.cached::<wharf_model::VolumeSnapshotContent>(Kind::Content, &member)
                {
                    let patch = snapshot_write::status(&object.metadata, &status);
                    self.world.patch(Kind::Content, &member, &patch);
                }
            }
            (Step::BindMember(info), _) => {
                let (member, bound) = names::member_names(&meta.uid, &info.volume_handle);
                if let Some(object) = self.cached::<VolumeSnapshot>(Kind::Snapshot, &member) {
                    let status = json!({"boundVolumeSnapshotContentName": bound});
                    let patch = snapshot_write::status(&object.metadata, &status);
                    self.world.patch(Kind::Snapshot, &member, &patch);
                }
            }
            (Step::WriteStatus(update), _) => {
                self.world.patch(Kind::Group, name, &snapshot_write::status(meta, &update.status));
            }
            (Step::MarkContentBeingDeleted, Some(content)) => {
                self.check_group_deleting(name, &meta.uid)?;
                let mark = [(names::GROUP_BEING_DELETED, Some("yes"))];
                let patch = patch::annotate(&content.metadata, &mark);
                self.world.patch(Kind::GroupContent, &content_name, &patch);
            }
            (Step::DeleteContent, _) => {
                self.check_group_deleting(name, &meta.uid)?;
                self.world.delete(Kind::GroupContent, &content_name);
                self.world.read(Kind::GroupContent, &content_name);
            }
            (Step::DeleteMember(key), _) => {
                self.check_group_deleting(name, &meta.uid)?;
                self.world.delete(Kind::Snapshot, &key.name);
                self.world.read(Kind::Snapshot, &key.name);
            }
            (Step::RemoveFinalizer, _) => {
                if let Some(patch) = patch::remove_finalizer(meta, names::GROUP_PROTECTION) {
                    self.world.patch(Kind::Group, name, &patch);
                }
            }
            (Step::SetDefaultClass(_) | Step::BindContent { .. }, _) => {
                panic!("unexpected step: the simulation has no default classes and no pre-provisioned groups")
            }
            (
                Step::CreateMemberContent { .. } | Step::WriteMemberStatus(_) | Step::MarkContentBeingDeleted,
                None,
            ) => {}
        }
        Ok((true, fetched))
    }

    /// Checks that the group whose content or member is changed is in deletion.
    fn check_group_deleting(&self, name: &str, uid: &str) -> Result<(), Violation> {
        let group = self.world.get(Kind::Group, name).filter(|group| text(group, "/metadata/uid") == uid);
        match group.is_some_and(|group| !is_deleting(group)) {
            true => Err(Violation::DeletedTooEarly(name.to_owned())),
            false => Ok(()),
        }
    }
}
