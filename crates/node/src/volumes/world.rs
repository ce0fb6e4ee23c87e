//! What is wanted and what there is. All of it is plain data behind one lock; whoever changes it does so in one go, and
//! nobody holds the lock while waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use wharf_model::whole::Pod;
use wharf_model::whole::pod::InlineVolume;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Quantity, Time};

use super::failure::{Doing, Failure};
use super::reconstruct::Stuck;
use super::view::Waiting;
use super::{Mounted, Place};
use crate::paths::Root;

/// Everything this process knows.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Pods that were told, and pods found on disk.
    pub(super) pods: BTreeMap<String, PodEntry>,
    /// Volumes that are wanted or may be there, by unique name.
    pub(super) volumes: BTreeMap<String, Volume>,
    /// Whether all pods of this node were told.
    pub(super) settled: bool,
    /// Whether the disk was looked at: before, nothing is known of what is there.
    pub(super) started: bool,
    /// What is mounted and cannot be told.
    pub(super) stuck: Vec<Stuck>,
    /// What was found on disk and could be told, by unique name.
    pub(super) told: BTreeSet<String>,
}

/// What is known of a pod.
#[derive(Debug, Default)]
pub(super) struct PodEntry {
    /// The pod; `None`: it was only found on disk.
    pub(super) pod: Option<Arc<Pod>>,
    /// Whether the server has no such pod any more: what it uses can be looked up no longer.
    pub(super) gone: bool,
    /// Whether its volumes are to go.
    pub(super) released: bool,
    /// Whether plain volumes of it may be on disk.
    pub(super) plain: bool,
    /// Its volumes by their names in the pod: which they are.
    pub(super) resolved: BTreeMap<String, Resolved>,
    /// What is the matter with volumes that could not even be resolved or set up.
    pub(super) troubles: BTreeMap<String, String>,
    /// Failed rounds so far, and of how many the asker has heard.
    pub(super) rounds: u64,
    pub(super) told: u64,
}

/// What a pod's volume turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolved {
    /// One that is no driver's, and there it is.
    Plain(Place),
    /// A driver's, by unique name.
    Csi(String),
}

/// A pod's wish for a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Want {
    /// The pod.
    pub(super) pod: Arc<Pod>,
    /// Its names in the pod: two of a pod's volumes may be the same claim.
    pub(super) names: BTreeSet<String>,
    /// What it is.
    pub(super) source: Source,
    /// Nothing is to be written.
    pub(super) read_only: bool,
    /// The label that all of the pod's containers agree on, where the node has SELinux.
    pub(super) se_linux: Option<String>,
}

/// What a wanted volume is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// A claim's.
    Persistent {
        /// The volume.
        volume: Arc<PersistentVolume>,
        /// The claim.
        claim: Arc<PersistentVolumeClaim>,
    },
    /// Spelled out by the pod.
    Inline(Box<InlineVolume>),
}

/// Whether pods see files or a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Files.
    Filesystem,
    /// A device.
    Block,
}

/// A driver's volume on this node.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    /// The driver.
    pub(super) driver: String,
    /// Its handle.
    pub(super) handle: String,
    /// The PersistentVolume's name or the inline volume's: part of its paths.
    pub(super) spec: String,
    /// Files or a device.
    pub(super) mode: Mode,
    /// Whether it lives as its pod does: neither attached nor staged.
    pub(super) ephemeral: bool,
    /// Pods that want it.
    pub(super) wants: BTreeMap<String, Want>,
    /// Whether it is staged.
    pub(super) device: Device,
    /// Where it was found staged, if that is not where we would stage it.
    pub(super) staged_at: Option<PathBuf>,
    /// The label it is staged with.
    pub(super) se_linux: Option<String>,
    /// Where it is, or may be, published.
    pub(super) mounts: BTreeMap<String, Mount>,
    /// What the driver's controller gave for it, once the attachment was read; empty where none is needed.
    pub(super) context: Option<BTreeMap<String, String>>,
    /// The size that the node knows it has; `None` until it was first seen.
    pub(super) size: Option<Quantity>,
    /// What came of expanding it.
    pub(super) expansion: Expansion,
    /// What failed last, by what and for which pod; staging is for all.
    pub(super) failures: BTreeMap<(Doing, String), Failure>,
    /// What it waits for, as last decided.
    pub(super) waiting: Option<Waiting>,
    /// What the attacher said last, if it failed.
    pub(super) attach_error: Option<String>,
}

/// Whether a volume is staged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Device {
    /// It is not.
    #[default]
    None,
    /// It may be. `found`: an earlier life has left it so.
    Uncertain {
        /// Whether it was found on disk.
        found: bool,
    },
    /// It is.
    Staged,
}

