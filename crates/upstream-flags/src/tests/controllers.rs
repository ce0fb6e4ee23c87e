//! Command lines of typical manifests of the controllers.

use wharf_sidecar::controller::{Config, Role};

use super::*;

fn config_in(program: Program, line: &str, environment: &Environment) -> (Config, Vec<String>) {
    let (sidecar, warnings) = sidecar_in(program, line, environment);
    assert!(sidecar.registrar.is_none() && sidecar.probe_timeout.is_none());
    (sidecar.controller.expect("a controller"), warnings)
}

fn config(program: Program, line: &str) -> Config {
    config_in(program, line, &environment()).0
}

const CONTROLLERS: [(Program, Role); 5] = [
    (Program::Provisioner, Role::Provisioner),
    (Program::Attacher, Role::Attacher),
    (Program::Resizer, Role::Resizer),
    (Program::Snapshotter, Role::Snapshotter),
    (Program::HealthMonitor, Role::HealthMonitor),
];

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// sidecars.md 1.0 "Leader election"
#[test]
fn defaults_are_upstreams_without_rate_limits() {
    for (program, role) in CONTROLLERS {
        let config = config(program, "");
        assert_eq!(config.roles, Some([role].into()));
        assert_eq!(config.identity, "host");
        assert_eq!((config.connect.qps, config.connect.burst), (None, None));
        assert!(config.election.is_none() && config.node.is_none() && config.topology);
        let driver = sidecar(program, "").driver;
        assert_eq!(driver.expect("a driver").path(), Path::new("/run/csi/socket"));
    }
    let default = config(Program::Provisioner, "").provisioner;
    assert_eq!((default.worker_options.workers, default.worker_options.timeout), (100, s(10)));
    assert!(default.immediate_topology && default.prevent_volume_mode_conversion);
    assert!(
        !default.strict_topology && !default.extra_create_metadata && !default.controller_publish_readonly
    );
    assert!(default.capacity.is_none() && default.immediate_binding.is_none());
    assert_eq!((default.naming.prefix.as_str(), default.naming.uuid_length), ("pvc", None));
    let default = config(Program::Attacher, "").attacher;
    assert_eq!(
        (default.worker_options.timeout, default.reconcile_interval, default.max_entries),
        (s(15), s(60), 0)
    );
    let default = config(Program::Resizer, "").resizer;
    assert!(default.handle_volume_inuse_error && !default.extra_modify_metadata);
    assert_eq!(
        (
            default.worker_options.timeout,
            default.worker_options.retry_start,
            default.worker_options.retry_max
        ),
        (s(10), s(1), s(300))
    );
}

