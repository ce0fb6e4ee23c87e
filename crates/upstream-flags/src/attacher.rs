//! external-attacher.

use std::time::Duration;

use wharf_sidecar::attacher::Settings;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, ParsedFlags, RESYNC, Support, ValueKind, common, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, Count, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 8] = [
    flag("timeout", Time, "15s", Same("")),
    flag(
        "worker-threads",
        Count,
        "10",
        Same("number of volumes processed concurrently; wharf's default is 100"),
    ),
    flag("default-fstype", Text, "", Same("")),
    flag("reconcile-sync", Time, "1m0s", Same("")),
    flag("max-entries", Number, "0", Same("")),
    flag("resync", Time, "10m0s", RESYNC),
    flag("max-grpc-log-length", Number, "-1", Ignored("responses of the driver are not logged")),
    flag(
        "dummy",
        Bool,
        "false",
        Ignored("from older releases; the driver's capabilities show whether it attaches"),
    ),
];

pub(super) static GATES: [Gate; 2] = [
    Gate { name: "MutableCSINodeAllocatableCount", support: GateSupport::AlwaysOn },
    Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn },
];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::Attacher)?;
    let max_entries = parsed.number("max-entries").unwrap_or_default();
    config.attacher = Settings {
        worker_options: common::worker_options(parsed, config.attacher.worker_options, "worker-threads")?,
        default_fstype: parsed.text("default-fstype").unwrap_or_default().to_owned(),
        reconcile_interval: parsed.timeout("reconcile-sync", Duration::from_secs(60))?,
        // As upstream: a negative number means no limit.
        max_entries: i32::try_from(max_entries.max(0))
            .map_err(|_| FlagError(format!("flag -max-entries: {max_entries} is too large")))?,
    };
    sidecar.controller = Some(config);
    Ok(sidecar)
}
