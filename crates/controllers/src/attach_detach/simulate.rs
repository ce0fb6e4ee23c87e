//! The rules under hundreds of schedules: pods come and go, nodes fall silent and come back, watches are behind,
//! attachers fail or succeed unheard, writes are lost, and the controller dies between any two requests. One seed,
//! one story.
//!
//! Asserted: a volume for one node is never on two; what a node has mounted, or is about to, is not detached unless by
//! force, and by force only from a node that does not say that it is well; and in the end what is wanted is attached,
//! told and mounted, and nothing else is left.

use std::collections::BTreeMap;

use serde_json::json;
use wharf_cluster::Backoff;
use wharf_model::whole::node::AttachedVolume;
use wharf_model::{Time, VolumeName};

use super::Settings;
use super::decide::{News, Proof, Report, Step, decide, report};
use super::memory::{Memory, Unheard, note, take_back};
use super::report::list;
use super::testing::made;
use super::view::{Known, View};

mod world;

use world::{Chance, Objects, World};

/// `x` is for one node, `s` for many.
const VOLUMES: [&str; 2] = ["x", "s"];
const NODES: [&str; 3] = ["a", "b", "c"];
const TICKS: usize = 400;
const SEEDS: u64 = 200;

pub(super) fn volume(handle: &str) -> VolumeName {
    VolumeName { driver: "d.test".into(), handle: handle.into() }
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A volume for one node is on a second.
    TwoNodes { volume: String, node: String },
    /// A volume was detached that a node has mounted.
    Mounted { volume: String, node: String },
    /// This is not as it should be in the end.
    Unsettled(String),
}

/// What is left out, to see whether it is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The withdrawal from a node's status, before a volume is detached.
    Withdrawal,
    /// The promise that it stays withdrawn meanwhile.
    Announcement,
    /// The thought that a request without an answer may have arrived.
    Doubt,
}

/// A request that is under way.
enum Running {
    Volume { volume: &'static str, step: Step, verified: bool, well: bool },
    Report { node: String, uid: String, list: Vec<AttachedVolume> },
}

impl Running {
    /// Whether it is the deletion of an attachment, about to arrive.
    fn is_end(&self) -> bool {
        matches!(self, Self::Volume { step: Step::Detach { .. }, verified: true, .. })
    }

    /// Whether the request that changes something may be under way.
    fn is_sent(&self) -> bool {
        match self {
            Self::Volume { step: Step::Detach { proof: Proof::NotInUse, .. }, verified, .. } => *verified,
            Self::Volume { .. } | Self::Report { .. } => true,
        }
    }
}

struct Simulation {
    without: Without,
    settings: Settings,
    chance: Chance,
    world: World,
    /// What the controller's stores hold.
    cache: Objects,
    /// Volumes and claims, which stay as they are.
    bound: BTreeMap<&'static str, Known>,
    memories: BTreeMap<(String, String), Memory>,
    running: Vec<Running>,
    now: Time,
    trouble: bool,
}

impl Simulation {
    fn new(seed: u64, settings: Settings, without: Without) -> Self {
        let world = World::new(&NODES);
        let cache = world.server.clone();
        let bound = VOLUMES.map(|handle| (handle, bound(handle))).into();
        let (memories, running) = Default::default();
        let now = Time(1_000_000);
        Self {
            without,
            settings,
            chance: Chance(seed),
            world,
            cache,
            bound,
            memories,
            running,
            now,
            trouble: true,
        }
    }

    fn run(mut self) -> Result<(), Trouble> {
        for _ in 0..TICKS {
            match self.chance.below(48) {
                0..=5 => self.world.people(&mut self.chance, self.now),
                6 => self.world.fate(&mut self.chance),
                // Agents are quick, requests take their time.
                7..=20 => (0..6).for_each(|_| self.world.agent(&mut self.chance)),
                21..=26 => self.world.attacher(&mut self.chance, true)?,
                27..=33 => self.tell(),
                34..=42 => self.start(),
                43..=45 => self.finish()?,
                46 => self.now = Time(self.now.0 + self.chance.below(200_000) as i64),
                _ if self.chance.one_in(2) => self.crash(),
                _ => {}
            }
        }
        self.end()
    }

