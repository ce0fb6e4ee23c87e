//! Executes one decided step and records its result.

use std::sync::Arc;

use serde_json::Value;
use wharf_cluster::finalizer::{self, ProtectError};
use wharf_cluster::work::{self, StepOutcome, Steps, WorkOutcome, WriteOutcome};
use wharf_cluster::{ApiError, EventType, Patch, Refusal, now};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::decide::{Failure, NewContent, Step, WaitingFor, decide};
use super::groups;
use super::metrics::{ObjectKind, Operation};
use super::mirror::StatusUpdate;
use super::protect::{self, ContentStep, INVALID_SOURCE};
use super::view::{GroupWithContent, Lookup, NodeChoice, ParentGroup, View};
use super::wake::{BY_CLAIM, BY_SNAPSHOT, IS_DEFAULT, WorkKey};
use super::{STEP_LIMIT, SnapshotController, has_node_affinity, wake, write};

/// Responses of the API server, kept during one reconcile.
#[derive(Default)]
struct Fetched {
    /// The content of this name was read.
    content: Option<String>,
    /// The volume of this name was read, with this result.
    volume: Option<(String, Option<PersistentVolume>)>,
    /// The group snapshot of this name was read, with this result.
    parent: Option<(Key, Option<GroupWithContent>)>,
}

/// Inputs for one decision about a snapshot.
struct Inputs {
    snapshot: Option<Arc<VolumeSnapshot>>,
    content: Option<Arc<VolumeSnapshotContent>>,
    class: Option<Arc<VolumeSnapshotClass>>,
    defaults: Vec<Arc<VolumeSnapshotClass>>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    /// Whether the volume has node affinity.
    has_node_affinity: bool,
    node: Option<String>,
    restoring: bool,
    /// The cached group snapshot with the name of the snapshot's group.
    group: Option<GroupWithContent>,
    group_name: Option<String>,
}

impl Inputs {
    fn view<'a>(&'a self, fetched: &'a Fetched, record_volume_mode: bool) -> View<'a> {
        let snapshot = self.snapshot.as_deref();
        let content_fetched =
            snapshot.is_some_and(|snapshot| fetched.content == Some(snapshot.expected_content_name()));
        let volume = self.claim.as_ref().map(|claim| claim.spec.volume_name.as_str());
        let volume = match &fetched.volume {
            Some((name, found)) if Some(name.as_str()) == volume => Lookup::new(found.as_ref(), true),
            _ => Lookup::NotCached,
        };
        let parent =
            snapshot.and_then(VolumeSnapshot::parent_group).map_or(ParentGroup::None, |(key, uid)| {
                let parent_fetched = fetched.parent.as_ref().filter(|(name, _)| *name == key);
                let parent_fetched = parent_fetched.map(|(_, group)| group.as_ref());
                ParentGroup::resolve(uid, self.content.as_deref(), self.group.as_ref(), parent_fetched)
            });
        let node = match (self.has_node_affinity, &self.node) {
            (false, _) => NodeChoice::Any,
            (true, Some(node)) => NodeChoice::Node(node),
            (true, None) => NodeChoice::Unreachable,
        };
        View {
            snapshot,
            content: Lookup::new(self.content.as_deref(), content_fetched),
            content_fetched,
            class: self.class.as_deref(),
            defaults: &self.defaults,
            claim: self.claim.as_deref(),
            volume,
            node,
            restoring: self.restoring,
            parent,
            group_name: self.group_name.as_deref(),
            record_volume_mode,
        }
    }
}

impl SnapshotController {
    /// Handles a snapshot until it has to wait.
    pub(super) async fn reconcile_snapshot(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let mut fetched = Fetched::default();
        let mut steps = Steps::new(&self.context.gate, STEP_LIMIT);
        while steps.start_next() {
            let inputs = self.gather(key, &fetched);
            if !self.undo_creation(key, inputs.snapshot.as_deref()).await? {
                return Ok(WorkOutcome::Retry);
            }
            let step = decide(&inputs.view(&fetched, self.settings.prevent_volume_mode_conversion));
            tracing::debug!(snapshot = %key, ?step, "decided next step");
            let Some(snapshot) = &inputs.snapshot else {
                self.remove_attempt(&WorkKey::Snapshot(key.clone()));
                return Ok(WorkOutcome::Done);
            };
            self.start_metrics(&inputs, snapshot);
            if let StepOutcome::Finish(outcome) = self.act(&inputs, snapshot, step, &mut fetched).await? {
                return Ok(outcome);
            }
        }
        Ok(steps.unfinished(key))
    }

