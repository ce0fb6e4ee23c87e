//! Simulation of the rules under a thousand random schedules. Snapshots, groups, contents and claims are created
//! and deleted in any order, the cache is stale, the snapshotter is slow, writes fail, and the controller crashes
//! between any two steps. One seed determines one schedule.
//!
//! Asserted: no content is deleted or marked while its snapshot or its group exists, no member is deleted before
//! its group, and no claim while a snapshot is being created from it. In the end nothing is left: no finalizer, no
//! content and no snapshot in the driver.
//!
//! The controller's steps for snapshots are in [`snapshots`], for groups in [`groups`]; the driver's side is in
//! [`snapshotter`].

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::patch;
use wharf_model::snapshot::names;
use wharf_model::testing::{SeededRng, SimulatedApi, has_finalizer, is_deleting, text};
use wharf_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

mod groups;
mod snapshots;
mod snapshotter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Snapshot,
    Content,
    Claim,
    Group,
    GroupContent,
}

const KINDS: [Kind; 5] = [Kind::Snapshot, Kind::Content, Kind::Claim, Kind::Group, Kind::GroupContent];
/// The process of the world with a cache.
const CONTROLLER: Option<usize> = Some(0);

const TICKS: usize = 320;
const CLAIMS: [&str; 2] = ["data", "logs"];

/// A bug planted into the controller.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A content missing from the cache is taken as deleted.
    TrustsCache,
    /// A claim is released based on an earlier observation.
    ReleasesClaimsLate,
    /// Contents without a snapshot are deleted.
    DeletesOrphans,
    /// A group's content missing from the cache is taken as deleted.
    TrustsCacheForGroups,
    /// A member is deleted without its group.
    DeletesMembersAlone,
}

/// A violated condition.
#[derive(Debug, Clone, PartialEq)]
enum Violation {
    /// A content or member was deleted or marked while its snapshot or group was not in deletion.
    DeletedTooEarly(String),
    /// A claim was deleted while a snapshot was being created from it.
    Unprotected(String),
    /// Objects that are never released.
    LeftBehind(String),
    /// Snapshots left in the driver.
    Leaked(BTreeSet<String>),
}

#[derive(Debug, Clone, PartialEq)]
enum WorkKey {
    Snapshot(String),
    Content(String),
    Claim(String),
    Group(String),
    GroupContent(String),
}

/// Responses of the API server, kept during one reconcile.
#[derive(Clone, Default)]
struct Fetched {
    content: Option<String>,
    volume: bool,
    /// The group of a snapshot, if it exists.
    parent: Option<Option<super::view::GroupWithContent>>,
    /// The source claims of a group.
    sources: Option<Vec<super::groups::view::SourceClaim>>,
}

enum Running {
    Snapshot(Box<snapshots::PendingStep>),
    Group(Box<groups::PendingStep>),
    AddFinalizer(Box<VolumeSnapshotContent>),
    AddGroupFinalizer(Box<VolumeGroupSnapshotContent>),
    ReleaseClaim { allowed: bool },
    Delete,
}

