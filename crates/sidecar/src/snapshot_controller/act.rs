//! Does the one step it is given, and tells what came of it.

use std::sync::Arc;

use serde_json::Value;
use wharf_cluster::{ApiError, EventType, Patch, Preconditions, now};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    Key, Kind, PersistentVolume, PersistentVolumeClaim, VolumeGroupSnapshot, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::decide::{Creation, Fault, Step, Waiting, decide};
use super::groups;
use super::metrics::{Of, Operation};
use super::mirror::Mirrored;
use super::protect::{self, ContentStep, INVALID};
use super::view::{self, Found, Group, Parent, Taker, View, is_created, is_ready};
use super::wake::{BY_CLAIM, BY_SNAPSHOT, IS_DEFAULT, Subject};
use super::{Next, ROUNDS, SnapshotController, is_placed, wake, write};
use crate::finalizer::{self, ProtectError};

/// What the server said, for as long as one worker is at it.
#[derive(Default)]
struct Asked {
    /// It was asked for the content of this name.
    content: Option<String>,
    /// It was asked for the volume of this name, and gave this one.
    volume: Option<(String, Option<PersistentVolume>)>,
    /// It was asked for the group snapshot of this name, and gave this one.
    parent: Option<(Key, Option<Group>)>,
}

/// What is known of a snapshot, for one step.
struct Seen {
    snapshot: Option<Arc<VolumeSnapshot>>,
    content: Option<Arc<VolumeSnapshotContent>>,
    class: Option<Arc<VolumeSnapshotClass>>,
    defaults: Vec<Arc<VolumeSnapshotClass>>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    /// Whether only some nodes will do.
    is_placed: bool,
    node: Option<String>,
    restoring: bool,
    /// The group snapshot of the name that it has for its group.
    group: Option<Group>,
    group_name: Option<String>,
}

impl Seen {
    fn view<'a>(&'a self, asked: &'a Asked, note_volume_mode: bool) -> View<'a> {
        let snapshot = self.snapshot.as_deref();
        let asked_content =
            snapshot.is_some_and(|snapshot| asked.content == Some(view::content_of(snapshot)));
        let volume = self.claim.as_ref().map(|claim| claim.spec.volume_name.as_str());
        let volume = match &asked.volume {
            Some((name, found)) if Some(name.as_str()) == volume => Found::of(found.as_ref(), true),
            _ => Found::NotSeen,
        };
        let parent = snapshot.and_then(view::parent).map_or(Parent::None, |(key, uid)| {
            let told = asked.parent.as_ref().filter(|(name, _)| *name == key);
            let told = told.map(|(_, group)| group.as_ref());
            Parent::of(uid, self.content.as_deref(), self.group.as_ref(), told)
        });
        let node = match (self.is_placed, &self.node) {
            (false, _) => Taker::Any,
            (true, Some(node)) => Taker::One(node),
            (true, None) => Taker::Nobody,
        };
        View {
            snapshot,
            content: Found::of(self.content.as_deref(), asked_content),
            asked: asked_content,
            class: self.class.as_deref(),
            defaults: &self.defaults,
            claim: self.claim.as_deref(),
            volume,
            node,
            restoring: self.restoring,
            parent,
            group_name: self.group_name.as_deref(),
            note_volume_mode,
        }
    }
}

impl SnapshotController {
    /// Works on a snapshot until it has to wait.
    pub(super) async fn snapshot(&self, key: &Key) -> Result<Next, ApiError> {
        let mut asked = Asked::default();
        for _ in 0..ROUNDS {
            if !self.ground.gate.is_open() {
                return Ok(Next::Again);
            }
            let seen = self.look(key, &asked);
            let step = decide(&seen.view(&asked, self.settings.prevent_volume_mode_conversion));
            tracing::debug!(snapshot = %key, ?step, "next");
            let Some(snapshot) = &seen.snapshot else {
                self.ground.attempts.forget(super::ROLE, &format!("snapshot {key}"));
                return Ok(Next::Done);
            };
            self.measure(&seen, snapshot);
            match self.act(&seen, snapshot, step, &mut asked).await? {
                Next::Again => {}
                next => return Ok(next),
            }
        }
        tracing::warn!(snapshot = %key, "so many steps without an end: pausing");
        Ok(Next::Later)
    }

