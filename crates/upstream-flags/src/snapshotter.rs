//! csi-snapshotter, of external-snapshotter.

use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::snapshotter::Settings;

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, ParsedFlags, RESYNC, Support, ValueKind, common, flag};
use Support::Same;
use ValueKind::{Bool, Count, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 9] = [
    flag("snapshot-name-prefix", Text, "snapshot", Same("")),
    flag("snapshot-name-uuid-length", Number, "-1", Same("")),
    flag("groupsnapshot-name-prefix", Text, "groupsnapshot", Same("")),
    flag("groupsnapshot-name-uuid-length", Number, "-1", Same("")),
    flag(
        "worker-threads",
        Count,
        "10",
        Same("number of contents processed concurrently; wharf's default is 100"),
    ),
    flag("timeout", Time, "1m0s", Same("")),
    flag("extra-create-metadata", Bool, "false", Same("")),
    flag("node-deployment", Bool, "false", Same("needs `NODE_NAME`, as upstream does")),
    flag("resync-period", Time, "15m0s", RESYNC),
];

pub(super) static GATES: [Gate; 2] = [
    Gate { name: "CSIVolumeGroupSnapshot", support: GateSupport::Switchable },
    Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn },
];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    let disabled = disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::Snapshotter)?;
    let default = Settings::default();
    config.snapshotter = Settings {
        worker_options: common::worker_options(parsed, default.worker_options, "worker-threads")?,
        naming: naming(parsed, "snapshot", default.naming),
        group_naming: naming(parsed, "groupsnapshot", default.group_naming),
        extra_create_metadata: parsed.is_set("extra-create-metadata"),
        groups: !disabled.contains(&"CSIVolumeGroupSnapshot"),
    };
    if parsed.is_set("node-deployment") {
        if config.election.is_some() {
            let error = "-node-deployment and -leader-election are mutually exclusive: each node has its own snapshots";
            return Err(FlagError(error.to_owned()));
        }
        let Some(node) = &environment.node_name else {
            return Err(FlagError("-node-deployment needs the node's name: set NODE_NAME".to_owned()));
        };
        config.node = Some(node.clone());
    }
    sidecar.controller = Some(config);
    Ok(sidecar)
}

fn naming(parsed: &ParsedFlags, what: &str, default: VolumeNaming) -> VolumeNaming {
    let prefix = parsed.text(&format!("{what}-name-prefix")).map_or(default.prefix, str::to_owned);
    let uuid_length = parsed.number(&format!("{what}-name-uuid-length"));
    VolumeNaming { prefix, uuid_length: uuid_length.and_then(|length| usize::try_from(length).ok()) }
}
