//! The model: what was requested and not deleted, which all components have to agree on.
//!
//! A restore or clone whose source is deleted before it is complete may stay pending forever, as with upstream. It
//! is marked as doomed, and deleted before the comparison.

use std::collections::BTreeMap;

/// The content of a volume's single file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// False if the copy may have been made before the file was written.
    pub(crate) certain: bool,
}

/// The source of a volume's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Empty volume.
    New,
    /// A snapshot, by its name and handle, and by its group if it has one.
    Snapshot { name: String, handle: String, group: Option<String> },
    /// A clone of a claim's volume.
    Claim { name: String, volume: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    /// Claims of the same team are snapshotted as a group.
    pub(crate) team: usize,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
    pub(crate) holds: Text,
    /// Observed in this state.
    pub(crate) bound: bool,
    pub(crate) doomed: bool,
}

impl Claim {
    /// The volume handle.
    pub(crate) fn volume(&self) -> String {
        format!("vol-pvc-{}", self.uid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) uid: String,
    pub(crate) claim: String,
    /// The handle of the claim's volume.
    pub(crate) volume: String,
    pub(crate) holds: Text,
    /// Observed in this state.
    pub(crate) ready: bool,
    pub(crate) doomed: bool,
}

impl Snapshot {
    /// The handle.
    pub(crate) fn handle(&self) -> String {
        format!("snap-snapshot-{}", self.uid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) uid: String,
    pub(crate) team: usize,
    /// Observed in this state.
    pub(crate) ready: bool,
    pub(crate) doomed: bool,
}

impl Group {
    /// The handle.
    pub(crate) fn handle(&self) -> String {
        format!("group-groupsnapshot-{}", self.uid)
    }
}

/// All requested objects, by name.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) claims: BTreeMap<String, Claim>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    pub(crate) groups: BTreeMap<String, Group>,
}

impl Model {
    /// Records the deletion of a claim.
    pub(crate) fn claim_deleted(&mut self, name: &str) {
        let Some(gone) = self.claims.remove(name) else { return };
        for snapshot in self.snapshots.values_mut().filter(|it| it.claim == name && !it.ready) {
            snapshot.doomed = true;
        }
        for group in self.groups.values_mut().filter(|it| it.team == gone.team && !it.ready) {
            group.doomed = true;
        }
        self.doom(|source| matches!(source, Source::Claim { name: from, .. } if from == name));
    }

    /// Records the deletion of a snapshot.
    pub(crate) fn snapshot_deleted(&mut self, name: &str) {
        self.snapshots.remove(name);
        self.doom(|source| matches!(source, Source::Snapshot { name: from, .. } if from == name));
    }

    /// Records the deletion of a group.
    pub(crate) fn group_deleted(&mut self, name: &str) {
        self.groups.remove(name);
        self.doom(|source| matches!(source, Source::Snapshot { group: Some(of), .. } if of == name));
    }

    fn doom(&mut self, is_gone: impl Fn(&Source) -> bool) {
        for claim in self.claims.values_mut().filter(|it| !it.bound && is_gone(&it.source)) {
            claim.doomed = true;
        }
    }

    /// The doomed objects, as `kind/name`. Deleting them may doom others.
    pub(crate) fn doomed(&self) -> Vec<String> {
        let claims = self.claims.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("pvc/{name}"));
        let snapshots =
            self.snapshots.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("vs/{name}"));
        let groups = self.groups.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("vgs/{name}"));
        claims.chain(snapshots).chain(groups).collect()
    }

    /// All requested objects, as `kind/name`.
    pub(crate) fn all(&self) -> Vec<String> {
        let claims = self.claims.keys().map(|name| format!("pvc/{name}"));
        let snapshots = self.snapshots.keys().map(|name| format!("vs/{name}"));
        let groups = self.groups.keys().map(|name| format!("vgs/{name}"));
        claims.chain(snapshots).chain(groups).collect()
    }
}