    /// What is known of a snapshot now.
    fn look(&self, key: &Key, asked: &Asked) -> Seen {
        let snapshot = self.snapshots.get(key);
        let of = snapshot.as_deref();
        let content = of.and_then(|snapshot| self.contents.get(&Key::cluster(view::content_of(snapshot))));
        let class = of.and_then(|snapshot| snapshot.spec.volume_snapshot_class_name.as_ref());
        let claim = of.and_then(wake::source_claim).and_then(|claim| self.claims.get(&claim));
        let volume = asked.volume.as_ref().and_then(|(_, volume)| volume.as_ref());
        let parent = of.and_then(view::parent);
        let volume = volume.filter(|volume| self.nodes.is_some() && is_placed(volume));
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let group_name =
            content.as_ref().and_then(|content| self.groups.as_ref()?.name_of(namespace, content));
        Seen {
            class: class.and_then(|class| self.classes.get(&Key::cluster(class))),
            defaults: match class {
                Some(_) => Vec::new(),
                None => self.classes.by_index(IS_DEFAULT, ""),
            },
            is_placed: volume.is_some(),
            node: volume.and_then(|volume| self.node(&[volume])),
            restoring: self.claims.first_by_index(BY_SNAPSHOT, &key.to_string()).is_some(),
            group: parent.and_then(|(key, _)| self.groups.as_ref()?.named(&key)),
            group_name,
            snapshot,
            content,
            claim,
        }
    }

    /// Asks the server for a group snapshot and, where nothing but its content can tell whose group it is, for that.
    async fn ask_for_group(&self, key: &Key, by_content: bool) -> Result<Option<Group>, ApiError> {
        let cluster = &self.ground.cluster;
        let Some(group) = cluster.get::<VolumeGroupSnapshot>(key).await? else { return Ok(None) };
        let content = match by_content {
            true => cluster.get::<VolumeGroupSnapshotContent>(&groups::content_key(&group)).await?,
            false => None,
        };
        Ok(Some(Group { group: Arc::new(group), content: content.map(Arc::new) }))
    }

    /// Begins to count what is seen to be wanted.
    fn measure(&self, seen: &Seen, snapshot: &VolumeSnapshot) {
        let (uid, dynamic) = (&snapshot.metadata.uid, view::pre_provisioned(snapshot).is_none());
        let content = seen.content.as_ref().map(|content| content.spec.driver.as_str());
        let class = seen.class.as_ref().map(|class| class.driver.as_str());
        let driver = content.or(class).unwrap_or_default();
        let begin = |operation| self.operations.begin(operation, Of::Snapshot, uid, driver, dynamic);
        if snapshot.metadata.is_deleting() {
            begin(Operation::Delete);
        } else if !is_ready(snapshot) {
            if !is_created(snapshot) {
                begin(Operation::Create);
            }
            begin(Operation::CreateAndReady);
        }
    }

