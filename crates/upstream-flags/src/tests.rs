//! Command lines of typical manifests, and the documentation of every flag.

mod controllers;

use std::time::Duration;

use super::*;
use gates::GateSupport;

fn environment() -> Environment {
    Environment { host_name: Some("host".to_owned()), ..Environment::default() }
}

fn parse_in(program: Program, line: &str, environment: &Environment) -> Result<Invocation, String> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    program.parse(&args, environment)
}

fn parse_line(program: Program, line: &str) -> Result<Invocation, String> {
    parse_in(program, line, &environment())
}

fn task_in(program: Program, line: &str, environment: &Environment) -> (Task, Vec<String>) {
    match parse_in(program, line, environment) {
        Ok(Invocation::Run { task, warnings, .. }) => (task, warnings),
        Ok(_) => panic!("{line}: does not run"),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn sidecar_in(program: Program, line: &str, environment: &Environment) -> (Sidecar, Vec<String>) {
    match task_in(program, line, environment) {
        (Task::Sidecar(sidecar), warnings) => (*sidecar, warnings),
        (Task::LegacyRegistrar(_) | Task::SnapshotMetadata(_), _) => panic!("{line}: not a sidecar"),
    }
}

fn sidecar(program: Program, line: &str) -> Sidecar {
    sidecar_in(program, line, &environment()).0
}

fn endpoints(sidecar: &Sidecar) -> Vec<(String, bool, Option<&str>)> {
    sidecar.listen.iter().map(|at| (at.address.to_string(), at.health, at.metrics.as_deref())).collect()
}

fn assert_refused(program: Program, line: &str, expected: &str) {
    let error = parse_line(program, line).err().expect(line);
    assert!(
        error.starts_with(&format!("{}: ", program.name())) && error.contains(expected),
        "{line}: {error}"
    );
}

#[test]
fn programs_are_selected_by_name() {
    for (argv0, program) in [
        ("/csi-provisioner", Some(Program::Provisioner)),
        ("external-provisioner", Some(Program::Provisioner)),
        ("/csi-attacher", Some(Program::Attacher)),
        ("external-attacher", Some(Program::Attacher)),
        ("csi-resizer", Some(Program::Resizer)),
        ("external-resizer", Some(Program::Resizer)),
        ("/csi-snapshotter", Some(Program::Snapshotter)),
        ("/csi-external-health-monitor-controller", Some(Program::HealthMonitor)),
        ("/snapshot-controller", Some(Program::SnapshotController)),
        ("/csi-snapshot-metadata", Some(Program::SnapshotMetadata)),
        ("/csi-node-driver-registrar", Some(Program::NodeDriverRegistrar)),
        ("node-driver-registrar", Some(Program::NodeDriverRegistrar)),
        ("driver-registrar", Some(Program::NodeDriverRegistrar)),
        ("/usr/bin/livenessprobe", Some(Program::LivenessProbe)),
        ("wharf", None),
        ("", None),
    ] {
        assert_eq!(Program::from_argv0(OsStr::new(argv0)), program, "{argv0}");
    }
}

/// sidecars.md 1.7
#[test]
fn registrar_manifest_is_accepted() {
    let program = Program::NodeDriverRegistrar;
    let line = "--v=5 --csi-address=/csi/csi.sock --kubelet-registration-path=/k/csi.sock --health-port=9809";
    let full = sidecar(program, line);
    assert_eq!(full.driver.as_ref().expect("a driver").path(), Path::new("/csi/csi.sock"));
    assert_eq!(endpoints(&full), [(":9809".to_owned(), true, Some("/metrics"))]);
    assert_eq!(full.probe_timeout, None);
    let config = full.registrar.expect("a registrar");
    assert_eq!(config.kubelet_registration_path, "/k/csi.sock");
    assert_eq!(config.plugin_registration_path, Path::new("/registration"));
    assert_eq!(config.timeout, Duration::from_secs(1));

    let minimal = sidecar(program, "-kubelet-registration-path /k");
    assert_eq!(minimal.driver.as_ref().expect("a driver").path(), Path::new("/run/csi/socket"));
    assert_eq!(endpoints(&minimal), []);
    let probe = "--kubelet-registration-path=/k --mode=kubelet-registration-probe";
    assert!(matches!(parse_line(program, probe), Ok(Invocation::Exit)));
    assert!(
        matches!(parse_line(program, "--version"), Ok(Invocation::Print(text)) if text.starts_with("wharf "))
    );
    for (line, expected) in [
        ("", "kubelet-registration-path is a required parameter"),
        ("--mode=kubelet-registration-probe", "kubelet-registration-path is a required parameter"),
        ("--kubelet-registration-path=/k --health-port=1 --http-endpoint=:2", "only one of"),
        ("--kubelet-registration-path=/k --csi-address=tcp://x:1", "csi-address"),
        ("--kubelet-registration-path=/k --http-endpoint=nowhere", "http-endpoint"),
        ("--kubelet-registration-path=/k --health-port=65536", "not a port"),
        ("--kubelet-registration-path=/k --worker-threads=4", "--worker-threads=4"),
        ("--kubelet-registration-path=/k --logging-format=xml", "neither text nor json"),
        ("--mode=node-register", "KUBE_NODE_NAME"),
    ] {
        assert_refused(program, line, expected);
    }
}

/// sidecars.md 1.7, legacy driver-registrar: the settings of each mode.
#[test]
fn legacy_registrar_modes_are_accepted() {
    let program = Program::NodeDriverRegistrar;
    let describe_mode = |line: &str| match task_in(program, line, &environment()).0 {
        Task::LegacyRegistrar(legacy::Config {
            mode: legacy::Mode::CsiDriverObject { attach_required, pod_info_on_mount },
            connect,
            ..
        }) => (attach_required, pod_info_on_mount, connect.kubeconfig),
        _ => panic!("{line}: another mode"),
    };
    let mode = "--mode=kubernetes-register";
    assert_eq!(describe_mode(mode), (None, false, None));
    let line = "--driver-requires-attachment=false --pod-info-mount-version=v1 --kubeconfig=/k";
    assert_eq!(describe_mode(&format!("{mode} {line}")), (Some(false), true, Some("/k".into())));
    assert_eq!(describe_mode(&format!("{mode} --driver-requires-attachment")).0, Some(true));

    let on_node = Environment { kube_node_name: Some("n1".to_owned()), ..environment() };
    match task_in(program, "--mode=node-register", &on_node).0 {
        Task::LegacyRegistrar(legacy::Config { mode: legacy::Mode::NodeAnnotation { node }, .. }) => {
            assert_eq!(node, "n1")
        }
        _ => panic!("another mode"),
    }
    // With a path, it registers with kubelet, as without a mode.
    assert!(sidecar(program, "--kubelet-registration-path=/k --mode=node-register").registrar.is_some());
}

/// sidecars.md 1.8 "Start"
#[test]
fn livenessprobe_manifest_is_accepted() {
    let program = Program::LivenessProbe;
    let all = |port: &str| vec![(format!(":{port}"), true, None)];
    assert_eq!(endpoints(&sidecar(program, "")), all("9808"));
    assert_eq!(endpoints(&sidecar(program, "--health-port=9810")), all("9810"));
    for line in ["--http-endpoint=:80", "--http-endpoint=:80 --health-port=9808"] {
        assert_eq!(
            endpoints(&sidecar(program, line)),
            [(":80".to_owned(), true, Some("/metrics"))],
            "{line}"
        );
    }
    let with_metrics = sidecar(program, "--metrics-address=:81 --metrics-path=/m");
    assert_eq!(
        endpoints(&with_metrics),
        [(":9808".to_owned(), true, None), (":81".to_owned(), false, Some("/m"))]
    );
    assert_eq!(with_metrics.probe_timeout, Some(Duration::from_secs(3)));
    assert!(with_metrics.registrar.is_none());
    let timeout = sidecar(program, "--probe-timeout=1m30s").probe_timeout;
    assert_eq!(timeout, Some(Duration::from_secs(90)));
    for (line, expected) in [
        ("--http-endpoint=:1 --health-port=2", "only one of -health-port"),
        ("--http-endpoint=:1 --metrics-address=:2", "only one of -metrics-address"),
        ("--health-port=x", "not a port"),
        ("--probe-timeout=0s", "probe-timeout"),
        ("--kubelet-registration-path=/k", "unknown flag"),
    ] {
        assert_refused(program, line, expected);
    }
}

#[test]
fn snapshot_metadata_manifest_is_accepted() {
    let program = Program::SnapshotMetadata;
    let config = |line: &str, environment: &Environment| match task_in(program, line, environment) {
        (Task::SnapshotMetadata(config), warnings) => (*config, warnings),
        _ => panic!("{line}: another program"),
    };
    let files = "--tls-cert=/c --tls-key=/k";
    let (minimal, _) = config(files, &environment());
    assert_eq!(minimal.driver.path(), Path::new("/run/csi/socket"));
    assert_eq!((minimal.tls.cert.as_path(), minimal.tls.key.as_path()), (Path::new("/c"), Path::new("/k")));
    assert_eq!(minimal.address.to_string(), ":50051");
    assert_eq!(minimal.http_endpoint.map(|address| address.to_string()).as_deref(), Some(":8080"));
    assert_eq!(
        (minimal.max_stream_duration, minimal.audience, minimal.tls.tls13_only),
        (Duration::from_secs(600), None, false)
    );
    let named = Environment { tls_cert: Some("/c".into()), tls_key: Some("/k".into()), ..environment() };
    let line = "--v=5 --csi-address=/csi/csi.sock --port=1 --audience=a --max-streaming-duration-min=2 \
                --disable-metrics --http-endpoint=:2 --tls-min-version=VersionTLS13 --timeout=10s \
                --tls-cipher-suites=X --kube-api-qps=20";
    let (full, warnings) = config(line, &named);
    assert_eq!((full.address.to_string().as_str(), full.audience.as_deref()), (":1", Some("a")));
    assert_eq!(
        (full.max_stream_duration, full.metrics_path, full.tls.tls13_only),
        (Duration::from_secs(120), None, true)
    );
    assert_eq!((full.connect.qps, full.connect.burst), (Some(20.0), Some(10)));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (line, expected) in [
        ("", "-tls-cert is required"),
        ("--tls-cert=/c", "-tls-key is required"),
        (&*format!("{files} --port=0"), "not a port"),
        (&*format!("{files} --tls-min-version=VersionTLS10"), "VersionTLS12 or VersionTLS13"),
        (&*format!("{files} --leader-election"), "unknown flag"),
    ] {
        assert_refused(program, line, expected);
    }
}

#[test]
fn verbosity_and_format_select_the_log_filter() {
    const DEBUG: &str =
        "info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug,wharf_controllers=debug,wharf_cluster=debug";
    for (line, rust_log, filter, format) in [
        ("", None, None, LogFormat::Text),
        ("-v=3", None, None, LogFormat::Text),
        ("-v=5", None, Some(DEBUG), LogFormat::Text),
        ("-v=10 --logging-format=json", None, Some("trace"), LogFormat::Json),
        ("-v=10", Some("warn"), Some("warn"), LogFormat::Text),
    ] {
        let environment = Environment { rust_log: rust_log.map(str::to_owned), ..environment() };
        match parse_in(Program::LivenessProbe, line, &environment) {
            Ok(Invocation::Run { log, .. }) => {
                assert_eq!((log.filter.as_deref(), log.format), (filter, format), "{line}");
            }
            _ => panic!("{line}: does not run"),
        }
    }
}

fn table(flags: &[Flag]) -> String {
    let mut text = "| Flag | Default | Effect |\n|---|---|---|\n".to_owned();
    for flag in flags {
        let default = if flag.default.is_empty() { String::new() } else { format!("`{}`", flag.default) };
        let effect = match flag.support {
            Support::Same("") => "supported".to_owned(),
            Support::Same(note) => format!("supported: {note}"),
            Support::Ignored(reason) => format!("ignored with a warning: {reason}"),
        };
        text.push_str(&format!("| `--{}` | {default} | {effect} |\n", flag.name));
    }
    text
}

fn gate_table() -> String {
    let mut text = "| Program | Gate | Effect |\n|---|---|---|\n".to_owned();
    for (program, gates) in [
        (Program::Provisioner, &provisioner::GATES[..]),
        (Program::Attacher, &attacher::GATES),
        (Program::Resizer, &resizer::GATES),
        (Program::Snapshotter, &snapshotter::GATES),
        (Program::HealthMonitor, &health_monitor::GATES),
        (Program::SnapshotController, &snapshot_controller::GATES),
    ] {
        for gate in gates {
            let effect = match gate.support {
                GateSupport::Switchable => "supported: on unless set to `false`",
                GateSupport::AlwaysOn => "always on; `=false` is ignored with a warning",
                GateSupport::NotImplemented => "not implemented; `=true` is ignored with a warning",
            };
            text.push_str(&format!("| {} | `{}` | {effect} |\n", program.name(), gate.name));
        }
    }
    text
}

#[test]
fn documentation_has_every_flag() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sidecar-flags.md");
    let documentation = std::fs::read_to_string(path).expect("docs/sidecar-flags.md");
    let flags = [
        &provisioner::FLAGS[..],
        &attacher::FLAGS,
        &resizer::FLAGS,
        &snapshotter::FLAGS,
        &health_monitor::FLAGS,
        &snapshot_controller::FLAGS,
        &snapshot_metadata::FLAGS,
        &common::CONTROLLER_FLAGS,
        &common::DRIVER_FLAGS,
        &registrar::FLAGS,
        &liveness::FLAGS,
        &logging::FLAGS,
    ];
    let tables = flags.map(table).into_iter().chain([gate_table()]);
    let missing: Vec<String> = tables.filter(|table| !documentation.contains(table)).collect();
    assert!(missing.is_empty(), "docs/sidecar-flags.md lacks these tables:\n\n{}", missing.join("\n"));
}

/// Only one row of a duplicate flag would take effect.
#[test]
fn flag_tables_have_no_duplicates() {
    for program in [
        Program::Provisioner,
        Program::Attacher,
        Program::Resizer,
        Program::Snapshotter,
        Program::HealthMonitor,
        Program::SnapshotController,
        Program::SnapshotMetadata,
        Program::NodeDriverRegistrar,
        Program::LivenessProbe,
    ] {
        let mut names: Vec<_> = program.tables().into_iter().flatten().map(|flag| flag.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{}", program.name());
    }
}