struct Simulation {
    bug: Bug,
    chance: SeededRng,
    world: SimulatedApi<Kind>,
    class: Option<Value>,
    running: Vec<(WorkKey, Running)>,
    /// The driver's snapshots, by content.
    driver_snapshots: BTreeSet<String>,
    counter: u64,
    /// Whether writes may fail.
    faults: bool,
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl Simulation {
    fn new(seed: u64, bug: Bug) -> Self {
        let class = json!({"metadata": {"name": "fast"}, "driver": "d", "deletionPolicy": "Delete"});
        Self {
            bug,
            chance: SeededRng::new(seed),
            world: SimulatedApi::new(1),
            class: Some(class),
            running: Vec::new(),
            driver_snapshots: BTreeSet::new(),
            counter: 0,
            faults: true,
        }
    }

    fn run(mut self) -> Result<(), Violation> {
        for _ in 0..TICKS {
            match self.chance.below(40) {
                0..=2 => self.user_action(),
                3..=14 => self.deliver_event(),
                15..=23 => self.start(),
                24..=33 => self.finish()?,
                34..=38 => self.snapshotter_step(),
                // This bug needs a slow write, which a crash would end.
                _ if self.bug == Bug::ReleasesClaimsLate => {}
                _ => self.crash(),
            }
            self.check()?;
        }
        self.end()
    }

    fn user_action(&mut self) {
        self.counter += 1;
        let n = self.counter;
        let pick = self.chance.below(13);
        let names = |world: &SimulatedApi<Kind>, kind| -> Vec<String> {
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
                    self.world.put(Kind::Claim, claim_json(claim, n));
                }
            }
            2 => {
                let content = format!("pre-{n}");
                self.driver_snapshots.insert(content.clone());
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
                    self.world.delete(None, Kind::Snapshot, &name);
                }
            }
            5 => {
                if let Some(name) = some(Kind::Content) {
                    self.remove_content(None, &name);
                }
            }
            6 | 8 => self.world.delete(None, Kind::Claim, CLAIMS[n as usize % 2]),
            7 => {
                if let Some(name) = some(Kind::Snapshot) {
                    let mut claim = claim_json(&format!("restore-{n}"), n);
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
                    self.world.delete(None, Kind::Group, &name);
                }
            }
            12 if n.is_multiple_of(3) => {
                if let Some(name) = some(Kind::GroupContent) {
                    self.world.delete(None, Kind::GroupContent, &name);
                }
            }
            _ => self.class = if self.class.is_some() { None } else { Self::new(0, Bug::None).class },
        }
    }

    /// A user deletes a content. Without a finalizer it is gone at once, and its snapshot in the driver is the
    /// user's responsibility.
    fn remove_content(&mut self, process: Option<usize>, name: &str) {
        self.world.delete(process, Kind::Content, name);
        if self.world.get(Kind::Content, name).is_none() {
            self.driver_snapshots.remove(name);
        }
    }

    /// The controller crashes. A new process lists all objects before its first step, and a LIST without a version returns
    /// the server's current state. The bugs of trusting the cache need the outdated cache of a standby that takes over.
    fn crash(&mut self) {
        self.running.clear();
        match self.bug {
            Bug::TrustsCache | Bug::TrustsCacheForGroups => self.world.restart(0),
            _ => self.world.relist(0),
        }
    }

    fn start(&mut self) {
        let mut items: Vec<WorkKey> = Vec::new();
        for (kind, name) in self.world.cached(0).keys() {
            items.push(match kind {
                Kind::Snapshot => WorkKey::Snapshot(name.clone()),
                Kind::Content => WorkKey::Content(name.clone()),
                Kind::Claim => WorkKey::Claim(name.clone()),
                Kind::Group => WorkKey::Group(name.clone()),
                Kind::GroupContent => WorkKey::GroupContent(name.clone()),
            });
        }
        items.retain(|item| self.running.iter().all(|(busy, _)| busy != item));
        if !items.is_empty() {
            let item = items.swap_remove(self.chance.below(items.len() as u64) as usize);
            self.begin(item, Fetched::default());
        }
    }

    fn begin(&mut self, item: WorkKey, fetched: Fetched) {
        let running = match &item {
            WorkKey::Snapshot(name) => self.decide_snapshot(name, fetched),
            WorkKey::Content(name) => self.decide_content(name),
            WorkKey::Group(name) => self.decide_group(name, fetched),
            WorkKey::GroupContent(name) => self.decide_group_content(name),
            WorkKey::Claim(name) => {
                let allowed = self.can_release_claim(name);
                allowed.then_some(Running::ReleaseClaim { allowed })
            }
        };
        if let Some(running) = running {
            self.running.push((item, running));
        }
    }

    fn cached<T>(&self, kind: Kind, name: &str) -> Option<T>
    where
        T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
    {
        self.world.cached_object::<T>(0, kind, name).map(Arc::unwrap_or_clone)
    }

    /// The watch delivers one change of a random kind.
    fn deliver_event(&mut self) {
        let kind = KINDS[self.chance.below(KINDS.len() as u64) as usize];
        self.world.deliver(0, kind);
    }

    /// A step ends. Its worker continues with the same item.
    fn finish(&mut self) -> Result<(), Violation> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.chance.below(self.running.len() as u64) as usize;
        let (item, running) = self.running.swap_remove(at);
        // This bug needs a slow write to show.
        if self.bug == Bug::ReleasesClaimsLate
            && matches!(running, Running::ReleaseClaim { .. })
            && !self.chance.one_in(20)
        {
            self.running.push((item, running));
            return Ok(());
        }
        // A failed write.
        if self.faults && self.chance.one_in(8) {
            return Ok(());
        }
        let mut fetched = Fetched::default();
        match (&item, running) {
            (_, Running::Snapshot(pending)) => {
                let (again, known) = self.act(*pending)?;
                fetched = known;
                if !again {
                    return Ok(());
                }
            }
            (_, Running::Group(pending)) => {
                let (again, known) = self.act_on_group(*pending)?;
                fetched = known;
                if !again {
                    return Ok(());
                }
            }
            (WorkKey::GroupContent(name), Running::AddGroupFinalizer(content)) => {
                if let Some(patch) = patch::add_finalizer(&content.metadata, names::GROUP_CONTENT_PROTECTION)
                {
                    self.world.patch(CONTROLLER, Kind::GroupContent, name, &patch);
                }
            }
            (WorkKey::Content(name), Running::AddFinalizer(content)) => {
                if let Some(patch) = patch::add_finalizer(&content.metadata, names::CONTENT_PROTECTION) {
                    self.world.patch(CONTROLLER, Kind::Content, name, &patch);
                }
            }
            (WorkKey::Content(name), Running::Delete) => self.delete_content(name)?,
            (WorkKey::Claim(name), Running::ReleaseClaim { allowed }) => {
                // The check and the write are atomic under the claim's lock.
                if (self.bug == Bug::ReleasesClaimsLate && allowed) || self.can_release_claim(name) {
                    self.release_claim(name);
                }
            }
            (item, _) => panic!("unexpected step for {item:?}"),
        }
        self.begin(item, fetched);
        Ok(())
    }

    /// Checks that no snapshot is being created from a claim that is gone.
    fn check(&self) -> Result<(), Violation> {
        for content in
            self.world.objects.iter().filter(|(key, _)| key.0 == Kind::Content).map(|(_, value)| value)
        {
            let claim = content.pointer("/spec/source/volumeHandle").and_then(Value::as_str);
            let snapshot = self.world.get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"));
            let wanted = snapshot.is_some_and(|snapshot| !is_deleting(snapshot));
            // Members already exist in the driver.
            let member = content["metadata"]["annotations"].get(names::GROUP_HANDLE).is_some();
            let taking = !member
                && content.pointer("/status/readyToUse") != Some(&Value::Bool(true))
                && !is_deleting(content);
            if let Some(claim) = claim.filter(|_| wanted && taking)
                && self
                    .world
                    .get(Kind::Claim, claim)
                    .is_none_or(|claim| !has_finalizer(claim, names::CLAIM_PROTECTION))
            {
                return Err(Violation::Unprotected(content.to_string()));
            }
        }
        Ok(())
    }

    /// Stops the faults, deletes everything and runs the schedule to its end.
    fn end(mut self) -> Result<(), Violation> {
        self.faults = false;
        let all: Vec<_> = self.world.objects.keys().cloned().collect();
        for (kind, name) in &all {
            if !matches!(kind, Kind::Content | Kind::GroupContent) {
                self.world.delete(None, *kind, name);
            }
        }
        for tick in 0..12_000 {
            if self.world.objects.is_empty() {
                break;
            }
            for _ in 0..5 {
                self.deliver_event();
            }
            self.start();
            self.finish()?;
            self.snapshotter_step();
            // The administrator deletes retained contents.
            if tick % 50 == 49 {
                for (_, name) in all.iter().filter(|(kind, _)| *kind == Kind::Content) {
                    let is_kept = self.world.get(Kind::Content, name).is_some_and(|content| {
                        self.world
                            .get(Kind::Snapshot, text(content, "/spec/volumeSnapshotRef/name"))
                            .is_none()
                    });
                    if is_kept {
                        self.remove_content(None, name);
                    }
                }
            }
        }
        match (self.world.objects.is_empty(), self.driver_snapshots.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Violation::LeftBehind(self.world.remaining())),
            (true, false) => Err(Violation::Leaked(self.driver_snapshots)),
        }
    }
}