    /// A watch tells of one object.
    fn tell(&mut self) {
        let names = self.cache.names(&self.world.server);
        if let Some(name) = self.chance.pick(&names) {
            self.cache.take(&self.world.server, name);
        }
    }

    /// What is remembered and under way is lost. Requests may have arrived.
    fn crash(&mut self) {
        for running in std::mem::take(&mut self.running) {
            if running.is_sent() && self.chance.one_in(2) {
                self.arrive(&running);
            }
        }
        self.memories.clear();
        self.cache = self.world.server.clone();
    }

    fn view(&self, handle: &str, besides: &[&str]) -> View<'_> {
        let known = Known {
            pods: self.cache.pods.values().cloned().collect(),
            attachments: self.cache.attachments.values().cloned().collect(),
            nodes: self.cache.nodes.values().cloned().collect(),
            ..self.bound[handle].clone()
        };
        let memory = |node: &str| {
            self.memories.get(&(handle.to_owned(), node.to_owned())).cloned().unwrap_or_default()
        };
        let unheard = self.memories.iter().filter(|(_, memory)| memory.unheard.is_some());
        let unheard = unheard.filter(|((volume, _), _)| volume == handle).map(|((_, node), _)| node.as_str());
        let besides: Vec<&str> = besides.iter().copied().chain(unheard).collect();
        let mut view = View::of(&self.settings, volume(handle), &known, &besides, memory, |_| None);
        note(&mut view, self.now);
        view
    }

    /// A worker takes a volume or a node that nobody works on.
    fn start(&mut self) {
        let at = self.chance.below(VOLUMES.len() as u64 + NODES.len() as u64) as usize;
        match VOLUMES.get(at) {
            Some(&volume) => self.start_volume(volume),
            None => self.start_node(NODES[at - VOLUMES.len()]),
        }
    }

    fn start_volume(&mut self, handle: &'static str) {
        let busy = |running: &Running| matches!(running, Running::Volume { volume, .. } if *volume == handle);
        if self.running.iter().any(busy) {
            return;
        }
        let mut view = self.view(handle, &[]);
        take_back(&mut view);
        if self.without == Without::Withdrawal {
            view.places.values_mut().for_each(|place| place.machine.reported = false);
        }
        let step = decide(&view, self.now);
        let kept: Vec<_> = view
            .places
            .iter()
            .map(|(node, place)| ((handle.to_owned(), node.clone()), place.memory.clone()))
            .collect();
        self.memories.retain(|(volume, _), _| volume != handle);
        self.memories.extend(kept);
        match step {
            Step::Rest { .. } => {}
            Step::Announce { node } => self.remember(handle, &node).announced = true,
            Step::Ask { node } => {
                self.cache.take(&self.world.server, ("attachment", volume(handle).attachment(&node)));
                self.remember(handle, &node).unheard = None;
            }
            Step::Tell { node, news } => {
                let now = self.now;
                let memory = self.remember(handle, &node);
                match news {
                    News::MultiAttach { .. } => memory.told_multi_attach = true,
                    News::Failed { message, at } => memory.told_error = Some((message, at)),
                    News::Silence { .. } => memory.asked_since = Some(now),
                }
            }
            Step::Attach { ref node, .. } | Step::Detach { ref node, .. } => {
                let well = self.cache.nodes.get(node).is_some_and(|node| node.is_ready());
                self.running.push(Running::Volume { volume: handle, step, verified: false, well });
            }
        }
    }