    /// Reads the cache.
    fn gather(&self, key: &Key, fetched: &Fetched) -> Inputs {
        let snapshot = self.snapshots.get(key);
        let of = snapshot.as_deref();
        let content =
            of.and_then(|snapshot| self.contents.get(&Key::cluster(snapshot.expected_content_name())));
        let class = of.and_then(|snapshot| snapshot.spec.volume_snapshot_class_name.as_ref());
        let claim = of.and_then(wake::source_claim).and_then(|claim| self.claims.get(&claim));
        let volume = fetched.volume.as_ref().and_then(|(_, volume)| volume.as_ref());
        let parent = of.and_then(VolumeSnapshot::parent_group);
        let volume = volume.filter(|volume| self.nodes.is_some() && has_node_affinity(volume));
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let group_name =
            content.as_ref().and_then(|content| self.groups.as_ref()?.parent_name(namespace, content));
        Inputs {
            class: class.and_then(|class| self.classes.get(&Key::cluster(class))),
            defaults: match class {
                Some(_) => Vec::new(),
                None => self.classes.by_index(IS_DEFAULT, ""),
            },
            has_node_affinity: volume.is_some(),
            node: volume.and_then(|volume| self.node_reaching(&[volume])),
            restoring: self.claims.first_by_index(BY_SNAPSHOT, &key.to_string()).is_some(),
            group: parent.and_then(|(key, _)| self.groups.as_ref()?.get(&key)),
            group_name,
            snapshot,
            content,
            claim,
        }
    }

    /// Reads a group snapshot from the API server and, if only its content can identify it, that content. `None` if it
    /// does not exist, or if the CRDs of group snapshots were removed.
    async fn fetch_group(&self, key: &Key, by_content: bool) -> Result<Option<GroupWithContent>, ApiError> {
        let cluster = &self.context.cluster;
        let read = match cluster.get::<VolumeGroupSnapshot>(key).await {
            Err(error @ ApiError::NotServed(_)) => match self.removed_groups.are_removed(cluster).await? {
                true => None,
                false => return Err(error),
            },
            read => {
                self.removed_groups.forget_absence();
                read?
            }
        };
        let Some(group) = read else { return Ok(None) };
        let content = match by_content {
            true => cluster.get::<VolumeGroupSnapshotContent>(&groups::content_key(&group)).await?,
            false => None,
        };
        Ok(Some(GroupWithContent { group: Arc::new(group), content: content.map(Arc::new) }))
    }

    /// Starts the timers of the pending operations.
    fn start_metrics(&self, inputs: &Inputs, snapshot: &VolumeSnapshot) {
        let (uid, dynamic) = (&snapshot.metadata.uid, snapshot.pre_provisioned_content().is_none());
        let content = inputs.content.as_ref().map(|content| content.spec.driver.as_str());
        let class = inputs.class.as_ref().map(|class| class.driver.as_str());
        let driver = content.or(class).unwrap_or_default();
        let start = |operation| self.metrics.start(operation, ObjectKind::Snapshot, uid, driver, dynamic);
        if snapshot.metadata.is_deleting() {
            start(Operation::Delete);
        } else if !snapshot.is_ready() {
            if !snapshot.is_created() {
                start(Operation::Create);
            }
            start(Operation::CreateAndReady);
        }
    }

