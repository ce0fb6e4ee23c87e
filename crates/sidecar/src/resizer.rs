//! Expands and modifies volumes as their claims ask.

use std::time::Duration;

use crate::context::Context;
use crate::work::Pace;

/// What the resizer is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// Wait with an expansion that the driver refused because the volume is in use until no pod uses it.
    pub handle_volume_inuse_error: bool,
    /// Tell the driver the names of claim and volume when a volume is modified.
    pub extra_modify_metadata: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace {
                workers: 100,
                timeout: Duration::from_secs(10),
                retry_start: Duration::from_secs(1),
                retry_max: Duration::from_secs(300),
            },
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
        }
    }
}

pub(crate) async fn run(context: Context, _settings: Settings) {
    context.gate.stopped().await;
}