    fn start_node(&mut self, name: &'static str) {
        let busy = |running: &Running| matches!(running, Running::Report { node, .. } if node == name);
        let Some(node) = self.cache.nodes.get(name).cloned() else { return };
        if self.running.iter().any(busy) {
            return;
        }
        let report = |handle: &&str| {
            let mut view = self.view(handle, &[name]);
            if self.without == Without::Announcement {
                take_back(&mut view);
            }
            (volume(handle).to_string(), report(&view, name, self.now))
        };
        let mut reports: BTreeMap<String, Report> = VOLUMES.iter().map(report).collect();
        if self.without == Without::Withdrawal {
            reports.retain(|_, report| *report != Report::Hide);
        }
        if let Some(list) = list(&node.status.volumes_attached, &reports) {
            let uid = node.metadata.uid.clone();
            self.running.push(Running::Report { node: name.to_owned(), uid, list: list.volumes });
        }
    }

    fn remember(&mut self, handle: &str, node: &str) -> &mut Memory {
        self.memories.entry((handle.to_owned(), node.to_owned())).or_default()
    }

    /// A request comes to its end.
    fn finish(&mut self) -> Result<(), Trouble> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.chance.below(self.running.len() as u64) as usize;
        // Deletions take longest: much can happen meanwhile.
        if self.trouble && self.running[at].is_end() && !self.chance.one_in(6) {
            return Ok(());
        }
        self.finish_one(at)
    }

    fn finish_one(&mut self, at: usize) -> Result<(), Trouble> {
        let mut running = self.running.swap_remove(at);
        if let Running::Volume { volume, step: Step::Detach { node, proof, .. }, verified, well } =
            &mut running
        {
            if *proof == Proof::NotInUse && !*verified {
                if self.trouble && self.chance.one_in(12) {
                    self.refuse(&running);
                    return Ok(());
                }
                self.cache.take(&self.world.server, ("node", node.clone()));
                let status =
                    self.world.server.nodes.get(node).map(|node| node.status.clone()).unwrap_or_default();
                let name = self::volume(volume).to_string();
                let told = status.volumes_attached.iter().any(|attached| attached.name == name);
                let told = told && self.without != Without::Withdrawal;
                if status.volumes_in_use.contains(&name) || told {
                    let (volume, node) = (*volume, node.clone());
                    self.remember(volume, &node).has_asked(None);
                } else {
                    *verified = true;
                    self.running.push(running);
                }
                return Ok(());
            }
            let forced = matches!(proof, Proof::Forced(_));
            if self.world.is_mounted(volume, node) && (!forced || *well) {
                return Err(Trouble::Mounted { volume: (*volume).to_owned(), node: node.clone() });
            }
        }
        // The server may be away, or its answer lost.
        let (arrives, heard) = match self.chance.below(12) {
            0 if self.trouble => (false, false),
            1 if self.trouble => (true, false),
            _ => (true, true),
        };
        self.answer(&running, arrives, heard);
        Ok(())
    }

    /// What comes of a request, and what the controller makes of it.
    fn answer(&mut self, running: &Running, arrives: bool, heard: bool) {
        if arrives {
            self.arrive(running);
        }
        match running {
            Running::Volume {
                volume,
                step: step @ (Step::Attach { node, .. } | Step::Detach { node, .. }),
                ..
            } => {
                let made = matches!(step, Step::Attach { .. });
                let doubt = !heard && self.without != Without::Doubt;
                let unheard = doubt.then_some(Unheard { since: self.now, made });
                self.remember(volume, node).has_asked(unheard);
                if heard {
                    let name = self::volume(volume).attachment(node);
                    self.cache.take(&self.world.server, ("attachment", name));
                    self.remember(volume, node).failure = None;
                } else {
                    self.failed(volume, node);
                }
            }
            Running::Report { node, .. } if heard => {
                self.cache.take(&self.world.server, ("node", node.clone()))
            }
            Running::Report { .. } | Running::Volume { .. } => {}
        }
    }

    /// An attempt ends without the request that changes something: it was not sent, or not taken.
    fn refuse(&mut self, running: &Running) {
        if let Running::Volume {
            volume, step: Step::Attach { node, .. } | Step::Detach { node, .. }, ..
        } = running
        {
            self.remember(volume, node).has_asked(None);
            self.failed(volume, node);
        }
    }

    fn failed(&mut self, handle: &str, node: &str) {
        let (backoff, now) = (Backoff { jitter: || 0.0, ..self.settings.pace.backoff() }, self.now);
        self.remember(handle, node).has_failed(backoff, now);
    }

    /// A request has its effect.
    fn arrive(&mut self, running: &Running) {
        match running {
            Running::Volume { volume, step: Step::Attach { node, .. }, .. } => {
                self.world.attach(volume, node)
            }
            Running::Volume { step: Step::Detach { attachment, uid, .. }, .. } => {
                self.world.detach(attachment, uid)
            }
            Running::Volume { .. } => {}
            Running::Report { node, uid, list } => self.world.report(node, uid, list),
        }
    }

    /// All is well again, and everybody has time.
    fn end(mut self) -> Result<(), Trouble> {
        self.trouble = false;
        self.world.heal();
        for round in 0..4_000 {
            self.world.lose();
            self.world.agent(&mut self.chance);
            self.world.attacher(&mut self.chance, false)?;
            self.tell();
            self.start();
            self.finish()?;
            self.now = Time(self.now.0 + 500);
            // Not each time: to look at everything takes longer than to change one thing.
            let quiet = round % 32 == 0 && self.running.is_empty() && self.cache == self.world.server;
            if quiet && self.world.unsettled().is_none() {
                return Ok(());
            }
        }
        Err(Trouble::Unsettled(self.world.unsettled().unwrap_or_else(|| "it goes on and on".into())))
    }

    /// The end of an attachment that nobody uses is under way: the node was asked, and the deletion is not yet there.
    fn ending(without: Without) -> Result<Self, Trouble> {
        let mut story = Self::new(1, Settings::default(), without);
        story.trouble = false;
        story.world.attach("x", "a");
        story.world.attacher(&mut story.chance, false)?;
        story.cache = story.world.server.clone();
        story.start_volume("x");
        story.start_volume("x");
        story.finish_one(0)?;
        assert!(story.running[0].is_end(), "the node was asked");
        Ok(story)
    }

    /// A pod comes while the end of an attachment is under way.
    fn meanwhile(without: Without) -> Result<(), Trouble> {
        let mut story = Self::ending(without)?;
        story.world.pod("x", "a", story.now);
        story.cache = story.world.server.clone();
        story.start_node("a");
        if let Some(report) = story.running.iter().position(|running| !running.is_end()) {
            story.finish_one(report)?;
        }
        (0..200).for_each(|_| story.world.agent(&mut story.chance));
        story.finish_one(0)
    }

    /// The end of an attachment gets no answer, and the next attempt at it not as far as a request. A pod comes, and then
    /// the first request arrives.
    fn late_end(without: Without) -> Result<(), Trouble> {
        let mut story = Self::ending(without)?;
        let lost = story.running.remove(0);
        story.answer(&lost, false, false);
        story.refuse_next();
        story.world.pod("x", "a", story.now);
        story.cache = story.world.server.clone();
        story.start_volume("x");
        story.start_node("a");
        while !story.running.is_empty() {
            story.finish_one(0)?;
        }
        (0..200).for_each(|_| story.world.agent(&mut story.chance));
        story.running.push(lost);
        story.finish_one(0)
    }

    /// After its pause a volume is tried once more, in vain.
    fn refuse_next(&mut self) {
        self.now = Time(self.now.0 + 500);
        // An end is announced first.
        (0..2).for_each(|_| self.start_volume("x"));
        let running = self.running.remove(0);
        self.refuse(&running);
    }

    /// A pod moves, and of its first attachment it was never heard that it was made. If it arrives late, another attempt
    /// was refused before.
    fn unheard(without: Without, late: bool) -> Result<(), Trouble> {
        let mut story = Self::new(1, Settings::default(), without);
        story.trouble = false;
        story.world.pod("x", "a", story.now);
        story.cache = story.world.server.clone();
        story.start_volume("x");
        let lost = story.running.remove(0);
        story.answer(&lost, !late, false);
        if late {
            story.refuse_next();
        }
        story.world.server.pods.clear();
        story.world.pod("x", "b", story.now);
        story.cache.pods = story.world.server.pods.clone();
        story.start_volume("x");
        while !story.running.is_empty() {
            story.finish_one(0)?;
        }
        if late {
            story.arrive(&lost);
        }
        (0..20).try_for_each(|_| story.world.attacher(&mut story.chance, false))
    }
}

