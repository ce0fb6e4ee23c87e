//! Does the one step for a group that it is given, and tells what came of it.

use std::sync::Arc;

use wharf_cluster::{ApiError, EventType, WatchOptions, now};
use wharf_model::group_snapshot::MemberInfo;
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::super::decide::Fault;
use super::super::metrics::{Of, Operation};
use super::super::mirror::Mirrored;
use super::super::view::{self as snapshot_view, Found};
use super::super::wake::{self, BY_GROUP, BY_HANDLE, BY_SNAPSHOT, IS_DEFAULT, Subject};
use super::super::write as snapshot_write;
use super::super::{Next, ROLE, SnapshotController, is_placed};
use super::decide::{GroupCreation, Step, decide};
use super::view::{
    GroupNode, Member, Source, View, content_of, holds, is_created, is_ready, pre_provisioned,
};
use super::{Groups, selector, write};

/// More steps than that in a row are not progress: a group has four for each member.
const ROUNDS: usize = 4096;

/// What the server said, for as long as one worker is at it.
#[derive(Default)]
struct Asked {
    content: Option<String>,
    sources: Option<Vec<Source>>,
}

/// What is known of a group, for one step.
struct Seen {
    group: Option<Arc<VolumeGroupSnapshot>>,
    content: Option<Arc<VolumeGroupSnapshotContent>>,
    class: Option<Arc<VolumeGroupSnapshotClass>>,
    defaults: Vec<Arc<VolumeGroupSnapshotClass>>,
    node: GroupNode,
    members: Vec<Member>,
    owned: Vec<Arc<VolumeSnapshot>>,
    restoring: Option<Key>,
}

impl Seen {
    fn view<'a>(&'a self, asked: &'a Asked) -> View<'a> {
        let group = self.group.as_deref();
        let asked_content = group.is_some_and(|group| asked.content == Some(content_of(group)));
        View {
            group,
            content: Found::of(self.content.as_deref(), asked_content),
            asked: asked_content,
            class: self.class.as_deref(),
            defaults: &self.defaults,
            sources: asked.sources.as_deref(),
            node: &self.node,
            members: &self.members,
            owned: &self.owned,
            restoring: self.restoring.as_ref(),
        }
    }

    fn handle(&self) -> Option<&str> {
        self.content.as_ref()?.status.as_ref()?.volume_group_snapshot_handle.as_deref()
    }
}

impl SnapshotController {
    /// Works on a group snapshot until it has to wait.
    pub(in super::super) async fn group(&self, key: &Key) -> Result<Next, ApiError> {
        let Some(groups) = &self.groups else { return Ok(Next::Done) };
        let mut asked = Asked::default();
        for _ in 0..ROUNDS {
            if !self.ground.gate.is_open() {
                return Ok(Next::Again);
            }
            let seen = self.look_at_group(groups, key, &asked).await?;
            let step = decide(&seen.view(&asked));
            tracing::debug!(group = %key, ?step, "next");
            let Some(group) = &seen.group else {
                self.ground.attempts.forget(ROLE, &format!("group snapshot {key}"));
                return Ok(Next::Done);
            };
            self.measure_group(&seen, group);
            match self.act_on_group(&seen, group, step, &mut asked).await? {
                Next::Again => {}
                next => return Ok(next),
            }
        }
        tracing::warn!(group = %key, "so many steps without an end: pausing");
        Ok(Next::Later)
    }

    async fn look_at_group(&self, groups: &Groups, key: &Key, asked: &Asked) -> Result<Seen, ApiError> {
        let group = groups.groups.get(key);
        let of = group.as_deref();
        let content = of.and_then(|group| groups.contents.get(&Key::cluster(content_of(group))));
        let class = of.and_then(|group| group.spec.volume_group_snapshot_class_name.as_ref());
        let owned = match of {
            Some(group) if group.metadata.is_deleting() => self.owned(group, content.as_deref()).await?,
            _ => Vec::new(),
        };
        let restored = |key: &Key| self.claims.first_by_index(BY_SNAPSHOT, &key.to_string()).is_some();
        let restoring = owned.iter().map(|snapshot| snapshot.key()).find(restored);
        let members = match (of, &content) {
            (Some(group), Some(content)) if !group.metadata.is_deleting() && !is_ready(group) => {
                self.members(group, content).await
            }
            _ => Vec::new(),
        };
        Ok(Seen {
            class: class.and_then(|class| groups.classes.get(&Key::cluster(class))),
            defaults: match class {
                Some(_) => Vec::new(),
                None => groups.classes.by_index(IS_DEFAULT, ""),
            },
            node: self.group_node(asked.sources.as_deref().unwrap_or_default()),
            group,
            content,
            members,
            owned,
            restoring,
        })
    }

