//! external-provisioner.

use std::time::Duration;

use wharf_model::names::VolumeNaming;
use wharf_sidecar::controller::Role;
use wharf_sidecar::process::Sidecar;
use wharf_sidecar::provisioner::{CapacitySettings, ImmediateBinding, Settings};

use super::gates::{Gate, GateSupport, disabled_gates};
use super::{Environment, Flag, FlagError, NO_GO_RUNTIME, ParsedFlags, Support, ValueKind, common, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, BoolOr, Count, Decimal, Duration as Time, Number, Text};

pub(super) static FLAGS: [Flag; 28] = [
    flag("master", Text, "", Same("address of the API server; overrides the kubeconfig's")),
    flag("volume-name-prefix", Text, "pvc", Same("")),
    flag("volume-name-uuid-length", Number, "-1", Same("")),
    flag("worker-threads", Count, "100", Same("number of volumes processed concurrently")),
    flag("timeout", Time, "10s", Same("")),
    flag("default-fstype", Text, "", Same("")),
    flag("strict-topology", Bool, "false", Same("")),
    flag("immediate-topology", Bool, "true", Same("")),
    flag("extra-create-metadata", Bool, "false", Same("")),
    flag("controller-publish-readonly", Bool, "false", Same("")),
    flag("prevent-volume-mode-conversion", Bool, "true", Same("")),
    flag(
        "enable-capacity",
        BoolOr(&["central", "local"]),
        "false",
        Same("needs `POD_NAME`, as upstream does"),
    ),
    flag("capacity-for-immediate-binding", Bool, "false", Same("")),
    flag("capacity-poll-interval", Time, "1m0s", Same("")),
    flag("capacity-ownerref-level", Number, "1", Same("")),
    flag("node-deployment", Bool, "false", Same("needs `NODE_NAME`, as upstream does")),
    flag("node-deployment-immediate-binding", Bool, "true", Same("")),
    flag("node-deployment-base-delay", Time, "20s", Same("")),
    flag("node-deployment-max-delay", Time, "1m0s", Same("")),
    flag("snapshot-orphan-sweep-interval", Time, "5m0s", Same("0 disables the sweep")),
    flag("enable-leader-election", Bool, "false", Same("from older releases; same as `--leader-election`")),
    flag(
        "capacity-controller-deployment-mode",
        Text,
        "",
        Same(
            "from release 2.0; `central` is the same as `--enable-capacity`, an empty value has no effect, any other value is refused",
        ),
    ),
    flag(
        "cloning-protection-threads",
        Count,
        "1",
        Same("number of cloned claims processed concurrently; wharf's default is 4"),
    ),
    flag("capacity-threads", Count, "1", Same("number of capacities refreshed concurrently")),
    flag(
        "kube-api-capacity-qps",
        Decimal,
        "1",
        Same("limits writes of capacities, independently of `--kube-api-qps`; 0 or less is no limit"),
    ),
    flag("kube-api-capacity-burst", Count, "5", Same("")),
    flag("enable-pprof", Bool, "false", NO_GO_RUNTIME),
    flag("provisioner", Text, "", Ignored("from older releases; the driver reports its name")),
];

pub(super) static GATES: [Gate; 5] = [
    Gate { name: "Topology", support: GateSupport::Switchable },
    Gate { name: "VolumeAttributesClass", support: GateSupport::AlwaysOn },
    Gate { name: "HonorPVReclaimPolicy", support: GateSupport::AlwaysOn },
    Gate { name: "ReleaseLeaderElectionOnExit", support: GateSupport::AlwaysOn },
    Gate { name: "CrossNamespaceVolumeDataSource", support: GateSupport::NotImplemented },
];

