//! The controller's steps for snapshots, contents and claims.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::super::decide::{Step, decide};
use super::super::protect::{self, ContentStep};
use super::super::view::{Lookup, NodeChoice, ParentGroup, View};
use super::super::write;
use super::world::{Kind, has_finalizer, is_deleting, text};
use super::{Bug, Fetched, Running, Simulation, Violation, parse};

/// A step for a snapshot, and its inputs.
pub(super) struct PendingStep {
    step: Step,
    object: VolumeSnapshot,
    content: Option<VolumeSnapshotContent>,
    fetched: Fetched,
}

/// The volume of a claim.
pub(super) fn volume_of(claim: &PersistentVolumeClaim) -> PersistentVolume {
    parse(&json!({
        "metadata": {"name": "pv"},
        "spec": {
            "csi": {"driver": "d", "volumeHandle": claim.metadata.name},
            "claimRef": {"namespace": "shop", "name": claim.metadata.name, "uid": claim.metadata.uid},
        },
    }))
}

impl Simulation {
    pub(super) fn decide_snapshot(&self, name: &str, fetched: Fetched) -> Option<Running> {
        let object: VolumeSnapshot = self.cached(Kind::Snapshot, name)?;
        let content_name = object.expected_content_name();
        let content: Option<VolumeSnapshotContent> = self.cached(Kind::Content, &content_name);
        let claim: Option<PersistentVolumeClaim> =
            object.source_claim_name().and_then(|claim| self.cached(Kind::Claim, claim));
        let class: Option<VolumeSnapshotClass> = self.class.as_ref().map(parse);
        let defaults: Vec<Arc<VolumeSnapshotClass>> = Vec::new();
        let volume: Option<PersistentVolume> = claim.as_ref().map(volume_of);
        let restores = |claim: &Value| {
            parse::<PersistentVolumeClaim>(claim).restore_sources().iter().any(|key| key.name == *name)
        };
        let mut claims = self.world.cached.iter().filter(|(key, _)| key.0 == Kind::Claim);
        let known = fetched.content.as_ref() == Some(&content_name) || self.bug == Bug::TrustsCache;
        let named = object.parent_group();
        let stored = named.as_ref().and_then(|(key, _)| self.parent_group(&key.name));
        let parent = named.as_ref().map_or(ParentGroup::None, |(_, uid)| {
            let parent_fetched = fetched.parent.as_ref().map(Option::as_ref);
            match self.bug {
                Bug::DeletesMembersAlone => ParentGroup::NotFound,
                _ => ParentGroup::resolve(*uid, content.as_ref(), stored.as_ref(), parent_fetched),
            }
        });
        let status = content.as_ref().and_then(|content| content.status.as_ref());
        let handle = status.and_then(|status| status.volume_group_snapshot_handle.clone());
        let group_name = handle.and_then(|handle| self.group_with_handle(&handle));
        let step = decide(&View {
            snapshot: Some(&object),
            content: Lookup::new(content.as_ref(), known),
            content_fetched: known,
            class: class.as_ref(),
            defaults: &defaults,
            claim: claim.as_ref(),
            volume: if fetched.volume { Lookup::new(volume.as_ref(), true) } else { Lookup::NotCached },
            node: NodeChoice::Any,
            restoring: claims.any(|(_, claim)| restores(claim)),
            parent,
            group_name: group_name.as_deref(),
            record_volume_mode: false,
        });
        let idle = matches!(step, Step::DropState | Step::Idle | Step::Wait(_));
        (!idle).then(|| Running::Snapshot(Box::new(PendingStep { step, object, content, fetched })))
    }

    pub(super) fn decide_content(&self, name: &str) -> Option<Running> {
        let content: VolumeSnapshotContent = self.cached(Kind::Content, name)?;
        let snapshot = &content.spec.volume_snapshot_ref.name;
        let is_orphan = self.cached::<VolumeSnapshot>(Kind::Snapshot, snapshot).is_none();
        if self.bug == Bug::DeletesOrphans && is_orphan && !content.metadata.is_deleting() {
            return Some(Running::Delete);
        }
        (protect::content_step(&content) == ContentStep::AddFinalizer)
            .then(|| Running::AddFinalizer(Box::new(content)))
    }

    pub(super) fn can_release_claim(&self, name: &str) -> bool {
        let Some(claim) = self.cached::<PersistentVolumeClaim>(Kind::Claim, name) else { return false };
        let snapshots: Vec<VolumeSnapshot> = self
            .world
            .cached
            .iter()
            .filter(|(key, _)| key.0 == Kind::Snapshot)
            .map(|(_, value)| parse(value))
            .collect();
        protect::can_release_claim(&claim, &snapshots)
    }

