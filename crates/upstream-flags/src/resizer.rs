//! external-resizer.

use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::resizer::Settings;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{
    Environment, Flag, FlagError, ParsedFlags, REMOVED_UPSTREAM, RESYNC, Support, ValueKind, common, flag,
};
use Support::Same;
use ValueKind::{Bool, Count, Duration as Time, Text};

pub(super) static FLAGS: [Flag; 7] = [
    flag("master", Text, "", Same("address of the API server; overrides the kubeconfig's")),
    flag("workers", Count, "10", Same("number of claims processed concurrently; wharf's default is 100")),
    flag("timeout", Time, "10s", Same("")),
    flag(
        "handle-volume-inuse-error",
        Bool,
        "true",
        Same("pods are watched only once the driver refuses to expand a volume in use"),
    ),
    flag("extra-modify-metadata", Bool, "false", Same("")),
    flag("resync-period", Time, "10m0s", RESYNC),
    flag("csiTimeout", Time, "15s", REMOVED_UPSTREAM),
];

pub(super) static GATES: [Gate; 4] = [
    Gate { name: "RecoverVolumeExpansionFailure", support: GateSupport::AlwaysOn },
    Gate { name: "VolumeAttributesClass", support: GateSupport::AlwaysOn },
    Gate { name: "AnnotateFsResize", support: GateSupport::AlwaysOn },
    Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn },
];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::Resizer)?;
    config.connect.server = parsed.text("master").map(str::to_owned);
    config.resizer = Settings {
        worker_options: common::worker_options(parsed, config.resizer.worker_options, "workers")?,
        handle_volume_inuse_error: parsed.is_set_or("handle-volume-inuse-error", true),
        extra_modify_metadata: parsed.is_set("extra-modify-metadata"),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
