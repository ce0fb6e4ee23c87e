//! One thing after another, at random.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharf_testkit::Dice;

use super::agree::{Seen, bytes, group_of, text};
use super::model::{Claim, Group, Model, Snapshot, Source, Text};
use super::world::{NAMESPACE, Victim, World};

const MIB: u64 = 1 << 20;
/// No claim asks for more, so that this is enough for a copy of any.
const MOST_BYTES: u64 = 1 << 30;
const MOST_CLAIMS: usize = 80;
const MOST_SNAPSHOTS: usize = 40;
const MOST_GROUPS: usize = 6;
const TEAMS: usize = 6;
/// How often the server is asked what has become of everything.
const LOOK: Duration = Duration::from_secs(1);
/// How long it may take until everybody agrees.
const PATIENCE: Duration = Duration::from_secs(180);

/// The test under way.
pub(crate) struct Life {
    world: World,
    dice: Dice,
    model: Model,
    looked: Instant,
    names: usize,
    steps: BTreeMap<&'static str, usize>,
    deaths: BTreeMap<Victim, usize>,
    doomed: usize,
}

impl Life {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            dice: Dice::seeded_by("SOAK_SEED"),
            model: Model::default(),
            looked: Instant::now(),
            names: 0,
            steps: BTreeMap::new(),
            deaths: BTreeMap::new(),
            doomed: 0,
        }
    }

    /// The driver behaves in another way from now on.
    pub(crate) fn another_fault(&mut self) {
        self.world.another_fault(&mut self.dice);
    }

    /// One thing at random, once or several times; what makes no sense now is left out. Somebody may die before it.
    pub(crate) fn step(&mut self) {
        if self.looked.elapsed() > LOOK {
            let seen = self.world.insist("a look", Seen::read);
            self.look(&seen);
        }
        self.death();
        let (step, most): (fn(&mut Self) -> Option<&'static str>, usize) = match self.dice.roll(24) {
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
        for _ in 0..=self.dice.roll(most) {
            if let Some(what) = step(self) {
                *self.steps.entry(what).or_default() += 1;
            }
        }
        sleep(Duration::from_millis(self.dice.roll(200) as u64));
        self.world.step();
    }

    pub(crate) fn all_have_died(&self) -> bool {
        self.deaths.len() == Victim::ALL.len()
    }

    fn death(&mut self) {
        // Each of them soon, whatever the seed.
        let first = Victim::ALL.into_iter().find(|victim| !self.deaths.contains_key(victim));
        // The cluster's own take seconds to come back.
        let victim = match (self.dice.roll(60), first) {
            (0..15, Some(victim)) => victim,
            (0 | 1, _) => Victim::Sidecar,
            (2, _) => Victim::SnapshotController,
            (3, _) => Victim::Driver,
            (4, _) if self.dice.roll(6) == 0 => Victim::Server,
            (5, _) if self.dice.roll(3) == 0 => Victim::ControllerManager,
            _ => return,
        };
        *self.deaths.entry(victim).or_default() += 1;
        self.world.kill(victim, self.dice.roll(4));
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }

    fn claim(&mut self, bytes: u64, source: Source, holds: Option<Text>) {
        let (name, team) = (self.name("claim"), self.dice.roll(TEAMS));
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
        let made = self.world.create(&object, "pvc");
        let uid = text(&made, "/metadata/uid").to_owned();
        let holds = holds.unwrap_or_else(|| Text { text: name.clone(), certain: true });
        let claim = Claim { uid, team, bytes, source, holds, bound: false, doomed: false };
        self.model.claims.insert(name, claim);
    }

    fn new_claim(&mut self) -> Option<&'static str> {
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        self.claim(MIB, Source::New, None);
        Some("claims made")
    }

    /// Of any claim, even one that is not bound yet.
    fn snapshot(&mut self) -> Option<&'static str> {
        let (claim, of) = self.dice.pick(&self.model.claims)?;
        if self.model.snapshots.len() >= MOST_SNAPSHOTS || of.doomed {
            return None;
        }
        let name = self.name("snapshot");
        let object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
            "spec": {"volumeSnapshotClassName": "plain", "source": {"persistentVolumeClaimName": claim}},
        });
        let made = self.world.create(&object, "vs");
        let snapshot = Snapshot {
            uid: text(&made, "/metadata/uid").to_owned(),
            claim,
            volume: of.volume(),
            holds: copied(&of),
            ready: false,
            doomed: false,
        };
        self.model.snapshots.insert(name, snapshot);
        Some("snapshots taken")
    }

    /// From any snapshot, even one that is not ready yet.
    fn restore(&mut self) -> Option<&'static str> {
        let (name, from) = self.dice.pick(&self.model.snapshots).filter(|(_, from)| !from.doomed)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let source = Source::Snapshot { name, handle: from.handle(), group: None };
        self.claim(MOST_BYTES, source, Some(from.holds));
        Some("snapshots restored")
    }

    fn clone(&mut self) -> Option<&'static str> {
        let (name, from) = self.dice.pick(&self.model.claims).filter(|(_, from)| from.bound)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let holds = copied(&from);
        self.claim(MOST_BYTES, Source::Claim { name, volume: from.volume() }, Some(holds));
        Some("claims cloned")
    }

    /// A team, unless one of it is on its way out: whether the driver still has its volume when the group is cut, nobody
    /// knows.
    fn group(&mut self) -> Option<&'static str> {
        let (_, of) = self.dice.pick(&self.model.claims)?;
        if self.model.groups.len() >= MOST_GROUPS {
            return None;
        }
        let selector = format!("team={}", of.team);
        let team = self.world.insist("a team", |server| server.list(NAMESPACE, "pvc", &selector));
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
        let made = self.world.create(&object, "vgs");
        let uid = text(&made, "/metadata/uid").to_owned();
        self.model.groups.insert(name, Group { uid, team: of.team, ready: false, doomed: false });
        Some("groups taken")
    }

    /// From a member of a group, which was not asked for by name.
    fn restore_member(&mut self) -> Option<&'static str> {
        let (group, _) = self.dice.pick(&self.model.groups).filter(|(_, group)| group.ready)?;
        if self.model.claims.len() >= MOST_CLAIMS {
            return None;
        }
        let seen = self.world.insist("members", Seen::read);
        let members = seen.snapshots.iter().filter(|(_, it)| group_of(it) == Some(&group));
        let ready = members.filter(|(_, it)| it["status"]["readyToUse"] == true);
        let handles: BTreeMap<&String, &str> =
            ready.filter_map(|(name, it)| Some((name, seen.handle(it)?))).collect();
        let (name, handle) = self.dice.pick(&handles)?;
        // The driver alone knows what it has cut.
        let file = fs::read_to_string(self.world.driver.data(handle).join("file")).ok();
        let holds = Text { certain: file.is_some(), text: file.unwrap_or_default() };
        let source = Source::Snapshot { name: name.clone(), handle: handle.to_owned(), group: Some(group) };
        self.claim(MOST_BYTES, source, Some(holds));
        Some("members restored")
    }

    fn expand(&mut self) -> Option<&'static str> {
        let (name, claim) = self.dice.pick(&self.model.claims)?;
        if !claim.bound || claim.bytes >= MOST_BYTES {
            return None;
        }
        let bytes = claim.bytes << (1 + self.dice.roll(3));
        self.world.enlarge(&name, bytes.min(MOST_BYTES));
        self.model.claims.get_mut(&name)?.bytes = bytes.min(MOST_BYTES);
        Some("claims expanded")
    }

    fn delete_claim(&mut self) -> Option<&'static str> {
        let (name, _) = self.dice.pick(&self.model.claims)?;
        self.delete(&format!("pvc/{name}"));
        Some("claims deleted")
    }

    fn delete_snapshot(&mut self) -> Option<&'static str> {
        let (name, _) = self.dice.pick(&self.model.snapshots)?;
        self.delete(&format!("vs/{name}"));
        Some("snapshots deleted")
    }

    fn delete_group(&mut self) -> Option<&'static str> {
        let (name, _) = self.dice.pick(&self.model.groups)?;
        self.delete(&format!("vgs/{name}"));
        Some("groups deleted")
    }

    fn delete(&mut self, object: &str) {
        self.world.delete(object);
        match object.split_once('/') {
            Some(("pvc", name)) => self.model.claim_deleted(name),
            Some(("vs", name)) => self.model.snapshot_deleted(name),
            Some((_, name)) => self.model.group_deleted(name),
            None => {}
        }
    }

    /// Takes note of what is done by now, and writes the file of each new volume.
    fn look(&mut self, seen: &Seen) {
        self.looked = Instant::now();
        let Model { claims, snapshots, groups } = &mut self.model;
        for (name, claim) in claims.iter_mut().filter(|(_, claim)| !claim.bound) {
            claim.bound = seen.claims.get(name).is_some_and(|it| text(it, "/status/phase") == "Bound");
            if claim.bound && claim.source == Source::New {
                fs::write(self.world.driver.data(&claim.volume()).join("file"), name).unwrap();
            }
        }
        let ready = |it: &Value| it["status"]["readyToUse"] == true;
        for (name, snapshot) in snapshots {
            snapshot.ready |= seen.snapshots.get(name).is_some_and(ready);
        }
        for (name, group) in groups {
            group.ready |= seen.groups.get(name).is_some_and(ready);
        }
    }

    /// Everybody is well again and agrees before long.
    pub(crate) fn settle(&mut self) {
        self.world.recover();
        loop {
            let doomed = self.model.doomed();
            if doomed.is_empty() {
                break;
            }
            self.doomed += doomed.len();
            doomed.iter().for_each(|object| self.delete(object));
        }
        let began = Instant::now();
        loop {
            self.world.keep_alive();
            let seen = self.world.insist("a look", Seen::read);
            self.look(&seen);
            let differences = seen.differences(&self.model, &self.world.driver);
            if differences.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {differences:#?}");
            sleep(Duration::from_millis(500));
        }
        self.world.driver.assert_no_violation();
        let Model { claims, snapshots, groups } = &self.model;
        println!(
            "all agree on {} claims, {} snapshots and {} groups after {:.1?}",
            claims.len(),
            snapshots.len(),
            groups.len(),
            began.elapsed()
        );
    }

    /// Nothing is asked for any more, so there is nothing.
    pub(crate) fn delete_everything(&mut self) {
        for object in self.model.all() {
            self.delete(&object);
        }
        self.settle();
    }

    pub(crate) fn end(self) {
        let Self { world, steps, deaths, doomed, .. } = self;
        println!("{steps:?}; {doomed} came too late; deaths: {deaths:?}");
        world.end();
    }
}

/// What a copy of a claim's volume holds. One that is not bound yet may have been copied before its file was written.
fn copied(of: &Claim) -> Text {
    Text { text: of.holds.text.clone(), certain: of.holds.certain && (of.bound || of.source != Source::New) }
}

#[test]
fn quantities() {
    let read = ["1048576", "1Ki", "3Mi", "1Gi", "1M", ""].map(bytes);
    assert_eq!(read, [Some(MIB), Some(1024), Some(3 * MIB), Some(MOST_BYTES), None, None]);
}