    pub(super) fn release_claim(&mut self, name: &str) {
        self.world.edit(Kind::Claim, name, |claim| {
            if let Some(list) = claim.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
                list.retain(|finalizer| finalizer != names::CLAIM_PROTECTION);
            }
        });
        self.world.read(Kind::Claim, name);
    }

    /// Executes a step; `false` if the worker pauses.
    pub(super) fn act(&mut self, pending: PendingStep) -> Result<(bool, Fetched), Violation> {
        let PendingStep { step, object, content, mut fetched } = pending;
        let (object, content) = (&object, content.as_ref());
        let (meta, name) = (&object.metadata, object.metadata.name.as_str());
        let content_name = content.map(|content| content.metadata.name.clone()).unwrap_or_default();
        match step {
            Step::DropState | Step::Idle | Step::Wait(_) | Step::Fail(_) => return Ok((false, fetched)),
            Step::FetchContent(name) => {
                self.world.read(Kind::Content, &name);
                fetched.content = Some(name);
            }
            Step::FetchVolume(_) => fetched.volume = true,
            Step::AddFinalizers(finalizers) => {
                if let Some(patch) = patch::add_finalizers(meta, &finalizers) {
                    self.world.patch(Kind::Snapshot, name, &patch);
                }
            }
            Step::ProtectClaim => {
                let claim = object.source_claim_name().unwrap_or_default().to_owned();
                if self.world.get(Kind::Claim, &claim).is_some_and(|claim| !is_deleting(claim)) {
                    self.world.edit(Kind::Claim, &claim, |claim| {
                        if !has_finalizer(claim, names::CLAIM_PROTECTION) {
                            claim["metadata"]["finalizers"] = json!([names::CLAIM_PROTECTION]);
                        }
                    });
                }
                self.world.read(Kind::Claim, &claim);
            }
            Step::CreateContent(new_content) => {
                // Checked again under the claim's lock.
                let claim = object.source_claim_name().unwrap_or_default().to_owned();
                let cached = self.world.cached.get(&(Kind::Claim, claim));
                let protected = cached.is_some_and(|claim| has_finalizer(claim, names::CLAIM_PROTECTION));
                if protected || self.bug == Bug::ReleasesClaimsLate {
                    let mut counter = write::content(object, &new_content);
                    let name = text(&counter, "/metadata/name").to_owned();
                    counter["metadata"]["uid"] = json!(format!("uid-{name}"));
                    if self.world.get(Kind::Content, &name).is_none() {
                        self.world.put(Kind::Content, counter);
                    }
                    self.world.read(Kind::Content, &name);
                }
            }
            Step::BindContent { class } => {
                if let Some(content) = content {
                    let patch = write::bind(&content.metadata, meta, class.as_deref());
                    self.world.patch(Kind::Content, &content_name, &patch);
                }
            }
            Step::WriteStatus(update) => {
                self.world.patch(Kind::Snapshot, name, &write::status(meta, &update.status));
            }
            Step::MarkContentBeingDeleted => {
                if let Some(content) = content {
                    let mark = [(names::BEING_DELETED, Some("yes"))];
                    self.check_snapshot_deleting(&content_name)?;
                    let patch = patch::annotate(&content.metadata, &mark);
                    self.world.patch(Kind::Content, &content_name, &patch);
                }
            }
            Step::DeleteContent => self.delete_content(&content_name)?,
            Step::RemoveFinalizers(finalizers) => {
                if let Some(patch) = patch::remove_finalizers(meta, &finalizers) {
                    self.world.patch(Kind::Snapshot, name, &patch);
                }
            }
            Step::FetchParentGroup => {
                let named = object.parent_group().map(|(key, _)| key.name).unwrap_or_default();
                self.world.read(Kind::Group, &named);
                fetched.parent = Some(self.parent_group(&named));
            }
            Step::SetDefaultClass(_) | Step::SetOwnerGroup => {
                panic!("unexpected step: the simulation has no default classes and no members without owner")
            }
        }
        Ok((true, fetched))
    }

    pub(super) fn delete_content(&mut self, name: &str) -> Result<(), Violation> {
        if self.world.get(Kind::Content, name).is_some() {
            self.check_snapshot_deleting(name)?;
        }
        self.remove_content(name);
        self.world.read(Kind::Content, name);
        Ok(())
    }

    /// Checks that the snapshot of a content that is changed is in deletion.
    fn check_snapshot_deleting(&self, content: &str) -> Result<(), Violation> {
        let Some(content) = self.world.get(Kind::Content, content) else { return Ok(()) };
        if content["metadata"]["annotations"].get(names::BEING_DELETED).is_some() {
            // It was in deletion when the content was marked, and may be gone since.
            return Ok(());
        }
        let snapshot = self.world.get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"));
        let uid = text(content, "/spec/volumeSnapshotRef/uid");
        let lives = snapshot.is_none_or(|snapshot| !is_deleting(snapshot));
        let is_match =
            snapshot.is_none_or(|snapshot| uid.is_empty() || text(snapshot, "/metadata/uid") == uid);
        let in_group =
            text(content, "/metadata/annotations/groupsnapshot.storage.k8s.io~1volumeGroupSnapshotHandle");
        let group = in_group.strip_prefix("gh-").and_then(|group| self.world.get(Kind::Group, group));
        let group_lives = group.is_some_and(|group| !is_deleting(group));
        match (lives && is_match) || group_lives {
            true => Err(Violation::DeletedTooEarly(content.to_string())),
            false => Ok(()),
        }
    }
}
