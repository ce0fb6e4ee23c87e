//! What the plugin manager sees of one socket, reduced to what its rules ask for. Times count from its start.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Plugin, Settings};

/// All of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// The socket.
    pub(super) socket: Socket,
    /// What came of it so far.
    pub(super) held: Held,
    /// A step failed; none is to be done before.
    pub(super) not_before: Option<Duration>,
}

/// What is at the path now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Socket {
    /// Nothing, or no socket.
    Gone {
        /// When that was seen first.
        since: Duration,
    },
    /// A socket that nothing came of yet.
    New {
        /// When it was seen first.
        since: Duration,
    },
    /// The one that `held` is about.
    Same,
}

/// What came of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing yet. Next: `Refused`, `Registered`.
    Nothing,
    /// It could not be registered. Next: `Registered`.
    Refused,
    /// It was registered, and another socket has the driver's name with a higher version. Next: `Refused`.
    Superseded,
    /// It is registered. Next: `Leaving`, `Superseded`.
    Registered(Facts),
    /// Its driver is not registered any more, and its entries are not all gone. Next: forgotten, or `Registered`.
    Leaving,
}

/// What is known of a registered driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// The plugin was told that it is registered.
    pub(super) told: bool,
    /// What Node and CSINode say of it.
    pub(super) entries: Entries,
    /// Whether it is the driver that was asked.
    pub(super) driver: Driver,
    /// When it was asked last.
    pub(super) asked_at: Duration,
    /// How often it is to be asked.
    pub(super) period: Option<Duration>,
    /// Somebody saw that its limit is not what it said.
    pub(super) wanted: bool,
}

/// What Node and CSINode say of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    /// What the driver says, or nobody can tell.
    Right,
    /// What the driver said before.
    Outdated,
    /// Something else: not by us.
    Disturbed,
}

/// The driver behind its own socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// The one that was asked.
    Same,
    /// It was restarted since.
    Restarted,
    /// There is no socket; it may be starting.
    Away,
}

/// The part of the settings that the rules ask for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) retry: bool,
    pub(super) handover: bool,
    pub(super) restore: bool,
    pub(super) grace: Duration,
}

impl From<&Settings> for Rules {
    fn from(settings: &Settings) -> Self {
        let &Settings { retry, handover, restore, grace, .. } = settings;
        Self { retry, handover, restore, grace }
    }
}

/// What a driver says of this node: what goes into Node and CSINode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeAnswer {
    /// What it calls the node.
    pub(super) node_id: String,
    /// How many volumes it can have here.
    pub(super) max_volumes: i64,
    /// Where the node is.
    pub(super) topology: BTreeMap<String, String>,
}

impl From<&Plugin> for NodeAnswer {
    fn from(plugin: &Plugin) -> Self {
        Self {
            node_id: plugin.node_id.clone(),
            max_volumes: plugin.max_volumes,
            topology: plugin.topology.clone(),
        }
    }
}
