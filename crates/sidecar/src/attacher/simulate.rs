//! The rules under a thousand schedules: attachments come and go, watches are behind, calls fail or succeed
//! unheard, and the attacher dies between any two steps. One seed, one story.
//!
//! Asserted: a volume is never published to a node while it is on another, unless the driver itself refused to
//! take it off there; calls for one volume never overlap; and in the end nothing is left, neither finalizer nor
//! publication.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::decide::{Step, decide};
use super::view::{Again, Doing, Failed, Memory, Published, Rules, Seen, Subject, View};
use crate::driver::Capabilities;
use wharf_model::{PersistentVolume, Time, VolumeAttachment};

pub(crate) mod world;

use world::{Kind, World};

const VOLUMES: [&str; 2] = ["v0", "v1"];
const NODES: u64 = 3;
const TICKS: usize = 160;

/// What exclusion is over.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Keyed {
    ByVolume,
    /// The bug that upstream lives with.
    ByAttachment,
}

/// Chance, from a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A step that a worker is at.
#[derive(Clone)]
struct Running {
    key: Key,
    uid: String,
    version: String,
    step: Step,
}

/// What it works on: a volume, or with the bug one attachment of it.
#[derive(Clone, PartialEq)]
struct Key {
    subject: Subject,
    only: Option<String>,
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Two calls for a volume at once.
    Overlap(Call),
    /// A volume on a second node.
    TwoNodes(Call),
    /// Objects that nobody lets go.
    Left(String),
    /// Volumes that nobody unpublished.
    NotUnpublished(BTreeSet<Call>),
}

/// A call that the driver is at: volume and node.
type Call = (String, String);

struct Simulation {
    keyed: Keyed,
    chance: Chance,
    rules: Rules,
    world: World,
    now: Time,
    running: Vec<Running>,
    memories: BTreeMap<String, Memory>,
    unreferenced: BTreeMap<String, String>,
    /// Where the driver has volumes.
    published: BTreeSet<Call>,
    /// Where the driver refused to unpublish.
    refused: BTreeSet<Call>,
    made: u64,
    /// Whether calls and writes may fail.
    trouble: bool,
}

