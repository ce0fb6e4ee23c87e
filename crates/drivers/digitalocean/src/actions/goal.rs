//! What an operation is to bring about, and what can be read off a volume about it.

use std::fmt;

use crate::api::{Action, ActionStatus, Volume, VolumeAction};

/// How the volume is to be in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Attached to this droplet.
    Attached(u64),
    /// Not attached to this droplet.
    Detached(u64),
    /// Of so many GiB, or more.
    Size(u64),
}

impl Goal {
    /// Whether the volume is so.
    pub(super) fn reached(self, volume: &Volume) -> bool {
        match self {
            Self::Attached(droplet) => volume.droplet_ids.contains(&droplet),
            Self::Detached(droplet) => !volume.droplet_ids.contains(&droplet),
            Self::Size(gib) => volume.size_gigabytes >= gib,
        }
    }

    /// What to ask for.
    pub(super) fn action(self, region: &str) -> VolumeAction {
        match self {
            Self::Attached(droplet_id) => VolumeAction::Attach { droplet_id },
            Self::Detached(droplet_id) => VolumeAction::Detach { droplet_id },
            Self::Size(size_gigabytes) => VolumeAction::Resize { size_gigabytes, region: region.to_owned() },
        }
    }

    /// Whether that action, which is not ours or not known to be, does what we want.
    pub(super) fn is_served_by(self, action: &Action) -> bool {
        let word = match self {
            Self::Attached(_) => "attach",
            Self::Detached(_) => "detach",
            Self::Size(_) => "resize",
        };
        action.status == ActionStatus::InProgress && action.kind.starts_with(word)
    }

    /// The droplet whose queue it stands in. Growing a volume holds up no droplet.
    pub(super) fn droplet(self) -> Option<u64> {
        match self {
            Self::Attached(droplet) | Self::Detached(droplet) => Some(droplet),
            Self::Size(_) => None,
        }
    }

    /// Whether it may use the reserve, and goes first.
    pub(super) fn urgent(self) -> bool {
        matches!(self, Self::Detached(_))
    }

    /// In words, with the volume.
    pub(super) fn of(self, volume: &str) -> String {
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
