//! snapshot-controller. It has no driver, so it has none of [`common::DRIVER_FLAGS`].

use wharf_controllers::snapshot_controller::Settings;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, ParsedFlags, RESYNC, Support, ValueKind, common, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Duration as Time};

pub(super) static FLAGS: [Flag; 6] = [
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
    flag("retry-crd-interval-max", Time, "30s", Ignored("the controller waits until the CRDs are installed")),
    flag("resync-period", Time, "15m0s", RESYNC),
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