fn bound(handle: &str) -> Known {
    let modes = if handle == "x" { "ReadWriteOnce" } else { "ReadWriteMany" };
    Known {
        volumes: vec![made(json!({
            "metadata": {"name": handle, "uid": handle},
            "spec": {
                "accessModes": [modes],
                "csi": {"driver": "d.test", "volumeHandle": handle},
                "claimRef": {"namespace": "ns", "name": handle, "uid": handle},
            },
        }))],
        claims: vec![made(json!({
            "metadata": {"namespace": "ns", "name": handle, "uid": handle},
            "spec": {"volumeName": handle},
            "status": {"phase": "Bound"},
        }))],
        ..Known::default()
    }
}

/// The troubles of the first stories, as they are found.
fn stories(settings: Settings, without: Without) -> impl Iterator<Item = (u64, Trouble)> {
    let story = move |seed| Some((seed, Simulation::new(seed, settings.clone(), without).run().err()?));
    (0..SEEDS).filter_map(story)
}

#[test]
fn all_stories_end_well() {
    assert_eq!(stories(Settings::default(), Without::Nothing).next(), None);
}

/// The simulation finds what it is for: what is left out is missed.
#[test]
fn a_missing_withdrawal_is_found() {
    let mounted = |(_, trouble): (u64, Trouble)| matches!(trouble, Trouble::Mounted { .. });
    assert!(stories(Settings::default(), Without::Withdrawal).any(mounted));
}

