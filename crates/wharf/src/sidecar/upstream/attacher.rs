//! external-attacher.

use std::time::Duration;

use wharf_sidecar::attacher::Settings;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_RESYNC, Takes, common, flag};
use Becomes::{Ignored, Same};
use Takes::{Bool, Count, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 8] = [
    flag("timeout", Time, "15s", Same("")),
    flag("worker-threads", Count, "10", Same("volumes worked on at once; 100 if it is not given")),
    flag("default-fstype", Text, "", Same("")),
    flag("reconcile-sync", Time, "1m0s", Same("")),
    flag("max-entries", Number, "0", Same("")),
    flag("resync", Time, "10m0s", NO_RESYNC),
    flag("max-grpc-log-length", Number, "-1", Ignored("answers of the driver are not logged")),
    flag(
        "dummy",
        Bool,
        "false",
        Ignored("of older releases; a driver that does not attach is seen by its capabilities"),
    ),
];

pub(super) static GATES: [Gate; 2] = [
    Gate { name: "MutableCSINodeAllocatableCount", is: Is::On },
    Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On },
];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::Attacher)?;
    let max_entries = given.number("max-entries").unwrap_or_default();
    config.attacher = Settings {
        pace: common::pace(given, config.attacher.pace, "worker-threads")?,
        default_fstype: given.text("default-fstype").unwrap_or_default().to_owned(),
        reconcile_interval: given.timeout("reconcile-sync", Duration::from_secs(60))?,
        // As upstream: less than none is no limit either.
        max_entries: i32::try_from(max_entries.max(0))
            .map_err(|_| FlagError(format!("flag -max-entries: {max_entries} is too much")))?,
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
