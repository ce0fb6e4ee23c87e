//! external-provisioner.

use std::time::Duration;

use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::provisioner::{CapacitySettings, ImmediateBinding, Settings};

use super::gates::{Gate, Is, off};
use super::{Becomes, Environment, Flag, FlagError, Given, NO_GO, NO_THREADS, Takes, common, flag};
use Becomes::{Ignored, Same};
use Takes::{Bool, BoolOr, Count, Decimal, Duration as Time, Number, Text};

const ONE_CONNECTION: Becomes =
    Ignored("capacities are written when they change, without a limit of their own");

pub(super) static FLAGS: [Flag; 28] = [
    flag("master", Text, "", Same("the API server's address instead of the kubeconfig's")),
    flag("volume-name-prefix", Text, "pvc", Same("")),
    flag("volume-name-uuid-length", Number, "-1", Same("")),
    flag("worker-threads", Count, "100", Same("volumes worked on at once")),
    flag("timeout", Time, "10s", Same("")),
    flag("default-fstype", Text, "", Same("")),
    flag("strict-topology", Bool, "false", Same("")),
    flag("immediate-topology", Bool, "true", Same("")),
    flag("extra-create-metadata", Bool, "false", Same("")),
    flag("controller-publish-readonly", Bool, "false", Same("")),
    flag("prevent-volume-mode-conversion", Bool, "true", Same("")),
    flag("enable-capacity", BoolOr(&["central", "local"]), "false", Same("needs `POD_NAME`, as upstream")),
    flag("capacity-for-immediate-binding", Bool, "false", Same("")),
    flag("capacity-poll-interval", Time, "1m0s", Same("")),
    flag("capacity-ownerref-level", Number, "1", Same("")),
    flag("node-deployment", Bool, "false", Same("needs `NODE_NAME`, as upstream")),
    flag("node-deployment-immediate-binding", Bool, "true", Same("")),
    flag("node-deployment-base-delay", Time, "20s", Same("")),
    flag("node-deployment-max-delay", Time, "1m0s", Same("")),
    flag("snapshot-orphan-sweep-interval", Time, "5m0s", Same("0: never")),
    flag("enable-leader-election", Bool, "false", Same("of older releases: `--leader-election`")),
    flag(
        "capacity-controller-deployment-mode",
        Text,
        "",
        Same("of release 2.0: `central` is `--enable-capacity`, anything else but nothing is refused"),
    ),
    flag("cloning-protection-threads", Count, "1", NO_THREADS),
    flag("capacity-threads", Count, "1", NO_THREADS),
    flag("kube-api-capacity-qps", Decimal, "1", ONE_CONNECTION),
    flag("kube-api-capacity-burst", Count, "5", ONE_CONNECTION),
    flag("enable-pprof", Bool, "false", NO_GO),
    flag("provisioner", Text, "", Ignored("of older releases; the driver says its name")),
];

pub(super) static GATES: [Gate; 5] = [
    Gate { name: "Topology", is: Is::Free },
    Gate { name: "VolumeAttributesClass", is: Is::On },
    Gate { name: "HonorPVReclaimPolicy", is: Is::On },
    Gate { name: "ReleaseLeaderElectionOnExit", is: Is::On },
    Gate { name: "CrossNamespaceVolumeDataSource", is: Is::NotBuilt },
];

pub(super) fn asked(given: &mut Given, environment: &Environment) -> Result<Sidecar, FlagError> {
    let off = off(&GATES, given)?;
    let (mut sidecar, mut config) = common::sidecar(given, environment, Role::Provisioner)?;
    if given.is_set("enable-leader-election") && config.election.is_none() {
        config.election = Some(common::election(given, environment)?);
    }
    // As upstream, of whose programs only this one looks there.
    if let Some(path) = &environment.kubeconfig {
        config.connect.kubeconfig = Some(path.into());
    }
    config.connect.server = given.text("master").map(str::to_owned);
    config.topology = !off.contains(&"Topology");
    let default = Settings::default();
    let prefix = given.text("volume-name-prefix").map_or(default.naming.prefix, str::to_owned);
    let uuid_length = given.number("volume-name-uuid-length").and_then(|length| usize::try_from(length).ok());
    config.provisioner = Settings {
        pace: common::pace(given, default.pace, "worker-threads")?,
        naming: VolumeNaming { prefix, uuid_length },
        default_fstype: given.text("default-fstype").unwrap_or_default().to_owned(),
        extra_create_metadata: given.is_set("extra-create-metadata"),
        strict_topology: given.is_set("strict-topology"),
        immediate_topology: given.is_set_or("immediate-topology", true),
        prevent_volume_mode_conversion: given.is_set_or("prevent-volume-mode-conversion", true),
        controller_publish_readonly: given.is_set("controller-publish-readonly"),
        capacity: capacity(given, environment)?,
        immediate_binding: None,
        orphan_sweep: Some(given.duration("snapshot-orphan-sweep-interval", Duration::from_secs(300)))
            .filter(|interval| !interval.is_zero()),
    };
    if given.is_set("node-deployment") {
        let Some(node) = &environment.node_name else {
            return Err(FlagError("-node-deployment needs the node's name: set NODE_NAME".to_owned()));
        };
        config.node = Some(node.clone());
        config.provisioner.immediate_binding =
            given.is_set_or("node-deployment-immediate-binding", true).then(|| ImmediateBinding {
                base_delay: given.duration("node-deployment-base-delay", Duration::from_secs(20)),
                max_delay: given.duration("node-deployment-max-delay", Duration::from_secs(60)),
            });
    }
    sidecar.controller = Some(config);
    Ok(sidecar)
}

fn capacity(given: &Given, environment: &Environment) -> Result<Option<CapacitySettings>, FlagError> {
    let old = match given.text("capacity-controller-deployment-mode") {
        None => false,
        Some("central") => true,
        Some(mode) => {
            return Err(FlagError(format!(
                "flag -capacity-controller-deployment-mode: {mode:?} is not central"
            )));
        }
    };
    if !old && !given.is_set("enable-capacity") {
        return Ok(None);
    }
    let owner_level = given.number("capacity-ownerref-level").unwrap_or(1);
    let owner_level = i32::try_from(owner_level)
        .map_err(|_| FlagError(format!("flag -capacity-ownerref-level: {owner_level} is too much")))?;
    if owner_level >= 0 && environment.pod_name.is_none() {
        let error = "-enable-capacity needs POD_NAME, to find who owns the capacities";
        return Err(FlagError(error.to_owned()));
    }
    Ok(Some(CapacitySettings {
        immediate_binding: given.is_set("capacity-for-immediate-binding"),
        poll_interval: given.timeout("capacity-poll-interval", Duration::from_secs(60))?,
        owner_level,
        pod: environment.pod_name.clone(),
    }))
}
