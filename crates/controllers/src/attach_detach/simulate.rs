//! The rules under hundreds of random schedules: pods are created and deleted, nodes fail and come back, watches lag,
//! attachers fail or succeed without a response, writes are lost, and the controller crashes between any two
//! requests. A seed determines a run.
//!
//! Invariants: a single-node volume is never on two nodes; a volume that a node has mounted, or is about to mount, is
//! not detached unless forced, and forced only from a node that is not Ready; in the end every wanted volume is
//! attached, reported and mounted, and no other attachment is left.

use std::collections::BTreeMap;

use serde_json::json;
use wharf_cluster::Backoff;
use wharf_model::node::AttachedVolume;
use wharf_model::testing::SeededRng;
use wharf_model::{Monotonic, Time, UniqueVolumeName};

use super::Settings;
use super::decide::{DetachReason, PodEvent, Report, Step, decide, report};
use super::report::updated_list;
use super::state::{AttachState, UnconfirmedRequest, cancel_announcements, update_timers};
use super::testing::object;
use super::view::{View, VolumeObjects};

mod world;

use world::{Objects, World};

/// `x` supports one node, `s` many.
const VOLUMES: [&str; 2] = ["x", "s"];
const NODES: [&str; 3] = ["a", "b", "c"];
const TICKS: usize = 400;
const SEEDS: u64 = 200;

pub(super) fn volume(handle: &str) -> UniqueVolumeName {
    UniqueVolumeName { driver: "d.test".into(), handle: handle.into() }
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Violation {
    /// A single-node volume is on a second node.
    TwoNodes { volume: String, node: String },
    /// A volume was detached while a node has it mounted.
    DetachedWhileMounted { volume: String, node: String },
    /// The run did not reach the expected final state.
    NotConverged(String),
}

/// A safeguard to omit, to check that the simulation notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Omit {
    Nothing,
    /// Removal from the node's status before a volume is detached.
    Withdrawal,
    /// The announcement of a detach, which prevents that the volume is added to `volumesAttached` again before the detach.
    Announcement,
    /// The assumption that a request without a response may have taken effect.
    Uncertainty,
}

/// A request in flight.
enum Running {
    Volume { volume: &'static str, step: Step, verified: bool, well: bool },
    Report { node: String, uid: String, list: Vec<AttachedVolume> },
}

impl Running {
    /// Whether it is a verified deletion of an attachment.
    fn is_delete_in_flight(&self) -> bool {
        matches!(self, Self::Volume { step: Step::Detach { .. }, verified: true, .. })
    }

    /// Whether the write itself may be in flight.
    fn is_sent(&self) -> bool {
        match self {
            Self::Volume { step: Step::Detach { reason: DetachReason::NotInUse, .. }, verified, .. } => {
                *verified
            }
            Self::Volume { .. } | Self::Report { .. } => true,
        }
    }
}

struct Simulation {
    omit: Omit,
    settings: Settings,
    random: SeededRng,
    world: World,
    /// The controller's stores.
    cache: Objects,
    /// Volumes and claims, which do not change.
    bound: BTreeMap<&'static str, VolumeObjects>,
    states: BTreeMap<(String, String), AttachState>,
    running: Vec<Running>,
    now: Monotonic,
    faults: bool,
}

impl Simulation {
    /// The wall clock, which is set forward by the timeout of a forced detach and back again.
    fn wall(&self) -> Time {
        let set_by = [0, 400_000, -400_000][(self.now.0 / 30_000 % 3).unsigned_abs() as usize];
        Time(self.now.0 + set_by)
    }

    fn new(seed: u64, settings: Settings, omit: Omit) -> Self {
        let world = World::new(&NODES);
        let cache = world.server.clone();
        let bound = VOLUMES.map(|handle| (handle, bound_objects(handle))).into();
        let (states, running) = Default::default();
        let now = Monotonic(1_000_000);
        Self {
            omit,
            settings,
            random: SeededRng::new(seed),
            world,
            cache,
            bound,
            states,
            running,
            now,
            faults: true,
        }
    }

