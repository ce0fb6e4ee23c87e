//! The rules under hundreds of schedules: snapshots, contents and claims come and go in any order, watches are behind,
//! the snapshotter takes its time, writes fail, and the controller dies between any two steps. One seed, one story.
//!
//! Asserted: no content is deleted or marked while its snapshot lives; no claim goes while a snapshot is being taken
//! of it; and in the end nothing is left, neither finalizer nor content nor what the driver had.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{
    PersistentVolume, PersistentVolumeClaim, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::decide::{Step, decide};
use super::protect::{self, ContentStep};
use super::view::{self, Found, Parent, Taker, View};
use super::{wake, write};
use crate::attacher::simulate::Chance;
use world::{Kind, World, has_finalizer, is_deleting, text};

mod world;

const TICKS: usize = 240;
const CLAIMS: [&str; 2] = ["data", "logs"];

/// What is wrong with the controller, if anything.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// What is not in the store is taken for gone.
    TrustsTheStore,
    /// A claim is let go by a look of before.
    LetsClaimsGo,
    /// Contents without a snapshot are cleaned up.
    CleansUp,
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq)]
enum Trouble {
    /// A content was deleted or marked, and its snapshot was not going.
    Lost(String),
    /// A claim went while a snapshot was being taken of it.
    Unprotected(String),
    /// Objects that nobody lets go.
    Left(String),
    /// What the driver still has.
    Leaked(BTreeSet<String>),
}

#[derive(Debug, Clone, PartialEq)]
enum Subject {
    Snapshot(String),
    Content(String),
    Claim(String),
}

/// What the server said to one worker.
#[derive(Clone, Default, PartialEq)]
struct Asked {
    content: Option<String>,
    volume: bool,
}

/// A step for a snapshot, and what it was decided on.
struct Doings {
    step: Step,
    object: VolumeSnapshot,
    content: Option<VolumeSnapshotContent>,
    asked: Asked,
}

enum Doing {
    Snapshot(Box<Doings>),
    Guard(Box<VolumeSnapshotContent>),
    LetGo { may: bool },
    Delete,
}

struct Simulation {
    bug: Bug,
    chance: Chance,
    world: World,
    class: Option<Value>,
    running: Vec<(Subject, Doing)>,
    /// What the driver has, by content.
    physical: BTreeSet<String>,
    made: u64,
    /// Whether writes may fail.
    trouble: bool,
    /// Whether a process has begun with an old store. It may let a claim go that it does not know to be needed.
    crashed: bool,
}

