//! The controller's part for snapshots, contents and claims.

use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::super::decide::{Step, decide};
use super::super::protect::{self, ContentStep};
use super::super::view::{self, Found, Parent, Taker, View};
use super::super::{wake, write};
use super::world::{Kind, has_finalizer, is_deleting, text};
use super::{Asked, Bug, Doing, Simulation, Trouble, of};

/// A step for a snapshot, and what it was decided on.
pub(super) struct Doings {
    step: Step,
    object: VolumeSnapshot,
    content: Option<VolumeSnapshotContent>,
    asked: Asked,
}

/// The volume of a claim.
pub(super) fn volume_of(claim: &PersistentVolumeClaim) -> PersistentVolume {
    of(&json!({
        "metadata": {"name": "pv"},
        "spec": {
            "csi": {"driver": "d", "volumeHandle": claim.metadata.name},
            "claimRef": {"namespace": "shop", "name": claim.metadata.name, "uid": claim.metadata.uid},
        },
    }))
}

impl Simulation {
    pub(super) fn look(&self, name: &str, asked: Asked) -> Option<Doing> {
        let object: VolumeSnapshot = self.seen(Kind::Snapshot, name)?;
        let content_name = view::content_of(&object);
        let content: Option<VolumeSnapshotContent> = self.seen(Kind::Content, &content_name);
        let claim: Option<PersistentVolumeClaim> =
            view::claim_of(&object).and_then(|claim| self.seen(Kind::Claim, claim));
        let class: Option<VolumeSnapshotClass> = self.class.as_ref().map(of);
        let defaults: Vec<Arc<VolumeSnapshotClass>> = Vec::new();
        let volume: Option<PersistentVolume> = claim.as_ref().map(volume_of);
        let restores = |claim: &Value| wake::snapshots_of(&of(claim)).iter().any(|key| key.name == *name);
        let mut claims = self.world.seen.iter().filter(|(key, _)| key.0 == Kind::Claim);
        let known = asked.content.as_ref() == Some(&content_name) || self.bug == Bug::TrustsTheStore;
        let named = view::parent(&object);
        let stored = named.as_ref().and_then(|(key, _)| self.parent(&key.name));
        let parent = named.as_ref().map_or(Parent::None, |(_, uid)| {
            let told = asked.parent.as_ref().map(Option::as_ref);
            match self.bug {
                Bug::LetsMembersGo => Parent::Gone,
                _ => Parent::of(*uid, content.as_ref(), stored.as_ref(), told),
            }
        });
        let told = content.as_ref().and_then(|content| content.status.as_ref());
        let handle = told.and_then(|status| status.volume_group_snapshot_handle.clone());
        let group_name = handle.and_then(|handle| self.group_named_by(&handle));
        let step = decide(&View {
            snapshot: Some(&object),
            content: Found::of(content.as_ref(), known),
            asked: known,
            class: class.as_ref(),
            defaults: &defaults,
            claim: claim.as_ref(),
            volume: if asked.volume { Found::of(volume.as_ref(), true) } else { Found::NotSeen },
            node: Taker::Any,
            restoring: claims.any(|(_, claim)| restores(claim)),
            parent,
            group_name: group_name.as_deref(),
            note_volume_mode: false,
        });
        let idle = matches!(step, Step::Forget | Step::Done | Step::Wait(_));
        (!idle).then(|| Doing::Snapshot(Box::new(Doings { step, object, content, asked })))
    }

    pub(super) fn look_at_content(&self, name: &str) -> Option<Doing> {
        let content: VolumeSnapshotContent = self.seen(Kind::Content, name)?;
        let snapshot = &content.spec.volume_snapshot_ref.name;
        let is_orphan = self.seen::<VolumeSnapshot>(Kind::Snapshot, snapshot).is_none();
        if self.bug == Bug::CleansUp && is_orphan && !content.metadata.is_deleting() {
            return Some(Doing::Delete);
        }
        (protect::content(&content) == ContentStep::Guard).then(|| Doing::Guard(Box::new(content)))
    }

    pub(super) fn may_go(&self, name: &str) -> bool {
        let Some(claim) = self.seen::<PersistentVolumeClaim>(Kind::Claim, name) else { return false };
        let snapshots: Vec<VolumeSnapshot> = self
            .world
            .seen
            .iter()
            .filter(|(key, _)| key.0 == Kind::Snapshot)
            .map(|(_, value)| of(value))
            .collect();
        protect::may_go(&claim, &snapshots)
    }

