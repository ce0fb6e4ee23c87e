//! What the caller of a driver knows about its volumes and snapshots: which calls it has started, and which of them were
//! acknowledged. A cut of the power may lose what was not acknowledged, and nothing else.

use std::collections::BTreeMap;

/// The phases of an object. Each call that changes the phase is recorded before it starts and after it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Creating,
    Live,
    Deleting,
    Deleted,
}

/// A value that is at least `acknowledged` and at most `started`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) acknowledged: u64,
    pub(crate) started: u64,
}

impl Bounds {
    pub(crate) fn exactly(value: u64) -> Self {
        Self { acknowledged: value, started: value }
    }
}

/// A volume. Its content is a counter, in a file or in the first block of a raw block volume.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) phase: Phase,
    /// The file system type; empty for a raw block volume.
    pub(crate) fs: &'static str,
    pub(crate) thick: bool,
    /// The size of its CreateVolume call.
    pub(crate) created_size: u64,
    pub(crate) size: Bounds,
    pub(crate) content: Bounds,
    /// The name of the snapshot or volume that it was created from.
    pub(crate) from: Option<String>,
    /// Known once CreateVolume succeeded.
    pub(crate) id: Option<String>,
}

/// A snapshot, with the content of its volume at that time.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) phase: Phase,
    /// The name of its volume.
    pub(crate) of: String,
    pub(crate) fs: &'static str,
    pub(crate) size: u64,
    pub(crate) content: Bounds,
    pub(crate) id: Option<String>,
}

/// All objects by name. No name is used twice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) volumes: BTreeMap<String, Volume>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
}

impl Model {
    /// The ID of a source by its name.
    pub(crate) fn id_of(&self, name: &str) -> Option<String> {
        let volume = self.volumes.get(name).and_then(|volume| volume.id.clone());
        volume.or_else(|| self.snapshots.get(name)?.id.clone())
    }

    pub(crate) fn phase_of(&self, name: &str) -> Option<Phase> {
        let volume = self.volumes.get(name).map(|volume| volume.phase);
        volume.or_else(|| Some(self.snapshots.get(name)?.phase))
    }

    pub(crate) fn volume(&mut self, name: &str) -> &mut Volume {
        self.volumes.get_mut(name).unwrap()
    }

    pub(crate) fn snapshot(&mut self, name: &str) -> &mut Snapshot {
        self.snapshots.get_mut(name).unwrap()
    }

    /// The names of objects that exist: no call that creates or deletes them is unanswered.
    pub(crate) fn live_volumes(&self) -> Vec<String> {
        let live = self.volumes.iter().filter(|(_, volume)| volume.phase == Phase::Live);
        live.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn live_snapshots(&self) -> Vec<String> {
        let live = self.snapshots.iter().filter(|(_, snapshot)| snapshot.phase == Phase::Live);
        live.map(|(name, _)| name.clone()).collect()
    }
}