pub(super) fn configure(parsed: &mut ParsedFlags, environment: &Environment) -> Result<Sidecar, FlagError> {
    let disabled = disabled_gates(&GATES, parsed)?;
    let (mut sidecar, mut config) = common::sidecar(parsed, environment, Role::Provisioner)?;
    if parsed.is_set("enable-leader-election") && config.election.is_none() {
        config.election = Some(common::election(parsed, environment)?);
    }
    // As upstream: this is the only program that reads KUBECONFIG.
    if let Some(path) = &environment.kubeconfig {
        config.connect.kubeconfig = Some(path.into());
    }
    config.connect.server = parsed.text("master").map(str::to_owned);
    config.topology = !disabled.contains(&"Topology");
    let default = Settings::default();
    let prefix = parsed.text("volume-name-prefix").map_or(default.naming.prefix, str::to_owned);
    let uuid_length =
        parsed.number("volume-name-uuid-length").and_then(|length| usize::try_from(length).ok());
    config.provisioner = Settings {
        worker_options: common::worker_options(parsed, default.worker_options, "worker-threads")?,
        naming: VolumeNaming { prefix, uuid_length },
        default_fstype: parsed.text("default-fstype").unwrap_or_default().to_owned(),
        extra_create_metadata: parsed.is_set("extra-create-metadata"),
        strict_topology: parsed.is_set("strict-topology"),
        immediate_topology: parsed.is_set_or("immediate-topology", true),
        prevent_volume_mode_conversion: parsed.is_set_or("prevent-volume-mode-conversion", true),
        controller_publish_readonly: parsed.is_set("controller-publish-readonly"),
        capacity: capacity(parsed, environment)?,
        immediate_binding: None,
        cloning_protection_threads: threads(parsed, "cloning-protection-threads")
            .unwrap_or(default.cloning_protection_threads),
        orphan_sweep: Some(parsed.duration("snapshot-orphan-sweep-interval", Duration::from_secs(300)))
            .filter(|interval| !interval.is_zero()),
    };
    if parsed.is_set("node-deployment") {
        let Some(node) = &environment.node_name else {
            return Err(FlagError("-node-deployment needs the node's name: set NODE_NAME".to_owned()));
        };
        config.node = Some(node.clone());
        config.provisioner.immediate_binding =
            parsed.is_set_or("node-deployment-immediate-binding", true).then(|| ImmediateBinding {
                base_delay: parsed.duration("node-deployment-base-delay", Duration::from_secs(20)),
                max_delay: parsed.duration("node-deployment-max-delay", Duration::from_secs(60)),
            });
    }
    sidecar.controller = Some(config);
    Ok(sidecar)
}

fn capacity(parsed: &ParsedFlags, environment: &Environment) -> Result<Option<CapacitySettings>, FlagError> {
    let central = match parsed.text("capacity-controller-deployment-mode") {
        None => false,
        Some("central") => true,
        Some(mode) => {
            return Err(FlagError(format!(
                "flag -capacity-controller-deployment-mode: {mode:?} is not central"
            )));
        }
    };
    if !central && !parsed.is_set("enable-capacity") {
        return Ok(None);
    }
    let owner_level = parsed.number("capacity-ownerref-level").unwrap_or(1);
    let owner_level = i32::try_from(owner_level)
        .map_err(|_| FlagError(format!("flag -capacity-ownerref-level: {owner_level} is too large")))?;
    if owner_level >= 0 && environment.pod_name.is_none() {
        let error = "-enable-capacity needs POD_NAME, to find the owner of CSIStorageCapacity objects";
        return Err(FlagError(error.to_owned()));
    }
    let (default, burst) = (CapacitySettings::default(), parsed.number("kube-api-capacity-burst"));
    Ok(Some(CapacitySettings {
        immediate_binding: parsed.is_set("capacity-for-immediate-binding"),
        poll_interval: parsed.timeout("capacity-poll-interval", default.poll_interval)?,
        owner_level,
        pod: environment.pod_name.clone(),
        threads: threads(parsed, "capacity-threads").unwrap_or(default.threads),
        write_qps: parsed.decimal("kube-api-capacity-qps").unwrap_or(default.write_qps),
        write_burst: burst.and_then(|burst| u32::try_from(burst).ok()).unwrap_or(default.write_burst),
    }))
}

/// A number of threads, at least one.
fn threads(parsed: &ParsedFlags, name: &str) -> Option<usize> {
    parsed.number(name).and_then(|threads| usize::try_from(threads).ok()).map(|threads| threads.max(1))
}