impl Simulation {
    fn new(seed: u64, keyed: Keyed) -> Self {
        let can = Capabilities {
            controller_service: true,
            publish_unpublish_volume: true,
            ..Capabilities::default()
        };
        let finalizer = "external-attacher/d-test".to_owned();
        let rules = Rules { driver: "d.test".into(), finalizer, can, ..Rules::default() };
        let mut world = World::default();
        for name in VOLUMES {
            world.create(Kind::Volume, json!({
                "metadata": {"name": name, "uid": format!("uid-{name}")},
                "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.test", "volumeHandle": name}},
            }));
        }
        Self {
            keyed,
            chance: Chance(seed),
            rules,
            world,
            now: Time(1_000_000),
            running: Vec::new(),
            memories: BTreeMap::new(),
            unreferenced: BTreeMap::new(),
            published: BTreeSet::new(),
            refused: BTreeSet::new(),
            made: 0,
            trouble: true,
        }
    }

    fn run(mut self) -> Result<(), Trouble> {
        for _ in 0..TICKS {
            match self.chance.below(40) {
                0 | 1 => self.attach_detach_controller(),
                2..=9 => self.world.tell(&mut self.chance),
                10..=22 => self.start()?,
                23..=37 => self.finish()?,
                38 => self.now = Time(self.now.0 + self.chance.below(40_000) as i64),
                _ if self.chance.one_in(3) => self.crash(),
                _ => {}
            }
        }
        self.end()
    }

    /// Deletes before it creates, and does not wait in between: one wish at a time for each volume.
    fn attach_detach_controller(&mut self) {
        let volume = VOLUMES[self.chance.below(2) as usize];
        let there = self.world.wanted(volume);
        if let Some(name) = there {
            self.world.delete(Kind::Attachment, &name);
            if self.chance.one_in(3) {
                return;
            }
        }
        if !self.world.is_whole(volume) {
            return;
        }
        let node = format!("n{}", self.chance.below(NODES));
        self.made += 1;
        self.world.create(
            Kind::Attachment,
            json!({
                "metadata": {"name": format!("{volume}-{}", self.made), "uid": format!("uid-{}", self.made)},
                "spec": {"attacher": "d.test", "nodeName": node, "source": {"persistentVolumeName": volume}},
                "status": {"attached": false},
            }),
        );
        if self.chance.one_in(12) {
            self.world.delete(Kind::Volume, volume);
        }
    }

    fn crash(&mut self) {
        for running in std::mem::take(&mut self.running) {
            // The driver may have got the call.
            if let Some((call, publish)) = call(&running)
                && self.chance.one_in(2)
            {
                if publish {
                    self.published.insert(call)
                } else {
                    self.published.remove(&call)
                };
            }
        }
        self.memories.clear();
        self.unreferenced.clear();
    }

    /// A worker takes a key that nobody works on.
    fn start(&mut self) -> Result<(), Trouble> {
        let mut keys: Vec<Key> = match self.keyed {
            Keyed::ByVolume => {
                VOLUMES.map(|volume| Key { subject: Subject::Volume(volume.to_owned()), only: None }).into()
            }
            Keyed::ByAttachment => {
                let key = |name: &String| Some(name.clone());
                let attachments = self.world.attachments.iter();
                attachments.map(|(name, a)| Key { subject: Subject::of(a), only: key(name) }).collect()
            }
        };
        keys.retain(|key| self.running.iter().all(|running| running.key != *key));
        if keys.is_empty() {
            return Ok(());
        }
        let key = keys.swap_remove(self.chance.below(keys.len() as u64) as usize);
        self.begin(key)
    }

    fn begin(&mut self, key: Key) -> Result<(), Trouble> {
        let view = self.look(&key);
        let step = decide(&view, self.now);
        let named = |seen: &&Seen| Some(seen.attachment.metadata.name.as_str()) == attachment_of(&step);
        let acted_on = view.attachments.iter().find(named);
        let meta = acted_on.map(|seen| seen.attachment.metadata.clone()).unwrap_or_default();
        if matches!(step, Step::Done | Step::Wait(_)) {
            return Ok(());
        }
        let running = Running { key, uid: meta.uid, version: meta.resource_version, step };
        if let Some(((volume, node), publish)) = call(&running) {
            self.check(&volume, &node, publish)?;
        }
        self.running.push(running);
        Ok(())
    }

    fn check(&self, volume: &str, node: &str, publish: bool) -> Result<(), Trouble> {
        if self.running.iter().filter_map(call).any(|((busy, _), _)| busy == volume) {
            return Err(Trouble::Overlap((volume.to_owned(), node.to_owned())));
        }
        let elsewhere = |at: &Call| at.0 == volume && at.1 != node && !self.refused.contains(at);
        if publish && self.published.iter().any(elsewhere) {
            return Err(Trouble::TwoNodes((volume.to_owned(), node.to_owned())));
        }
        Ok(())
    }

    fn look(&self, key: &Key) -> View<'_> {
        let volume = key.subject.volume().unwrap_or_default();
        let all = self.world.attachments.values().filter(|attachment| Subject::of(attachment) == key.subject);
        let seen = all
            .filter(|attachment| key.only.as_ref().is_none_or(|only| attachment.metadata.name == *only))
            .map(|attachment| Seen {
                attachment: Arc::clone(attachment),
                node_id: Some(attachment.spec.node_name.clone()),
                memory: self.memories.get(&attachment.metadata.uid).cloned().unwrap_or_default(),
            });
        View {
            rules: &self.rules,
            volume: self.world.volumes.get(volume).cloned(),
            attachments: seen.collect(),
            elsewhere: false,
            complete: true,
            unreferenced: self.unreferenced.get(volume).cloned(),
        }
    }

    /// A step ends, and its worker goes on with the same key.
    fn finish(&mut self) -> Result<(), Trouble> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.chance.below(self.running.len() as u64) as usize;
        let running = self.running.swap_remove(at);
        let key = running.key.clone();
        match call(&running) {
            Some((at, publish)) => self.called(&running, at, publish),
            None => self.wrote(running),
        }
        self.begin(key)
    }

    fn wrote(&mut self, running: Running) {
        // The server may be away.
        let away = self.trouble && self.chance.one_in(8);
        let name = attachment_of(&running.step).unwrap_or_default().to_owned();
        let volume = running.key.subject.volume().unwrap_or_default().to_owned();
        match running.step {
            Step::Done | Step::Wait(_) | Step::Publish { .. } | Step::Unpublish { .. } => {}
            Step::GuardVolume { patch, .. } if !away => self.world.patch(Kind::Volume, &volume, &patch),
            Step::ReleaseVolume { patch } if !away => self.world.patch(Kind::Volume, &volume, &patch),
            Step::GuardAttachment { patch, .. } | Step::ReleaseAttachment { patch, .. } if !away => {
                self.world.patch(Kind::Attachment, &name, &patch);
            }
            Step::MarkAttached { patch, .. } | Step::MarkDetached { patch, .. } if !away => {
                self.world.patch(Kind::Attachment, &name, &patch);
                self.remember(&running.uid).is_written();
            }
            Step::Report { patch, .. } => {
                if !away {
                    self.world.patch(Kind::Attachment, &name, &patch);
                }
                if let Some(failure) = &mut self.remember(&running.uid).failure {
                    failure.reported = true;
                }
            }
            Step::Refuse { doing, why, .. } => self.fail(&running.uid, doing, &why.to_string()),
            Step::AskReferences { uid } if !away => {
                if !self.world.is_referenced(&volume) {
                    self.unreferenced.insert(volume, uid);
                }
            }
            Step::GuardVolume { .. } | Step::GuardAttachment { .. } => {
                self.fail(&running.uid, Doing::Attach, "away");
            }
            Step::ReleaseVolume { .. }
            | Step::ReleaseAttachment { .. }
            | Step::MarkAttached { .. }
            | Step::MarkDetached { .. }
            | Step::AskReferences { .. } => {}
        }
    }

    fn called(&mut self, running: &Running, at: Call, publish: bool) {
        let (fails, acts) = match self.chance.below(6) {
            0 if self.trouble => (true, false),
            1 if self.trouble => (true, true),
            _ => (false, true),
        };
        match (publish, acts) {
            (true, true) => drop(self.published.insert(at.clone())),
            (false, true) => drop(self.published.remove(&at)),
            (_, false) => {}
        }
        match (publish, fails) {
            (true, false) => {
                let published = Published { context: BTreeMap::new(), version: running.version.clone() };
                self.remember(&running.uid).has_published(published);
            }
            (true, true) => self.fail(&running.uid, Doing::Attach, "refused"),
            (false, false) => {
                self.refused.remove(&at);
                self.remember(&running.uid).has_unpublished();
            }
            (false, true) => {
                self.refused.insert(at);
                self.fail(&running.uid, Doing::Detach, "refused");
            }
        }
    }

    fn remember(&mut self, uid: &str) -> &mut Memory {
        self.memories.entry(uid.to_owned()).or_default()
    }

    fn fail(&mut self, uid: &str, doing: Doing, message: &str) {
        let max = std::time::Duration::from_secs(30);
        let backoff = wharf_cluster::Backoff { max, jitter: || 0.0, ..Default::default() };
        let failed = Failed { doing, message: message.to_owned(), code: None, again: Again::Soon };
        let now = self.now;
        self.remember(uid).has_failed(failed, backoff, now);
    }

    /// Everything is deleted, and nobody is in trouble any more.
    fn end(mut self) -> Result<(), Trouble> {
        self.trouble = false;
        for volume in VOLUMES {
            while let Some(name) = self.world.wanted(volume) {
                self.world.delete(Kind::Attachment, &name);
            }
            self.world.delete(Kind::Volume, volume);
        }
        for _ in 0..1_000 {
            if self.world.is_empty() && self.running.is_empty() {
                break;
            }
            self.world.tell(&mut self.chance);
            self.now = Time(self.now.0 + 1_000);
            self.start()?;
            self.finish()?;
        }
        match (self.world.is_empty(), self.published.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Trouble::Left(self.world.left())),
            (true, false) => Err(Trouble::NotUnpublished(self.published)),
        }
    }
}