    async fn act(
        &self,
        inputs: &Inputs,
        snapshot: &VolumeSnapshot,
        step: Step,
        fetched: &mut Fetched,
    ) -> Result<StepOutcome, ApiError> {
        let cluster = &self.context.cluster;
        let meta = &snapshot.metadata;
        match step {
            Step::DropState => return Ok(StepOutcome::DONE),
            Step::Idle => {
                self.record_attempt(&WorkKey::Snapshot(meta.key()), None);
                return Ok(StepOutcome::DONE);
            }
            Step::Wait(waiting) => {
                self.record_waiting(snapshot, &waiting);
                // If groups are not watched, nothing reports that one was deleted.
                return Ok(match (&waiting, &self.groups) {
                    (WaitingFor::Group(_), None) => StepOutcome::RETRY,
                    _ => StepOutcome::DONE,
                });
            }
            Step::Fail(failure) => return self.report_failure(snapshot, &failure).await,
            Step::FetchContent(name) => {
                cluster.get::<VolumeSnapshotContent>(&Key::cluster(&*name)).await?;
                fetched.content = Some(name);
            }
            Step::FetchVolume(name) => {
                let volume = cluster.get::<PersistentVolume>(&Key::cluster(&*name)).await?;
                fetched.volume = Some((name, volume));
            }
            Step::FetchParentGroup => {
                if let Some((key, uid)) = snapshot.parent_group() {
                    let group = self.fetch_group(&key, uid.is_none()).await?;
                    fetched.parent = Some((key, group));
                }
            }
            Step::AddFinalizers(finalizers) => {
                let patch = patch::add_finalizers(meta, &finalizers);
                let written = self.write(snapshot, None, patch).await;
                self.record_rejected_write(snapshot, "SnapshotFinalizerError", &written, |error| {
                    format!("Failed to check and update snapshot: {error}")
                });
                written?;
            }
            Step::SetDefaultClass(class) => {
                self.write(snapshot, None, Some(write::set_class(meta, &class))).await?;
            }
            Step::ProtectClaim => return self.protect_claim(inputs, snapshot).await,
            Step::CreateContent(new_content) => {
                return self.create_content(inputs, snapshot, &new_content).await;
            }
            Step::BindContent { class } => {
                if let Some(content) = &inputs.content {
                    let patch = write::bind(&content.metadata, meta, class.as_deref());
                    let bound = self.write(&**content, None, Some(patch)).await;
                    self.record_rejected_write(snapshot, "SnapshotBindFailed", &bound, |error| {
                        format!("Snapshot failed to bind VolumeSnapshotContent, {error}")
                    });
                    bound?;
                }
            }
            Step::WriteStatus(update) => {
                let patch = write::status(meta, &update.status);
                let written = self.write(snapshot, Some("status"), Some(patch)).await;
                self.record_rejected_write(snapshot, "SnapshotStatusUpdateFailed", &written, |error| {
                    format!("Snapshot status update failed, {error}")
                });
                if written? {
                    self.record_progress(inputs, snapshot, &update);
                }
            }
            Step::SetOwnerGroup => {
                if let ParentGroup::Found(group) = inputs.view(fetched, false).parent {
                    self.write(snapshot, None, Some(write::set_owner(meta, group))).await?;
                }
            }
            Step::MarkContentBeingDeleted => {
                if let Some(content) = &inputs.content {
                    let mark = [(names::BEING_DELETED, Some("yes"))];
                    self.write(&**content, None, Some(patch::annotate(&content.metadata, &mark))).await?;
                }
            }
            Step::DeleteContent => {
                if let Some(content) = &inputs.content {
                    let deleted = self.delete(&**content).await;
                    self.record_rejected_write(
                        snapshot,
                        "SnapshotContentObjectDeleteError",
                        &deleted,
                        |_| "Failed to delete snapshot content API object".to_owned(),
                    );
                    deleted?;
                }
            }
            Step::RemoveFinalizers(finalizers) => {
                self.write(snapshot, None, patch::remove_finalizers(meta, &finalizers)).await?;
            }
        }
        Ok(StepOutcome::Continue)
    }

    /// Applies a patch, if any; `false` if the object had changed. It is re-read then.
    pub(super) async fn write<K: Kind>(
        &self,
        object: &K,
        subresource: Option<&str>,
        patch: Option<Patch>,
    ) -> Result<bool, ApiError> {
        let Some(patch) = patch else { return Ok(false) };
        let cluster = &self.context.cluster;
        written(object, work::write::patch::<K>(cluster, object.meta(), subresource, patch).await)
    }

    /// Deletes the object with this UID.
    pub(super) async fn delete<K: Kind>(&self, object: &K) -> Result<(), ApiError> {
        let deleted = work::write::delete::<K>(&self.context.cluster, object.meta()).await;
        written(object, deleted).map(drop)
    }

