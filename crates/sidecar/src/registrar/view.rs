//! Inputs of the registrar's rules.

use std::collections::BTreeMap;
use std::time::Duration;

/// Everything [`decide`](super::decide::decide) needs to know. Times count from the registrar's start.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// The driver.
    pub(super) driver: Driver<'a>,
    /// The registration socket that this registrar created.
    pub(super) own_socket: OwnSocket<'a>,
    /// The socket could not be created; do not retry before this time.
    pub(super) failed_until: Option<Duration>,
}

/// The driver that currently serves its socket. After a restart it counts as another driver until it has responded to a call.
#[derive(Debug, Clone)]
pub(super) enum Driver<'a> {
    /// There is no socket. Next: `Unknown`.
    NoSocket,
    /// Its name is not known. Next: `Named`.
    Unknown {
        /// When to call GetPluginInfo.
        call_at: Duration,
    },
    /// Its name is known, its node info is not. Next: `Known`.
    Named {
        /// Its name.
        name: &'a str,
        /// When to call NodeGetInfo.
        call_at: Duration,
    },
    /// Both are known.
    Known {
        /// Its name.
        name: &'a str,
        /// Its node info.
        node: &'a NodeInfo,
    },
}

/// The socket that we created last.
#[derive(Debug, Clone)]
pub(super) enum OwnSocket<'a> {
    /// No socket was created yet.
    None,
    /// A socket was created.
    Served {
        /// The driver that it was created for.
        name: &'a str,
        /// The node info of that driver; `None` if it restarted before it returned that.
        node: Option<&'a NodeInfo>,
        /// The state of its path.
        path_state: PathState,
        /// Kubelet's response.
        kubelet_status: KubeletStatus,
    },
}

/// What exists at the path of our socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathState {
    /// Our socket.
    Ours,
    /// Nothing.
    Missing {
        /// When this was first observed.
        since: Duration,
    },
    /// Another socket, which is not served.
    Stale {
        /// When this was first observed.
        since: Duration,
    },
    /// Another socket, which is served.
    Foreign,
    /// Something other than a socket.
    NotSocket,
}

/// Kubelet's response to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KubeletStatus {
    /// None yet.
    Pending,
    /// The driver is registered.
    Registered,
    /// The registration failed.
    Refused {
        /// When to try again.
        retry_at: Duration,
    },
}

/// The response to NodeGetInfo, which kubelet reads when it registers a driver and writes into the CSINode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeInfo {
    /// The driver's ID of this node.
    pub(super) node_id: String,
    /// Maximum number of volumes on this node.
    pub(super) max_volumes: i64,
    /// Topology of this node.
    pub(super) topology: BTreeMap<String, String>,
}