/// A pod's share of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// How far it has come.
    pub(super) progress: Progress,
    /// Whether an earlier life has left it, and nothing is proven yet.
    pub(super) found: bool,
    /// When it was last published.
    pub(super) published: Time,
    /// The name in its path: that of the PersistentVolume at the time.
    pub(super) spec: String,
}

/// How far a pod's share has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// It may be published.
    Uncertain,
    /// It is published.
    Published,
    /// Its files belong to whom they should.
    Owned,
    /// The pod can have it.
    Mounted,
}

/// What came of expanding a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Expansion {
    /// The driver does not expand it while it is in use: not tried again on this node.
    pub(super) in_use: bool,
    /// The driver has refused, finally.
    pub(super) refused: bool,
    /// Pods that only read were told that it does not grow to this size for them.
    pub(super) readers_told: Option<Quantity>,
}

impl Volume {
    /// A volume of which nothing is known.
    pub(super) fn new(driver: &str, handle: &str, spec: &str, mode: Mode, ephemeral: bool) -> Self {
        Self {
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            spec: spec.to_owned(),
            mode,
            ephemeral,
            wants: BTreeMap::new(),
            device: Device::None,
            staged_at: None,
            se_linux: None,
            mounts: BTreeMap::new(),
            context: None,
            size: None,
            expansion: Expansion::default(),
            failures: BTreeMap::new(),
            waiting: None,
            attach_error: None,
        }
    }

    /// Where it is staged: the directory that the driver is told.
    pub(super) fn staging(&self, root: &Root) -> PathBuf {
        match (&self.staged_at, self.mode) {
            (Some(found), _) => found.clone(),
            (None, Mode::Filesystem) => root.stage(&self.driver, &self.handle).join("globalmount"),
            (None, Mode::Block) => root.device_stage(&self.spec),
        }
    }

    /// Where it is published for a pod: the path that the driver is told.
    pub(super) fn target(&self, root: &Root, pod: &str) -> PathBuf {
        let spec = self.mounts.get(pod).map_or(&self.spec, |mount| &mount.spec);
        match self.mode {
            Mode::Filesystem => root.publish(pod, spec).join("mount"),
            Mode::Block => root.device_publish(spec, pod),
        }
    }

    /// Where a pod finds it.
    pub(super) fn place(&self, root: &Root, pod: &str, read_only: bool) -> Place {
        let path = self.target(root, pod);
        match self.mode {
            Mode::Filesystem => Place::Directory { path, read_only },
            Mode::Block => Place::Device { path, read_only },
        }
    }

    /// Whether a pod wants it for writing.
    pub(super) fn is_written(&self) -> bool {
        self.wants.values().any(|want| !want.read_only)
    }

    /// Whether nothing of it is, or may be, on this node.
    pub(super) fn is_gone(&self) -> bool {
        self.wants.is_empty() && self.mounts.is_empty() && self.device == Device::None
    }
}

impl World {
    /// Where all volumes of a pod are; `None` while one of them is not.
    pub(super) fn mounted(&self, root: &Root, uid: &str) -> Option<Mounted> {
        let entry = self.pods.get(uid).filter(|entry| !entry.released)?;
        let pod = entry.pod.as_ref()?;
        let mut volumes = BTreeMap::new();
        for name in super::resolve::used(pod).names() {
            let place = match entry.resolved.get(name)? {
                Resolved::Plain(place) => place.clone(),
                Resolved::Csi(unique) => {
                    let volume = self.volumes.get(unique)?;
                    let want = volume.wants.get(uid)?;
                    let mount = volume.mounts.get(uid)?;
                    (mount.progress == Progress::Mounted).then_some(())?;
                    volume.place(root, uid, want.read_only)
                }
            };
            volumes.insert(name.to_owned(), place);
        }
        Some(Mounted { volumes })
    }

    /// Whether something of a pod is, or may be, on disk.
    pub(super) fn holds(&self, uid: &str) -> bool {
        !self.started
            || self.pods.get(uid).is_some_and(|entry| entry.plain)
            || self.stuck.iter().any(|stuck| stuck.pod.as_deref() == Some(uid))
            || self.volumes.values().any(|volume| volume.mounts.contains_key(uid))
    }

    /// Of volumes that were in use in an earlier life, those that may be what is mounted and cannot be told.
    pub(super) fn not_told(&self, before: &[String]) -> Vec<String> {
        if self.stuck.is_empty() {
            return Vec::new();
        }
        before.iter().filter(|name| !self.told.contains(*name)).cloned().collect()
    }

