//! Desired and actual state of all volumes. Plain data behind one lock; every change is a single critical section, and
//! the lock is never held across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use wharf_model::pod::InlineCsiVolume;
use wharf_model::{Monotonic, PersistentVolume, PersistentVolumeClaim, Pod, Quantity};

use super::failure::{Failure, Operation};
use super::reconstruct::UnidentifiedMount;
use super::view::Waiting;
use super::{Mounted, VolumePath};
use crate::paths::Root;

/// The state of the volume manager.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Requested pods, and pods found on disk.
    pub(super) pods: BTreeMap<String, PodEntry>,
    /// Volumes that are desired or may be mounted, by unique name.
    pub(super) volumes: BTreeMap<String, Volume>,
    /// Whether all pods of this node have been requested.
    pub(super) pods_known: bool,
    /// Whether the disk was scanned: before, the actual state is unknown.
    pub(super) started: bool,
    /// Mounts that cannot be identified.
    pub(super) unidentified: Vec<UnidentifiedMount>,
    /// Volumes found on disk and identified, by unique name.
    pub(super) identified: BTreeSet<String>,
}

/// State of a pod.
#[derive(Debug, Default)]
pub(super) struct PodEntry {
    /// The pod; `None` if it was only found on disk.
    pub(super) pod: Option<Arc<Pod>>,
    /// Whether the pod is gone from the API server: its volumes can no longer be resolved.
    pub(super) gone: bool,
    /// Whether its volumes are to be unmounted.
    pub(super) released: bool,
    /// Whether it may have plain volumes on disk.
    pub(super) plain: bool,
    /// Its resolved volumes, by name in the pod.
    pub(super) resolved: BTreeMap<String, Resolved>,
    /// Problems of volumes that could not be resolved or set up.
    pub(super) problems: BTreeMap<String, String>,
    /// Number of failed rounds, and how many of them were reported to the caller.
    pub(super) rounds: u64,
    pub(super) reported_rounds: u64,
}

/// What a pod's volume resolved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resolved {
    /// A plain volume, and its path.
    Plain(VolumePath),
    /// A CSI volume, by unique name.
    Csi(String),
}

/// A pod's desired mount of a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DesiredMount {
    /// The pod.
    pub(super) pod: Arc<Pod>,
    /// The volume's names in the pod: two of a pod's volumes may use the same claim.
    pub(super) names: BTreeSet<String>,
    /// Where the volume comes from.
    pub(super) source: Source,
    /// Mounted read-only.
    pub(super) read_only: bool,
    /// The SELinux label that all of the pod's containers agree on, if the node has SELinux.
    pub(super) se_linux: Option<String>,
}

/// Where a desired volume comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// A PersistentVolumeClaim.
    Persistent {
        /// The volume.
        volume: Arc<PersistentVolume>,
        /// The claim.
        claim: Arc<PersistentVolumeClaim>,
    },
    /// An inline volume in the pod.
    Inline(Box<InlineCsiVolume>),
}

/// Whether pods use a file system or a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A file system.
    Filesystem,
    /// A block device.
    Block,
}

/// A CSI volume on this node.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    /// The driver.
    pub(super) driver: String,
    /// Its volume handle.
    pub(super) handle: String,
    /// Name of the PersistentVolume or of the inline volume: part of its paths.
    pub(super) spec: String,
    /// File system or block device.
    pub(super) mode: Mode,
    /// Whether it is an ephemeral inline volume: neither attached nor staged.
    pub(super) ephemeral: bool,
    /// Desired mounts, by pod uid.
    pub(super) desired: BTreeMap<String, DesiredMount>,
    /// Whether it is staged.
    pub(super) device: Device,
    /// Where it was found staged, if that differs from the path we would use.
    pub(super) staged_at: Option<PathBuf>,
    /// The SELinux label it is staged with.
    pub(super) se_linux: Option<String>,
    /// Actual or possible mounts, by pod uid.
    pub(super) mounts: BTreeMap<String, Mount>,
    /// The publish context, once the attachment was read; empty if none is needed.
    pub(super) context: Option<BTreeMap<String, String>>,
    /// The size known to this node; `None` until first observed.
    pub(super) size: Option<Quantity>,
    /// Result of earlier expansions.
    pub(super) expansion: Expansion,
    /// The last failure of each operation, by pod uid; empty for staging.
    pub(super) failures: BTreeMap<(Operation, String), Failure>,
    /// What it is waiting for, as of the last decision.
    pub(super) waiting: Option<Waiting>,
    /// The attacher's last error.
    pub(super) attach_error: Option<String>,
}

/// Whether a volume is staged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Device {
    /// Not staged.
    #[default]
    None,
    /// Maybe staged. `found`: left by an earlier run.
    Uncertain {
        /// Whether it was found on disk.
        found: bool,
    },
    /// Staged.
    Staged,
}

