//! Flags of the health monitor.

use std::time::Duration;

use super::{PaceArgs, health_monitor, parse_duration};
use wharf_sidecar::Pace;

/// How volumes' health is watched.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Health")]
pub(super) struct HealthArgs {
    /// In which time every volume is asked about, if the driver does not list them
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    monitor_interval: Duration,
    /// How often the driver is asked about all volumes, if it lists them
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    list_volumes_interval: Duration,
    /// Tell also of claims whose pods are on nodes that have failed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = false, hide_default_value = true, action = clap::ArgAction::Set)]
    enable_node_watcher: bool,
}

impl HealthArgs {
    pub(super) fn checked(self, pace: &PaceArgs) -> health_monitor::Settings {
        let default = health_monitor::Settings::default();
        health_monitor::Settings {
            // Nobody waits for these questions: they stay few, whatever the others may do at once.
            pace: Pace { workers: default.pace.workers, ..pace.or(default.pace) },
            monitor_interval: self.monitor_interval,
            list_volumes_interval: self.list_volumes_interval,
            node_watcher: self.enable_node_watcher,
        }
    }
}
