//! What the registrar sees, reduced to what its rules ask for.

use std::collections::BTreeMap;
use std::time::Duration;

/// All of it. Times count from the registrar's start.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// The driver.
    pub(super) driver: Driver<'a>,
    /// Our socket.
    pub(super) held: Held<'a>,
    /// The socket could not be made; not to be tried again before.
    pub(super) failed_until: Option<Duration>,
}

/// The driver that is behind its socket now. One that restarted is another one until it has been asked.
#[derive(Debug, Clone)]
pub(super) enum Driver<'a> {
    /// There is no socket. Next: `Unasked`.
    Away,
    /// It has not said its name. Next: `Named`.
    Unasked {
        /// When to ask.
        ask_at: Duration,
    },
    /// It has said its name, and not yet what it tells of this node. Next: `Known`.
    Named {
        /// Its name.
        name: &'a str,
        /// When to ask for the rest.
        ask_at: Duration,
    },
    /// It has said both.
    Known {
        /// Its name.
        name: &'a str,
        /// What it tells of this node.
        node: &'a NodeAnswer,
    },
}

/// The socket that we made last.
#[derive(Debug, Clone)]
pub(super) enum Held<'a> {
    /// None so far.
    Nothing,
    /// This one.
    Socket {
        /// The driver that it was made for.
        name: &'a str,
        /// What that driver told of this node; `None` if it restarted before it said so.
        node: Option<&'a NodeAnswer>,
        /// What is at its path.
        place: Place,
        /// What kubelet said of it.
        word: Word,
    },
}

/// What is where our socket should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Our socket.
    Ours,
    /// Nothing.
    Missing {
        /// When that was seen first.
        since: Duration,
    },
    /// Another's socket that nobody serves.
    Stale {
        /// When that was seen first.
        since: Duration,
    },
    /// Another's socket, served.
    Others,
    /// Something else.
    NotASocket,
}

/// Kubelet's last word of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// None yet.
    Silent,
    /// The driver is registered.
    Registered,
    /// It is not.
    Refused {
        /// When to try again.
        again_at: Duration,
    },
}

/// What NodeGetInfo says: what kubelet learns when it registers a driver, and writes into the node's CSINode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeAnswer {
    /// The driver's name of this node.
    pub(super) node_id: String,
    /// How many volumes it can have here.
    pub(super) max_volumes: i64,
    /// Where the node is.
    pub(super) topology: BTreeMap<String, String>,
}

/// Growing pauses: each twice the one before, up to a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    /// The first pause.
    pub(super) first: Duration,
    /// The longest.
    pub(super) longest: Duration,
}

impl Backoff {
    /// The pause after so many failures, the first counting as 1.
    pub(super) fn after(self, failures: u32) -> Duration {
        let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
        for (failures, seconds) in
            [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (32, 60), (33, 60), (u32::MAX, 60)]
        {
            assert_eq!(backoff.after(failures), Duration::from_secs(seconds), "{failures}");
        }
    }
}