/// sidecars.md 1.0 "Leader election", "HTTP"; 2: QPS only if the flag is set
#[test]
fn common_flags_are_accepted_by_all_controllers() {
    let in_pod = Environment {
        pod_name: Some("p-0".to_owned()),
        namespace: Some("ns".to_owned()),
        pod_namespace: Some("pns".to_owned()),
        ..environment()
    };
    for (program, _) in CONTROLLERS {
        let line = "--leader-election --leader-election-labels=a:b,c:d --leader-election-lease-duration=137s \
                    --leader-election-renew-deadline=107s --leader-election-retry-period=26s --kubeconfig=/k \
                    --kube-api-qps=20.5 --kube-api-burst=100 --retry-interval-start=2s --retry-interval-max=1m \
                    --timeout=1m30s --http-endpoint=:8080 --metrics-path=/m";
        let (sidecar, warnings) = sidecar_in(program, line, &in_pod);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(endpoints(&sidecar), [(":8080".to_owned(), true, Some("/m"))]);
        let config = sidecar.controller.expect("a controller");
        assert_eq!((config.identity.as_str(), config.namespace.as_deref()), ("p-0", Some("ns")));
        assert_eq!(config.connect.kubeconfig.as_deref(), Some(Path::new("/k")));
        assert_eq!((config.connect.qps, config.connect.burst), (Some(20.5), Some(100)));
        let election = config.election.expect("an election");
        assert_eq!(election.namespace.as_deref(), Some("pns"));
        assert_eq!(
            election.labels.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d".to_owned())]
        );
        let times = (election.lease_duration, election.renew_deadline, election.retry_period);
        assert_eq!(times, (s(137), s(107), s(26)));
        let worker_options = match program {
            Program::Provisioner => config.provisioner.worker_options,
            Program::Attacher => config.attacher.worker_options,
            Program::Snapshotter => config.snapshotter.worker_options,
            Program::HealthMonitor => config.health_monitor.worker_options,
            _ => config.resizer.worker_options,
        };
        assert_eq!(
            (worker_options.timeout, worker_options.retry_start, worker_options.retry_max),
            (s(90), s(2), s(60))
        );

        let named = "--leader-election=true --leader-election-namespace=other --leader-election-identity=me";
        let (config, _) = config_in(program, named, &in_pod);
        assert_eq!(config.identity, "me");
        assert_eq!(config.election.and_then(|election| election.namespace).as_deref(), Some("other"));
        let metrics = sidecar_in(program, "--metrics-address=:9", &in_pod).0;
        assert_eq!(endpoints(&metrics), [(":9".to_owned(), false, Some("/metrics"))]);
        // A burst alone has no effect; a rate gets upstream's default burst.
        assert_eq!(config_in(program, "--kube-api-burst=5", &in_pod).0.connect.burst, None);
        assert_eq!(config_in(program, "--kube-api-qps=5", &in_pod).0.connect.burst, Some(10));
        assert!(config_in(program, "--leader-election=false", &in_pod).0.election.is_none());
        for (line, expected) in [
            ("--http-endpoint=:1 --metrics-address=:2", "only one of -metrics-address"),
            ("--leader-election --leader-election-labels=a", "\"a\" is not key:value"),
            ("--leader-election --leader-election-lease-duration=5s", "longer than the renew"),
            ("--timeout=0s", "timeout"),
            ("--kube-api-qps=many", "is not a decimal number"),
            ("--nonsense", "unknown flag"),
            ("--feature-gates=Nonsense=true", "unknown gate \"Nonsense\""),
            ("--feature-gates=Topology", "write Name=true"),
        ] {
            assert_refused(program, line, expected);
        }
    }
}

/// sidecars.md 1.5 "Create", "Params", "Node mode"
#[test]
fn snapshotter_manifest_is_accepted() {
    let default = config(Program::Snapshotter, "").snapshotter;
    assert_eq!((default.worker_options.workers, default.worker_options.timeout), (100, s(60)));
    assert!(default.groups && !default.extra_create_metadata);
    let line = "--snapshot-name-prefix=snap --snapshot-name-uuid-length=8 --groupsnapshot-name-prefix=group \
                --groupsnapshot-name-uuid-length=9 --worker-threads=7 --extra-create-metadata \
                --feature-gates=CSIVolumeGroupSnapshot=false";
    let settings = config(Program::Snapshotter, line).snapshotter;
    assert_eq!((settings.naming.prefix.as_str(), settings.naming.uuid_length), ("snap", Some(8)));
    assert_eq!(
        (settings.group_naming.prefix.as_str(), settings.group_naming.uuid_length),
        ("group", Some(9))
    );
    assert_eq!(settings.worker_options.workers, 7);
    assert!(settings.extra_create_metadata && !settings.groups);

    let on_node = Environment { node_name: Some("n1".to_owned()), ..environment() };
    let (config, warnings) =
        config_in(Program::Snapshotter, "--node-deployment --resync-period=1h", &on_node);
    assert_eq!((config.node.as_deref(), warnings.len()), (Some("n1"), 0));
    assert_refused(Program::Snapshotter, "--node-deployment", "NODE_NAME");
    assert_refused(Program::Snapshotter, "--node-deployment --leader-election", "mutually exclusive");
}

