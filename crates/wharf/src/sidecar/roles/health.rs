//! Flags of the health monitor.

use std::time::Duration;

use super::{WorkerArgs, health_monitor, parse_duration};
use wharf_sidecar::WorkerOptions;

/// Flags of the health monitor.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Health")]
pub(super) struct HealthArgs {
    /// Interval in which every volume is checked once, if the driver does not list volumes
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    monitor_interval: Duration,
    /// Interval between listings of all volumes, if the driver lists them
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    list_volumes_interval: Duration,
    /// Also record events on claims whose pods are on failed nodes
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_node_watcher: bool,
}

impl HealthArgs {
    pub(super) fn into_settings(self, worker_options: &WorkerArgs) -> health_monitor::Settings {
        let default = health_monitor::Settings::default();
        health_monitor::Settings {
            // Health checks are not urgent: their concurrency stays low, whatever --worker-threads is.
            worker_options: WorkerOptions {
                workers: default.worker_options.workers,
                ..worker_options.override_defaults(default.worker_options)
            },
            monitor_interval: self.monitor_interval,
            list_volumes_interval: self.list_volumes_interval,
            node_watcher: self.enable_node_watcher,
        }
    }
}