    fn run(mut self) -> Result<(), Violation> {
        for _ in 0..TICKS {
            match self.random.below(48) {
                0..=5 => {
                    let wall = self.wall();
                    self.world.user_action(&mut self.random, wall);
                }
                6 => self.world.node_failure(&mut self.random),
                // Agents are fast, requests are slow.
                7..=20 => (0..6).for_each(|_| self.world.agent_step(&mut self.random)),
                21..=26 => self.world.attacher_step(&mut self.random, true)?,
                27..=33 => self.deliver_change(),
                34..=42 => self.start(),
                43..=45 => self.finish()?,
                46 => self.now = Monotonic(self.now.0 + self.random.below(200_000) as i64),
                _ if self.random.one_in(2) => self.crash(),
                _ => {}
            }
        }
        self.converge()
    }

    /// A watch delivers the change of one object.
    fn deliver_change(&mut self) {
        let names = self.cache.names(&self.world.server);
        if let Some(name) = self.random.pick(&names) {
            self.cache.take(&self.world.server, name);
        }
    }

    /// The controller crashes: states are lost, and requests in flight may or may not take effect.
    fn crash(&mut self) {
        for running in std::mem::take(&mut self.running) {
            if running.is_sent() && self.random.one_in(2) {
                self.apply(&running);
            }
        }
        self.states.clear();
        self.cache = self.world.server.clone();
    }

    fn view(&self, handle: &str, extra_nodes: &[&str]) -> View<'_> {
        let objects = VolumeObjects {
            pods: self.cache.pods.values().cloned().collect(),
            attachments: self.cache.attachments.values().cloned().collect(),
            nodes: self.cache.nodes.values().cloned().collect(),
            ..self.bound[handle].clone()
        };
        let state =
            |node: &str| self.states.get(&(handle.to_owned(), node.to_owned())).cloned().unwrap_or_default();
        let unconfirmed = self.states.iter().filter(|(_, state)| state.unconfirmed.is_some());
        let unconfirmed =
            unconfirmed.filter(|((volume, _), _)| volume == handle).map(|((_, node), _)| node.as_str());
        let extra_nodes: Vec<&str> = extra_nodes.iter().copied().chain(unconfirmed).collect();
        let mut view = View::of(&self.settings, volume(handle), &objects, &extra_nodes, state, |_| None);
        update_timers(&mut view, self.now);
        view
    }

