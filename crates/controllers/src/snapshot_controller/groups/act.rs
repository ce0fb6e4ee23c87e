//! Executes one decided step for a group snapshot and records its result.

use std::sync::Arc;

use wharf_cluster::indexes::{VOLUMES_BY_HANDLE, handle_key};
use wharf_cluster::work::{StepLimit, StepOutcome, Steps, WorkOutcome};
use wharf_cluster::{ApiError, EventType, WatchOptions, now};
use wharf_model::group_snapshot::VolumeSnapshotInfo;
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

use super::super::decide::Failure;
use super::super::metrics::{ObjectKind, Operation};
use super::super::mirror::StatusUpdate;
use super::super::view::Lookup;
use super::super::wake::{BY_GROUP, BY_SNAPSHOT, IS_DEFAULT, WorkKey};
use super::super::write as snapshot_write;
use super::super::{SnapshotController, has_node_affinity};
use super::decide::{NewGroupContent, Step, decide};
use super::view::{
    GroupNode, Member, SourceClaim, View, contains_member, expected_content_name, is_created, is_ready,
    pre_provisioned,
};
use super::{Groups, selector, write};

mod members;

/// A group takes four steps for each member.
const STEP_LIMIT: StepLimit = StepLimit::BackOff(4096);

/// Responses of the API server, kept during one reconcile.
#[derive(Default)]
struct Fetched {
    content: Option<String>,
    sources: Option<Vec<SourceClaim>>,
}

/// Inputs for one decision about a group.
struct Inputs {
    group: Option<Arc<VolumeGroupSnapshot>>,
    content: Option<Arc<VolumeGroupSnapshotContent>>,
    class: Option<Arc<VolumeGroupSnapshotClass>>,
    defaults: Vec<Arc<VolumeGroupSnapshotClass>>,
    node: GroupNode,
    members: Vec<Member>,
    member_snapshots: Vec<Arc<VolumeSnapshot>>,
    restoring: Option<Key>,
}

impl Inputs {
    fn view<'a>(&'a self, fetched: &'a Fetched) -> View<'a> {
        let group = self.group.as_deref();
        let content_fetched =
            group.is_some_and(|group| fetched.content == Some(expected_content_name(group)));
        View {
            group,
            content: Lookup::new(self.content.as_deref(), content_fetched),
            content_fetched,
            class: self.class.as_deref(),
            defaults: &self.defaults,
            sources: fetched.sources.as_deref(),
            node: &self.node,
            members: &self.members,
            member_snapshots: &self.member_snapshots,
            restoring: self.restoring.as_ref(),
        }
    }

    fn handle(&self) -> Option<&str> {
        self.content.as_ref()?.status.as_ref()?.volume_group_snapshot_handle.as_deref()
    }
}

