//! Attaches and detaches volumes as VolumeAttachments ask.

use std::time::Duration;

use crate::context::Context;
use crate::work::Pace;

/// What the attacher is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much at once.
    pub pace: Pace,
    /// The file system where the volume names none.
    pub default_fstype: String,
    /// How often attachments are compared with what the driver lists.
    pub reconcile_interval: Duration,
    /// How many volumes the driver is asked for at once; 0 leaves it to the driver.
    pub max_entries: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pace: Pace {
                workers: 100,
                timeout: Duration::from_secs(15),
                retry_start: Duration::from_secs(1),
                retry_max: Duration::from_secs(300),
            },
            default_fstype: String::new(),
            reconcile_interval: Duration::from_secs(60),
            max_entries: 0,
        }
    }
}

pub(crate) async fn run(context: Context, _settings: Settings) {
    context.gate.stopped().await;
}