    /// What each of a pod's volumes that is not there waits for, in words.
    pub(super) fn troubles(&self, uid: &str) -> Vec<(String, String)> {
        let Some(entry) = self.pods.get(uid) else { return Vec::new() };
        let Some(pod) = &entry.pod else { return Vec::new() };
        let used = super::resolve::used(pod);
        let trouble = |name: &str| {
            if let Some(trouble) = entry.troubles.get(name) {
                return Some(trouble.clone());
            }
            match entry.resolved.get(name) {
                None => Some("it has not been looked at yet".to_owned()),
                Some(Resolved::Plain(_)) => None,
                Some(Resolved::Csi(unique)) => {
                    self.volumes.get(unique).and_then(|volume| volume.trouble(uid))
                }
            }
        };
        used.names().filter_map(|name| Some((name.to_owned(), trouble(name)?))).collect()
    }

    /// Whether a pod's volumes are to go: it was released, or all pods are known and this is not among them.
    pub(super) fn is_released(&self, uid: &str) -> bool {
        match self.pods.get(uid) {
            Some(PodEntry { released: true, .. }) => true,
            Some(PodEntry { pod: Some(_), .. }) => false,
            _ => self.settled,
        }
    }

    /// A round for this pod failed: who waits for it is told once.
    pub(super) fn count_round(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.rounds += 1;
        }
    }
}

impl Volume {
    fn trouble(&self, uid: &str) -> Option<String> {
        if self.mounts.get(uid).is_some_and(|mount| mount.progress == Progress::Mounted) {
            return None;
        }
        let of = |(doing, pod): &(Doing, String)| {
            (pod == uid || pod.is_empty()) && !matches!(doing, Doing::Unpublish | Doing::Unstage)
        };
        let failed = self.failures.iter().filter(|(attempt, _)| of(attempt));
        let last = failed.max_by_key(|(_, failure)| failure.at).map(|(_, failure)| failure.message.clone());
        let waiting = || match (self.waiting, &self.attach_error) {
            (Some(Waiting::Attach), Some(error)) => {
                Some(format!("{}; the attacher says: {error}", Waiting::Attach))
            }
            (waiting, _) => waiting.map(|waiting| waiting.to_string()),
        };
        last.or_else(waiting).or_else(|| Some("it is being mounted".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Gate": only who was released, or whom nobody knows once all are known.
    #[test]
    fn whose_volumes_go() {
        let entry = |known: bool, released: bool| PodEntry {
            pod: known.then(Arc::default),
            released,
            ..PodEntry::default()
        };
        for (settled, entry, expected) in [
            (false, None, false),
            (true, None, true),
            (false, Some(entry(false, false)), false),
            (true, Some(entry(false, false)), true),
            (false, Some(entry(true, false)), false),
            (true, Some(entry(true, false)), false),
            (false, Some(entry(true, true)), true),
            (false, Some(entry(false, true)), true),
        ] {
            let known = format!("{settled} {entry:?}");
            let mut world = World { settled, ..World::default() };
            world.pods.extend(entry.map(|entry| ("u".to_owned(), entry)));
            assert_eq!(world.is_released("u"), expected, "{known}");
        }
    }

    /// Who asks whether anything is left is not told no before the disk was looked at.
    #[test]
    fn nothing_is_known_before_the_start() {
        let mut world = World::default();
        assert!(world.holds("u"));
        world.started = true;
        assert!(!world.holds("u"));
        world.stuck.push(Stuck { path: "/x".into(), pod: Some("u".into()), why: String::new() });
        assert!(world.holds("u") && !world.holds("v"), "what cannot be told is there");
    }

    /// kubernetes#113226: what is the matter is told of the volumes that are not there, and of no others.
    #[test]
    fn troubles_are_of_what_is_missing() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "unused"}],
            "containers": [{"volumeMounts": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}],
        }}))
        .unwrap();
        let place = Place::Directory { path: "/a".into(), read_only: false };
        let mut entry = PodEntry { pod: Some(Arc::new(pod)), ..PodEntry::default() };
        entry.resolved.insert("a".into(), Resolved::Plain(place));
        entry.resolved.insert("b".into(), Resolved::Csi("uvn".into()));
        let mut world = World { started: true, ..World::default() };
        world.pods.insert("u".into(), entry);
        let mut volume = Volume::new("d", "h", "pv1", Mode::Filesystem, false);
        volume.waiting = Some(Waiting::Attach);
        volume.attach_error = Some("no slot".into());
        world.volumes.insert("uvn".into(), volume);
        let troubles = world.troubles("u");
        let names: Vec<&str> = troubles.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        assert!(troubles[0].1.ends_with("the attacher says: no slot"), "{troubles:?}");
        assert_eq!(world.mounted(&Root::new("/k"), "u"), None);
    }
}