    async fn act(
        &self,
        seen: &Seen,
        snapshot: &VolumeSnapshot,
        step: Step,
        asked: &mut Asked,
    ) -> Result<Next, ApiError> {
        let cluster = &self.ground.cluster;
        let meta = &snapshot.metadata;
        match step {
            Step::Forget => return Ok(Next::Done),
            Step::Done => {
                self.note(&Subject::Snapshot(meta.key()), None);
                return Ok(Next::Done);
            }
            Step::Wait(waiting) => {
                self.tell_waiting(snapshot, &waiting);
                // Where nobody watches groups, nothing tells that one is gone.
                return Ok(match (&waiting, &self.groups) {
                    (Waiting::Group(_), None) => Next::Later,
                    _ => Next::Done,
                });
            }
            Step::Fail(fault) => return self.fail(snapshot, &fault).await,
            Step::AskContent(name) => {
                cluster.get::<VolumeSnapshotContent>(&Key::cluster(&*name)).await?;
                asked.content = Some(name);
            }
            Step::AskVolume(name) => {
                let volume = cluster.get::<PersistentVolume>(&Key::cluster(&*name)).await?;
                asked.volume = Some((name, volume));
            }
            Step::AskParent => {
                if let Some((key, uid)) = view::parent(snapshot) {
                    let group = self.ask_for_group(&key, uid.is_none()).await?;
                    asked.parent = Some((key, group));
                }
            }
            Step::Guard(finalizers) => {
                let patch = patch::add_finalizers(meta, &finalizers);
                let written = self.write(snapshot, None, patch).await;
                self.tell_refused(snapshot, "SnapshotFinalizerError", &written, |error| {
                    format!("Failed to check and update snapshot: {error}")
                });
                written?;
            }
            Step::SetClass(class) => {
                self.write(snapshot, None, Some(write::class(meta, &class))).await?;
            }
            Step::ProtectClaim => return self.protect(seen, snapshot).await,
            Step::CreateContent(creation) => return self.create(seen, snapshot, &creation).await,
            Step::BindContent { class } => {
                if let Some(content) = &seen.content {
                    let patch = write::bind(&content.metadata, meta, class.as_deref());
                    let bound = self.write(&**content, None, Some(patch)).await;
                    self.tell_refused(snapshot, "SnapshotBindFailed", &bound, |error| {
                        format!("Snapshot failed to bind VolumeSnapshotContent, {error}")
                    });
                    bound?;
                }
            }
            Step::Mirror(mirrored) => {
                let patch = write::status(meta, &mirrored.status);
                let written = self.write(snapshot, Some("status"), Some(patch)).await;
                self.tell_refused(snapshot, "SnapshotStatusUpdateFailed", &written, |error| {
                    format!("Snapshot status update failed, {error}")
                });
                if written? {
                    self.tell_mirrored(seen, snapshot, &mirrored);
                }
            }
            Step::Adopt => {
                if let Parent::Here(group) = seen.view(asked, false).parent {
                    self.write(snapshot, None, Some(write::adopt(meta, group))).await?;
                }
            }
            Step::MarkContent => {
                if let Some(content) = &seen.content {
                    let mark = [(names::BEING_DELETED, Some("yes"))];
                    self.write(&**content, None, Some(patch::annotate(&content.metadata, &mark))).await?;
                }
            }
            Step::DeleteContent => {
                if let Some(content) = &seen.content {
                    let deleted = self.delete(&**content).await;
                    self.tell_refused(snapshot, "SnapshotContentObjectDeleteError", &deleted, |_| {
                        "Failed to delete snapshot content API object".to_owned()
                    });
                    deleted?;
                }
            }
            Step::Release(finalizers) => {
                self.write(snapshot, None, patch::remove_finalizers(meta, &finalizers)).await?;
            }
        }
        Ok(Next::Again)
    }

    /// Writes, if there is something to write; `false` if the object was not as it was seen. It is read again then.
    pub(super) async fn write<K: Kind>(
        &self,
        object: &K,
        subresource: Option<&str>,
        patch: Option<Patch>,
    ) -> Result<bool, ApiError> {
        let Some(patch) = patch else { return Ok(false) };
        match self.ground.cluster.patch(&K::API, &object.key(), subresource, patch).await {
            Ok(_) => Ok(true),
            Err(error) => self.reread(object, error).await.map(|()| false),
        }
    }

