//! What the cloud holds: droplets, volumes, snapshots, actions, tags. Plain data, which is also the state file.
//!
//! Nothing here reads a clock: whoever calls says what time it is, and [`State::advance`] makes happen what was
//! due by then.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::time::{self, Millis};

/// Everything that a restart must not lose.
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
    /// Names of tags, also of those that nothing has.
    pub tags: BTreeSet<String>,
    /// How many ids were given out.
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
    /// When it was made.
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
    /// What its maker said of it.
    #[serde(default)]
    pub description: String,
    /// The file system that its maker asked for, or empty.
    #[serde(default)]
    pub filesystem_type: String,
    /// That file system's label, or empty.
    #[serde(default)]
    pub filesystem_label: String,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// When it was made.
    #[serde(default)]
    pub created: Millis,
    /// The droplet that has it.
    #[serde(default)]
    pub attached: Option<Attachment>,
    /// When it was last snapshotted: that is allowed once in ten minutes.
    #[serde(default)]
    pub snapshotted: Option<Millis>,
}

/// A volume's place at a droplet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The droplet.
    pub droplet: u64,
    /// When the API said so. The device comes later.
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
    /// When it was made.
    #[serde(default)]
    pub created: Millis,
}

/// Something that takes time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its number.
    pub id: u64,
    /// What is done.
    pub kind: Kind,
    /// To which volume.
    pub volume: String,
    /// The slug of its region.
    pub region: String,
    /// How far it is.
    pub status: Status,
    /// When it was asked for.
    pub started: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
    /// When it is to end; none if it never does.
    pub due: Option<Millis>,
    /// It will end `errored` and change nothing.
    pub fails: bool,
}

/// What an action does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A volume to a droplet.
    Attach {
        /// The droplet.
        droplet: u64,
    },
    /// A volume from a droplet.
    Detach {
        /// The droplet.
        droplet: u64,
    },
    /// A volume becomes larger.
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

/// How far an action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Not done.
    InProgress,
    /// Done.
    Completed,
    /// It failed and changed nothing.
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
    /// Ends every action that was due by `now`, each at its own time. Says whether anything changed.
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

    /// Ends one action now, with what it was to do, or without if it was to fail. Says whether it was pending.
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

    /// The volumes that a droplet has.
    pub fn volumes_of(&self, droplet: u64) -> impl Iterator<Item = &Volume> {
        self.volumes
            .values()
            .filter(move |volume| volume.attached.is_some_and(|attached| attached.droplet == droplet))
    }

    /// A number that nothing else has, for actions.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.serial += 1;
        // Real ones are far from small; a client that takes an index for an id should notice.
        1_700_000_000 + self.serial
    }

    /// A UUID of version 1, as DigitalOcean's are.
    pub(crate) fn next_uuid(&mut self, now: Millis) -> String {
        self.serial += 1;
        time::uuid_v1(now, self.serial)
    }

    /// Whether it holds nothing that costs money: no volume, no snapshot, no action that goes on.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.pending().next().is_none()
    }
}
