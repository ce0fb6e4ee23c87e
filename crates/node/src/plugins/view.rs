//! Inputs of the rules for one registration socket. Times count from the start of the manager.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Plugin, Settings};

/// Everything the rules need to know about one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// The file at the socket's path.
    pub(super) socket: Socket,
    /// How far its registration got.
    pub(super) phase: Phase,
    /// Backoff after a failed step: no step before this time.
    pub(super) not_before: Option<Duration>,
}

/// The file at the path now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Socket {
    /// No file, or not a socket.
    Gone {
        /// When that was first observed.
        since: Duration,
    },
    /// A socket that has not been processed yet.
    New {
        /// When it was first observed.
        since: Duration,
    },
    /// The socket that `phase` refers to.
    Same,
}

/// How far the registration of a socket got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not registered yet. Next: `Refused`, `Registered`.
    Pending,
    /// Registration failed. Next: `Registered`.
    Refused,
    /// It was registered, then another socket registered the driver's name with a higher version. Next: `Refused`.
    Superseded,
    /// Registered. Next: `Deregistering`, `Superseded`.
    Registered(Facts),
    /// Deregistered, but some entries still exist. Next: dropped, or `Registered`.
    Deregistering,
}

/// State of a registered driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// NotifyRegistrationStatus succeeded.
    pub(super) notified: bool,
    /// The driver's entries in Node and CSINode.
    pub(super) entries: Entries,
    /// Whether the driver restarted since it was queried.
    pub(super) driver: Driver,
    /// When it was last queried.
    pub(super) queried_at: Duration,
    /// How often to query it.
    pub(super) period: Option<Duration>,
    /// A refresh was requested: the driver's volume limit seems to have changed.
    pub(super) refresh_requested: bool,
}

/// The driver's entries in Node and CSINode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    /// They match the driver's node info, or are unknown.
    Current,
    /// They hold the driver's previous node info.
    Outdated,
    /// Something else changed them.
    Modified,
}

/// The process behind the driver's own socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// The one that was queried.
    Same,
    /// It restarted since.
    Restarted,
    /// The socket does not exist; the driver may be starting.
    Absent,
}

/// The settings that the rules depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) retry: bool,
    pub(super) handover: bool,
    pub(super) restore: bool,
    pub(super) grace: Duration,
}

impl From<&Settings> for Rules {
    fn from(settings: &Settings) -> Self {
        let &Settings { retry, handover, restore_entries: restore, socket_grace: grace, .. } = settings;
        Self { retry, handover, restore, grace }
    }
}

/// The driver's NodeGetInfo response: what is written to Node and CSINode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DriverNodeInfo {
    /// The driver's id of the node.
    pub(super) node_id: String,
    /// Maximum number of volumes on the node.
    pub(super) max_volumes: i64,
    /// The node's topology segments.
    pub(super) topology: BTreeMap<String, String>,
}

impl From<&Plugin> for DriverNodeInfo {
    fn from(plugin: &Plugin) -> Self {
        Self {
            node_id: plugin.node_id.clone(),
            max_volumes: plugin.max_volumes,
            topology: plugin.topology.clone(),
        }
    }
}
