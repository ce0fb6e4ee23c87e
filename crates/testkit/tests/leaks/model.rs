//! What was asked for and not taken back: what everybody has to agree on.
//!
//! What is made from something that was deleted before it was made may wait for ever, as with upstream. It is marked as
//! doomed, and taken back before the others are counted.

use std::collections::BTreeMap;

/// What the one file of a volume holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// Otherwise it may have been copied before there was a file.
    pub(crate) certain: bool,
}

/// Where a volume's content comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere.
    New,
    /// A snapshot, by its name and the driver's; and by its group's, if it has one.
    Snapshot { name: String, handle: String, group: Option<String> },
    /// The volume of a claim.
    Claim { name: String, volume: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    /// Claims of a team are snapshotted as a group.
    pub(crate) team: usize,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
    pub(crate) holds: Text,
    /// Seen so.
    pub(crate) bound: bool,
    pub(crate) doomed: bool,
}

impl Claim {
    /// What the driver calls its volume.
    pub(crate) fn volume(&self) -> String {
        format!("vol-pvc-{}", self.uid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) uid: String,
    pub(crate) claim: String,
    /// What the driver calls the claim's volume.
    pub(crate) volume: String,
    pub(crate) holds: Text,
    /// Seen so.
    pub(crate) ready: bool,
    pub(crate) doomed: bool,
}

impl Snapshot {
    /// What the driver calls it.
    pub(crate) fn handle(&self) -> String {
        format!("snap-snapshot-{}", self.uid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) uid: String,
    pub(crate) team: usize,
    /// Seen so.
    pub(crate) ready: bool,
    pub(crate) doomed: bool,
}

impl Group {
    /// What the driver calls it.
    pub(crate) fn handle(&self) -> String {
        format!("group-groupsnapshot-{}", self.uid)
    }
}

/// Everything, by name.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) claims: BTreeMap<String, Claim>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    pub(crate) groups: BTreeMap<String, Group>,
}

impl Model {
    /// A claim's deletion was asked for.
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

    /// A snapshot's deletion was asked for.
    pub(crate) fn snapshot_deleted(&mut self, name: &str) {
        self.snapshots.remove(name);
        self.doom(|source| matches!(source, Source::Snapshot { name: from, .. } if from == name));
    }

    /// A group's deletion was asked for.
    pub(crate) fn group_deleted(&mut self, name: &str) {
        self.groups.remove(name);
        self.doom(|source| matches!(source, Source::Snapshot { group: Some(of), .. } if of == name));
    }

    fn doom(&mut self, is_gone: impl Fn(&Source) -> bool) {
        for claim in self.claims.values_mut().filter(|it| !it.bound && is_gone(&it.source)) {
            claim.doomed = true;
        }
    }

    /// What may wait for ever, as `kind/name`. Taking it back may doom others.
    pub(crate) fn doomed(&self) -> Vec<String> {
        let claims = self.claims.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("pvc/{name}"));
        let snapshots =
            self.snapshots.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("vs/{name}"));
        let groups = self.groups.iter().filter(|(_, it)| it.doomed).map(|(name, _)| format!("vgs/{name}"));
        claims.chain(snapshots).chain(groups).collect()
    }

    /// All of it, as `kind/name`.
    pub(crate) fn all(&self) -> Vec<String> {
        let claims = self.claims.keys().map(|name| format!("pvc/{name}"));
        let snapshots = self.snapshots.keys().map(|name| format!("vs/{name}"));
        let groups = self.groups.keys().map(|name| format!("vgs/{name}"));
        claims.chain(snapshots).chain(groups).collect()
    }
}
