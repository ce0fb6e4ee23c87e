//! external-health-monitor-controller.

use wharf_sidecar::controller::Role;
use wharf_sidecar::health_monitor::Settings;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_RESYNC, Takes, common, flag};
use Becomes::{Ignored, Same};
use Takes::{Bool, Count, Duration as Time};

pub(super) static FLAGS: [Flag; 8] = [
    flag("timeout", Time, "15s", Same("")),
    flag("worker-threads", Count, "10", Same("volumes asked about at once")),
    flag(
        "monitor-interval",
        Time,
        "1m0s",
        Same("in which every volume has its turn, where upstream's workers look at one each"),
    ),
    flag("list-volumes-interval", Time, "5m0s", Same("")),
    flag("enable-node-watcher", Bool, "false", Same("only pods that use claims are kept")),
    flag("volume-list-add-interval", Time, "5m0s", Ignored("every volume has its turn in each pass")),
    flag("node-list-add-interval", Time, "5m0s", Ignored("nodes are looked at every `--monitor-interval`")),
    flag("resync", Time, "10m0s", NO_RESYNC),
];

pub(super) static GATES: [Gate; 1] = [Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On }];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::HealthMonitor)?;
    let default = config.health_monitor;
    config.health_monitor = Settings {
        pace: common::pace(given, default.pace, "worker-threads")?,
        monitor_interval: given.timeout("monitor-interval", default.monitor_interval)?,
        list_volumes_interval: given.timeout("list-volumes-interval", default.list_volumes_interval)?,
        node_watcher: given.is_set("enable-node-watcher"),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