/// The call that a step is, and whether it publishes.
fn call(running: &Running) -> Option<(Call, bool)> {
    match &running.step {
        Step::Publish { request, .. } => Some(((request.volume_id.clone(), request.node_id.clone()), true)),
        Step::Unpublish { request, .. } => {
            Some(((request.volume_id.clone(), request.node_id.clone()), false))
        }
        _ => None,
    }
}

fn attachment_of(step: &Step) -> Option<&str> {
    match step {
        Step::GuardVolume { attachment, .. }
        | Step::GuardAttachment { attachment, .. }
        | Step::Publish { attachment, .. }
        | Step::MarkAttached { attachment, .. }
        | Step::Unpublish { attachment, .. }
        | Step::ReleaseAttachment { attachment, .. }
        | Step::MarkDetached { attachment, .. }
        | Step::Refuse { attachment, .. }
        | Step::Report { attachment, .. } => Some(attachment),
        Step::Done | Step::Wait(_) | Step::AskReferences { .. } | Step::ReleaseVolume { .. } => None,
    }
}

#[test]
fn a_thousand_stories_end_well() {
    for seed in 0..1_000 {
        if let Err(trouble) = Simulation::new(seed, Keyed::ByVolume).run() {
            panic!("seed {seed}: {trouble:?}");
        }
    }
}

/// The simulation finds what it is for: with the attachment as the key, a volume gets onto two nodes.
#[test]
fn a_wrong_key_is_found() {
    let found: Vec<Trouble> =
        (0..100).filter_map(|seed| Simulation::new(seed, Keyed::ByAttachment).run().err()).collect();
    let overlaps = found.iter().filter(|trouble| matches!(trouble, Trouble::Overlap(_))).count();
    let two_nodes = found.iter().filter(|trouble| matches!(trouble, Trouble::TwoNodes(_))).count();
    assert!(overlaps > 0 && two_nodes > 0, "overlaps {overlaps}, on two nodes {two_nodes}");
}

fn decoded<K: wharf_model::Kind>(object: &Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object.clone()).unwrap())
}

type Attachments = BTreeMap<String, Arc<VolumeAttachment>>;
type Volumes = BTreeMap<String, Arc<PersistentVolume>>;
