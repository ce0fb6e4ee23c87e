//! What can be set, at the start and at run time: limits, delays, and how devices appear.

use serde::{Deserialize, Serialize};

/// The settings of a fake. As JSON every field may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// How long an action takes.
    pub action_delay_ms: u64,
    /// How many volumes a droplet can have.
    pub volumes_per_droplet: u64,
    /// How many volumes the account can have; 0 for no limit.
    pub volume_limit: u64,
    /// How many GiB the account's volumes and snapshots can have together; 0 for no limit.
    pub capacity_gigabytes: u64,
    /// Requests of one token in an hour; 0 for no limit.
    pub requests_per_hour: u64,
    /// Requests of one token in a minute; 0 for no limit.
    pub requests_per_minute: u64,
    /// How long a volume cannot be snapshotted again; 0 switches the rule off.
    pub snapshot_interval_ms: u64,
    /// How long after a completed attach its device appears.
    pub device_delay_ms: u64,
    /// What appears first, in place of the whole device; and for how long.
    pub half_attached: Option<HalfAttached>,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            action_delay_ms: 1_000,
            volumes_per_droplet: 7,
            volume_limit: 100,
            capacity_gigabytes: 0,
            requests_per_hour: 5_000,
            requests_per_minute: 250,
            snapshot_interval_ms: 600_000,
            device_delay_ms: 200,
            half_attached: None,
        }
    }
}

/// A device that is not yet what it will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HalfAttached {
    /// What is seen.
    pub shape: Half,
    /// For how long, from when the device would have appeared.
    pub for_ms: u64,
}

/// What a half-attached device looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Half {
    /// The link is there and leads to nothing.
    Dangling,
    /// The device is there and has no bytes.
    Empty,
    /// The device is there, is smaller than the volume, and reads as zeroes: the trap for a driver that takes it
    /// for a blank one.
    Short,
}