/// sidecars.md 1.6 "Modes", "Node watcher"
#[test]
fn health_monitor_manifest_is_accepted() {
    let program = Program::HealthMonitor;
    let default = config(program, "").health_monitor;
    assert_eq!((default.worker_options.workers, default.worker_options.timeout), (10, s(15)));
    assert_eq!((default.monitor_interval, default.list_volumes_interval), (s(60), s(300)));
    assert!(!default.node_watcher);
    let line = "--v=5 --monitor-interval=30s --list-volumes-interval=2m --enable-node-watcher=true \
                --worker-threads=4 --node-list-add-interval=1m --volume-list-add-interval=1m --resync=1m";
    let (config, warnings) = config_in(program, line, &environment());
    let monitor = config.health_monitor;
    assert_eq!((monitor.monitor_interval, monitor.list_volumes_interval), (s(30), s(120)));
    assert!(monitor.node_watcher && monitor.worker_options.workers == 4);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_refused(program, "--monitor-interval=0s", "monitor-interval");
}

/// sidecars.md 1.1 "PV / volume name", "fsType", "extra-create-metadata", "Topology", "Volume-mode change"
#[test]
fn provisioner_manifest_is_accepted() {
    let line = "--volume-name-prefix=kube --volume-name-uuid-length=10 --worker-threads=7 --default-fstype=xfs \
                --strict-topology --immediate-topology=false --extra-create-metadata=true \
                --controller-publish-readonly --prevent-volume-mode-conversion=false --master=https://api:6443";
    let full = config(Program::Provisioner, line);
    assert_eq!(full.connect.server.as_deref(), Some("https://api:6443"));
    let settings = full.provisioner;
    assert_eq!((settings.naming.prefix.as_str(), settings.naming.uuid_length), ("kube", Some(10)));
    assert_eq!((settings.worker_options.workers, settings.default_fstype.as_str()), (7, "xfs"));
    assert!(
        settings.strict_topology && settings.extra_create_metadata && settings.controller_publish_readonly
    );
    assert!(!settings.immediate_topology && !settings.prevent_volume_mode_conversion);
    assert_eq!(settings.orphan_sweep, Some(s(300)));
    for (line, sweep) in [("1h", Some(s(3600))), ("0", None)] {
        let line = format!("--snapshot-orphan-sweep-interval={line}");
        assert_eq!(config(Program::Provisioner, &line).provisioner.orphan_sweep, sweep);
    }
    let whole = config(Program::Provisioner, "--volume-name-uuid-length=-1").provisioner.naming;
    assert_eq!(whole.uuid_length, None);
    let from_environment = Environment { kubeconfig: Some("/env".to_owned()), ..environment() };
    let (elsewhere, _) = config_in(Program::Provisioner, "--kubeconfig=/flag", &from_environment);
    assert_eq!(elsewhere.connect.kubeconfig.as_deref(), Some(Path::new("/env")));
    let old =
        "--enable-leader-election --leader-election-type=endpoints --provisioner=d --connection-timeout=15s";
    let (old, warnings) = config_in(Program::Provisioner, old, &environment());
    assert!(old.election.is_some());
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    // Positional arguments do not end the flags.
    let (between, warnings) =
        config_in(Program::Provisioner, "--leader-election true --strict-topology", &environment());
    assert!(between.provisioner.strict_topology && between.election.is_some());
    assert_eq!(warnings, ["positional argument \"true\" is ignored"]);
}

