//! Simulates the attacher's rules under a thousand random schedules: attachments are created and deleted, watches lag,
//! calls fail or their responses are lost, and the attacher crashes between any two steps. The seed determines the
//! schedule.
//!
//! Invariants: a volume is never published to a node while it is published to another, unless the driver failed to
//! unpublish it from the other; calls for one volume never overlap; at the end no object is left and no volume is
//! published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::decide::{AttachStep, decide};
use super::view::{
    AttachOperation, AttachState, AttacherConfig, AttachmentInputs, AttemptError, Published, RetryPace,
    Subject, VolumeView,
};
use crate::driver::Capabilities;
use wharf_model::testing::{SeededRng, SimulatedApi, is_deleting, text};
use wharf_model::{Monotonic, PersistentVolume, Time, VolumeAttachment};

const VOLUMES: [&str; 2] = ["v0", "v1"];
const NODES: u64 = 3;
const TICKS: usize = 160;
/// The process of the world with a cache.
const ATTACHER: Option<usize> = Some(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Attachment,
    Volume,
}

/// The key of the work queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum QueueKey {
    ByVolume,
    /// Upstream's key. With it, two attachments of one volume are processed concurrently.
    ByAttachment,
}

/// A step in progress.
#[derive(Clone)]
struct Running {
    key: Key,
    uid: String,
    version: String,
    step: AttachStep,
}

