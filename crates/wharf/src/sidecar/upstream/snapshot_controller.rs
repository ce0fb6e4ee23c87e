//! snapshot-controller. It has no driver, so it shares fewer flags with the others than they do among themselves.

use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::snapshot_controller::Settings;

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_RESYNC, Takes, common, flag};
use Becomes::{Ignored, Same};
use Takes::{Bool, Count, Decimal, Duration as Time, List, Text};

pub(super) static FLAGS: [Flag; 20] = [
    flag("kubeconfig", Text, "", Same("")),
    flag("worker-threads", Count, "10", Same("objects worked on at once; 100 if it is not given")),
    flag("enable-distributed-snapshotting", Bool, "false", Same("also for the contents of groups")),
    flag("prevent-volume-mode-conversion", Bool, "true", Same("")),
    flag("retry-interval-start", Time, "1s", Same("a change of the object ends the pause")),
    flag("retry-interval-max", Time, "5m0s", Same("")),
    flag("kube-api-qps", Decimal, "5", Same("if it is given; without it there is no limit")),
    flag("kube-api-burst", Count, "10", Same("with `--kube-api-qps`")),
    flag("leader-election", Bool, "false", Same("a lost lease stops new work and does not end the process")),
    flag(
        "leader-election-namespace",
        Text,
        "",
        Same("else `POD_NAMESPACE`, else that of the service account"),
    ),
    flag("leader-election-lease-duration", Time, "15s", Same("")),
    flag("leader-election-renew-deadline", Time, "10s", Same("")),
    flag("leader-election-retry-period", Time, "5s", Same("")),
    flag("http-endpoint", Text, "", Same("also serves `/healthz`, `/readyz` and `/debug/attempts`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("feature-gates", List, "", Same("see below")),
    flag("version", Bool, "false", Same("prints our version")),
    flag("retry-crd-interval-max", Time, "30s", Ignored("kinds that are not there are waited for")),
    flag("resync-period", Time, "15m0s", NO_RESYNC),
    flag(
        "enable-volume-group-snapshots",
        Bool,
        "false",
        Ignored("of older releases; groups are worked on wherever their kinds are there"),
    ),
];

const GROUPS: &str = "CSIVolumeGroupSnapshot";

pub(super) static GATES: [Gate; 2] =
    [Gate { name: GROUPS, is: Is::Free }, Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On }];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    let off = off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::SnapshotController)?;
    sidecar.driver = None;
    config.snapshot_controller = Settings {
        pace: common::pace(given, config.snapshot_controller.pace, "worker-threads")?,
        prevent_volume_mode_conversion: given.is_set_or("prevent-volume-mode-conversion", true),
        distributed: given.is_set("enable-distributed-snapshotting"),
        groups: !off.contains(&GROUPS),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
