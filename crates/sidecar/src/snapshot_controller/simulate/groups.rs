//! The controller's part for groups.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeSnapshot,
};

use super::super::groups::decide::{Step, decide};
use super::super::groups::view::{GroupNode, Member, Source, View, content_of, is_ready};
use super::super::groups::write;
use super::super::view::{self as snapshot_view, Found, Group};
use super::super::write as snapshot_write;
use super::snapshots::volume_of;
use super::world::{Kind, is_deleting, text};
use super::{Asked, Bug, CLAIMS, Doing, Simulation, Trouble, of};

/// A step for a group, and what it was decided on.
pub(super) struct Doings {
    step: Step,
    group: VolumeGroupSnapshot,
    content: Option<VolumeGroupSnapshotContent>,
    asked: Asked,
}

impl Simulation {
    /// The group of this name and its content, as the store has them.
    pub(super) fn parent(&self, name: &str) -> Option<Group> {
        let group: VolumeGroupSnapshot = self.seen(Kind::Group, name)?;
        let content = self.seen(Kind::GroupContent, &content_of(&group)).map(Arc::new);
        Some(Group { group: Arc::new(group), content })
    }

    /// The name of the group whose content has this handle.
    pub(super) fn group_named_by(&self, handle: &str) -> Option<String> {
        let mut contents = self.world.seen.iter().filter(|(key, _)| key.0 == Kind::GroupContent);
        let (_, content) =
            contents.find(|(_, content)| text(content, "/status/volumeGroupSnapshotHandle") == handle)?;
        Some(text(content, "/spec/volumeGroupSnapshotRef/name").to_owned())
    }

    fn seen_claims(&self) -> Vec<PersistentVolumeClaim> {
        let claims = self.world.seen.iter().filter(|(key, _)| key.0 == Kind::Claim);
        claims.map(|(_, claim)| of(claim)).collect()
    }

    pub(super) fn look_at_group(&self, name: &str, asked: Asked) -> Option<Doing> {
        let group: VolumeGroupSnapshot = self.seen(Kind::Group, name)?;
        let content_name = content_of(&group);
        let content: Option<VolumeGroupSnapshotContent> = self.seen(Kind::GroupContent, &content_name);
        let class: Option<VolumeGroupSnapshotClass> = self
            .class
            .as_ref()
            .map(|_| of(&json!({"metadata": {"name": "group"}, "driver": "d", "deletionPolicy": "Delete"})));
        let known = asked.content.as_ref() == Some(&content_name) || self.bug == Bug::TrustsTheStoreForGroups;
        let (mut owned, mut members) = (Vec::new(), Vec::new());
        if group.metadata.is_deleting() {
            let all = self.world.seen.iter().filter(|(key, _)| key.0 == Kind::Snapshot);
            let all = all.map(|(_, snapshot)| Arc::new(of::<VolumeSnapshot>(snapshot)));
            owned = all
                .filter(|it| snapshot_view::owner(it).is_some_and(|owner| owner.uid == group.metadata.uid))
                .collect();
        } else if let Some(status) = content.as_ref().and_then(|content| content.status.as_ref())
            && !is_ready(&group)
        {
            for info in status.volume_snapshot_info_list.as_deref().unwrap_or_default() {
                let (snapshot, content) = names::member_names(&group.metadata.uid, &info.volume_handle);
                let claim: Option<PersistentVolumeClaim> = self.seen(Kind::Claim, &info.volume_handle);
                members.push(Member {
                    info: info.clone(),
                    volume: claim.as_ref().map(volume_of).map(Arc::new),
                    snapshot: self.seen(Kind::Snapshot, &snapshot).map(Arc::new),
                    content: self.seen(Kind::Content, &content).map(Arc::new),
                });
            }
        }
        let restored: Vec<Key> =
            self.seen_claims().iter().flat_map(super::super::wake::snapshots_of).collect();
        let restoring = owned.iter().map(|member| member.metadata.key()).find(|key| restored.contains(key));
        let step = decide(&View {
            group: Some(&group),
            content: Found::of(content.as_ref(), known),
            asked: known,
            class: class.as_ref(),
            defaults: &[],
            sources: asked.sources.as_deref(),
            node: &GroupNode::Any,
            members: &members,
            owned: &owned,
            restoring: restoring.as_ref(),
        });
        let idle = matches!(step, Step::Forget | Step::Done | Step::WaitRestore(_) | Step::WaitContent);
        (!idle).then(|| Doing::Group(Box::new(Doings { step, group, content, asked })))
    }

    pub(super) fn look_at_group_content(&self, name: &str) -> Option<Doing> {
        let content: VolumeGroupSnapshotContent = self.seen(Kind::GroupContent, name)?;
        let guarded = content.metadata.has_finalizer(names::GROUP_CONTENT_PROTECTION);
        let wanted = !guarded && !content.metadata.is_deleting();
        wanted.then(|| Doing::GuardGroup(Box::new(content)))
    }