/// An entry of the work queue: a volume or, with upstream's key, one of its attachments.
#[derive(Clone, PartialEq)]
struct Key {
    subject: Subject,
    only: Option<String>,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Violation {
    /// Two concurrent calls for a volume.
    Overlap(Call),
    /// A volume published to a second node.
    TwoNodes(Call),
    /// Objects that are never deleted.
    ObjectsLeft(String),
    /// Volumes that are never unpublished.
    NotUnpublished(BTreeSet<Call>),
}

/// A call to the driver: volume and node.
type Call = (String, String);

struct Simulation {
    queue_key: QueueKey,
    rng: SeededRng,
    config: AttacherConfig,
    world: SimulatedApi<Kind>,
    now: Monotonic,
    running: Vec<Running>,
    states: BTreeMap<String, AttachState>,
    unreferenced: BTreeMap<String, String>,
    /// Where volumes are published.
    published: BTreeSet<Call>,
    /// Where the driver failed to unpublish.
    refused: BTreeSet<Call>,
    created: u64,
    /// Whether calls and writes may fail.
    faults: bool,
}

impl Simulation {
    fn new(seed: u64, queue_key: QueueKey) -> Self {
        let capabilities = Capabilities {
            controller_service: true,
            publish_unpublish_volume: true,
            ..Capabilities::default()
        };
        let finalizer = "external-attacher/d-test".to_owned();
        let config =
            AttacherConfig { driver: "d.test".into(), finalizer, capabilities, ..AttacherConfig::default() };
        let mut world = SimulatedApi::new(1);
        for name in VOLUMES {
            world.put(Kind::Volume, json!({
                "metadata": {"name": name, "uid": format!("uid-{name}")},
                "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.test", "volumeHandle": name}},
            }));
        }
        Self {
            queue_key,
            rng: SeededRng::new(seed),
            config,
            world,
            now: Monotonic(1_000_000),
            running: Vec::new(),
            states: BTreeMap::new(),
            unreferenced: BTreeMap::new(),
            published: BTreeSet::new(),
            refused: BTreeSet::new(),
            created: 0,
            faults: true,
        }
    }

    fn run(mut self) -> Result<(), Violation> {
        for _ in 0..TICKS {
            match self.rng.below(40) {
                0 | 1 => self.attach_detach_controller(),
                2..=9 => self.deliver(),
                10..=22 => self.start()?,
                23..=37 => self.finish()?,
                38 => self.now = Monotonic(self.now.0 + self.rng.below(40_000) as i64),
                _ if self.rng.one_in(3) => self.crash(),
                _ => {}
            }
        }
        self.end()
    }

    /// Deletes the old attachment, then creates a new one without waiting until the old one is gone. So each volume has
    /// at most one attachment that is not being deleted.
    fn attach_detach_controller(&mut self) {
        let volume = VOLUMES[self.rng.below(2) as usize];
        let there = self.active_attachment(volume);
        if let Some(name) = there {
            self.world.delete(None, Kind::Attachment, &name);
            if self.rng.one_in(3) {
                return;
            }
        }
        if !self.is_active_volume(volume) {
            return;
        }
        let node = format!("n{}", self.rng.below(NODES));
        self.created += 1;
        self.world.put(
            Kind::Attachment,
            json!({
                "metadata": {"name": format!("{volume}-{}", self.created), "uid": format!("uid-{}", self.created)},
                "spec": {"attacher": "d.test", "nodeName": node, "source": {"persistentVolumeName": volume}},
                "status": {"attached": false},
            }),
        );
        if self.rng.one_in(12) {
            self.world.delete(None, Kind::Volume, volume);
        }
    }

    /// The watch delivers one change of a random kind.
    fn deliver(&mut self) {
        let kind = if self.rng.one_in(2) { Kind::Attachment } else { Kind::Volume };
        self.world.deliver(0, kind);
    }

    /// The attachments in the attacher's cache.
    fn attachments(&self) -> Vec<Arc<VolumeAttachment>> {
        self.world.cached_objects(0, Kind::Attachment)
    }

    /// The server's attachments of a volume.
    fn attachments_of(&self, volume: &str) -> impl Iterator<Item = &Value> {
        let attachments = self.world.objects.iter().filter(|(key, _)| key.0 == Kind::Attachment);
        attachments
            .map(|(_, object)| object)
            .filter(move |object| text(object, "/spec/source/persistentVolumeName") == volume)
    }

    /// The volume's attachment that is not in deletion.
    fn active_attachment(&self, volume: &str) -> Option<String> {
        let active = self.attachments_of(volume).find(|object| !is_deleting(object));
        active.map(|object| text(object, "/metadata/name").to_owned())
    }

    fn is_referenced(&self, volume: &str) -> bool {
        self.attachments_of(volume).next().is_some()
    }

    fn is_active_volume(&self, volume: &str) -> bool {
        self.world.get(Kind::Volume, volume).is_some_and(|volume| !is_deleting(volume))
    }

    fn crash(&mut self) {
        for running in std::mem::take(&mut self.running) {
            // The driver may have received the call.
            if let Some((call, publish)) = call(&running)
                && self.rng.one_in(2)
            {
                if publish {
                    self.published.insert(call)
                } else {
                    self.published.remove(&call)
                };
            }
        }
        self.states.clear();
        self.unreferenced.clear();
    }

    /// A worker takes a key that no other worker is processing.
    fn start(&mut self) -> Result<(), Violation> {
        let mut keys: Vec<Key> = match self.queue_key {
            QueueKey::ByVolume => {
                VOLUMES.map(|volume| Key { subject: Subject::Volume(volume.to_owned()), only: None }).into()
            }
            QueueKey::ByAttachment => {
                let attachments = self.attachments();
                let key = |attachment: &Arc<VolumeAttachment>| Key {
                    subject: Subject::of(attachment),
                    only: Some(attachment.metadata.name.clone()),
                };
                attachments.iter().map(key).collect()
            }
        };
        keys.retain(|key| self.running.iter().all(|running| running.key != *key));
        if keys.is_empty() {
            return Ok(());
        }
        let key = keys.swap_remove(self.rng.below(keys.len() as u64) as usize);
        self.begin(key)
    }

    fn begin(&mut self, key: Key) -> Result<(), Violation> {
        let view = self.view(&key);
        let step = decide(&view, self.now);
        let named = |inputs: &&AttachmentInputs| {
            Some(inputs.attachment.metadata.name.as_str()) == attachment_of(&step)
        };
        let acted_on = view.attachments.iter().find(named);
        let meta = acted_on.map(|inputs| inputs.attachment.metadata.clone()).unwrap_or_default();
        if matches!(step, AttachStep::Idle | AttachStep::Wait(_)) {
            return Ok(());
        }
        let running = Running { key, uid: meta.uid, version: meta.resource_version, step };
        if let Some(((volume, node), publish)) = call(&running) {
            self.check(&volume, &node, publish)?;
        }
        self.running.push(running);
        Ok(())
    }

    fn check(&self, volume: &str, node: &str, publish: bool) -> Result<(), Violation> {
        if self.running.iter().filter_map(call).any(|((busy, _), _)| busy == volume) {
            return Err(Violation::Overlap((volume.to_owned(), node.to_owned())));
        }
        let has_foreign_attachments =
            |at: &Call| at.0 == volume && at.1 != node && !self.refused.contains(at);
        if publish && self.published.iter().any(has_foreign_attachments) {
            return Err(Violation::TwoNodes((volume.to_owned(), node.to_owned())));
        }
        Ok(())
    }

    fn view(&self, key: &Key) -> VolumeView<'_> {
        let volume = key.subject.volume().unwrap_or_default();
        let all = self.attachments().into_iter();
        let inputs = all
            .filter(|attachment| Subject::of(attachment) == key.subject)
            .filter(|attachment| key.only.as_ref().is_none_or(|only| attachment.metadata.name == *only))
            .map(|attachment| AttachmentInputs {
                node_id: Some(attachment.spec.node_name.clone()),
                state: self.states.get(&attachment.metadata.uid).cloned().unwrap_or_default(),
                attachment,
            });
        VolumeView {
            config: &self.config,
            volume: self.world.cached_object::<PersistentVolume>(0, Kind::Volume, volume),
            attachments: inputs.collect(),
            has_foreign_attachments: false,
            complete: true,
            unreferenced: self.unreferenced.get(volume).cloned(),
        }
    }

    /// A step ends, and its worker continues with the same key.
    fn finish(&mut self) -> Result<(), Violation> {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.running.len() as u64) as usize;
        let running = self.running.swap_remove(at);
        let key = running.key.clone();
        match call(&running) {
            Some((at, publish)) => self.called(&running, at, publish),
            None => self.wrote(running),
        }
        self.begin(key)
    }

    fn wrote(&mut self, running: Running) {
        // The server may be unavailable.
        let unavailable = self.faults && self.rng.one_in(8);
        let name = attachment_of(&running.step).unwrap_or_default().to_owned();
        let volume = running.key.subject.volume().unwrap_or_default().to_owned();
        match running.step {
            AttachStep::Idle
            | AttachStep::Wait(_)
            | AttachStep::Publish { .. }
            | AttachStep::Unpublish { .. } => {}
            AttachStep::AddVolumeFinalizer { patch, .. } if !unavailable => {
                self.world.patch(ATTACHER, Kind::Volume, &volume, &patch);
            }
            AttachStep::RemoveVolumeFinalizer { patch } if !unavailable => {
                self.world.patch(ATTACHER, Kind::Volume, &volume, &patch);
            }
            AttachStep::PrepareAttachment { patch, .. }
            | AttachStep::RemoveAttachmentFinalizer { patch, .. }
                if !unavailable =>
            {
                self.world.patch(ATTACHER, Kind::Attachment, &name, &patch);
            }
            AttachStep::MarkAttached { patch, .. } | AttachStep::MarkDetached { patch, .. }
                if !unavailable =>
            {
                self.world.patch(ATTACHER, Kind::Attachment, &name, &patch);
                self.state_of(&running.uid).record_written();
            }
            AttachStep::ReportError { patch, .. } => {
                if !unavailable {
                    self.world.patch(ATTACHER, Kind::Attachment, &name, &patch);
                }
                if let Some(failure) = &mut self.state_of(&running.uid).failure {
                    failure.reported = true;
                }
            }
            AttachStep::Refuse { operation, reason, .. } => {
                self.fail(&running.uid, operation, &reason.to_string())
            }
            AttachStep::CheckReferences { uid } if !unavailable => {
                if !self.is_referenced(&volume) {
                    self.unreferenced.insert(volume, uid);
                }
            }
            AttachStep::AddVolumeFinalizer { .. } | AttachStep::PrepareAttachment { .. } => {
                self.fail(&running.uid, AttachOperation::Attach, "away");
            }
            AttachStep::RemoveVolumeFinalizer { .. }
            | AttachStep::RemoveAttachmentFinalizer { .. }
            | AttachStep::MarkAttached { .. }
            | AttachStep::MarkDetached { .. }
            | AttachStep::CheckReferences { .. } => {}
        }
    }

    fn called(&mut self, running: &Running, at: Call, publish: bool) {
        let (fails, acts) = match self.rng.below(6) {
            0 if self.faults => (true, false),
            1 if self.faults => (true, true),
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
                self.state_of(&running.uid).record_published(published);
            }
            (true, true) => self.fail(&running.uid, AttachOperation::Attach, "refused"),
            (false, false) => {
                self.refused.remove(&at);
                self.state_of(&running.uid).record_unpublished();
            }
            (false, true) => {
                self.refused.insert(at);
                self.fail(&running.uid, AttachOperation::Detach, "refused");
            }
        }
    }

    fn state_of(&mut self, uid: &str) -> &mut AttachState {
        self.states.entry(uid.to_owned()).or_default()
    }

    fn fail(&mut self, uid: &str, operation: AttachOperation, message: &str) {
        let max = std::time::Duration::from_secs(30);
        let backoff = wharf_cluster::Backoff { max, jitter: || 0.0, ..Default::default() };
        let failed =
            AttemptError { operation, message: message.to_owned(), code: None, retry: RetryPace::Soon };
        let now = self.now;
        self.state_of(uid).record_failure(failed, backoff, Time(now.0), now);
    }

    /// Deletes everything and continues without faults.
    fn end(mut self) -> Result<(), Violation> {
        self.faults = false;
        for volume in VOLUMES {
            while let Some(name) = self.active_attachment(volume) {
                self.world.delete(None, Kind::Attachment, &name);
            }
            self.world.delete(None, Kind::Volume, volume);
        }
        for _ in 0..1_000 {
            if self.world.objects.is_empty() && self.running.is_empty() {
                break;
            }
            self.deliver();
            self.now = Monotonic(self.now.0 + 1_000);
            self.start()?;
            self.finish()?;
        }
        match (self.world.objects.is_empty(), self.published.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Violation::ObjectsLeft(self.world.remaining())),
            (true, false) => Err(Violation::NotUnpublished(self.published)),
        }
    }
}