impl SnapshotController {
    /// Handles a group snapshot until it has to wait.
    pub(in super::super) async fn reconcile_group(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let Some(groups) = &self.groups else { return Ok(WorkOutcome::Done) };
        let mut fetched = Fetched::default();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let inputs = self.gather_group(groups, key, &fetched).await?;
            let step = decide(&inputs.view(&fetched));
            tracing::debug!(group_snapshot = %key, ?step, "decided next step");
            let Some(group) = &inputs.group else {
                self.remove_attempt(&WorkKey::Group(key.clone()));
                return Ok(WorkOutcome::Done);
            };
            self.start_group_metrics(&inputs, group);
            let outcome = self.act_on_group(&inputs, group, step, &mut fetched).await?;
            if let StepOutcome::Finish(outcome) = outcome {
                return Ok(outcome);
            }
        }
        Ok(steps.unfinished(key))
    }

    async fn gather_group(&self, groups: &Groups, key: &Key, fetched: &Fetched) -> Result<Inputs, ApiError> {
        let group = groups.groups.get(key);
        let group_ref = group.as_deref();
        let content =
            group_ref.and_then(|group| groups.contents.get(&Key::cluster(expected_content_name(group))));
        let class = group_ref.and_then(|group| group.spec.volume_group_snapshot_class_name.as_ref());
        let member_snapshots = match group_ref {
            Some(group) if group.metadata.is_deleting() => {
                self.member_snapshots(group, content.as_deref()).await?
            }
            _ => Vec::new(),
        };
        let restored = |key: &Key| self.claims.first_by_index(BY_SNAPSHOT, &key.to_string()).is_some();
        let restoring = member_snapshots.iter().map(|snapshot| snapshot.key()).find(restored);
        let members = match (group_ref, &content) {
            (Some(group), Some(content)) if !group.metadata.is_deleting() && !is_ready(group) => {
                self.members(group, content).await
            }
            _ => Vec::new(),
        };
        Ok(Inputs {
            class: class.and_then(|class| groups.classes.get(&Key::cluster(class))),
            defaults: match class {
                Some(_) => Vec::new(),
                None => groups.classes.by_index(IS_DEFAULT, ""),
            },
            node: self.choose_group_node(fetched.sources.as_deref().unwrap_or_default()),
            group,
            content,
            members,
            member_snapshots,
            restoring,
        })
    }

    /// The members that are deleted with a group.
    async fn member_snapshots(
        &self,
        group: &VolumeGroupSnapshot,
        content: Option<&VolumeGroupSnapshotContent>,
    ) -> Result<Vec<Arc<VolumeSnapshot>>, ApiError> {
        let mut member_snapshots = Vec::new();
        for snapshot in self.snapshots.by_index(BY_GROUP, &group.metadata.key().to_string()) {
            let is_owned = match (snapshot.owning_group(), content) {
                (Some(owner), _) => owner.uid == group.metadata.uid,
                // The driver deletes them with the group, so a member missing from the cache must be queried.
                (None, Some(content)) => {
                    let key = Key::cluster(snapshot.expected_content_name());
                    let member = match self.contents.get(&key) {
                        Some(member) => Some(member),
                        None => self.context.cluster.get(&key).await?.map(Arc::new),
                    };
                    member.is_some_and(|member| contains_member(group, content, &member))
                }
                (None, None) => false,
            };
            if is_owned {
                member_snapshots.push(snapshot);
            }
        }
        Ok(member_snapshots)
    }

    /// The members listed in the content; none before the content has a group handle.
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
        let volumes = self.volume_store().await;
        let member = |info: &VolumeSnapshotInfo| {
            let (snapshot, name) = names::member_names(&group.metadata.uid, &info.volume_handle);
            let handle = handle_key(&content.spec.driver, &info.volume_handle);
            let mut found = volumes.find(&VOLUMES_BY_HANDLE, &handle);
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

    /// With one snapshotter per node: the node that can reach all of these volumes.
    fn choose_group_node(&self, sources: &[SourceClaim]) -> GroupNode {
        let volumes: Vec<&PersistentVolume> = sources
            .iter()
            .filter_map(|source| source.volume.as_ref())
            .filter(|volume| has_node_affinity(volume))
            .collect();
        if self.nodes.is_none() || volumes.is_empty() {
            return GroupNode::Any;
        }
        self.node_reaching(&volumes).map_or(GroupNode::NoCommonNode, GroupNode::Node)
    }

    fn start_group_metrics(&self, inputs: &Inputs, group: &VolumeGroupSnapshot) {
        let (uid, dynamic) = (&group.metadata.uid, pre_provisioned(group).is_none());
        let content = inputs.content.as_ref().map(|content| content.spec.driver.as_str());
        let class = inputs.class.as_ref().map(|class| class.driver.as_str());
        let driver = content.or(class).unwrap_or_default();
        let start = |operation| self.metrics.start(operation, ObjectKind::Group, uid, driver, dynamic);
        if group.metadata.is_deleting() {
            start(Operation::Delete);
        } else if !is_ready(group) {
            if !is_created(group) {
                start(Operation::Create);
            }
            start(Operation::CreateAndReady);
        }
    }

    /// Executes one step. Steps that act on the content are only decided if it exists.
    async fn act_on_group(
        &self,
        inputs: &Inputs,
        group: &VolumeGroupSnapshot,
        step: Step,
        fetched: &mut Fetched,
    ) -> Result<StepOutcome, ApiError> {
        let meta = &group.metadata;
        match (step, inputs.content.as_deref()) {
            (Step::DropState | Step::WaitForContent, _) => return Ok(StepOutcome::DONE),
            (Step::Idle, _) => {
                self.record_attempt(&WorkKey::Group(meta.key()), None);
                return Ok(StepOutcome::DONE);
            }
            (Step::WaitForRestore(member), _) => {
                self.record_pending_restore(group, &member);
                return Ok(StepOutcome::DONE);
            }
            (Step::Fail(failure), _) => return self.report_group_failure(group, &failure).await,
            (Step::CreateContent(new), _) => return self.create_group_content(group, &new).await,
            (Step::FetchContent(name), _) => {
                self.context.cluster.get::<VolumeGroupSnapshotContent>(&Key::cluster(&*name)).await?;
                fetched.content = Some(name);
            }
            (Step::FetchSources, _) => fetched.sources = Some(self.fetch_sources(group).await?),
            (Step::AddFinalizer, _) => self.add_group_finalizer(group).await?,
            (Step::RemoveFinalizer, _) => {
                self.write(group, None, patch::remove_finalizer(meta, names::GROUP_PROTECTION)).await?;
            }
            (Step::SetDefaultClass(class), _) => {
                self.write(group, None, Some(write::set_class(meta, &class))).await?;
            }
            (Step::WriteStatus(update), _) => self.write_group_status(inputs, group, &update).await?,
            (Step::BindContent { class }, Some(content)) => {
                self.bind_group_content(group, content, class.as_deref()).await?;
            }
            (Step::MarkContentBeingDeleted, Some(content)) => {
                let mark = [(names::GROUP_BEING_DELETED, Some("yes"))];
                self.write(content, None, Some(patch::annotate(&content.metadata, &mark))).await?;
            }
            (Step::DeleteContent, Some(content)) => self.delete_group_content(group, content).await?,
            (Step::CreateMember { info, claim }, Some(_)) => {
                self.create_member(group, &info, &claim).await?;
            }
            (Step::CreateMemberContent { info, volume_mode, snapshot }, Some(content)) => {
                let body = write::member_content(group, content, &info, volume_mode, &snapshot);
                self.create_object::<VolumeSnapshotContent>(None, &body).await?;
            }
            (Step::BindMemberContent { content, snapshot }, _) => {
                self.bind_member_content(content, &snapshot).await?;
            }
            (Step::WriteMemberStatus(info), _) => {
                self.write_member_status(group, inputs.handle(), &info).await?;
            }
            (Step::BindMember(info), _) => self.bind_member(group, &info).await?,
            (Step::DeleteMember(key), _) => self.delete_member(group, &key).await?,
            (
                Step::BindContent { .. }
                | Step::CreateMember { .. }
                | Step::CreateMemberContent { .. }
                | Step::MarkContentBeingDeleted
                | Step::DeleteContent,
                None,
            ) => {}
        }
        Ok(StepOutcome::Continue)
    }

    fn record_pending_restore(&self, group: &VolumeGroupSnapshot, member: &Key) {
        let key = group.key();
        let note = format!(
            "Snapshot {member} belonging to VolumeGroupSnapshot {key} is being used to restore a PVC"
        );
        self.context.events.record_for(group, EventType::Warning, "SnapshotDeletePending", note);
    }

    async fn add_group_finalizer(&self, group: &VolumeGroupSnapshot) -> Result<(), ApiError> {
        let patch = patch::add_finalizer(&group.metadata, names::GROUP_PROTECTION);
        let written = self.write(group, None, patch).await;
        self.record_rejected_write(group, "GroupSnapshotFinalizerError", &written, |error| {
            format!("Failed to check and update group snapshot: {error}")
        });
        written.map(drop)
    }

    async fn write_group_status(
        &self,
        inputs: &Inputs,
        group: &VolumeGroupSnapshot,
        update: &StatusUpdate,
    ) -> Result<(), ApiError> {
        let patch = snapshot_write::status(&group.metadata, &update.status);
        let written = self.write(group, Some("status"), Some(patch)).await;
        self.record_rejected_write(group, "GroupSnapshotStatusUpdateFailed", &written, |error| {
            format!("GroupSnapshot status update failed, {error}")
        });
        if written? {
            self.record_group_progress(inputs, group, update);
        }
        Ok(())
    }

    async fn bind_group_content(
        &self,
        group: &VolumeGroupSnapshot,
        content: &VolumeGroupSnapshotContent,
        class: Option<&str>,
    ) -> Result<(), ApiError> {
        let patch = write::bind(&content.metadata, &group.metadata, class);
        let bound = self.write(content, None, Some(patch)).await;
        self.record_rejected_write(group, "GroupSnapshotBindFailed", &bound, |error| {
            format!("GroupSnapshot failed to bind VolumeGroupSnapshotContent, {error}")
        });
        bound.map(drop)
    }

    async fn delete_group_content(
        &self,
        group: &VolumeGroupSnapshot,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<(), ApiError> {
        let deleted = self.delete(content).await;
        self.record_rejected_write(group, "GroupSnapshotContentObjectDeleteError", &deleted, |_| {
            "Failed to delete group snapshot content API object".to_owned()
        });
        deleted
    }

    /// The selected claims, each with its volume, read from the API server.
    async fn fetch_sources(&self, group: &VolumeGroupSnapshot) -> Result<Vec<SourceClaim>, ApiError> {
        let cluster = &self.context.cluster;
        let selector = group.spec.source.selector.as_ref().map(selector::to_query);
        let options = WatchOptions {
            namespace: group.metadata.namespace.clone(),
            label_selector: selector.filter(|selector| !selector.is_empty()),
            ..WatchOptions::default()
        };
        let listed = cluster.list::<PersistentVolumeClaim>(&options).await?;
        let mut sources = Vec::new();
        for claim in listed.items {
            let volume = match claim.spec.volume_name.as_str() {
                "" => None,
                name => cluster.get::<PersistentVolume>(&Key::cluster(name)).await?,
            };
            sources.push(SourceClaim { claim, volume });
        }
        Ok(sources)
    }

    async fn create_group_content(
        &self,
        group: &VolumeGroupSnapshot,
        new_content: &NewGroupContent,
    ) -> Result<StepOutcome, ApiError> {
        let key = group.key();
        match self
            .create_object::<VolumeGroupSnapshotContent>(None, &write::content(group, new_content))
            .await
        {
            Ok(_) => {
                let note = format!("Waiting for a group snapshot {key} to be created by the CSI driver.");
                self.context.events.record_for(group, EventType::Normal, "CreatingGroupSnapshot", note);
                Ok(StepOutcome::Continue)
            }
            Err(error) => {
                let note = format!(
                    "Error creating volume group snapshot content object for group snapshot {key}: {error}."
                );
                self.context.events.record_for(
                    group,
                    EventType::Warning,
                    "CreateGroupSnapshotContentFailed",
                    note,
                );
                let message = format!(
                    "failed to create group snapshot content with error snapshot controller failed to update {key} on API server: {error}"
                );
                self.report_group_failure(group, &Failure::new("GroupSnapshotContentCreationFailed", message))
                    .await
            }
        }
    }

    /// Reports a failure in the status and as an event.
    async fn report_group_failure(
        &self,
        group: &VolumeGroupSnapshot,
        failure: &Failure,
    ) -> Result<StepOutcome, ApiError> {
        let reported = group.status.as_ref().and_then(|status| status.error.as_ref());
        let key = group.key();
        if let Some(status) = snapshot_write::error_status(reported, failure, now()) {
            tracing::info!(
                group_snapshot = %key,
                reason = failure.reason,
                error = failure.message,
                "group snapshot failed"
            );
            self.context.events.record_for(group, EventType::Warning, failure.reason, &*failure.message);
            if let Some((reason, note)) = &failure.extra_event {
                self.context.events.record_for(group, EventType::Warning, reason, &**note);
            }
            let patch = snapshot_write::status(&group.metadata, &status);
            self.write(group, Some("status"), Some(patch)).await?;
        }
        self.record_attempt(&WorkKey::Group(key), Some(failure.message.clone()));
        Ok(StepOutcome::RETRY)
    }

    /// Records events and metrics after a status update.
    fn record_group_progress(&self, inputs: &Inputs, group: &VolumeGroupSnapshot, update: &StatusUpdate) {
        let key = group.key();
        let driver = inputs.content.as_ref().map(|content| content.spec.driver.as_str()).unwrap_or_default();
        let finish =
            |operation| self.metrics.finish(operation, ObjectKind::Group, &group.metadata.uid, driver);
        if update.created {
            finish(Operation::Create);
            let note = format!("GroupSnapshot {key} was successfully created by the CSI driver.");
            self.context.events.record_for(group, EventType::Normal, "GroupSnapshotCreated", note);
        }
        if update.ready {
            finish(Operation::CreateAndReady);
            let note = format!("GroupSnapshot {key} is ready to use.");
            self.context.events.record_for(group, EventType::Normal, "GroupSnapshotReady", note);
            tracing::info!(group_snapshot = %key, "group snapshot is ready to use");
        }
    }

    /// Handles a group's content.
    pub(in super::super) async fn reconcile_group_content(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let content = self.groups.as_ref().and_then(|groups| groups.contents.get(key));
        let Some(content) = content else {
            self.remove_attempt(&WorkKey::GroupContent(key.clone()));
            return Ok(WorkOutcome::Done);
        };
        let source = &content.spec.source;
        let has_volumes = source.volume_handles.as_ref().is_some_and(|handles| !handles.is_empty());
        if has_volumes == source.group_snapshot_handles.is_some() {
            const INVALID_SOURCE: &str =
                "Exactly one of GroupSnapshotHandles and VolumeHandles should be specified";
            self.context.events.record_for(
                &*content,
                EventType::Warning,
                "GroupContentValidationError",
                INVALID_SOURCE,
            );
            return Ok(WorkOutcome::Retry);
        }
        let is_bound = !content.spec.volume_group_snapshot_ref.uid.is_empty();
        if is_bound && !content.metadata.is_deleting() {
            let patch = patch::add_finalizer(&content.metadata, names::GROUP_CONTENT_PROTECTION);
            self.write(&*content, None, patch).await?;
        }
        Ok(WorkOutcome::Done)
    }
}
