//! snapshot-controller. It has no driver, so it does not have all of the common flags.

use wharf_controllers::snapshot_controller::Settings;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, NO_RESYNC, ParsedFlags, Support, ValueKind, common, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Decimal, Duration as Time, List, Text};

pub(super) static FLAGS: [Flag; 20] = [
    flag("kubeconfig", Text, "", Same("")),
    flag(
        "worker-threads",
        Count,
        "10",
        Same("number of objects processed concurrently; wharf's default is 100"),
    ),
    flag(
        "enable-distributed-snapshotting",
        Bool,
        "false",
        Same("also applies to the contents of group snapshots"),
    ),
    flag("prevent-volume-mode-conversion", Bool, "true", Same("")),
    flag("retry-interval-start", Time, "1s", Same("a change of the object ends the backoff")),
    flag("retry-interval-max", Time, "5m0s", Same("")),
    flag("kube-api-qps", Decimal, "5", Same("no limit if not set")),
    flag("kube-api-burst", Count, "10", Same("only with `--kube-api-qps`")),
    flag(
        "leader-election",
        Bool,
        "false",
        Same("a replica that loses its lease stops starting work, but does not exit"),
    ),
    flag(
        "leader-election-namespace",
        Text,
        "",
        Same("default: `POD_NAMESPACE`, else the service account's namespace"),
    ),
    flag("leader-election-lease-duration", Time, "15s", Same("")),
    flag("leader-election-renew-deadline", Time, "10s", Same("")),
    flag("leader-election-retry-period", Time, "5s", Same("")),
    flag("http-endpoint", Text, "", Same("also serves `/healthz`, `/readyz` and `/debug/attempts`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("feature-gates", List, "", Same("see Feature gates")),
    flag("version", Bool, "false", Same("prints the version of wharf")),
    flag("retry-crd-interval-max", Time, "30s", Ignored("the controller waits until the CRDs are installed")),
    flag("resync-period", Time, "15m0s", NO_RESYNC),
    flag(
        "enable-volume-group-snapshots",
        Bool,
        "false",
        Ignored("from older releases; group snapshots are supported whenever their CRDs are installed"),
    ),
];

const GROUPS: &str = "CSIVolumeGroupSnapshot";

pub(super) static GATES: [Gate; 2] = [
    Gate { name: GROUPS, support: GateSupport::Switchable },
    Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn },
];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    let disabled = disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::SnapshotController)?;
    sidecar.driver = None;
    config.snapshot_controller = Settings {
        worker_options: common::worker_options(
            parsed,
            config.snapshot_controller.worker_options,
            "worker-threads",
        )?,
        prevent_volume_mode_conversion: parsed.is_set_or("prevent-volume-mode-conversion", true),
        distributed: parsed.is_set("enable-distributed-snapshotting"),
        groups: !disabled.contains(&GROUPS),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
