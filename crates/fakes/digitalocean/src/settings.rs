//! Settings that can be changed at startup and at run time: limits, delays, and how devices appear.

use serde::{Deserialize, Serialize};

/// The settings of a fake. In JSON, every field is optional.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeSettings {
    /// How long an action takes.
    pub action_delay_ms: u64,
    /// Maximum number of volumes per droplet.
    pub volumes_per_droplet: u64,
    /// Maximum number of volumes in the account; 0 for no limit.
    pub volume_limit: u64,
    /// Maximum total size of volumes and snapshots in GiB; 0 for no limit.
    pub capacity_gigabytes: u64,
    /// Requests per hour and token; 0 for no limit.
    pub requests_per_hour: u64,
    /// Requests per minute and token; 0 for no limit.
    pub requests_per_minute: u64,
    /// Minimum time between two snapshots of a volume; 0 disables the rule.
    pub snapshot_interval_ms: u64,
    /// Time from a completed attach until the device appears.
    pub device_delay_ms: u64,
    /// The half-attached device that appears first, if any.
    pub half_attached: Option<HalfAttached>,
}

impl Default for FakeSettings {
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

/// A device that is temporarily half attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HalfAttached {
    /// Its shape.
    pub shape: HalfAttachedShape,
    /// How long, from the time at which the device would have appeared.
    pub for_ms: u64,
}

/// What a half-attached device looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HalfAttachedShape {
    /// The link exists but is dangling.
    Dangling,
    /// The device exists but has size 0.
    Empty,
    /// The device exists, is smaller than the volume, and reads as zeroes: a driver must not mistake it for a blank
    /// volume.
    Short,
}
