//! The API's state: droplets, volumes, snapshots, actions, tags. Plain data, also the format of the state file.
//!
//! Nothing here reads a clock: callers pass the time, and [`State::advance`] completes the actions that are due.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::time::{self, Millis};

/// The state that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// By id.
    pub droplets: BTreeMap<u64, Droplet>,
    /// By id.
    pub volumes: BTreeMap<String, Volume>,
    /// By id.
    pub snapshots: BTreeMap<String, Snapshot>,
    /// By id.
    pub actions: BTreeMap<u64, Action>,
    /// Names of tags, including unused ones.
    pub tags: BTreeSet<String>,
    /// Number of ids assigned so far.
    pub serial: u64,
}

/// A machine that volumes can be attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Droplet {
    /// Its number, which is also its node id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The slug of its region.
    pub region: String,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Creation time.
    #[serde(default)]
    pub created: Millis,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its UUID.
    pub id: String,
    /// Unique in its region.
    pub name: String,
    /// The slug of its region.
    pub region: String,
    /// Its size in GiB.
    pub size_gigabytes: u64,
    /// The description from the create request.
    #[serde(default)]
    pub description: String,
    /// The requested file system, or empty.
    #[serde(default)]
    pub filesystem_type: String,
    /// That file system's label, or empty.
    #[serde(default)]
    pub filesystem_label: String,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Creation time.
    #[serde(default)]
    pub created: Millis,
    /// The droplet it is attached to.
    #[serde(default)]
    pub attached: Option<Attachment>,
    /// Time of the last snapshot: one is allowed in ten minutes.
    #[serde(default)]
    pub snapshotted: Option<Millis>,
}

/// A volume's attachment to a droplet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The droplet.
    pub droplet: u64,
    /// When the attach completed. The device appears later.
    pub since: Millis,
}

/// A snapshot of a volume. It outlives the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its UUID.
    pub id: String,
    /// Unique among its volume's.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// The slug of its region.
    pub region: String,
    /// The volume's size at that time.
    pub min_disk_size: u64,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Creation time.
    #[serde(default)]
    pub created: Millis,
}

/// An asynchronous operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its number.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// The volume.
    pub volume: String,
    /// The slug of its region.
    pub region: String,
    /// Its status.
    pub status: Status,
    /// When it was requested.
    pub started: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
    /// When it will end; none if never.
    pub due: Option<Millis>,
    /// Whether it will end `errored` without effect.
    pub fails: bool,
}

/// What an action does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Attaches a volume to a droplet.
    Attach {
        /// The droplet.
        droplet: u64,
    },
    /// Detaches a volume from a droplet.
    Detach {
        /// The droplet.
        droplet: u64,
    },
    /// Resizes a volume.
    Resize {
        /// Its new size in GiB.
        size_gigabytes: u64,
    },
}

impl Kind {
    /// As the API spells it in an action.
    pub fn word(self) -> &'static str {
        match self {
            Self::Attach { .. } => "attach_volume",
            Self::Detach { .. } => "detach_volume",
            Self::Resize { .. } => "resize_volume",
        }
    }

    /// The droplet that is busy with it.
    pub fn droplet(self) -> Option<u64> {
        match self {
            Self::Attach { droplet } | Self::Detach { droplet } => Some(droplet),
            Self::Resize { .. } => None,
        }
    }
}

/// The status of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Still running.
    InProgress,
    /// Succeeded.
    Completed,
    /// Failed without effect.
    Errored,
}

impl Status {
    /// As the API spells it.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::Completed => "completed",
            Self::Errored => "errored",
        }
    }
}

impl State {
    /// Ends every action that is due by `now`, each at its own time. Returns whether anything changed.
    pub fn advance(&mut self, now: Millis) -> bool {
        let mut due: Vec<(Millis, u64)> = self.pending().filter_map(|a| Some((a.due?, a.id))).collect();
        due.retain(|(at, _)| *at <= now);
        due.sort_unstable();
        for (at, id) in &due {
            self.finish(*id, *at);
        }
        !due.is_empty()
    }

    /// When the next action ends by itself.
    pub fn next_due(&self) -> Option<Millis> {
        self.pending().filter_map(|action| action.due).min()
    }

    /// The actions that have not ended.
    pub fn pending(&self) -> impl Iterator<Item = &Action> {
        self.actions.values().filter(|action| action.status == Status::InProgress)
    }

    /// Ends one action now, with its effect unless it fails. Returns whether it was pending.
    pub fn finish(&mut self, id: u64, now: Millis) -> bool {
        let Some(action) = self.actions.get_mut(&id).filter(|a| a.status == Status::InProgress) else {
            return false;
        };
        action.ended = Some(now);
        action.status = if action.fails { Status::Errored } else { Status::Completed };
        if action.fails {
            return true;
        }
        let kind = action.kind;
        if let Some(volume) = self.volumes.get_mut(&action.volume) {
            match kind {
                Kind::Attach { droplet } => volume.attached = Some(Attachment { droplet, since: now }),
                Kind::Detach { .. } => volume.attached = None,
                Kind::Resize { size_gigabytes } => volume.size_gigabytes = size_gigabytes,
            }
        }
        true
    }

    /// The volumes attached to a droplet.
    pub fn volumes_of(&self, droplet: u64) -> impl Iterator<Item = &Volume> {
        self.volumes
            .values()
            .filter(move |volume| volume.attached.is_some_and(|attached| attached.droplet == droplet))
    }

    /// A unique number for an action.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.serial += 1;
        // Real ids are large; a client that confuses an index with an id should fail.
        1_700_000_000 + self.serial
    }

    /// A UUID of version 1, as DigitalOcean's are.
    pub(crate) fn next_uuid(&mut self, now: Millis) -> String {
        self.serial += 1;
        time::uuid_v1(now, self.serial)
    }

    /// Whether it contains nothing that costs money: no volume, no snapshot, no pending action.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.pending().next().is_none()
    }
}