    /// Makes an object, unless there is one of that name.
    fn make(&mut self, kind: Kind, mut made: Value) {
        let name = text(&made, "/metadata/name").to_owned();
        self.made += 1;
        made["metadata"]["uid"] = json!(format!("uid-{name}-{}", self.made));
        if self.world.get(kind, &name).is_none() {
            self.world.put(kind, made);
        }
        self.world.read(kind, &name);
    }

    /// Does a step; `false` if the worker pauses.
    pub(super) fn act_on_group(&mut self, doings: Doings) -> Result<(bool, Asked), Trouble> {
        let Doings { step, group, content, mut asked } = doings;
        let (meta, name) = (&group.metadata, group.metadata.name.as_str());
        let content_name = content_of(&group);
        match (step, &content) {
            (Step::Forget | Step::Done | Step::WaitRestore(_) | Step::WaitContent | Step::Fail(_), _) => {
                return Ok((false, asked));
            }
            (Step::AskContent(name), _) => {
                self.world.read(Kind::GroupContent, &name);
                asked.content = Some(name);
            }
            (Step::AskSources, _) => {
                let claims = CLAIMS.iter().filter_map(|name| self.world.get(Kind::Claim, name));
                let sources = claims.map(of::<PersistentVolumeClaim>).map(|claim| {
                    let volume = Some(volume_of(&claim));
                    Source { claim, volume }
                });
                asked.sources = Some(sources.collect());
            }
            (Step::Guard, _) => {
                if let Some(patch) = patch::add_finalizer(meta, names::GROUP_PROTECTION) {
                    self.world.patch(Kind::Group, name, &patch);
                }
            }
            (Step::CreateContent(creation), _) => {
                self.make(Kind::GroupContent, write::content(&group, &creation));
            }
            (Step::CreateMember { info, claim }, _) => {
                self.make(Kind::Snapshot, write::member(&group, &info, &claim));
            }
            (Step::CreateMemberContent { info, volume_mode, snapshot }, Some(content)) => {
                let made = write::member_content(&group, content, &info, volume_mode, &snapshot);
                self.make(Kind::Content, made);
            }
            (Step::BindMemberContent { content, snapshot }, _) => {
                if let Some(object) = self.seen::<wharf_model::VolumeSnapshotContent>(Kind::Content, &content)
                {
                    let patch = write::bind_member_content(&object.metadata, &snapshot);
                    self.world.patch(Kind::Content, &content, &patch);
                }
            }
            (Step::TellMember(info), Some(content)) => {
                let (_, member) = names::member_names(&meta.uid, &info.volume_handle);
                let handle =
                    content.status.as_ref().and_then(|it| it.volume_group_snapshot_handle.as_deref());
                let status = write::member_status(handle, &info);
                if let Some(object) = self.seen::<wharf_model::VolumeSnapshotContent>(Kind::Content, &member)
                {
                    let patch = snapshot_write::status(&object.metadata, &status);
                    self.world.patch(Kind::Content, &member, &patch);
                }
            }
            (Step::BindMember(info), _) => {
                let (member, bound) = names::member_names(&meta.uid, &info.volume_handle);
                if let Some(object) = self.seen::<VolumeSnapshot>(Kind::Snapshot, &member) {
                    let status = json!({"boundVolumeSnapshotContentName": bound});
                    let patch = snapshot_write::status(&object.metadata, &status);
                    self.world.patch(Kind::Snapshot, &member, &patch);
                }
            }
            (Step::Mirror(mirrored), _) => {
                self.world.patch(Kind::Group, name, &snapshot_write::status(meta, &mirrored.status));
            }
            (Step::MarkContent, Some(content)) => {
                self.group_is_going(name, &meta.uid)?;
                let mark = [(names::GROUP_BEING_DELETED, Some("yes"))];
                let patch = patch::annotate(&content.metadata, &mark);
                self.world.patch(Kind::GroupContent, &content_name, &patch);
            }
            (Step::DeleteContent, _) => {
                self.group_is_going(name, &meta.uid)?;
                self.world.delete(Kind::GroupContent, &content_name);
                self.world.read(Kind::GroupContent, &content_name);
            }
            (Step::DeleteMember(key), _) => {
                self.group_is_going(name, &meta.uid)?;
                self.world.delete(Kind::Snapshot, &key.name);
                self.world.read(Kind::Snapshot, &key.name);
            }
            (Step::Release, _) => {
                if let Some(patch) = patch::remove_finalizer(meta, names::GROUP_PROTECTION) {
                    self.world.patch(Kind::Group, name, &patch);
                }
            }
            (Step::SetClass(_) | Step::BindContent { .. }, _) => {
                panic!("there are no defaults here, and no groups that were there before")
            }
            (Step::CreateMemberContent { .. } | Step::TellMember(_) | Step::MarkContent, None) => {}
        }
        Ok((true, asked))
    }

    /// Whether the group whose content or member we touch is going.
    fn group_is_going(&self, name: &str, uid: &str) -> Result<(), Trouble> {
        let group = self.world.get(Kind::Group, name).filter(|group| text(group, "/metadata/uid") == uid);
        match group.is_some_and(|group| !is_deleting(group)) {
            true => Err(Trouble::Lost(name.to_owned())),
            false => Ok(()),
        }
    }
}
