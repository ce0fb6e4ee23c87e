//! What the old modes see. Times count from the start.

use std::time::Duration;

/// All of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// The driver has said what is to be kept.
    pub(super) known: bool,
    /// When there is something to do again.
    pub(super) due: Duration,
    /// Attempts that failed, one after the other.
    pub(super) failures: u32,
    /// It was taken away.
    pub(super) removed: bool,
    /// We are to end.
    pub(super) leaving: Option<Leaving>,
}

/// How we are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// SIGTERM: somebody else takes over, what is kept stays.
    Terminated,
    /// SIGINT: the driver goes, and what is kept with it.
    Interrupted,
}