/// A volume's mount for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// How far the mount got.
    pub(super) progress: Progress,
    /// Whether it was left by an earlier run and not verified yet.
    pub(super) found: bool,
    /// When it was last published; `None` if this process has not published it.
    pub(super) published: Option<Monotonic>,
    /// The volume name in its path: that of the PersistentVolume at the time.
    pub(super) spec: String,
}

/// How far a mount got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Maybe published.
    Uncertain,
    /// Published.
    Published,
    /// The fsGroup is applied.
    Owned,
    /// Ready for the pod.
    Mounted,
}

/// Result of earlier expansions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Expansion {
    /// The driver does not expand the volume while it is in use: not retried on this node.
    pub(super) in_use: bool,
    /// The driver returned a final error.
    pub(super) refused: bool,
    /// The size for which read-only pods got an event that they cannot expand it.
    pub(super) reported_to_readers: Option<Quantity>,
}

impl Volume {
    /// A volume in its initial state.
    pub(super) fn new(driver: &str, handle: &str, spec: &str, mode: Mode, ephemeral: bool) -> Self {
        Self {
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            spec: spec.to_owned(),
            mode,
            ephemeral,
            desired: BTreeMap::new(),
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

    /// Adopts what a reconstruction found about the staged volume, if it was not known as staged.
    pub(super) fn adopt_stage(&mut self, found: &Self) {
        if self.device == Device::None {
            self.device = found.device;
            self.staged_at.clone_from(&found.staged_at);
        }
    }

    /// The staging path passed to the driver.
    pub(super) fn staging(&self, root: &Root) -> PathBuf {
        match (&self.staged_at, self.mode) {
            (Some(found), _) => found.clone(),
            (None, Mode::Filesystem) => root.stage(&self.driver, &self.handle).join("globalmount"),
            (None, Mode::Block) => root.device_stage(&self.spec),
        }
    }

    /// The target path for a pod, passed to the driver.
    pub(super) fn target(&self, root: &Root, pod: &str) -> PathBuf {
        let spec = self.mounts.get(pod).map_or(&self.spec, |mount| &mount.spec);
        match self.mode {
            Mode::Filesystem => root.publish(pod, spec).join("mount"),
            Mode::Block => root.device_publish(spec, pod),
        }
    }

    /// The host path for a pod's containers.
    pub(super) fn volume_path(&self, root: &Root, pod: &str, read_only: bool) -> VolumePath {
        let path = self.target(root, pod);
        match self.mode {
            Mode::Filesystem => VolumePath::Directory { path, read_only },
            Mode::Block => VolumePath::Device { path, read_only },
        }
    }

    /// Whether a pod uses it for writing.
    pub(super) fn is_written(&self) -> bool {
        self.desired.values().any(|desired| !desired.read_only)
    }

    /// Whether nothing of it is desired or can be mounted on this node.
    pub(super) fn is_gone(&self) -> bool {
        self.desired.is_empty() && self.mounts.is_empty() && self.device == Device::None
    }
}

impl World {
    /// The host paths of all volumes of a pod; `None` while one is not mounted.
    pub(super) fn mounted(&self, root: &Root, uid: &str) -> Option<Mounted> {
        let entry = self.pods.get(uid).filter(|entry| !entry.released)?;
        let pod = entry.pod.as_ref()?;
        let mut volumes = BTreeMap::new();
        for name in super::resolve::used(pod).names() {
            let volume_path = match entry.resolved.get(name)? {
                Resolved::Plain(volume_path) => volume_path.clone(),
                Resolved::Csi(unique) => {
                    let volume = self.volumes.get(unique)?;
                    let desired = volume.desired.get(uid)?;
                    let mount = volume.mounts.get(uid)?;
                    (mount.progress == Progress::Mounted).then_some(())?;
                    volume.volume_path(root, uid, desired.read_only)
                }
            };
            volumes.insert(name.to_owned(), volume_path);
        }
        Some(Mounted { volumes })
    }

    /// Whether something of a pod is, or may be, on disk.
    pub(super) fn holds(&self, uid: &str) -> bool {
        !self.started
            || self.pods.get(uid).is_some_and(|entry| entry.plain)
            || self.unidentified.iter().any(|unidentified| unidentified.pod.as_deref() == Some(uid))
            || self.volumes.values().any(|volume| volume.mounts.contains_key(uid))
    }

    /// Of the volumes in use by an earlier run, those that an unidentified mount may belong to.
    pub(super) fn may_be_in_use(&self, before: &[String]) -> Vec<String> {
        if self.unidentified.is_empty() {
            return Vec::new();
        }
        before.iter().filter(|name| !self.identified.contains(*name)).cloned().collect()
    }

    /// The problem of each of a pod's volumes that is not mounted.
    pub(super) fn problems(&self, uid: &str) -> Vec<(String, String)> {
        let Some(entry) = self.pods.get(uid) else { return Vec::new() };
        let Some(pod) = &entry.pod else { return Vec::new() };
        let used = super::resolve::used(pod);
        let problem = |name: &str| {
            if let Some(problem) = entry.problems.get(name) {
                return Some(problem.clone());
            }
            match entry.resolved.get(name) {
                None => Some("not processed yet".to_owned()),
                Some(Resolved::Plain(_)) => None,
                Some(Resolved::Csi(unique)) => {
                    self.volumes.get(unique).and_then(|volume| volume.problem(uid))
                }
            }
        };
        used.names().filter_map(|name| Some((name.to_owned(), problem(name)?))).collect()
    }

    /// Whether a pod's volumes are to be unmounted: it was released, or it is unknown after all pods are known.
    pub(super) fn is_released(&self, uid: &str) -> bool {
        match self.pods.get(uid) {
            Some(PodEntry { released: true, .. }) => true,
            Some(PodEntry { pod: Some(_), .. }) => false,
            _ => self.pods_known,
        }
    }

    /// Counts a failed round for this pod; each is reported to the waiting caller once.
    pub(super) fn count_round(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.rounds += 1;
        }
    }
}

impl Volume {
    fn problem(&self, uid: &str) -> Option<String> {
        if self.mounts.get(uid).is_some_and(|mount| mount.progress == Progress::Mounted) {
            return None;
        }
        let of = |(operation, pod): &(Operation, String)| {
            (pod == uid || pod.is_empty()) && !matches!(operation, Operation::Unpublish | Operation::Unstage)
        };
        let failed = self.failures.iter().filter(|(attempt, _)| of(attempt));
        let last = failed.max_by_key(|(_, failure)| failure.at).map(|(_, failure)| failure.message.clone());
        let waiting = || match (self.waiting, &self.attach_error) {
            (Some(Waiting::Attach), Some(error)) => {
                Some(format!("{}; attach error: {error}", Waiting::Attach))
            }
            (waiting, _) => waiting.map(|waiting| waiting.to_string()),
        };
        last.or_else(waiting).or_else(|| Some("being mounted".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Wait for all pods": only released pods, or unknown pods once all are known.
    #[test]
    fn volumes_of_released_or_unknown_pods_are_unmounted() {
        let entry = |known: bool, released: bool| PodEntry {
            pod: known.then(Arc::default),
            released,
            ..PodEntry::default()
        };
        for (pods_known, entry, expected) in [
            (false, None, false),
            (true, None, true),
            (false, Some(entry(false, false)), false),
            (true, Some(entry(false, false)), true),
            (false, Some(entry(true, false)), false),
            (true, Some(entry(true, false)), false),
            (false, Some(entry(true, true)), true),
            (false, Some(entry(false, true)), true),
        ] {
            let known = format!("{pods_known} {entry:?}");
            let mut world = World { pods_known, ..World::default() };
            world.pods.extend(entry.map(|entry| ("u".to_owned(), entry)));
            assert_eq!(world.is_released("u"), expected, "{known}");
        }
    }

    /// Before the disk was scanned, every pod may have something mounted.
    #[test]
    fn every_pod_may_hold_volumes_before_the_scan() {
        let mut world = World::default();
        assert!(world.holds("u"));
        world.started = true;
        assert!(!world.holds("u"));
        world.unidentified.push(UnidentifiedMount {
            path: "/x".into(),
            pod: Some("u".into()),
            reason: String::new(),
        });
        assert!(world.holds("u") && !world.holds("v"), "an unidentified mount counts");
    }

    /// kubernetes#113226: problems are listed for unmounted volumes only.
    #[test]
    fn problems_are_listed_for_unmounted_volumes_only() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "unused"}],
            "containers": [{"volumeMounts": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}],
        }}))
        .unwrap();
        let volume_path = VolumePath::Directory { path: "/a".into(), read_only: false };
        let mut entry = PodEntry { pod: Some(Arc::new(pod)), ..PodEntry::default() };
        entry.resolved.insert("a".into(), Resolved::Plain(volume_path));
        entry.resolved.insert("b".into(), Resolved::Csi("uvn".into()));
        let mut world = World { started: true, ..World::default() };
        world.pods.insert("u".into(), entry);
        let mut volume = Volume::new("d", "h", "pv1", Mode::Filesystem, false);
        volume.waiting = Some(Waiting::Attach);
        volume.attach_error = Some("no slot".into());
        world.volumes.insert("uvn".into(), volume);
        let problems = world.problems("u");
        let names: Vec<&str> = problems.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        assert!(problems[0].1.ends_with("attach error: no slot"), "{problems:?}");
        assert_eq!(world.mounted(&Root::new("/k"), "u"), None);
    }
}
