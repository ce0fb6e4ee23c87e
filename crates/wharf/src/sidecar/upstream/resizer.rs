//! external-resizer.

use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::resizer::Settings;

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_RESYNC, REMOVED, Takes, common, flag};
use Becomes::Same;
use Takes::{Bool, Count, Duration as Time, Text};

pub(super) static FLAGS: [Flag; 7] = [
    flag("master", Text, "", Same("the API server's address instead of the kubeconfig's")),
    flag("workers", Count, "10", Same("claims worked on at once; 100 if it is not given")),
    flag("timeout", Time, "10s", Same("")),
    flag("handle-volume-inuse-error", Bool, "true", Same("pods are watched only if the driver needs it")),
    flag("extra-modify-metadata", Bool, "false", Same("")),
    flag("resync-period", Time, "10m0s", NO_RESYNC),
    flag("csiTimeout", Time, "15s", REMOVED),
];

pub(super) static GATES: [Gate; 4] = [
    Gate { name: "RecoverVolumeExpansionFailure", is: Is::On },
    Gate { name: "VolumeAttributesClass", is: Is::On },
    Gate { name: "AnnotateFsResize", is: Is::On },
    Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On },
];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::Resizer)?;
    config.connect.server = given.text("master").map(str::to_owned);
    config.resizer = Settings {
        pace: common::pace(given, config.resizer.pace, "workers")?,
        handle_volume_inuse_error: given.is_set_or("handle-volume-inuse-error", true),
        extra_modify_metadata: given.is_set("extra-modify-metadata"),
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
