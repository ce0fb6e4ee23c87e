//! Command lines of `wharf sidecar`.

use clap::Parser;
use wharf_sidecar::controller::{Config, Role};

use super::*;

#[derive(Parser)]
struct TestCli {
    #[command(flatten)]
    args: SidecarArgs,
}

fn parse_sidecar(line: &str) -> anyhow::Result<Sidecar> {
    let environment = Environment {
        pod_name: line.contains("capacity").then(|| "p-0".to_owned()),
        host_name: Some("host".to_owned()),
        ..Environment::default()
    };
    TestCli::try_parse_from(["sidecar"].into_iter().chain(line.split_whitespace()))?
        .args
        .into_sidecar(&environment)
}

fn controller(line: &str) -> Config {
    let sidecar = parse_sidecar(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    sidecar.controller.unwrap_or_else(|| panic!("{line}: no controller"))
}

#[test]
fn flags_select_node_and_controller_roles() {
    const NODE: &str = "--node --kubelet-registration-path=/k";
    let all = |sidecar: &Sidecar| {
        (sidecar.registrar.is_some(), sidecar.probe_timeout.is_some(), sidecar.controller.is_some())
    };
    for (line, runs, roles) in [
        ("", (false, false, true), None),
        ("--roles=snapshotter", (false, false, true), Some(vec![Role::Snapshotter])),
        ("--roles=attacher", (false, false, true), Some(vec![Role::Attacher])),
        ("--roles provisioner,resizer", (false, false, true), Some(vec![Role::Provisioner, Role::Resizer])),
        (NODE, (true, true, false), None),
        (&*format!("{NODE} --roles=resizer"), (true, true, true), Some(vec![Role::Resizer])),
    ] {
        let sidecar = parse_sidecar(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(all(&sidecar), runs, "{line}");
        let chosen = sidecar.controller.and_then(|config| config.roles);
        assert_eq!(chosen.map(|roles| roles.into_iter().collect()), roles, "{line}");
    }
}

#[test]
fn defaults_have_leader_election_and_no_rate_limit() {
    let config = controller("");
    assert_eq!(config.identity, "host");
    assert!(config.election.is_some() && config.connect.qps.is_none() && config.node.is_none());
    let (provisioner, attacher, resizer) = (config.provisioner, config.attacher, config.resizer);
    let snapshotter = config.snapshotter;
    for (worker_options, timeout) in [
        (provisioner.worker_options, 10),
        (attacher.worker_options, 15),
        (resizer.worker_options, 10),
        (snapshotter.worker_options, 60),
    ] {
        assert_eq!((worker_options.workers, worker_options.timeout), (100, Duration::from_secs(timeout)));
    }
    assert!(provisioner.capacity.is_none() && provisioner.immediate_topology);
    assert!(controller("--leader-election=false").election.is_none());
    assert!(controller("--leader-election").election.is_some());
}

/// A manifest with upstream's flags works unchanged.
#[test]
fn upstream_flags_of_all_roles_are_accepted_together() {
    let line = "--timeout=1m30s --worker-threads=7 --retry-interval-start=500ms --retry-interval-max=1m \
                --leader-election-namespace=ns --leader-election-labels=a:b,c:d --default-fstype=xfs \
                --volume-name-prefix=kube --volume-name-uuid-length=-1 --extra-create-metadata --extra-modify-metadata=true \
                --strict-topology --immediate-topology=false --prevent-volume-mode-conversion=false \
                --controller-publish-readonly --handle-volume-inuse-error=false --reconcile-sync=2m --max-entries=5 \
                --snapshot-name-prefix=snap --snapshot-name-uuid-length=8 --groupsnapshot-name-prefix=group \
                --groupsnapshot-name-uuid-length=-1 --enable-capacity --capacity-ownerref-level=2 --kube-api-qps=20 --kube-api-burst=40";
    let config = controller(line);
    let election = config.election.expect("an election");
    assert_eq!((election.namespace.as_deref(), election.labels.len()), (Some("ns"), 2));
    assert_eq!((config.connect.qps, config.connect.burst), (Some(20.0), Some(40)));
    let settings = config.provisioner;
    assert_eq!(
        (settings.worker_options.workers, settings.worker_options.timeout),
        (7, Duration::from_secs(90))
    );
    assert_eq!((settings.naming.prefix.as_str(), settings.naming.uuid_length), ("kube", None));
    assert!(
        settings.extra_create_metadata && settings.strict_topology && settings.controller_publish_readonly
    );
    assert!(!settings.immediate_topology && !settings.prevent_volume_mode_conversion);
    assert_eq!(
        settings.capacity.map(|capacity| (capacity.owner_level, capacity.pod)),
        Some((2, Some("p-0".to_owned())))
    );
    assert_eq!(
        (config.attacher.max_entries, config.attacher.reconcile_interval),
        (5, Duration::from_secs(120))
    );
    assert!(config.resizer.extra_modify_metadata && !config.resizer.handle_volume_inuse_error);
    let (settings, group) = (&config.snapshotter, &config.snapshotter.group_naming);
    assert_eq!((settings.naming.prefix.as_str(), settings.naming.uuid_length), ("snap", Some(8)));
    assert_eq!((group.prefix.as_str(), group.uuid_length), ("group", None));
    assert!(settings.extra_create_metadata);
    assert_eq!(controller("--workers=3").resizer.worker_options.workers, 3);
}

#[test]
fn node_deployment_disables_leader_election() {
    let config = controller("--node-deployment --node-name=n1");
    assert_eq!(config.node.as_deref(), Some("n1"));
    assert!(config.election.is_none(), "leader election is disabled");
    let binding = config.provisioner.immediate_binding.expect("immediate binding is enabled by default");
    assert_eq!((binding.base_delay, binding.max_delay), (Duration::from_secs(20), Duration::from_secs(60)));
    let line = "--node-deployment --node-name=n1 --node-deployment-immediate-binding=false";
    assert!(controller(line).provisioner.immediate_binding.is_none());
    // The node's name alone has no effect: manifests also set it for other reasons.
    let config = controller("--node-name=n1");
    assert!(
        config.node.is_none() && config.election.is_some() && config.provisioner.immediate_binding.is_none()
    );
}

#[test]
fn invalid_flags_are_refused() {
    for (line, expected) in [
        ("--roles=provisoner", "unknown role"),
        ("--node", "--kubelet-registration-path"),
        ("--kubelet-registration-path=/k", "--node"),
        ("--node-deployment --node-name=", "NODE_NAME"),
        ("--timeout=0s", "is not a duration"),
        ("--timeout=5", "is not a duration"),
        ("--leader-election-labels=a", "is not a label"),
        ("--leader-election-renew-deadline=15s", "has to be longer"),
        ("--kube-api-burst=5", "--kube-api-qps"),
        ("--volume-name-prefix=", "--volume-name-prefix"),
        ("--http-endpoint=:1 --health-port=2", "--health-port"),
    ] {
        let error = parse_sidecar(line).map(|_| ()).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    // CSIStorageCapacity objects without an owner would never be garbage-collected.
    let line = TestCli::try_parse_from(["sidecar", "--enable-capacity"]).expect("a line");
    let error = line.args.into_sidecar(&Environment::default()).map(|_| ()).expect_err("no owner");
    assert!(error.to_string().contains("POD_NAME"), "{error}");
}