/// sidecars.md 1.1 "Capacity", "Node deployment"
#[test]
fn capacity_and_node_deployment_flags_are_accepted() {
    let on_node =
        Environment { pod_name: Some("p".to_owned()), node_name: Some("n1".to_owned()), ..environment() };
    let line = "--enable-capacity --capacity-ownerref-level=2 --capacity-for-immediate-binding \
                --capacity-poll-interval=5m --node-deployment --node-deployment-base-delay=1s";
    let (config, _) = config_in(Program::Provisioner, line, &on_node);
    assert_eq!(config.node.as_deref(), Some("n1"));
    let binding = config.provisioner.immediate_binding.expect("nodes compete");
    assert_eq!((binding.base_delay, binding.max_delay), (s(1), s(60)));
    let capacity = config.provisioner.capacity.expect("capacities");
    assert_eq!((capacity.owner_level, capacity.pod.as_deref()), (2, Some("p")));
    assert_eq!((capacity.immediate_binding, capacity.poll_interval), (true, s(300)));
    let line = "--node-deployment --node-deployment-immediate-binding=false";
    assert!(config_in(Program::Provisioner, line, &on_node).0.provisioner.immediate_binding.is_none());
    for (line, on) in [
        ("--enable-capacity=true", true),
        ("--enable-capacity=false", false),
        ("--enable-capacity=central", true),
        ("--capacity-controller-deployment-mode=central", true),
        ("--capacity-controller-deployment-mode=", false),
    ] {
        let settings = config_in(Program::Provisioner, line, &on_node).0.provisioner.capacity;
        assert_eq!(settings.is_some(), on, "{line}");
    }
    let unowned = "--enable-capacity --capacity-ownerref-level=-1";
    assert_eq!(
        super::controllers::config(Program::Provisioner, unowned)
            .provisioner
            .capacity
            .map(|settings| settings.pod),
        Some(None)
    );
    for (line, expected) in [
        ("--enable-capacity", "POD_NAME"),
        ("--enable-capacity=maybe", "is not a boolean"),
        ("--capacity-controller-deployment-mode=local", "is not central"),
        ("--node-deployment", "NODE_NAME"),
    ] {
        assert_refused(Program::Provisioner, line, expected);
    }
}

/// sidecars.md 1.1 "Topology", "Cross-namespace", "HonorPVReclaimPolicy"; 1.3 "State machine (RecoverVolumeExpansionFailure GA)"
#[test]
fn feature_gates_are_applied_or_warned_about() {
    for (program, line, topology, warned) in [
        (Program::Provisioner, "Topology=true", true, None),
        (Program::Provisioner, "Topology=false", false, None),
        (Program::Provisioner, "Topology=false,Topology=true", true, None),
        (Program::Provisioner, "HonorPVReclaimPolicy=true,VolumeAttributesClass=true", true, None),
        (Program::Provisioner, "VolumeAttributesClass=false", true, Some("always on")),
        (Program::Provisioner, "CrossNamespaceVolumeDataSource=true", true, Some("not implemented")),
        (Program::Provisioner, "CrossNamespaceVolumeDataSource=false", true, None),
        (Program::Provisioner, "AllAlpha=true", true, Some("one by one")),
        (Program::Attacher, "MutableCSINodeAllocatableCount=true", true, None),
        (Program::Attacher, "ReleaseLeaderElectionOnExit=false", true, Some("always on")),
        (Program::Resizer, "RecoverVolumeExpansionFailure=true,AnnotateFsResize=true", true, None),
    ] {
        let (config, warnings) = config_in(program, &format!("--feature-gates={line}"), &environment());
        assert_eq!(config.topology, topology, "{line}");
        match warned {
            None => assert_eq!(warnings, [""; 0], "{line}"),
            Some(expected) => {
                assert!(warnings.len() == 1 && warnings[0].contains(expected), "{line}: {warnings:?}")
            }
        }
    }
}

/// sidecars.md 1.2 "Reconcile", 1.3 "Errors"; the end of 1.7: removed flags still found in manifests
#[test]
fn attacher_and_resizer_manifests_are_accepted() {
    let line = "--worker-threads=25 --reconcile-sync=10m --max-entries=50 --default-fstype=ext4";
    let attacher = config(Program::Attacher, line).attacher;
    assert_eq!(
        (attacher.worker_options.workers, attacher.reconcile_interval, attacher.max_entries),
        (25, s(600), 50)
    );
    assert_eq!(attacher.default_fstype, "ext4");
    let line = "--workers=3 --handle-volume-inuse-error=false --extra-modify-metadata";
    let resizer = config(Program::Resizer, line).resizer;
    assert_eq!(resizer.worker_options.workers, 3);
    assert!(!resizer.handle_volume_inuse_error && resizer.extra_modify_metadata);
    for (program, line, warnings) in [
        (Program::Attacher, "--resync=5m --max-grpc-log-length=10 --dummy=false --connection-timeout=15s", 3),
        (Program::Resizer, "--csiTimeout=15s --resync-period=5m", 1),
        (Program::Provisioner, "--cloning-protection-threads=2 --capacity-threads=2 --enable-pprof", 1),
        (Program::Provisioner, "--kube-api-capacity-qps=2 --kube-api-capacity-burst=3 --automaxprocs", 1),
    ] {
        assert_eq!(config_in(program, line, &environment()).1.len(), warnings, "{line}");
    }
    // The flag for the concurrency has different names, as upstream.
    assert_refused(Program::Resizer, "--worker-threads=5", "--worker-threads=5");
    assert_refused(Program::Attacher, "--workers=5", "--workers=5");
    assert_refused(Program::Attacher, "--worker-threads=-5", "is not a non-negative number");
}