fn snapshot(n: u64, source: Value) -> Value {
    json!({
        "metadata": {"name": format!("s{n}"), "namespace": "shop", "uid": format!("u{n}")},
        "spec": {"source": source, "volumeSnapshotClassName": "fast"},
    })
}

fn claim_json(name: &str, n: u64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}-{n}")},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    })
}

/// sidecars.md 1.4 "Delete", "Finalizers", "Group".
#[test]
fn random_schedules_end_clean() {
    for seed in 0..1000 {
        if let Err(violation) = Simulation::new(seed, Bug::None).run() {
            panic!("seed {seed}: {violation:?}");
        }
    }
}

/// The simulation detects the bugs it was written for.
#[test]
fn planted_bugs_are_detected() {
    let found = |bug: Bug, is: fn(&Violation) -> bool| {
        let seed =
            (0..5_000).find(|seed| Simulation::new(*seed, bug).run().is_err_and(|violation| is(&violation)));
        println!("{bug:?}: seed {seed:?}");
        seed.is_some()
    };
    let remaining =
        |violation: &Violation| matches!(violation, Violation::LeftBehind(_) | Violation::Leaked(_));
    assert!(found(Bug::TrustsCache, remaining));
    assert!(found(Bug::ReleasesClaimsLate, |violation| matches!(violation, Violation::Unprotected(_))));
    let lost = |violation: &Violation| matches!(violation, Violation::DeletedTooEarly(_));
    assert!(found(Bug::DeletesOrphans, lost));
    assert!(found(Bug::TrustsCacheForGroups, remaining));
    assert!(found(Bug::DeletesMembersAlone, lost));
}
