//! The random steps of the workload.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_testkit::SeededRng;

use super::consistency::{Observed, bytes, group_of, text};
use super::environment::{Environment, NAMESPACE, Victim};
use super::model::{Claim, Group, Model, Snapshot, Source, Text};

const MIB: u64 = 1 << 20;
/// The largest claim size; enough for a copy of any volume.
const MOST_BYTES: u64 = 1 << 30;
const MOST_CLAIMS: usize = 80;
const MOST_SNAPSHOTS: usize = 40;
const MOST_GROUPS: usize = 6;
const TEAMS: usize = 6;
/// The interval between two reads of all objects.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long it may take until all components agree.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The running workload.
pub(crate) struct Workload {
    env: Environment,
    rng: SeededRng,
    model: Model,
    last_poll: Instant,
    names: usize,
    steps: BTreeMap<&'static str, usize>,
    kills: BTreeMap<Victim, usize>,
    doomed: usize,
}

impl Workload {
    pub(crate) fn new(env: Environment) -> Self {
        Self {
            env,
            rng: SeededRng::from_env("SOAK_SEED"),
            model: Model::default(),
            last_poll: Instant::now(),
            names: 0,
            steps: BTreeMap::new(),
            kills: BTreeMap::new(),
            doomed: 0,
        }
    }

    /// Replaces the faults of the driver.
    pub(crate) fn set_random_faults(&mut self) {
        self.env.set_random_faults(&mut self.rng);
    }

    /// One random action, once or several times; actions that do not apply are skipped. May kill a component first.
    pub(crate) fn step(&mut self) {
        if self.last_poll.elapsed() > POLL_INTERVAL {
            let observed = self.env.retry("list all objects", Observed::read);
            self.record_progress(&observed);
        }
        self.maybe_kill();
        let (step, most): (fn(&mut Self) -> Option<&'static str>, usize) = match self.rng.below(24) {
            0..4 => (Self::new_claim, 8),
            4..7 => (Self::snapshot, 4),
            7..10 => (Self::restore, 3),
            10 => (Self::clone, 2),
            11..13 => (Self::group, 1),
            13..15 => (Self::restore_member, 2),
            15..18 => (Self::expand, 4),
            18..21 => (Self::delete_claim, self.model.claims.len() / 4),
            21..23 => (Self::delete_snapshot, self.model.snapshots.len() / 4),
            _ => (Self::delete_group, 1),
        };
        for _ in 0..=self.rng.below(most) {
            if let Some(what) = step(self) {
                *self.steps.entry(what).or_default() += 1;
            }
        }
        sleep(Duration::from_millis(self.rng.below(200) as u64));
        self.env.step();
    }

    pub(crate) fn all_were_killed(&self) -> bool {
        self.kills.len() == Victim::ALL.len()
    }

    fn maybe_kill(&mut self) {
        // Kill each component early, whatever the seed.
        let first = Victim::ALL.into_iter().find(|victim| !self.kills.contains_key(victim));
        // The cluster's own components take seconds to restart.
        let victim = match (self.rng.below(60), first) {
            (0..15, Some(victim)) => victim,
            (0 | 1, _) => Victim::Sidecar,
            (2, _) => Victim::SnapshotController,
            (3, _) => Victim::Driver,
            (4, _) if self.rng.below(6) == 0 => Victim::ApiServer,
            (5, _) if self.rng.below(3) == 0 => Victim::ControllerManager,
            _ => return,
        };
        *self.kills.entry(victim).or_default() += 1;
        self.env.kill(victim, self.rng.below(4));
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }

