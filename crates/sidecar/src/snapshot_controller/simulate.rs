//! The rules under hundreds of schedules: snapshots, groups, contents and claims come and go in any order, watches are
//! behind, the snapshotter takes its time, writes fail, and the controller dies between any two steps. One seed, one
//! story.
//!
//! Asserted: no content is deleted or marked while its snapshot or its group lives, and no member goes before its
//! group; no claim goes while a snapshot is being taken of it; and in the end nothing is left, neither finalizer nor
//! content nor what the driver had.
//!
//! What the controller does for snapshots is in [`snapshots`], for groups in [`groups`]; the driver's side is in
//! [`snapshotter`].

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

use crate::attacher::simulate::Chance;
use world::{Kind, World, has_finalizer, is_deleting, text};

mod groups;
mod snapshots;
mod snapshotter;
mod world;

const TICKS: usize = 320;
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
    /// A group's content that is not in the store is taken for gone.
    TrustsTheStoreForGroups,
    /// A member goes alone.
    LetsMembersGo,
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq)]
enum Trouble {
    /// A content or a member was deleted or marked, and its snapshot or its group was not going.
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
    Group(String),
    GroupContent(String),
}

/// What the server said to one worker.
#[derive(Clone, Default)]
struct Asked {
    content: Option<String>,
    volume: bool,
    /// The group of a snapshot, which may be gone.
    parent: Option<Option<super::view::Group>>,
    /// The claims of a group.
    sources: Option<Vec<super::groups::view::Source>>,
}

enum Doing {
    Snapshot(Box<snapshots::Doings>),
    Group(Box<groups::Doings>),
    Guard(Box<VolumeSnapshotContent>),
    GuardGroup(Box<VolumeGroupSnapshotContent>),
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
        let pick = self.chance.below(13);
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
            9 | 10 => {
                self.world.put(
                    Kind::Group,
                    json!({
                        "metadata": {"name": format!("g{n}"), "namespace": "shop", "uid": format!("gu{n}")},
                        "spec": {"source": {"selector": {}}, "volumeGroupSnapshotClassName": "group"},
                    }),
                );
            }
            11 => {
                if let Some(name) = some(Kind::Group) {
                    self.world.delete(Kind::Group, &name);
                }
            }
            12 if n.is_multiple_of(3) => {
                if let Some(name) = some(Kind::GroupContent) {
                    self.world.delete(Kind::GroupContent, &name);
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

    fn start(&mut self) {
        let mut subjects: Vec<Subject> = Vec::new();
        for (kind, name) in self.world.seen.keys() {
            subjects.push(match kind {
                Kind::Snapshot => Subject::Snapshot(name.clone()),
                Kind::Content => Subject::Content(name.clone()),
                Kind::Claim => Subject::Claim(name.clone()),
                Kind::Group => Subject::Group(name.clone()),
                Kind::GroupContent => Subject::GroupContent(name.clone()),
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
            Subject::Group(name) => self.look_at_group(name, asked),
            Subject::GroupContent(name) => self.look_at_group_content(name),
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
                let (again, known) = self.act(*doings)?;
                asked = known;
                if !again {
                    return Ok(());
                }
            }
            (_, Doing::Group(doings)) => {
                let (again, known) = self.act_on_group(*doings)?;
                asked = known;
                if !again {
                    return Ok(());
                }
            }
            (Subject::GroupContent(name), Doing::GuardGroup(content)) => {
                if let Some(patch) = patch::add_finalizer(&content.metadata, names::GROUP_CONTENT_PROTECTION)
                {
                    self.world.patch(Kind::GroupContent, name, &patch);
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

    /// No snapshot is being taken of a claim that is gone.
    fn check(&self) -> Result<(), Trouble> {
        for content in
            self.world.objects.iter().filter(|(key, _)| key.0 == Kind::Content).map(|(_, value)| value)
        {
            let claim = content.pointer("/spec/source/volumeHandle").and_then(Value::as_str);
            let snapshot = self.world.get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"));
            let wanted = snapshot.is_some_and(|snapshot| !is_deleting(snapshot));
            // Members are there already.
            let member = content["metadata"]["annotations"].get(names::GROUP_HANDLE).is_some();
            let taking = !member
                && content.pointer("/status/readyToUse") != Some(&Value::Bool(true))
                && !is_deleting(content);
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
            if !matches!(kind, Kind::Content | Kind::GroupContent) {
                self.world.delete(*kind, name);
            }
        }
        for tick in 0..12_000 {
            if self.world.objects.is_empty() {
                break;
            }
            for _ in 0..5 {
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

/// sidecars.md 1.4 "Delete", "Finalizers", "Group".
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
    let lost = |trouble: &Trouble| matches!(trouble, Trouble::Lost(_));
    assert!(found(Bug::CleansUp, lost));
    assert!(found(Bug::TrustsTheStoreForGroups, left));
    assert!(found(Bug::LetsMembersGo, lost));
}