    /// The members that go with a group.
    async fn owned(
        &self,
        group: &VolumeGroupSnapshot,
        content: Option<&VolumeGroupSnapshotContent>,
    ) -> Result<Vec<Arc<VolumeSnapshot>>, ApiError> {
        let mut owned = Vec::new();
        for snapshot in self.snapshots.by_index(BY_GROUP, &group.metadata.key().to_string()) {
            let is_owned = match (snapshot_view::owner(&snapshot), content) {
                (Some(owner), _) => owner.uid == group.metadata.uid,
                // The driver loses them with the group, so no store's absence excuses one.
                (None, Some(content)) => {
                    let key = Key::cluster(snapshot_view::content_of(&snapshot));
                    let member = match self.contents.get(&key) {
                        Some(member) => Some(member),
                        None => self.ground.cluster.get(&key).await?.map(Arc::new),
                    };
                    member.is_some_and(|member| holds(group, content, &member))
                }
                (None, None) => false,
            };
            if is_owned {
                owned.push(snapshot);
            }
        }
        Ok(owned)
    }

    /// The members that the content tells of; none before the driver has named the group.
    async fn members(
        &self,
        group: &VolumeGroupSnapshot,
        content: &VolumeGroupSnapshotContent,
    ) -> Vec<Member> {
        let Some(status) = &content.status else { return Vec::new() };
        let infos = status.volume_snapshot_info_list.as_deref().unwrap_or_default();
        if status.volume_group_snapshot_handle.is_none()
            || infos.is_empty()
            || pre_provisioned(group).is_some()
        {
            return Vec::new();
        }
        let volumes = self.volumes().await;
        let member = |info: &MemberInfo| {
            let (snapshot, name) = names::member_names(&group.metadata.uid, &info.volume_handle);
            let handle = wake::volume_handle(&content.spec.driver, &info.volume_handle);
            let mut found = volumes.by_index(BY_HANDLE, &handle);
            let volume = found.pop().filter(|_| found.is_empty());
            let snapshot = Key { namespace: group.metadata.namespace.clone(), name: snapshot };
            Member {
                info: info.clone(),
                volume,
                snapshot: self.snapshots.get(&snapshot),
                content: self.contents.get(&Key::cluster(name)),
            }
        };
        infos.iter().map(member).collect()
    }

    /// Where nodes take snapshots of their own volumes: the one that has all of these.
    fn group_node(&self, sources: &[Source]) -> GroupNode {
        let volumes: Vec<&PersistentVolume> = sources
            .iter()
            .filter_map(|source| source.volume.as_ref())
            .filter(|volume| is_placed(volume))
            .collect();
        if self.nodes.is_none() || volumes.is_empty() {
            return GroupNode::Any;
        }
        self.node(&volumes).map_or(GroupNode::Apart, GroupNode::One)
    }

    fn measure_group(&self, seen: &Seen, group: &VolumeGroupSnapshot) {
        let (uid, dynamic) = (&group.metadata.uid, pre_provisioned(group).is_none());
        let content = seen.content.as_ref().map(|content| content.spec.driver.as_str());
        let class = seen.class.as_ref().map(|class| class.driver.as_str());
        let driver = content.or(class).unwrap_or_default();
        let begin = |operation| self.operations.begin(operation, Of::Group, uid, driver, dynamic);
        if group.metadata.is_deleting() {
            begin(Operation::Delete);
        } else if !is_ready(group) {
            if !is_created(group) {
                begin(Operation::Create);
            }
            begin(Operation::CreateAndReady);
        }
    }