    fn claim(&mut self, bytes: u64, source: Source, holds: Option<Text>) {
        let (name, team) = (self.name("claim"), self.rng.below(TEAMS));
        let from = match &source {
            Source::New => Value::Null,
            Source::Snapshot { name, .. } => {
                json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
            }
            Source::Claim { name, .. } => json!({"kind": "PersistentVolumeClaim", "name": name}),
        };
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": {"team": team.to_string()}},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "plain", "dataSource": from,
                "resources": {"requests": {"storage": bytes.to_string()}},
            },
        });
        let created = self.env.create(&object, "pvc");
        let uid = text(&created, "/metadata/uid").to_owned();
        let holds = holds.unwrap_or_else(|| Text { text: name.clone(), certain: true });
        let claim = Claim { uid, team, bytes, source, holds, bound: false, doomed: false };
        self.model.claims.insert(name, claim);
    }

    fn new_claim(&mut self) -> Option<&'static str> {
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        self.claim(MIB, Source::New, None);
        Some("claims created")
    }

    /// A snapshot of any claim, even of one that is not bound yet.
    fn snapshot(&mut self) -> Option<&'static str> {
        let (claim, of) = self.rng.pick(&self.model.claims)?;
        if self.model.snapshots.len() >= MOST_SNAPSHOTS || of.doomed {
            return None;
        }
        let name = self.name("snapshot");
        let object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
            "spec": {"volumeSnapshotClassName": "plain", "source": {"persistentVolumeClaimName": claim}},
        });
        let created = self.env.create(&object, "vs");
        let snapshot = Snapshot {
            uid: text(&created, "/metadata/uid").to_owned(),
            claim,
            volume: of.volume(),
            holds: copied(&of),
            ready: false,
            doomed: false,
        };
        self.model.snapshots.insert(name, snapshot);
        Some("snapshots taken")
    }

    /// A restore of any snapshot, even of one that is not ready yet.
    fn restore(&mut self) -> Option<&'static str> {
        let (name, from) = self.rng.pick(&self.model.snapshots).filter(|(_, from)| !from.doomed)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let source = Source::Snapshot { name, handle: from.handle(), group: None };
        self.claim(MOST_BYTES, source, Some(from.holds));
        Some("snapshots restored")
    }

    fn clone(&mut self) -> Option<&'static str> {
        let (name, from) = self.rng.pick(&self.model.claims).filter(|(_, from)| from.bound)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let holds = copied(&from);
        self.claim(MOST_BYTES, Source::Claim { name, volume: from.volume() }, Some(holds));
        Some("claims cloned")
    }

    /// A group snapshot of a team, unless one of its claims is being deleted: whether its volume still exists when
    /// the group is taken would be undefined.
    fn group(&mut self) -> Option<&'static str> {
        let (_, of) = self.rng.pick(&self.model.claims)?;
        if self.model.groups.len() >= MOST_GROUPS {
            return None;
        }
        let selector = format!("team={}", of.team);
        let team = self.env.retry("a team", |server| server.list(NAMESPACE, "pvc", &selector));
        if team.iter().any(|claim| !claim["metadata"]["deletionTimestamp"].is_null()) {
            return None;
        }
        let name = self.name("group");
        let labels = json!({"team": of.team.to_string()});
        let object = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
            "metadata": {"name": name},
            "spec": {"volumeGroupSnapshotClassName": "plain", "source": {"selector": {"matchLabels": labels}}},
        });
        let created = self.env.create(&object, "vgs");
        let uid = text(&created, "/metadata/uid").to_owned();
        self.model.groups.insert(name, Group { uid, team: of.team, ready: false, doomed: false });
        Some("groups taken")
    }

    /// A restore of a group member, whose snapshot was not requested by name.
    fn restore_member(&mut self) -> Option<&'static str> {
        let (group, _) = self.rng.pick(&self.model.groups).filter(|(_, group)| group.ready)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let observed = self.env.retry("members", Observed::read);
        let members = observed.snapshots.iter().filter(|(_, it)| group_of(it) == Some(&group));
        let ready = members.filter(|(_, it)| it["status"]["readyToUse"] == true);
        let handles: BTreeMap<&String, &str> =
            ready.filter_map(|(name, it)| Some((name, observed.handle(it)?))).collect();
        let (name, handle) = self.rng.pick(&handles)?;
        // Only the driver knows what it has snapshotted.
        let file = fs::read_to_string(self.env.driver.data(handle).join("file")).ok();
        let holds = Text { certain: file.is_some(), text: file.unwrap_or_default() };
        let source = Source::Snapshot { name: name.clone(), handle: handle.to_owned(), group: Some(group) };
        self.claim(MOST_BYTES, source, Some(holds));
        Some("members restored")
    }

    fn expand(&mut self) -> Option<&'static str> {
        let (name, claim) = self.rng.pick(&self.model.claims)?;
        if !claim.bound || claim.bytes >= MOST_BYTES {
            return None;
        }
        let bytes = claim.bytes << (1 + self.rng.below(3));
        self.env.expand(&name, bytes.min(MOST_BYTES));
        self.model.claims.get_mut(&name)?.bytes = bytes.min(MOST_BYTES);
        Some("claims expanded")
    }

    fn delete_claim(&mut self) -> Option<&'static str> {
        let (name, _) = self.rng.pick(&self.model.claims)?;
        self.delete(&format!("pvc/{name}"));
        Some("claims deleted")
    }

    fn delete_snapshot(&mut self) -> Option<&'static str> {
        let (name, _) = self.rng.pick(&self.model.snapshots)?;
        self.delete(&format!("vs/{name}"));
        Some("snapshots deleted")
    }

    fn delete_group(&mut self) -> Option<&'static str> {
        let (name, _) = self.rng.pick(&self.model.groups)?;
        self.delete(&format!("vgs/{name}"));
        Some("groups deleted")
    }

    fn delete(&mut self, object: &str) {
        self.env.delete(object);
        match object.split_once('/') {
            Some(("pvc", name)) => self.model.claim_deleted(name),
            Some(("vs", name)) => self.model.snapshot_deleted(name),
            Some((_, name)) => self.model.group_deleted(name),
            None => {}
        }
    }

    /// Records progress, and writes the file of each new volume.
    fn record_progress(&mut self, observed: &Observed) {
        self.last_poll = Instant::now();
        let Model { claims, snapshots, groups } = &mut self.model;
        for (name, claim) in claims.iter_mut().filter(|(_, claim)| !claim.bound) {
            claim.bound = observed.claims.get(name).is_some_and(|it| text(it, "/status/phase") == "Bound");
            if claim.bound && claim.source == Source::New {
                fs::write(self.env.driver.data(&claim.volume()).join("file"), name).unwrap();
            }
        }
        let ready = |it: &Value| it["status"]["readyToUse"] == true;
        for (name, snapshot) in snapshots {
            snapshot.ready |= observed.snapshots.get(name).is_some_and(ready);
        }
        for (name, group) in groups {
            group.ready |= observed.groups.get(name).is_some_and(ready);
        }
    }

    /// Ends all faults and waits until all components agree.
    pub(crate) fn settle(&mut self) {
        self.env.recover();
        loop {
            let doomed = self.model.doomed();
            if doomed.is_empty() {
                break;
            }
            self.doomed += doomed.len();
            doomed.iter().for_each(|object| self.delete(object));
        }
        let started = Instant::now();
        loop {
            self.env.check_processes();
            let observed = self.env.retry("list all objects", Observed::read);
            self.record_progress(&observed);
            let differences = observed.differences(&self.model, &self.env.driver);
            if differences.is_empty() {
                break;
            }
            assert!(started.elapsed() < TIMEOUT, "no agreement after {TIMEOUT:?}: {differences:#?}");
            sleep(Duration::from_millis(500));
        }
        self.env.driver.assert_no_violation();
        let Model { claims, snapshots, groups } = &self.model;
        println!(
            "all agree on {} claims, {} snapshots and {} groups after {:.1?}",
            claims.len(),
            snapshots.len(),
            groups.len(),
            started.elapsed()
        );
    }

    /// Deletes everything and checks that nothing is left.
    pub(crate) fn delete_everything(&mut self) {
        for object in self.model.all() {
            self.delete(&object);
        }
        self.settle();
    }

    pub(crate) fn end(self) {
        let Self { env, steps, kills, doomed, .. } = self;
        println!("{steps:?}; {doomed} doomed; kills: {kills:?}");
        env.stop();
    }
}

/// The content of a copy of a claim's volume. A claim that is not bound yet may be copied before its file is
/// written.
fn copied(of: &Claim) -> Text {
    Text { text: of.holds.text.clone(), certain: of.holds.certain && (of.bound || of.source != Source::New) }
}

#[test]
fn quantities() {
    let read = ["1048576", "1Ki", "3Mi", "1Gi", "1M", ""].map(bytes);
    assert_eq!(read, [Some(MIB), Some(1024), Some(3 * MIB), Some(MOST_BYTES), None, None]);
}