    /// A worker takes a volume or a node that no other worker has.
    fn start(&mut self) {
        let at = self.random.below(VOLUMES.len() as u64 + NODES.len() as u64) as usize;
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
        cancel_announcements(&mut view);
        if self.omit == Omit::Withdrawal {
            view.nodes.values_mut().for_each(|node_view| node_view.node.reported = false);
        }
        let step = decide(&view, self.now);
        let kept: Vec<_> = view
            .nodes
            .iter()
            .map(|(node, node_view)| ((handle.to_owned(), node.clone()), node_view.state.clone()))
            .collect();
        self.states.retain(|(volume, _), _| volume != handle);
        self.states.extend(kept);
        match step {
            Step::Idle { .. } => {}
            Step::Announce { node } => self.state_mut(handle, &node).announced = true,
            Step::CheckAttachment { node } => {
                self.cache.take(&self.world.server, ("attachment", volume(handle).attachment_name(&node)));
                self.state_mut(handle, &node).unconfirmed = None;
            }
            Step::RecordEvent { node, event } => {
                let now = self.now;
                let state = self.state_mut(handle, &node);
                match event {
                    PodEvent::MultiAttach { .. } => state.multi_attach_reported = true,
                    PodEvent::AttachFailed { message, at } => state.reported_error = Some((message, at)),
                    PodEvent::Timeout { .. } => state.waiting_since = Some(now),
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
            if self.omit == Omit::Announcement {
                cancel_announcements(&mut view);
            }
            (volume(handle).to_string(), report(&view, name, self.now))
        };
        let mut reports: BTreeMap<String, Report> = VOLUMES.iter().map(report).collect();
        if self.omit == Omit::Withdrawal {
            reports.retain(|_, report| *report != Report::Hide);
        }
        if let Some(list) = updated_list(&node.status.volumes_attached, &reports) {
            let uid = node.metadata.uid.clone();
            self.running.push(Running::Report { node: name.to_owned(), uid, list: list.volumes });
        }
    }

    fn state_mut(&mut self, handle: &str, node: &str) -> &mut AttachState {
        self.states.entry((handle.to_owned(), node.to_owned())).or_default()
    }

    /// A request completes.
    fn finish(&mut self) -> Result<(), Violation> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        // Deletions take longest, so that much can happen in between.
        if self.faults && self.running[at].is_delete_in_flight() && !self.random.one_in(6) {
            return Ok(());
        }
        self.finish_one(at)
    }

    fn finish_one(&mut self, at: usize) -> Result<(), Violation> {
        let mut running = self.running.swap_remove(at);
        if let Running::Volume { volume, step: Step::Detach { node, reason, .. }, verified, well } =
            &mut running
        {
            if *reason == DetachReason::NotInUse && !*verified {
                if self.faults && self.random.one_in(12) {
                    self.refuse(&running);
                    return Ok(());
                }
                self.cache.take(&self.world.server, ("node", node.clone()));
                let status =
                    self.world.server.nodes.get(node).map(|node| node.status.clone()).unwrap_or_default();
                let name = self::volume(volume).to_string();
                let listed = status.volumes_attached.iter().any(|attached| attached.name == name);
                let listed = listed && self.omit != Omit::Withdrawal;
                if status.volumes_in_use.contains(&name) || listed {
                    let (volume, node) = (*volume, node.clone());
                    let state = self.state_mut(volume, &node);
                    state.end_attempt(None, state.unconfirmed);
                } else {
                    *verified = true;
                    self.running.push(running);
                }
                return Ok(());
            }
            let forced = matches!(reason, DetachReason::Forced(_));
            if self.world.is_mounted(volume, node) && (!forced || *well) {
                return Err(Violation::DetachedWhileMounted {
                    volume: (*volume).to_owned(),
                    node: node.clone(),
                });
            }
        }
        // The API server may be unavailable, or its response lost.
        let (applied, response_received) = match self.random.below(12) {
            0 if self.faults => (false, false),
            1 if self.faults => (true, false),
            _ => (true, true),
        };
        self.respond(&running, applied, response_received);
        Ok(())
    }

    /// The effect of a request, and the controller's reaction to the response.
    fn respond(&mut self, running: &Running, applied: bool, response_received: bool) {
        if applied {
            self.apply(running);
        }
        match running {
            Running::Volume {
                volume,
                step: step @ (Step::Attach { node, .. } | Step::Detach { node, .. }),
                ..
            } => {
                let create = matches!(step, Step::Attach { .. });
                let uncertain = !response_received && self.omit != Omit::Uncertainty;
                let unconfirmed = uncertain.then_some(UnconfirmedRequest { since: self.now, create });
                let state = self.state_mut(volume, node);
                state.end_attempt(unconfirmed, state.unconfirmed);
                if response_received {
                    let name = self::volume(volume).attachment_name(node);
                    self.cache.take(&self.world.server, ("attachment", name));
                    self.state_mut(volume, node).failure = None;
                } else {
                    self.failed(volume, node);
                }
            }
            Running::Report { node, .. } if response_received => {
                self.cache.take(&self.world.server, ("node", node.clone()))
            }
            Running::Report { .. } | Running::Volume { .. } => {}
        }
    }

    /// An attempt ends without a write: it was not sent, or was rejected.
    fn refuse(&mut self, running: &Running) {
        if let Running::Volume {
            volume, step: Step::Attach { node, .. } | Step::Detach { node, .. }, ..
        } = running
        {
            let state = self.state_mut(volume, node);
            state.end_attempt(None, state.unconfirmed);
            self.failed(volume, node);
        }
    }

    fn failed(&mut self, handle: &str, node: &str) {
        let (backoff, now) = (Backoff { jitter: || 0.0, ..self.settings.worker_options.backoff() }, self.now);
        self.state_mut(handle, node).fail_attempt(backoff, now);
    }

    /// A request takes effect.
    fn apply(&mut self, running: &Running) {
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

    /// Without further faults the run has to reach the expected final state.
    fn converge(mut self) -> Result<(), Violation> {
        self.faults = false;
        self.world.make_feasible();
        for round in 0..4_000 {
            self.world.drop_detached_mounts();
            self.world.agent_step(&mut self.random);
            self.world.attacher_step(&mut self.random, false)?;
            self.deliver_change();
            self.start();
            self.finish()?;
            self.now = Monotonic(self.now.0 + 500);
            // Not in every round: checking everything is expensive.
            let quiet = round % 32 == 0 && self.running.is_empty() && self.cache == self.world.server;
            if quiet && self.world.not_converged().is_none() {
                return Ok(());
            }
        }
        Err(Violation::NotConverged(self.world.not_converged().unwrap_or_else(|| "steps do not end".into())))
    }

    /// The detach of an unused volume is in flight: the node was verified, and the deletion has not taken effect yet.
    fn with_detach_in_flight(omit: Omit) -> Result<Self, Violation> {
        let mut simulation = Self::new(1, Settings::default(), omit);
        simulation.faults = false;
        simulation.world.attach("x", "a");
        simulation.world.attacher_step(&mut simulation.random, false)?;
        simulation.cache = simulation.world.server.clone();
        simulation.start_volume("x");
        simulation.start_volume("x");
        simulation.finish_one(0)?;
        assert!(simulation.running[0].is_delete_in_flight(), "the node was verified");
        Ok(simulation)
    }

    /// A pod is created while a detach is in flight.
    fn pod_arrives_during_detach(omit: Omit) -> Result<(), Violation> {
        let mut simulation = Self::with_detach_in_flight(omit)?;
        let wall = simulation.wall();
        simulation.world.pod("x", "a", wall);
        simulation.cache = simulation.world.server.clone();
        simulation.start_node("a");
        if let Some(report) = simulation.running.iter().position(|running| !running.is_delete_in_flight()) {
            simulation.finish_one(report)?;
        }
        (0..200).for_each(|_| simulation.world.agent_step(&mut simulation.random));
        simulation.finish_one(0)
    }

    /// A deletion gets no response, and the next attempt fails before its request. A pod is created, and then the first
    /// deletion takes effect.
    fn late_detach(omit: Omit) -> Result<(), Violation> {
        let mut simulation = Self::with_detach_in_flight(omit)?;
        let lost = simulation.running.remove(0);
        simulation.respond(&lost, false, false);
        simulation.refuse_next();
        let wall = simulation.wall();
        simulation.world.pod("x", "a", wall);
        simulation.cache = simulation.world.server.clone();
        simulation.start_volume("x");
        simulation.start_node("a");
        while !simulation.running.is_empty() {
            simulation.finish_one(0)?;
        }
        (0..200).for_each(|_| simulation.world.agent_step(&mut simulation.random));
        simulation.running.push(lost);
        simulation.finish_one(0)
    }

    /// After its backoff the volume is retried, and that attempt fails.
    fn refuse_next(&mut self) {
        self.now = Monotonic(self.now.0 + 500);
        // A detach is announced first.
        (0..2).for_each(|_| self.start_volume("x"));
        let running = self.running.remove(0);
        self.refuse(&running);
    }

    /// A pod moves, and the create request of its first attachment got no response. If that request is late, another
    /// attempt was rejected before.
    fn attach_without_response(omit: Omit, late: bool) -> Result<(), Violation> {
        let mut simulation = Self::new(1, Settings::default(), omit);
        simulation.faults = false;
        let wall = simulation.wall();
        simulation.world.pod("x", "a", wall);
        simulation.cache = simulation.world.server.clone();
        simulation.start_volume("x");
        let lost = simulation.running.remove(0);
        simulation.respond(&lost, !late, false);
        if late {
            simulation.refuse_next();
        }
        simulation.world.server.pods.clear();
        let wall = simulation.wall();
        simulation.world.pod("x", "b", wall);
        simulation.cache.pods = simulation.world.server.pods.clone();
        simulation.start_volume("x");
        while !simulation.running.is_empty() {
            simulation.finish_one(0)?;
        }
        if late {
            simulation.apply(&lost);
        }
        (0..20).try_for_each(|_| simulation.world.attacher_step(&mut simulation.random, false))
    }
}

fn bound_objects(handle: &str) -> VolumeObjects {
    let modes = if handle == "x" { "ReadWriteOnce" } else { "ReadWriteMany" };
    VolumeObjects {
        volumes: vec![object(json!({
            "metadata": {"name": handle, "uid": handle},
            "spec": {
                "accessModes": [modes],
                "csi": {"driver": "d.test", "volumeHandle": handle},
                "claimRef": {"namespace": "ns", "name": handle, "uid": handle},
            },
        }))],
        claims: vec![object(json!({
            "metadata": {"namespace": "ns", "name": handle, "uid": handle},
            "spec": {"volumeName": handle},
            "status": {"phase": "Bound"},
        }))],
        ..VolumeObjects::default()
    }
}

/// The violations in runs of the first seeds, lazily.
fn violations(settings: Settings, omit: Omit) -> impl Iterator<Item = (u64, Violation)> {
    let simulation = move |seed| Some((seed, Simulation::new(seed, settings.clone(), omit).run().err()?));
    (0..SEEDS).filter_map(simulation)
}

#[test]
fn no_run_violates_an_invariant() {
    assert_eq!(violations(Settings::default(), Omit::Nothing).next(), None);
}

/// The simulation finds the violation when the safeguard is omitted.
#[test]
fn omitted_status_removal_is_detected() {
    let mounted =
        |(_, violation): (u64, Violation)| matches!(violation, Violation::DetachedWhileMounted { .. });
    assert!(violations(Settings::default(), Omit::Withdrawal).any(mounted));
}

/// Random schedules produce this too rarely to rely on.
#[test]
fn pod_created_during_detach_is_not_mounted() {
    assert_eq!(Simulation::pod_arrives_during_detach(Omit::Nothing), Ok(()));
    let violation = Violation::DetachedWhileMounted { volume: "x".into(), node: "a".into() };
    assert_eq!(Simulation::pod_arrives_during_detach(Omit::Announcement), Err(violation));
}

/// A lost response is not a rejection. A run of the simulation found this: the volume was on two nodes.
#[test]
fn lost_response_is_not_a_rejection() {
    for late in [false, true] {
        assert_eq!(Simulation::attach_without_response(Omit::Nothing, late), Ok(()), "late: {late}");
        let found = Simulation::attach_without_response(Omit::Uncertainty, late);
        assert!(matches!(found, Err(Violation::TwoNodes { .. })), "late: {late}: {found:?}");
    }
}

/// The result of a later attempt proves nothing about a request that may still take effect.
#[test]
fn late_deletion_detaches_nothing_mounted() {
    assert_eq!(Simulation::late_detach(Omit::Nothing), Ok(()));
    let violation = Violation::DetachedWhileMounted { volume: "x".into(), node: "a".into() };
    assert_eq!(Simulation::late_detach(Omit::Uncertainty), Err(violation));
}

/// Upstream's handling of failed attachments puts a volume on two nodes, unless its driver rejects that.
#[test]
fn upstream_settings_allow_two_nodes() {
    let two_nodes = |(_, violation): (u64, Violation)| matches!(violation, Violation::TwoNodes { .. });
    assert!(violations(Settings::upstream(), Omit::Nothing).any(two_nodes));
}
