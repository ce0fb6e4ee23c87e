//! The goal of an operation, and whether a volume has reached it.

use std::fmt;

use crate::api::{Action, ActionStatus, Volume, VolumeAction};

/// The requested state of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Attached to this droplet.
    Attached(u64),
    /// Not attached to this droplet.
    Detached(u64),
    /// At least this many GiB.
    Size(u64),
}

impl Goal {
    /// Whether the volume is in the requested state.
    pub(super) fn reached(self, volume: &Volume) -> bool {
        match self {
            Self::Attached(droplet) => volume.droplet_ids.contains(&droplet),
            Self::Detached(droplet) => !volume.droplet_ids.contains(&droplet),
            Self::Size(gib) => volume.size_gigabytes >= gib,
        }
    }

    /// The action to request.
    pub(super) fn action(self, region: &str) -> VolumeAction {
        match self {
            Self::Attached(droplet_id) => VolumeAction::Attach { droplet_id },
            Self::Detached(droplet_id) => VolumeAction::Detach { droplet_id },
            Self::Size(size_gigabytes) => VolumeAction::Resize { size_gigabytes, region: region.to_owned() },
        }
    }

    /// Whether this running action, possibly started by another call, leads to the goal.
    pub(super) fn is_served_by(self, action: &Action) -> bool {
        let word = match self {
            Self::Attached(_) => "attach",
            Self::Detached(_) => "detach",
            Self::Size(_) => "resize",
        };
        action.status == ActionStatus::InProgress && action.kind.starts_with(word)
    }

    /// The droplet in whose queue the operation waits. A resize does not block a droplet.
    pub(super) fn droplet(self) -> Option<u64> {
        match self {
            Self::Attached(droplet) | Self::Detached(droplet) => Some(droplet),
            Self::Size(_) => None,
        }
    }

    /// Whether the operation uses the reserved rate limit and takes precedence in the queue.
    pub(super) fn urgent(self) -> bool {
        matches!(self, Self::Detached(_))
    }

    /// Describes the operation, including the volume.
    pub(super) fn describe(self, volume: &str) -> String {
        format!("{self}: volume {volume}")
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached(droplet) => write!(f, "attach to droplet {droplet}"),
            Self::Detached(droplet) => write!(f, "detach from droplet {droplet}"),
            Self::Size(gib) => write!(f, "resize to {gib} GiB"),
        }
    }
}