/// sidecars.md 1.1 "Capacity": upstream's limits of what capacities cost.
#[test]
fn capacity_flags_limit_refreshes_and_writes() {
    let in_pod = Environment { pod_name: Some("p-0".to_owned()), ..environment() };
    let limits = |flags: &str| {
        let (config, _) = config_in(Program::Provisioner, &format!("--enable-capacity {flags}"), &in_pod);
        let threads = config.provisioner.cloning_protection_threads;
        let capacity = config.provisioner.capacity.unwrap();
        (capacity.threads, capacity.write_qps, capacity.write_burst, threads)
    };
    assert_eq!(limits(""), (1, 1.0, 5, 4));
    let given = "--capacity-threads=3 --kube-api-capacity-qps=2.5 --kube-api-capacity-burst=7 \
                 --cloning-protection-threads=2";
    assert_eq!(limits(given), (3, 2.5, 7, 2));
    let none = "--capacity-threads=0 --kube-api-capacity-qps=-1 --cloning-protection-threads=0";
    assert_eq!(limits(none), (1, -1.0, 5, 1));
}

/// Upstream has two names for the flag, and 0 disables the resync.
#[test]
fn resync_flags_set_the_interval() {
    for (value, expected) in [("", s(600)), ("=90s", s(90)), ("=0s", s(0))] {
        let resync = |program, name: &str| {
            let line = if value.is_empty() { String::new() } else { format!("--{name}{value}") };
            let (config, warnings) = config_in(program, &line, &environment());
            assert_eq!(warnings, Vec::<String>::new());
            match program {
                Program::Attacher => config.attacher.worker_options.resync,
                Program::Resizer => config.resizer.worker_options.resync,
                Program::Snapshotter => config.snapshotter.worker_options.resync,
                _ => config.snapshot_controller.worker_options.resync,
            }
        };
        assert_eq!(resync(Program::Attacher, "resync"), expected);
        for program in [Program::Resizer, Program::Snapshotter, Program::SnapshotController] {
            assert_eq!(resync(program, "resync-period"), expected, "{program:?}");
        }
    }
}

/// sidecars.md 1.0 "Leader election", 1.4 "CRDs": the snapshot controller's manifest.
#[test]
fn snapshot_controller_manifest_is_accepted() {
    let program = Program::SnapshotController;
    let plain = config(program, "--v=5 --leader-election=true");
    assert_eq!(plain.roles, Some([Role::SnapshotController].into()));
    assert!(plain.election.is_some());
    let settings = plain.snapshot_controller;
    assert!(settings.prevent_volume_mode_conversion && settings.groups && !settings.distributed);
    assert_eq!((settings.worker_options.workers, settings.worker_options.retry_start), (100, s(1)));
    assert!(sidecar(program, "").driver.is_none());
    let line = "--worker-threads=3 --enable-distributed-snapshotting --prevent-volume-mode-conversion=false \
                --retry-interval-start=2s --feature-gates=CSIVolumeGroupSnapshot=false --kubeconfig=/k";
    let full = config(program, line);
    assert_eq!(full.connect.kubeconfig, Some("/k".into()));
    let settings = full.snapshot_controller;
    assert!(!settings.prevent_volume_mode_conversion && !settings.groups && settings.distributed);
    assert_eq!((settings.worker_options.workers, settings.worker_options.retry_start), (3, s(2)));
    let (_, warnings) = config_in(program, "--retry-crd-interval-max=1m --resync-period=1m", &environment());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_refused(program, "--csi-address=/csi/csi.sock", "unknown flag");
    assert_refused(program, "--feature-gates=Nonsense=true", "unknown gate");
}