/// The driver call that a step makes, if any, and whether it publishes.
fn call(running: &Running) -> Option<(Call, bool)> {
    match &running.step {
        AttachStep::Publish { request, .. } => {
            Some(((request.volume_id.clone(), request.node_id.clone()), true))
        }
        AttachStep::Unpublish { request, .. } => {
            Some(((request.volume_id.clone(), request.node_id.clone()), false))
        }
        _ => None,
    }
}

fn attachment_of(step: &AttachStep) -> Option<&str> {
    match step {
        AttachStep::AddVolumeFinalizer { attachment, .. }
        | AttachStep::PrepareAttachment { attachment, .. }
        | AttachStep::Publish { attachment, .. }
        | AttachStep::MarkAttached { attachment, .. }
        | AttachStep::Unpublish { attachment, .. }
        | AttachStep::RemoveAttachmentFinalizer { attachment, .. }
        | AttachStep::MarkDetached { attachment, .. }
        | AttachStep::Refuse { attachment, .. }
        | AttachStep::ReportError { attachment, .. } => Some(attachment),
        AttachStep::Idle
        | AttachStep::Wait(_)
        | AttachStep::CheckReferences { .. }
        | AttachStep::RemoveVolumeFinalizer { .. } => None,
    }
}

#[test]
fn invariants_hold_under_random_schedules() {
    for seed in 0..1_000 {
        if let Err(faults) = Simulation::new(seed, QueueKey::ByVolume).run() {
            panic!("seed {seed}: {faults:?}");
        }
    }
}

/// The simulation finds upstream's bug: with the attachment as the key, a volume is published to two nodes.
#[test]
fn queue_keyed_by_attachment_violates_invariants() {
    let found: Vec<Violation> =
        (0..100).filter_map(|seed| Simulation::new(seed, QueueKey::ByAttachment).run().err()).collect();
    let overlaps = found.iter().filter(|faults| matches!(faults, Violation::Overlap(_))).count();
    let two_nodes = found.iter().filter(|faults| matches!(faults, Violation::TwoNodes(_))).count();
    assert!(overlaps > 0 && two_nodes > 0, "overlaps {overlaps}, on two nodes {two_nodes}");
}