/// Chance brings this about too seldom to rely on.
#[test]
fn a_pod_that_comes_meanwhile_is_not_told() {
    assert_eq!(Simulation::meanwhile(Without::Nothing), Ok(()));
    let trouble = Trouble::Mounted { volume: "x".into(), node: "a".into() };
    assert_eq!(Simulation::meanwhile(Without::Announcement), Err(trouble));
}

/// A lost answer is no refusal: it was found by a story, and let the volume onto two nodes.
#[test]
fn a_lost_answer_is_not_a_refusal() {
    for late in [false, true] {
        assert_eq!(Simulation::unheard(Without::Nothing, late), Ok(()), "late: {late}");
        let found = Simulation::unheard(Without::Doubt, late);
        assert!(matches!(found, Err(Trouble::TwoNodes { .. })), "late: {late}: {found:?}");
    }
}

/// What became of a later attempt says nothing of a request that may still arrive.
#[test]
fn a_late_end_finds_nothing_mounted() {
    assert_eq!(Simulation::late_end(Without::Nothing), Ok(()));
    let trouble = Trouble::Mounted { volume: "x".into(), node: "a".into() };
    assert_eq!(Simulation::late_end(Without::Doubt), Err(trouble));
}

/// What upstream does with attachments that failed brings a volume onto two nodes, unless its driver refuses.
#[test]
fn what_upstream_risks_is_found() {
    let two_nodes = |(_, trouble): (u64, Trouble)| matches!(trouble, Trouble::TwoNodes { .. });
    assert!(stories(Settings::upstream(), Without::Nothing).any(two_nodes));
}