    async fn act_on_group(
        &self,
        seen: &Seen,
        group: &VolumeGroupSnapshot,
        step: Step,
        asked: &mut Asked,
    ) -> Result<Next, ApiError> {
        let cluster = &self.ground.cluster;
        let meta = &group.metadata;
        let namespace = meta.namespace.as_deref();
        // A step that acts on the content is decided on one that is here.
        let content = seen.content.as_deref();
        match (step, content) {
            (Step::Forget, _) => return Ok(Next::Done),
            (Step::Done, _) => {
                self.note(&Subject::Group(meta.key()), None);
                return Ok(Next::Done);
            }
            (Step::WaitContent, _) => return Ok(Next::Done),
            (Step::WaitRestore(member), _) => {
                let note = format!(
                    "Snapshot {member} belonging to VolumeGroupSnapshot {} is being used to restore a PVC",
                    meta.key()
                );
                self.ground.event(group, EventType::Warning, "SnapshotDeletePending", note);
                return Ok(Next::Done);
            }
            (Step::Fail(fault), _) => return self.fail_group(group, &fault).await,
            (Step::AskContent(name), _) => {
                cluster.get::<VolumeGroupSnapshotContent>(&Key::cluster(&*name)).await?;
                asked.content = Some(name);
            }
            (Step::AskSources, _) => asked.sources = Some(self.sources(group).await?),
            (Step::Guard, _) => {
                let written =
                    self.write(group, None, patch::add_finalizer(meta, names::GROUP_PROTECTION)).await;
                self.tell_refused(group, "GroupSnapshotFinalizerError", &written, |error| {
                    format!("Failed to check and update group snapshot: {error}")
                });
                written?;
            }
            (Step::SetClass(class), _) => {
                self.write(group, None, Some(write::class(meta, &class))).await?;
            }
            (Step::CreateContent(creation), _) => return self.create_group(group, &creation).await,
            (Step::BindContent { class }, Some(content)) => {
                let patch = write::bind(&content.metadata, meta, class.as_deref());
                let bound = self.write(content, None, Some(patch)).await;
                self.tell_refused(group, "GroupSnapshotBindFailed", &bound, |error| {
                    format!("GroupSnapshot failed to bind VolumeGroupSnapshotContent, {error}")
                });
                bound?;
            }
            (Step::CreateMember { info, claim }, Some(_)) => {
                self.make::<VolumeSnapshot>(namespace, &write::member(group, &info, &claim)).await?;
            }
            (Step::CreateMemberContent { info, volume_mode, snapshot }, Some(content)) => {
                let body = write::member_content(group, content, &info, volume_mode, &snapshot);
                self.make::<VolumeSnapshotContent>(None, &body).await?;
            }
            (Step::BindMemberContent { content, snapshot }, _) => {
                if let Some(content) = self.contents.get(&Key::cluster(content)) {
                    let patch = write::bind_member_content(&content.metadata, &snapshot);
                    self.write(&*content, None, Some(patch)).await?;
                }
            }
            (Step::TellMember(info), _) => {
                let (_, name) = names::member_names(&meta.uid, &info.volume_handle);
                if let Some(content) = self.contents.get(&Key::cluster(name)) {
                    let status = write::member_status(seen.handle(), &info);
                    let patch = snapshot_write::status(&content.metadata, &status);
                    self.write(&*content, Some("status"), Some(patch)).await?;
                }
            }
            (Step::BindMember(info), _) => {
                let (snapshot, name) = names::member_names(&meta.uid, &info.volume_handle);
                let key = Key { namespace: meta.namespace.clone(), name: snapshot };
                if let Some(snapshot) = self.snapshots.get(&key) {
                    let status = serde_json::json!({"boundVolumeSnapshotContentName": name});
                    let patch = snapshot_write::status(&snapshot.metadata, &status);
                    self.write(&*snapshot, Some("status"), Some(patch)).await?;
                }
            }
            (Step::Mirror(mirrored), _) => {
                let patch = snapshot_write::status(meta, &mirrored.status);
                let written = self.write(group, Some("status"), Some(patch)).await;
                self.tell_refused(group, "GroupSnapshotStatusUpdateFailed", &written, |error| {
                    format!("GroupSnapshot status update failed, {error}")
                });
                if written? {
                    self.tell_group(seen, group, &mirrored);
                }
            }
            (Step::MarkContent, Some(content)) => {
                let mark = [(names::GROUP_BEING_DELETED, Some("yes"))];
                self.write(content, None, Some(patch::annotate(&content.metadata, &mark))).await?;
            }
            (Step::DeleteContent, Some(content)) => {
                let deleted = self.delete(content).await;
                self.tell_refused(group, "GroupSnapshotContentObjectDeleteError", &deleted, |_| {
                    "Failed to delete group snapshot content API object".to_owned()
                });
                deleted?;
            }
            (Step::DeleteMember(key), _) => {
                if let Some(member) = self.snapshots.get(&key) {
                    let deleted = self.delete(&*member).await;
                    self.tell_refused(group, "SnapshotDeleteError", &deleted, |error| {
                        format!(
                            "failed to delete snapshot API object {key} part of group snapshot {}: {error}",
                            meta.key()
                        )
                    });
                    deleted?;
                }
            }
            (Step::Release, _) => {
                self.write(group, None, patch::remove_finalizer(meta, names::GROUP_PROTECTION)).await?;
            }
            (
                Step::BindContent { .. }
                | Step::CreateMember { .. }
                | Step::CreateMemberContent { .. }
                | Step::MarkContent
                | Step::DeleteContent,
                None,
            ) => {}
        }
        Ok(Next::Again)
    }