fn of<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Self {
        let class = json!({"metadata": {"name": "fast"}, "driver": "d", "deletionPolicy": "Delete"});
        Self {
            bug,
            chance: Chance(seed),
            world: World::default(),
            class: Some(class),
            running: Vec::new(),
            physical: BTreeSet::new(),
            made: 0,
            trouble: true,
            crashed: false,
        }
    }

    fn run(mut self) -> Result<(), Trouble> {
        for _ in 0..TICKS {
            match self.chance.below(40) {
                0..=2 => self.user(),
                3..=14 => self.world.tell(&mut self.chance),
                15..=23 => self.start(),
                24..=33 => self.finish()?,
                34..=38 => self.snapshotter(),
                // What this one does, a process with an old store may do too.
                _ if self.bug == Bug::LetsClaimsGo => {}
                _ => self.crash(),
            }
            self.check()?;
        }
        self.end()
    }

    fn user(&mut self) {
        self.made += 1;
        let n = self.made;
        let pick = self.chance.below(10);
        let names = |world: &World, kind| -> Vec<String> {
            world.objects.keys().filter(|key| key.0 == kind).map(|key| key.1.clone()).collect()
        };
        let mut some = |kind| {
            let names = names(&self.world, kind);
            (!names.is_empty()).then(|| names[self.chance.below(names.len() as u64) as usize].clone())
        };
        match pick {
            0 | 1 => {
                let claim = CLAIMS[n as usize % 2];
                let source = json!({"persistentVolumeClaimName": claim});
                self.world.put(Kind::Snapshot, snapshot(n, source));
                if self.world.get(Kind::Claim, claim).is_none() {
                    self.world.put(Kind::Claim, claim_of(claim, n));
                }
            }
            2 => {
                let content = format!("pre-{n}");
                self.physical.insert(content.clone());
                let policy = if self.chance.one_in(2) { "Retain" } else { "Delete" };
                self.world.put(
                    Kind::Content,
                    json!({
                        "metadata": {"name": content, "uid": format!("uid-{content}")},
                        "spec": {
                            "driver": "d", "deletionPolicy": policy, "source": {"snapshotHandle": content},
                            "volumeSnapshotRef": {"name": format!("s{n}"), "namespace": "shop"},
                        },
                    }),
                );
                self.world.put(Kind::Snapshot, snapshot(n, json!({"volumeSnapshotContentName": content})));
            }
            3 | 4 => {
                if let Some(name) = some(Kind::Snapshot) {
                    self.world.delete(Kind::Snapshot, &name);
                }
            }
            5 => {
                if let Some(name) = some(Kind::Content) {
                    self.remove_content(&name);
                }
            }
            6 | 8 => self.world.delete(Kind::Claim, CLAIMS[n as usize % 2]),
            7 => {
                if let Some(name) = some(Kind::Snapshot) {
                    let mut claim = claim_of(&format!("restore-{n}"), n);
                    claim["spec"]["dataSource"] = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name});
                    claim["status"]["phase"] = json!("Pending");
                    self.world.put(Kind::Claim, claim);
                }
            }
            _ => self.class = if self.class.is_some() { None } else { Self::new(0, Bug::None).class },
        }
    }

    /// A user deletes a content. Where it has no finalizer it is gone at once, and what the driver has is the user's.
    fn remove_content(&mut self, name: &str) {
        self.world.delete(Kind::Content, name);
        if self.world.get(Kind::Content, name).is_none() {
            self.physical.remove(name);
        }
    }

    fn crash(&mut self) {
        self.running.clear();
        self.world.forget();
        self.crashed = true;
    }

    /// The driver's sidecar, one step for one content.
    fn snapshotter(&mut self) {
        let names: Vec<String> =
            self.world.objects.keys().filter(|key| key.0 == Kind::Content).map(|key| key.1.clone()).collect();
        if names.is_empty() {
            return;
        }
        let name = &names[self.chance.below(names.len() as u64) as usize];
        let Some(content) = self.world.get(Kind::Content, name).cloned() else { return };
        let annotated = |annotation: &str| content["metadata"]["annotations"].get(annotation).is_some();
        let dynamic = content["spec"]["source"].get("volumeHandle").is_some();
        let is_bound = !text(&content, "/spec/volumeSnapshotRef/uid").is_empty();
        if is_deleting(&content) {
            if annotated(names::BEING_CREATED) {
                // The driver ends what it was asked for.
                self.world.edit(Kind::Content, name, |content| {
                    is_created(content);
                    content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": true});
                });
            } else if annotated(names::BEING_DELETED) || !is_bound {
                // With Delete the driver deletes it, with Retain it is the administrator's from here on.
                self.physical.remove(name);
                let meta = of::<VolumeSnapshotContent>(&content).metadata;
                if let Some(patch) = patch::remove_finalizer(&meta, names::CONTENT_PROTECTION) {
                    self.world.edit(Kind::Content, name, |content| {
                        *content = crate::attacher::simulate::world::patched(content, &patch).unwrap();
                    });
                }
            }
            return;
        }
        match content.pointer("/status/readyToUse") {
            None if dynamic && !annotated(names::BEING_CREATED) => {
                // The driver may cut it from now on.
                self.physical.insert(name.clone());
                self.world.edit(Kind::Content, name, |content| {
                    content["metadata"]["annotations"][names::BEING_CREATED] = json!("yes");
                });
            }
            None => self.world.edit(Kind::Content, name, |content| {
                is_created(content);
                content["status"] = json!({"snapshotHandle": "h", "creationTime": 1, "readyToUse": !dynamic});
            }),
            Some(Value::Bool(false)) => {
                self.world.edit(Kind::Content, name, |content| content["status"]["readyToUse"] = json!(true));
            }
            Some(_) => {}
        }
    }

    fn start(&mut self) {
        let mut subjects: Vec<Subject> = Vec::new();
        for (kind, name) in self.world.seen.keys() {
            subjects.push(match kind {
                Kind::Snapshot => Subject::Snapshot(name.clone()),
                Kind::Content => Subject::Content(name.clone()),
                Kind::Claim => Subject::Claim(name.clone()),
            });
        }
        subjects.retain(|subject| self.running.iter().all(|(busy, _)| busy != subject));
        if !subjects.is_empty() {
            let subject = subjects.swap_remove(self.chance.below(subjects.len() as u64) as usize);
            self.begin(subject, Asked::default());
        }
    }

    fn begin(&mut self, subject: Subject, asked: Asked) {
        let doing = match &subject {
            Subject::Snapshot(name) => self.look(name, asked),
            Subject::Content(name) => self.look_at_content(name),
            Subject::Claim(name) => {
                let may = self.may_go(name);
                may.then_some(Doing::LetGo { may })
            }
        };
        if let Some(doing) = doing {
            self.running.push((subject, doing));
        }
    }

    fn seen<T: serde::de::DeserializeOwned>(&self, kind: Kind, name: &str) -> Option<T> {
        self.world.seen.get(&(kind, name.to_owned())).map(of)
    }

    fn look(&self, name: &str, asked: Asked) -> Option<Doing> {
        let object: VolumeSnapshot = self.seen(Kind::Snapshot, name)?;
        let content_name = view::content_of(&object);
        let content: Option<VolumeSnapshotContent> = self.seen(Kind::Content, &content_name);
        let claim: Option<PersistentVolumeClaim> =
            view::claim_of(&object).and_then(|claim| self.seen(Kind::Claim, claim));
        let class: Option<VolumeSnapshotClass> = self.class.as_ref().map(of);
        let defaults: Vec<Arc<VolumeSnapshotClass>> = Vec::new();
        let volume: Option<PersistentVolume> = claim.as_ref().map(|claim| {
            of(&json!({
                "metadata": {"name": "pv"},
                "spec": {
                    "csi": {"driver": "d", "volumeHandle": claim.metadata.name},
                    "claimRef": {"namespace": "shop", "name": claim.metadata.name, "uid": claim.metadata.uid},
                },
            }))
        });
        let restores = |claim: &Value| wake::snapshots_of(&of(claim)).iter().any(|key| key.name == *name);
        let mut claims = self.world.seen.iter().filter(|(key, _)| key.0 == Kind::Claim);
        let known = asked.content.as_ref() == Some(&content_name) || self.bug == Bug::TrustsTheStore;
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
            parent: Parent::None,
            group_name: None,
            note_volume_mode: false,
        });
        let idle = matches!(step, Step::Forget | Step::Done | Step::Wait(_));
        (!idle).then(|| Doing::Snapshot(Box::new(Doings { step, object, content, asked })))
    }

    fn look_at_content(&self, name: &str) -> Option<Doing> {
        let content: VolumeSnapshotContent = self.seen(Kind::Content, name)?;
        let snapshot = &content.spec.volume_snapshot_ref.name;
        let is_orphan = self.seen::<VolumeSnapshot>(Kind::Snapshot, snapshot).is_none();
        if self.bug == Bug::CleansUp && is_orphan && !content.metadata.is_deleting() {
            return Some(Doing::Delete);
        }
        (protect::content(&content) == ContentStep::Guard).then(|| Doing::Guard(Box::new(content)))
    }

    fn may_go(&self, name: &str) -> bool {
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

    /// A step ends, and its worker goes on with the same subject.
    fn finish(&mut self) -> Result<(), Trouble> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.chance.below(self.running.len() as u64) as usize;
        let (subject, doing) = self.running.swap_remove(at);
        // That one shows when the write is slow.
        if self.bug == Bug::LetsClaimsGo && matches!(doing, Doing::LetGo { .. }) && !self.chance.one_in(20) {
            self.running.push((subject, doing));
            return Ok(());
        }
        // The server may be away.
        if self.trouble && self.chance.one_in(8) {
            return Ok(());
        }
        let mut asked = Asked::default();
        match (&subject, doing) {
            (_, Doing::Snapshot(doings)) => {
                let Doings { step, object, content, asked: before } = *doings;
                asked = before;
                if !self.act(step, &object, content.as_ref(), &mut asked)? {
                    return Ok(());
                }
            }
            (Subject::Content(name), Doing::Guard(content)) => {
                if let Some(patch) = patch::add_finalizer(&content.metadata, names::CONTENT_PROTECTION) {
                    self.world.patch(Kind::Content, name, &patch);
                }
            }
            (Subject::Content(name), Doing::Delete) => self.delete_content(name)?,
            (Subject::Claim(name), Doing::LetGo { may }) => {
                // Looking and writing are one, under the claim's lock.
                if (self.bug == Bug::LetsClaimsGo && may) || self.may_go(name) {
                    self.let_go(name);
                }
            }
            (subject, _) => panic!("{subject:?} does not do that"),
        }
        self.begin(subject, asked);
        Ok(())
    }

    fn let_go(&mut self, name: &str) {
        self.world.edit(Kind::Claim, name, |claim| {
            if let Some(list) = claim.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
                list.retain(|finalizer| finalizer != names::CLAIM_PROTECTION);
            }
        });
        self.world.read(Kind::Claim, name);
    }

    /// Does a step; `false` if the worker pauses.
    fn act(
        &mut self,
        step: Step,
        object: &VolumeSnapshot,
        content: Option<&VolumeSnapshotContent>,
        asked: &mut Asked,
    ) -> Result<bool, Trouble> {
        let (meta, name) = (&object.metadata, object.metadata.name.as_str());
        let content_name = content.map(|content| content.metadata.name.clone()).unwrap_or_default();
        match step {
            Step::Forget | Step::Done | Step::Wait(_) | Step::Fail(_) => return Ok(false),
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
            Step::AskParent | Step::SetClass(_) | Step::Adopt => {
                panic!("there are no groups or defaults here")
            }
        }
        Ok(true)
    }

    fn delete_content(&mut self, name: &str) -> Result<(), Trouble> {
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
        match lives && is_its {
            true => Err(Trouble::Lost(content.to_string())),
            false => Ok(()),
        }
    }

    /// No snapshot is being taken of a claim that is gone.
    fn check(&self) -> Result<(), Trouble> {
        for content in
            self.world.objects.iter().filter(|(key, _)| key.0 == Kind::Content).map(|(_, value)| value)
        {
            let claim = content.pointer("/spec/source/volumeHandle").and_then(Value::as_str);
            let snapshot = self.world.get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"));
            let wanted = snapshot.is_some_and(|snapshot| !is_deleting(snapshot));
            let taking =
                content.pointer("/status/readyToUse") != Some(&Value::Bool(true)) && !is_deleting(content);
            if let Some(claim) = claim.filter(|_| wanted && taking)
                && self
                    .world
                    .get(Kind::Claim, claim)
                    .is_none_or(|claim| !self.crashed && !has_finalizer(claim, names::CLAIM_PROTECTION))
            {
                return Err(Trouble::Unprotected(content.to_string()));
            }
        }
        Ok(())
    }

    /// Everything is deleted, and nobody is in trouble any more.
    fn end(mut self) -> Result<(), Trouble> {
        self.trouble = false;
        let all: Vec<_> = self.world.objects.keys().cloned().collect();
        for (kind, name) in &all {
            if *kind != Kind::Content {
                self.world.delete(*kind, name);
            }
        }
        for tick in 0..6_000 {
            if self.world.objects.is_empty() {
                break;
            }
            for _ in 0..3 {
                self.world.tell(&mut self.chance);
            }
            self.start();
            self.finish()?;
            self.snapshotter();
            // What was kept is its administrator's to delete.
            if tick % 50 == 49 {
                for (_, name) in all.iter().filter(|(kind, _)| *kind == Kind::Content) {
                    let is_kept = self.world.get(Kind::Content, name).is_some_and(|content| {
                        self.world
                            .get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"))
                            .is_none()
                    });
                    if is_kept {
                        self.remove_content(name);
                    }
                }
            }
        }
        match (self.world.objects.is_empty(), self.physical.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Trouble::Left(self.world.left())),
            (true, false) => Err(Trouble::Leaked(self.physical)),
        }
    }
}

