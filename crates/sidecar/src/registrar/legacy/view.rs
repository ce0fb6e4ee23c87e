//! Inputs of the legacy modes' rules. Times count from the start.

use std::time::Duration;

/// Everything `decide` needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// The driver was discovered.
    pub(super) discovered: bool,
    /// When the next action is due.
    pub(super) due: Duration,
    /// Number of failures in a row.
    pub(super) failures: u32,
    /// The entry was removed.
    pub(super) removed: bool,
    /// The process must stop.
    pub(super) stop_reason: Option<StopReason>,
}

/// Why the process stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// SIGTERM: another instance takes over, the entry stays.
    Terminated,
    /// SIGINT: the driver is uninstalled, the entry is removed.
    Interrupted,
}