    /// The claims with the labels asked for, each with its volume, as the server has them.
    async fn sources(&self, group: &VolumeGroupSnapshot) -> Result<Vec<Source>, ApiError> {
        let cluster = &self.ground.cluster;
        let selector = group.spec.source.selector.as_ref().map(selector::text);
        let options = WatchOptions {
            namespace: group.metadata.namespace.clone(),
            label_selector: selector.filter(|selector| !selector.is_empty()),
            field_selector: None,
        };
        let listed = cluster.list::<PersistentVolumeClaim>(&options).await?;
        let mut sources = Vec::new();
        for claim in listed.items {
            let volume = match claim.spec.volume_name.as_str() {
                "" => None,
                name => cluster.get::<PersistentVolume>(&Key::cluster(name)).await?,
            };
            sources.push(Source { claim, volume });
        }
        Ok(sources)
    }

    async fn create_group(
        &self,
        group: &VolumeGroupSnapshot,
        creation: &GroupCreation,
    ) -> Result<Next, ApiError> {
        let key = group.key();
        match self.make::<VolumeGroupSnapshotContent>(None, &write::content(group, creation)).await {
            Ok(_) => {
                let note = format!("Waiting for a group snapshot {key} to be created by the CSI driver.");
                self.ground.event(group, EventType::Normal, "CreatingGroupSnapshot", note);
                Ok(Next::Again)
            }
            Err(error) => {
                let note = format!(
                    "Error creating volume group snapshot content object for group snapshot {key}: {error}."
                );
                self.ground.event(group, EventType::Warning, "CreateGroupSnapshotContentFailed", note);
                let message = format!(
                    "failed to create group snapshot content with error snapshot controller failed to update {key} on API server: {error}"
                );
                self.fail_group(group, &Fault::new("GroupSnapshotContentCreationFailed", message)).await
            }
        }
    }

    /// Tells why it cannot go on.
    async fn fail_group(&self, group: &VolumeGroupSnapshot, fault: &Fault) -> Result<Next, ApiError> {
        let told = group.status.as_ref().and_then(|status| status.error.as_ref());
        let key = group.key();
        if let Some(status) = snapshot_write::fault(told, fault, now()) {
            tracing::info!(group = %key, reason = fault.reason, message = fault.message, "cannot go on");
            self.ground.event(group, EventType::Warning, fault.reason, &*fault.message);
            if let Some((reason, note)) = &fault.beside {
                self.ground.event(group, EventType::Warning, reason, &**note);
            }
            let patch = snapshot_write::status(&group.metadata, &status);
            self.write(group, Some("status"), Some(patch)).await?;
        }
        self.note(&Subject::Group(key), Some(fault.message.clone()));
        Ok(Next::Later)
    }

    /// Tells what the content has shown, once it is written.
    fn tell_group(&self, seen: &Seen, group: &VolumeGroupSnapshot, mirrored: &Mirrored) {
        let key = group.key();
        let driver = seen.content.as_ref().map(|content| content.spec.driver.as_str()).unwrap_or_default();
        let done = |operation| self.operations.done(operation, Of::Group, &group.metadata.uid, driver);
        if mirrored.created {
            done(Operation::Create);
            let note = format!("GroupSnapshot {key} was successfully created by the CSI driver.");
            self.ground.event(group, EventType::Normal, "GroupSnapshotCreated", note);
        }
        if mirrored.ready {
            done(Operation::CreateAndReady);
            let note = format!("GroupSnapshot {key} is ready to use.");
            self.ground.event(group, EventType::Normal, "GroupSnapshotReady", note);
            tracing::info!(group = %key, "the group snapshot is ready to use");
        }
    }

    /// Works on a group's content.
    pub(in super::super) async fn group_content(&self, key: &Key) -> Result<Next, ApiError> {
        let content = self.groups.as_ref().and_then(|groups| groups.contents.get(key));
        let Some(content) = content else { return Ok(Next::Done) };
        let source = &content.spec.source;
        let has_volumes = source.volume_handles.as_ref().is_some_and(|handles| !handles.is_empty());
        if has_volumes == source.group_snapshot_handles.is_some() {
            const INVALID: &str = "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified";
            self.ground.event(&*content, EventType::Warning, "GroupContentValidationError", INVALID);
            return Ok(Next::Later);
        }
        let is_bound = !content.spec.volume_group_snapshot_ref.uid.is_empty();
        if is_bound && !content.metadata.is_deleting() {
            let patch = patch::add_finalizer(&content.metadata, names::GROUP_CONTENT_PROTECTION);
            self.write(&*content, None, patch).await?;
        }
        Ok(Next::Done)
    }
}
