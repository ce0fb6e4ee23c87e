//! csi-snapshotter, of external-snapshotter.

use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::snapshotter::Settings;

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_RESYNC, Takes, common, flag};
use Becomes::Same;
use Takes::{Bool, Count, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 9] = [
    flag("snapshot-name-prefix", Text, "snapshot", Same("")),
    flag("snapshot-name-uuid-length", Number, "-1", Same("")),
    flag("groupsnapshot-name-prefix", Text, "groupsnapshot", Same("")),
    flag("groupsnapshot-name-uuid-length", Number, "-1", Same("")),
    flag("worker-threads", Count, "10", Same("contents worked on at once; 100 if it is not given")),
    flag("timeout", Time, "1m0s", Same("")),
    flag("extra-create-metadata", Bool, "false", Same("")),
    flag("node-deployment", Bool, "false", Same("needs `NODE_NAME`, as upstream")),
    flag("resync-period", Time, "15m0s", NO_RESYNC),
];

pub(super) static GATES: [Gate; 2] = [
    Gate { name: "CSIVolumeGroupSnapshot", is: Is::Free },
    Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On },
];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    let off = off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::Snapshotter)?;
    let default = Settings::default();
    config.snapshotter = Settings {
        pace: common::pace(given, default.pace, "worker-threads")?,
        naming: naming(given, "snapshot", default.naming),
        group_naming: naming(given, "groupsnapshot", default.group_naming),
        extra_create_metadata: given.is_set("extra-create-metadata"),
        groups: !off.contains(&"CSIVolumeGroupSnapshot"),
    };
    if given.is_set("node-deployment") {
        if config.election.is_some() {
            let error = "-node-deployment and -leader-election exclude each other: each node has snapshots of its own";
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

fn naming(given: &Given, what: &str, default: VolumeNaming) -> VolumeNaming {
    let prefix = given.text(&format!("{what}-name-prefix")).map_or(default.prefix, str::to_owned);
    let uuid_length = given.number(&format!("{what}-name-uuid-length"));
    VolumeNaming { prefix, uuid_length: uuid_length.and_then(|length| usize::try_from(length).ok()) }
}