    /// Deletes this very object.
    pub(super) async fn delete<K: Kind>(&self, object: &K) -> Result<(), ApiError> {
        let uid = Some(object.meta().uid.clone());
        let preconditions = Preconditions { uid, resource_version: None };
        match self.ground.cluster.delete(&K::API, &object.key(), preconditions).await {
            Ok(()) => Ok(()),
            Err(error) => self.reread(object, error).await,
        }
    }

    /// Creates; `false` if there is one of that name, which is in the store now.
    pub(super) async fn make<K: Kind>(
        &self,
        namespace: Option<&str>,
        body: &Value,
    ) -> Result<bool, ApiError> {
        let cluster = &self.ground.cluster;
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

    async fn protect(&self, seen: &Seen, snapshot: &VolumeSnapshot) -> Result<Next, ApiError> {
        let Some(claim) = &seen.claim else { return Ok(Next::Again) };
        let key = claim.key();
        let _lock = self.lock(&key).await;
        let (cluster, api, uid) = (&self.ground.cluster, &PersistentVolumeClaim::API, &claim.metadata.uid);
        let patch = patch::add_finalizer(&claim.metadata, names::CLAIM_PROTECTION);
        if self.patching.writes(cluster, api, &key, patch).await {
            return Ok(Next::Again);
        }
        match finalizer::add(cluster, api, &key, uid, names::CLAIM_PROTECTION).await {
            Ok(()) => Ok(Next::Again),
            // The store knows by now, so that the rule says what that means.
            Err(ProtectError::Deleting { .. }) => Ok(Next::Again),
            // Its end is on the way to the store.
            Err(ProtectError::Gone { .. }) => Ok(Next::Later),
            Err(ProtectError::Api(error)) => {
                let message = format!(
                    "Failed to create snapshot content with error snapshot controller failed to update {} on API server: {error}",
                    key.name
                );
                self.fail(snapshot, &Fault::new("SnapshotContentCreationFailed", message)).await
            }
        }
    }

    async fn create(
        &self,
        seen: &Seen,
        snapshot: &VolumeSnapshot,
        creation: &Creation,
    ) -> Result<Next, ApiError> {
        let Some(claim) = &seen.claim else { return Ok(Next::Again) };
        // Who takes the finalizer off a claim looks for snapshots under the same lock: it is on the claim until ours
        // is seen to need it, or off and seen to be so here.
        let _lock = self.lock(&claim.key()).await;
        let is_protected = self.claims.get(&claim.key()).is_some_and(|now| {
            now.metadata.uid == claim.metadata.uid && now.metadata.has_finalizer(names::CLAIM_PROTECTION)
        });
        if !is_protected {
            return Ok(Next::Again);
        }
        let key = snapshot.key();
        match self.make::<VolumeSnapshotContent>(None, &write::content(snapshot, creation)).await {
            Ok(_) => {
                let note = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
                self.ground.event(snapshot, EventType::Normal, "CreatingSnapshot", note);
                Ok(Next::Again)
            }
            Err(error) => {
                let note =
                    format!("Error creating volume snapshot content object for snapshot {key}: {error}.");
                self.ground.event(snapshot, EventType::Warning, "CreateSnapshotContentFailed", note);
                let message = format!(
                    "Failed to create snapshot content with error snapshot controller failed to update {key} on API server: {error}"
                );
                self.fail(snapshot, &Fault::new("SnapshotContentCreationFailed", message)).await
            }
        }
    }

    /// Tells why it cannot go on.
    async fn fail(&self, snapshot: &VolumeSnapshot, fault: &Fault) -> Result<Next, ApiError> {
        let told = snapshot.status.as_ref().and_then(|status| status.error.as_ref());
        let key = snapshot.key();
        if let Some(status) = write::fault(told, fault, now()) {
            tracing::info!(snapshot = %key, reason = fault.reason, message = fault.message, "cannot go on");
            self.ground.event(snapshot, EventType::Warning, fault.reason, &*fault.message);
            if let Some((reason, note)) = &fault.beside {
                self.ground.event(snapshot, EventType::Warning, reason, &**note);
            }
            let patch = write::status(&snapshot.metadata, &status);
            self.write(snapshot, Some("status"), Some(patch)).await?;
        }
        self.note(&Subject::Snapshot(key), Some(fault.message.clone()));
        Ok(Next::Later)
    }

    /// Tells users that something was refused which will be refused again.
    pub(super) fn tell_refused<K: Kind, T>(
        &self,
        object: &K,
        reason: &str,
        written: &Result<T, ApiError>,
        note: impl FnOnce(&ApiError) -> String,
    ) {
        if let Err(error @ (ApiError::Forbidden(_) | ApiError::Invalid(_) | ApiError::Other { .. })) = written
        {
            self.ground.event(object, EventType::Warning, reason, note(error));
        }
    }

    fn tell_waiting(&self, snapshot: &VolumeSnapshot, waiting: &Waiting) {
        let key = snapshot.key().to_string();
        let note = match waiting {
            Waiting::Restore => "Snapshot is being used to restore a PVC".to_owned(),
            Waiting::Group(group) => write::belongs_to(&key, group),
            Waiting::Membership | Waiting::Content => return,
        };
        self.ground.event(snapshot, EventType::Warning, "SnapshotDeletePending", note);
    }

    /// Tells what the content has shown, once it is written.
    fn tell_mirrored(&self, seen: &Seen, snapshot: &VolumeSnapshot, mirrored: &Mirrored) {
        let key = snapshot.key();
        let driver = seen.content.as_ref().map(|content| content.spec.driver.as_str()).unwrap_or_default();
        let done = |operation| self.operations.done(operation, Of::Snapshot, &snapshot.metadata.uid, driver);
        if mirrored.created {
            done(Operation::Create);
            let note = format!("Snapshot {key} was successfully created by the CSI driver.");
            self.ground.event(snapshot, EventType::Normal, "SnapshotCreated", note);
        }
        if mirrored.ready {
            done(Operation::CreateAndReady);
            let note = format!("Snapshot {key} is ready to use.");
            self.ground.event(snapshot, EventType::Normal, "SnapshotReady", note);
            tracing::info!(snapshot = %key, "the snapshot is ready to use");
        }
    }

    /// Works on a content.
    pub(super) async fn content(&self, key: &Key) -> Result<Next, ApiError> {
        let Some(content) = self.contents.get(key) else { return Ok(Next::Done) };
        match protect::content(&content) {
            ContentStep::Done => {}
            ContentStep::TellInvalid => {
                self.ground.event(&*content, EventType::Warning, "ContentValidationError", INVALID);
                self.note(&Subject::Content(key.clone()), Some(INVALID.to_owned()));
                return Ok(Next::Later);
            }
            ContentStep::Guard => {
                let patch = patch::add_finalizer(&content.metadata, names::CONTENT_PROTECTION);
                self.write(&*content, None, patch).await?;
            }
        }
        Ok(Next::Done)
    }

    /// Works on a claim that snapshots were taken of.
    pub(super) async fn claim(&self, key: &Key) -> Result<Next, ApiError> {
        let _lock = self.lock(key).await;
        let Some(claim) = self.claims.get(key) else { return Ok(Next::Done) };
        let snapshots = self.snapshots.by_index(BY_CLAIM, &key.to_string());
        if protect::may_go(&claim, snapshots.iter().map(|snapshot| &**snapshot)) {
            let (cluster, api, uid) =
                (&self.ground.cluster, &PersistentVolumeClaim::API, &claim.metadata.uid);
            let patch = patch::remove_finalizer(&claim.metadata, names::CLAIM_PROTECTION);
            if !self.patching.writes(cluster, api, key, patch).await {
                finalizer::remove(cluster, api, key, uid, names::CLAIM_PROTECTION).await?;
            }
        }
        Ok(Next::Done)
    }
}