    /// Creates an object; `false` if it exists already. The store has it then.
    pub(super) async fn create_object<K: Kind>(
        &self,
        namespace: Option<&str>,
        body: &Value,
    ) -> Result<bool, ApiError> {
        let cluster = &self.context.cluster;
        match cluster.create(&K::API, namespace, body).await {
            Ok(_) => Ok(true),
            Err(ApiError::AlreadyExists(_)) => {
                let name = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let key = Key { namespace: namespace.map(str::to_owned), name: name.to_owned() };
                cluster.get::<K>(&key).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn protect_claim(
        &self,
        inputs: &Inputs,
        snapshot: &VolumeSnapshot,
    ) -> Result<StepOutcome, ApiError> {
        let Some(claim) = &inputs.claim else { return Ok(StepOutcome::Continue) };
        let key = claim.key();
        let _lock = self.lock_claim(&key).await;
        let (cluster, api, uid) = (&self.context.cluster, &PersistentVolumeClaim::API, &claim.metadata.uid);
        let patch = patch::add_finalizer(&claim.metadata, names::CLAIM_PROTECTION);
        if self.patching.try_patch(cluster, api, &key, patch).await {
            return Ok(StepOutcome::Continue);
        }
        match finalizer::add(cluster, api, &key, uid, names::CLAIM_PROTECTION).await {
            Ok(()) => Ok(StepOutcome::Continue),
            // The store has seen the deletion by now, and the rules handle it.
            Err(ProtectError::Deleting { .. }) => Ok(StepOutcome::Continue),
            // The deletion event is about to reach the store.
            Err(ProtectError::Gone { .. }) => Ok(StepOutcome::RETRY),
            Err(ProtectError::Api(error)) => {
                let message = format!(
                    "Failed to create snapshot content with error snapshot controller failed to update {} on API server: {error}",
                    key.name
                );
                self.report_failure(snapshot, &Failure::new("SnapshotContentCreationFailed", message)).await
            }
        }
    }

    async fn create_content(
        &self,
        inputs: &Inputs,
        snapshot: &VolumeSnapshot,
        new_content: &NewContent,
    ) -> Result<StepOutcome, ApiError> {
        let Some(claim) = &inputs.claim else { return Ok(StepOutcome::Continue) };
        // The finalizer is removed from a claim under the same lock, after a search for snapshots. So either it is
        // still there and our snapshot keeps it, or its absence is observed here.
        let _lock = self.lock_claim(&claim.key()).await;
        let is_protected = self.claims.get(&claim.key()).is_some_and(|now| {
            now.metadata.uid == claim.metadata.uid && now.metadata.has_finalizer(names::CLAIM_PROTECTION)
        });
        if !is_protected {
            return Ok(StepOutcome::Continue);
        }
        let key = snapshot.key();
        // Before the request: its response may be lost.
        self.created.insert(snapshot);
        match self.create_object::<VolumeSnapshotContent>(None, &write::content(snapshot, new_content)).await
        {
            Ok(_) => {
                let note = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
                self.context.events.record_for(snapshot, EventType::Normal, "CreatingSnapshot", note);
                Ok(StepOutcome::Continue)
            }
            Err(error) => {
                let note =
                    format!("Error creating volume snapshot content object for snapshot {key}: {error}.");
                self.context.events.record_for(
                    snapshot,
                    EventType::Warning,
                    "CreateSnapshotContentFailed",
                    note,
                );
                let message = format!(
                    "Failed to create snapshot content with error snapshot controller failed to update {key} on API server: {error}"
                );
                self.report_failure(snapshot, &Failure::new("SnapshotContentCreationFailed", message)).await
            }
        }
    }

    /// Reports a failure in the status and as an event.
    async fn report_failure(
        &self,
        snapshot: &VolumeSnapshot,
        failure: &Failure,
    ) -> Result<StepOutcome, ApiError> {
        let reported = snapshot.status.as_ref().and_then(|status| status.error.as_ref());
        let key = snapshot.key();
        if let Some(status) = write::error_status(reported, failure, now()) {
            tracing::info!(snapshot = %key, reason = failure.reason, error = failure.message, "snapshot failed");
            self.context.events.record_for(snapshot, EventType::Warning, failure.reason, &*failure.message);
            if let Some((reason, note)) = &failure.extra_event {
                self.context.events.record_for(snapshot, EventType::Warning, reason, &**note);
            }
            let patch = write::status(&snapshot.metadata, &status);
            self.write(snapshot, Some("status"), Some(patch)).await?;
        }
        self.record_attempt(&WorkKey::Snapshot(key), Some(failure.message.clone()));
        Ok(StepOutcome::RETRY)
    }

    /// Records an event for a rejected write that will be rejected again.
    pub(super) fn record_rejected_write<K: Kind, T>(
        &self,
        object: &K,
        reason: &str,
        written: &Result<T, ApiError>,
        note: impl FnOnce(&ApiError) -> String,
    ) {
        if let Err(error @ (ApiError::Forbidden(_) | ApiError::Invalid(_) | ApiError::Other { .. })) = written
        {
            self.context.events.record_for(object, EventType::Warning, reason, note(error));
        }
    }

    fn record_waiting(&self, snapshot: &VolumeSnapshot, waiting: &WaitingFor) {
        let key = snapshot.key().to_string();
        let note = match waiting {
            WaitingFor::Restore => "Snapshot is being used to restore a PVC".to_owned(),
            WaitingFor::Group(group) => write::member_delete_note(&key, group),
            WaitingFor::Membership | WaitingFor::Content => return,
        };
        self.context.events.record_for(snapshot, EventType::Warning, "SnapshotDeletePending", note);
    }

    /// Records events and metrics after a status update.
    fn record_progress(&self, inputs: &Inputs, snapshot: &VolumeSnapshot, update: &StatusUpdate) {
        let key = snapshot.key();
        let driver = inputs.content.as_ref().map(|content| content.spec.driver.as_str()).unwrap_or_default();
        let finish =
            |operation| self.metrics.finish(operation, ObjectKind::Snapshot, &snapshot.metadata.uid, driver);
        if update.created {
            finish(Operation::Create);
            let note = format!("Snapshot {key} was successfully created by the CSI driver.");
            self.context.events.record_for(snapshot, EventType::Normal, "SnapshotCreated", note);
        }
        if update.ready {
            finish(Operation::CreateAndReady);
            let note = format!("Snapshot {key} is ready to use.");
            self.context.events.record_for(snapshot, EventType::Normal, "SnapshotReady", note);
            tracing::info!(snapshot = %key, "snapshot is ready to use");
        }
    }

    /// Handles a content.
    pub(super) async fn reconcile_content(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let Some(content) = self.contents.get(key) else {
            self.remove_attempt(&WorkKey::Content(key.clone()));
            return Ok(WorkOutcome::Done);
        };
        match protect::content_step(&content) {
            ContentStep::Done => {}
            ContentStep::ReportInvalid => {
                self.context.events.record_for(
                    &*content,
                    EventType::Warning,
                    "ContentValidationError",
                    INVALID_SOURCE,
                );
                self.record_attempt(&WorkKey::Content(key.clone()), Some(INVALID_SOURCE.to_owned()));
                return Ok(WorkOutcome::Retry);
            }
            ContentStep::AddFinalizer => {
                let patch = patch::add_finalizer(&content.metadata, names::CONTENT_PROTECTION);
                self.write(&*content, None, patch).await?;
            }
        }
        Ok(WorkOutcome::Done)
    }

    /// Handles a claim that snapshots were created from.
    pub(super) async fn reconcile_claim(&self, key: &Key) -> Result<WorkOutcome, ApiError> {
        let _lock = self.lock_claim(key).await;
        let Some(claim) = self.claims.get(key) else {
            self.remove_attempt(&WorkKey::Claim(key.clone()));
            return Ok(WorkOutcome::Done);
        };
        let snapshots = self.snapshots.by_index(BY_CLAIM, &key.to_string());
        if protect::can_release_claim(&claim, snapshots.iter().map(|snapshot| &**snapshot)) {
            let (cluster, api, uid) =
                (&self.context.cluster, &PersistentVolumeClaim::API, &claim.metadata.uid);
            let patch = patch::remove_finalizer(&claim.metadata, names::CLAIM_PROTECTION);
            if !self.patching.try_patch(cluster, api, key, patch).await {
                finalizer::remove(cluster, api, key, uid, names::CLAIM_PROTECTION).await?;
            }
        }
        Ok(WorkOutcome::Done)
    }
}

/// Whether the object was written; `false` if it had changed. An object that does not exist is an error, which
/// ends the reconcile: the store still has it, so the same write would be decided again.
fn written<K: Kind>(object: &K, outcome: WriteOutcome) -> Result<bool, ApiError> {
    match outcome {
        WriteOutcome::Written => Ok(true),
        WriteOutcome::Stale => Ok(false),
        WriteOutcome::NotFound => Err(ApiError::NotFound(Refusal {
            method: "WRITE",
            object: format!("{} {}", K::API.kind, object.key()),
            message: "the object was deleted".to_owned(),
        })),
        WriteOutcome::Failed(error) => Err(error),
    }
}