    pub(super) fn let_go(&mut self, name: &str) {
        self.world.edit(Kind::Claim, name, |claim| {
            if let Some(list) = claim.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
                list.retain(|finalizer| finalizer != names::CLAIM_PROTECTION);
            }
        });
        self.world.read(Kind::Claim, name);
    }

    /// Does a step; `false` if the worker pauses.
    pub(super) fn act(&mut self, doings: Doings) -> Result<(bool, Asked), Trouble> {
        let Doings { step, object, content, mut asked } = doings;
        let (object, content) = (&object, content.as_ref());
        let (meta, name) = (&object.metadata, object.metadata.name.as_str());
        let content_name = content.map(|content| content.metadata.name.clone()).unwrap_or_default();
        match step {
            Step::Forget | Step::Done | Step::Wait(_) | Step::Fail(_) => return Ok((false, asked)),
            Step::AskContent(name) => {
                self.world.read(Kind::Content, &name);
                asked.content = Some(name);
            }
            Step::AskVolume(_) => asked.volume = true,
            Step::Guard(finalizers) => {
                if let Some(patch) = patch::add_finalizers(meta, &finalizers) {
                    self.world.patch(Kind::Snapshot, name, &patch);
                }
            }
            Step::ProtectClaim => {
                let claim = view::claim_of(object).unwrap_or_default().to_owned();
                if self.world.get(Kind::Claim, &claim).is_some_and(|claim| !is_deleting(claim)) {
                    self.world.edit(Kind::Claim, &claim, |claim| {
                        if !has_finalizer(claim, names::CLAIM_PROTECTION) {
                            claim["metadata"]["finalizers"] = json!([names::CLAIM_PROTECTION]);
                        }
                    });
                }
                self.world.read(Kind::Claim, &claim);
            }
            Step::CreateContent(creation) => {
                // Looked at once more, under the claim's lock.
                let claim = view::claim_of(object).unwrap_or_default().to_owned();
                let seen = self.world.seen.get(&(Kind::Claim, claim));
                let protected = seen.is_some_and(|claim| has_finalizer(claim, names::CLAIM_PROTECTION));
                if protected || self.bug == Bug::LetsClaimsGo {
                    let mut made = write::content(object, &creation);
                    let name = text(&made, "/metadata/name").to_owned();
                    made["metadata"]["uid"] = json!(format!("uid-{name}"));
                    if self.world.get(Kind::Content, &name).is_none() {
                        self.world.put(Kind::Content, made);
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
            Step::Mirror(mirrored) => {
                self.world.patch(Kind::Snapshot, name, &write::status(meta, &mirrored.status));
            }
            Step::MarkContent => {
                if let Some(content) = content {
                    let mark = [(names::BEING_DELETED, Some("yes"))];
                    self.is_going(&content_name)?;
                    let patch = patch::annotate(&content.metadata, &mark);
                    self.world.patch(Kind::Content, &content_name, &patch);
                }
            }
            Step::DeleteContent => self.delete_content(&content_name)?,
            Step::Release(finalizers) => {
                if let Some(patch) = patch::remove_finalizers(meta, &finalizers) {
                    self.world.patch(Kind::Snapshot, name, &patch);
                }
            }
            Step::AskParent => {
                let named = view::parent(object).map(|(key, _)| key.name).unwrap_or_default();
                self.world.read(Kind::Group, &named);
                asked.parent = Some(self.parent(&named));
            }
            Step::SetClass(_) | Step::Adopt => {
                panic!("there are no defaults here, and no members without owner")
            }
        }
        Ok((true, asked))
    }

    pub(super) fn delete_content(&mut self, name: &str) -> Result<(), Trouble> {
        if self.world.get(Kind::Content, name).is_some() {
            self.is_going(name)?;
        }
        self.remove_content(name);
        self.world.read(Kind::Content, name);
        Ok(())
    }

    /// Whether the snapshot of a content that we touch is going.
    fn is_going(&self, content: &str) -> Result<(), Trouble> {
        let Some(content) = self.world.get(Kind::Content, content) else { return Ok(()) };
        if content["metadata"]["annotations"].get(names::BEING_DELETED).is_some() {
            // It was when the content was marked, and may be gone since.
            return Ok(());
        }
        let snapshot = self.world.get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"));
        let uid = text(content, "/spec/volumeSnapshotRef/uid");
        let lives = snapshot.is_none_or(|snapshot| !is_deleting(snapshot));
        let is_its = snapshot.is_none_or(|snapshot| uid.is_empty() || text(snapshot, "/metadata/uid") == uid);
        let in_group =
            text(content, "/metadata/annotations/groupsnapshot.storage.k8s.io~1volumeGroupSnapshotHandle");
        let group = in_group.strip_prefix("gh-").and_then(|group| self.world.get(Kind::Group, group));
        let group_lives = group.is_some_and(|group| !is_deleting(group));
        match (lives && is_its) || group_lives {
            true => Err(Trouble::Lost(content.to_string())),
            false => Ok(()),
        }
    }
}
