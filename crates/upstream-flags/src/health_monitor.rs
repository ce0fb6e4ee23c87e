//! external-health-monitor-controller.

use wharf_sidecar::controller::Role;
use wharf_sidecar::health_monitor::Settings;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, ParsedFlags, Support, ValueKind, common, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Duration as Time};

pub(super) static FLAGS: [Flag; 8] = [
    flag("timeout", Time, "15s", Same("")),
    flag("worker-threads", Count, "10", Same("number of volumes checked concurrently")),
    flag(
        "monitor-interval",
        Time,
        "1m0s",
        Same(
            "every volume is checked once per interval; each of upstream's workers checks one volume per interval",
        ),
    ),
    flag("list-volumes-interval", Time, "5m0s", Same("")),
    flag("enable-node-watcher", Bool, "false", Same("only pods that use claims are cached")),
    flag("volume-list-add-interval", Time, "5m0s", Ignored("every volume is checked in each interval")),
    flag("node-list-add-interval", Time, "5m0s", Ignored("nodes are checked every `--monitor-interval`")),
    flag("resync", Time, "10m0s", Ignored("every volume is checked in each interval")),
];

pub(super) static GATES: [Gate; 1] =
    [Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn }];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::HealthMonitor)?;
    let default = config.health_monitor;
    config.health_monitor = Settings {
        worker_options: common::worker_options(parsed, default.worker_options, "worker-threads")?,
        monitor_interval: parsed.timeout("monitor-interval", default.monitor_interval)?,
        list_volumes_interval: parsed.timeout("list-volumes-interval", default.list_volumes_interval)?,
        node_watcher: parsed.is_set("enable-node-watcher"),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