/// The driver has answered.
fn is_created(content: &mut Value) {
    if let Some(annotations) = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(names::BEING_CREATED);
    }
}

fn snapshot(n: u64, source: Value) -> Value {
    json!({
        "metadata": {"name": format!("s{n}"), "namespace": "shop", "uid": format!("u{n}")},
        "spec": {"source": source, "volumeSnapshotClassName": "fast"},
    })
}

fn claim_of(name: &str, n: u64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}-{n}")},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    })
}

/// sidecars.md 1.4 "Delete", "Finalizers".
#[test]
fn hundreds_of_stories_end_well() {
    for seed in 0..400 {
        if let Err(trouble) = Simulation::new(seed, Bug::None).run() {
            panic!("seed {seed}: {trouble:?}");
        }
    }
}

/// The simulation finds what it is for.
#[test]
fn planted_bugs_are_found() {
    let found = |bug: Bug, is: fn(&Trouble) -> bool| {
        let seed =
            (0..5_000).find(|seed| Simulation::new(*seed, bug).run().is_err_and(|trouble| is(&trouble)));
        println!("{bug:?}: seed {seed:?}");
        seed.is_some()
    };
    let left = |trouble: &Trouble| matches!(trouble, Trouble::Left(_) | Trouble::Leaked(_));
    assert!(found(Bug::TrustsTheStore, left));
    assert!(found(Bug::LetsClaimsGo, |trouble| matches!(trouble, Trouble::Unprotected(_))));
    assert!(found(Bug::CleansUp, |trouble| matches!(trouble, Trouble::Lost(_))));
}
