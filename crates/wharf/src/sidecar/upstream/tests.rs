//! Command lines as manifests have them, and the documentation of every flag.

mod controllers;

use std::time::Duration;

use super::*;
use crate::cli::LogFormat;
use gates::Is;

fn environment() -> Environment {
    Environment { host_name: Some("host".to_owned()), ..Environment::default() }
}

fn asked_in(program: Program, line: &str, environment: &Environment) -> Result<Asked, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    program.asked(&words, environment)
}

fn asked(program: Program, line: &str) -> Result<Asked, String> {
    asked_in(program, line, &environment())
}

fn work(program: Program, line: &str, environment: &Environment) -> (Work, Vec<String>) {
    match asked_in(program, line, environment) {
        Ok(Asked::Run { work, warnings, .. }) => (work, warnings),
        Ok(_) => panic!("{line}: does not run"),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn sidecar_in(program: Program, line: &str, environment: &Environment) -> (Sidecar, Vec<String>) {
    match work(program, line, environment) {
        (Work::Sidecar(sidecar), warnings) => (*sidecar, warnings),
        (Work::Legacy(_) | Work::SnapshotMetadata(_), _) => panic!("{line}: not a sidecar"),
    }
}

fn sidecar(program: Program, line: &str) -> Sidecar {
    sidecar_in(program, line, &environment()).0
}

fn pages(sidecar: &Sidecar) -> Vec<(String, bool, Option<&str>)> {
    sidecar.listen.iter().map(|at| (at.address.to_string(), at.health, at.metrics.as_deref())).collect()
}

fn refused(program: Program, line: &str, said: &str) {
    let error = asked(program, line).err().expect(line);
    assert!(error.starts_with(&format!("{}: ", program.name())) && error.contains(said), "{line}: {error}");
}

#[test]
fn programs_by_their_names() {
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
        assert_eq!(Program::called(OsStr::new(argv0)), program, "{argv0}");
    }
}

/// sidecars.md 1.7
#[test]
fn a_registrars_manifest() {
    let program = Program::NodeDriverRegistrar;
    let line = "--v=5 --csi-address=/csi/csi.sock --kubelet-registration-path=/k/csi.sock --health-port=9809";
    let full = sidecar(program, line);
    assert_eq!(full.driver.as_ref().expect("a driver").path(), Path::new("/csi/csi.sock"));
    assert_eq!(pages(&full), [(":9809".to_owned(), true, Some("/metrics"))]);
    assert_eq!(full.probe_timeout, None);
    let config = full.registrar.expect("a registrar");
    assert_eq!(config.kubelet_registration_path, "/k/csi.sock");
    assert_eq!(config.plugin_registration_path, Path::new("/registration"));
    assert_eq!(config.timeout, Duration::from_secs(1));

    let least = sidecar(program, "-kubelet-registration-path /k");
    assert_eq!(least.driver.as_ref().expect("a driver").path(), Path::new("/run/csi/socket"));
    assert_eq!(pages(&least), []);
    let probe = "--kubelet-registration-path=/k --mode=kubelet-registration-probe";
    assert!(matches!(asked(program, probe), Ok(Asked::Nothing)));
    assert!(matches!(asked(program, "--version"), Ok(Asked::Text(text)) if text.starts_with("wharf ")));
    for (line, said) in [
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
        refused(program, line, said);
    }
}

/// sidecars.md 1.7, legacy driver-registrar: what each mode is made of.
#[test]
fn the_old_modes() {
    let program = Program::NodeDriverRegistrar;
    let described = |line: &str| match work(program, line, &environment()).0 {
        Work::Legacy(legacy::Config {
            mode: legacy::Mode::Describe { attach_required, pod_info_on_mount },
            connect,
            ..
        }) => (attach_required, pod_info_on_mount, connect.kubeconfig),
        _ => panic!("{line}: another mode"),
    };
    let mode = "--mode=kubernetes-register";
    assert_eq!(described(mode), (None, false, None));
    let line = "--driver-requires-attachment=false --pod-info-mount-version=v1 --kubeconfig=/k";
    assert_eq!(described(&format!("{mode} {line}")), (Some(false), true, Some("/k".into())));
    assert_eq!(described(&format!("{mode} --driver-requires-attachment")).0, Some(true));

    let on_node = Environment { kube_node_name: Some("n1".to_owned()), ..environment() };
    match work(program, "--mode=node-register", &on_node).0 {
        Work::Legacy(legacy::Config { mode: legacy::Mode::NodeId { node }, .. }) => assert_eq!(node, "n1"),
        _ => panic!("another mode"),
    }
    // With a path it is the socket for kubelet, as without any mode.
    assert!(sidecar(program, "--kubelet-registration-path=/k --mode=node-register").registrar.is_some());
}

/// sidecars.md 1.8 "Start"
#[test]
fn a_livenessprobes_manifest() {
    let program = Program::LivenessProbe;
    let all = |port: &str| vec![(format!(":{port}"), true, None)];
    assert_eq!(pages(&sidecar(program, "")), all("9808"));
    assert_eq!(pages(&sidecar(program, "--health-port=9810")), all("9810"));
    for line in ["--http-endpoint=:80", "--http-endpoint=:80 --health-port=9808"] {
        assert_eq!(pages(&sidecar(program, line)), [(":80".to_owned(), true, Some("/metrics"))], "{line}");
    }
    let beside = sidecar(program, "--metrics-address=:81 --metrics-path=/m");
    assert_eq!(pages(&beside), [(":9808".to_owned(), true, None), (":81".to_owned(), false, Some("/m"))]);
    assert_eq!(beside.probe_timeout, Some(Duration::from_secs(3)));
    assert!(beside.registrar.is_none());
    let timeout = sidecar(program, "--probe-timeout=1m30s").probe_timeout;
    assert_eq!(timeout, Some(Duration::from_secs(90)));
    for (line, said) in [
        ("--http-endpoint=:1 --health-port=2", "only one of -health-port"),
        ("--http-endpoint=:1 --metrics-address=:2", "only one of -metrics-address"),
        ("--health-port=x", "not a port"),
        ("--probe-timeout=0s", "probe-timeout"),
        ("--kubelet-registration-path=/k", "there is no flag"),
    ] {
        refused(program, line, said);
    }
}

#[test]
fn a_snapshot_metadata_services_manifest() {
    let program = Program::SnapshotMetadata;
    let config = |line: &str, environment: &Environment| match work(program, line, environment) {
        (Work::SnapshotMetadata(config), warnings) => (*config, warnings),
        _ => panic!("{line}: another program"),
    };
    let files = "--tls-cert=/c --tls-key=/k";
    let (least, _) = config(files, &environment());
    assert_eq!(least.driver.path(), Path::new("/run/csi/socket"));
    assert_eq!((least.tls.cert.as_path(), least.tls.key.as_path()), (Path::new("/c"), Path::new("/k")));
    assert_eq!(least.address.to_string(), ":50051");
    assert_eq!(least.pages.map(|address| address.to_string()).as_deref(), Some(":8080"));
    assert_eq!((least.longest, least.audience, least.tls.only_1_3), (Duration::from_secs(600), None, false));
    let named = Environment { tls_cert: Some("/c".into()), tls_key: Some("/k".into()), ..environment() };
    let line = "--v=5 --csi-address=/csi/csi.sock --port=1 --audience=a --max-streaming-duration-min=2 \
                --disable-metrics --http-endpoint=:2 --tls-min-version=VersionTLS13 --timeout=10s \
                --tls-cipher-suites=X --kube-api-qps=20";
    let (full, warnings) = config(line, &named);
    assert_eq!((full.address.to_string().as_str(), full.audience.as_deref()), (":1", Some("a")));
    assert_eq!((full.longest, full.metrics, full.tls.only_1_3), (Duration::from_secs(120), None, true));
    assert_eq!((full.connect.qps, full.connect.burst), (Some(20.0), Some(10)));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (line, said) in [
        ("", "-tls-cert is required"),
        ("--tls-cert=/c", "-tls-key is required"),
        (&*format!("{files} --port=0"), "not a port"),
        (&*format!("{files} --tls-min-version=VersionTLS10"), "VersionTLS12 and VersionTLS13"),
        (&*format!("{files} --leader-election"), "there is no flag"),
    ] {
        refused(program, line, said);
    }
}

#[test]
fn verbosity_and_format_of_logs() {
    const DEBUG: &str = "info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug,wharf_cluster=debug";
    for (line, rust_log, level, format) in [
        ("", None, None, LogFormat::Text),
        ("-v=3", None, None, LogFormat::Text),
        ("-v=5", None, Some(DEBUG), LogFormat::Text),
        ("-v=10 --logging-format=json", None, Some("trace"), LogFormat::Json),
        ("-v=10", Some("warn"), Some("warn"), LogFormat::Text),
    ] {
        let environment = Environment { rust_log: rust_log.map(str::to_owned), ..environment() };
        match asked_in(Program::LivenessProbe, line, &environment) {
            Ok(Asked::Run { log, .. }) => {
                assert_eq!((log.log_level.as_deref(), log.log_format), (level, format), "{line}");
            }
            _ => panic!("{line}: does not run"),
        }
    }
}

fn table(flags: &[Flag]) -> String {
    let mut text = "| Flag | Default | What becomes of it |\n|---|---|---|\n".to_owned();
    for flag in flags {
        let default = if flag.default.is_empty() { String::new() } else { format!("`{}`", flag.default) };
        let becomes = match flag.becomes {
            Becomes::Same("") => "the same".to_owned(),
            Becomes::Same(note) => format!("the same: {note}"),
            Becomes::Ignored(reason) => format!("accepted with a warning: {reason}"),
        };
        text.push_str(&format!("| `--{}` | {default} | {becomes} |\n", flag.name));
    }
    text
}

fn gate_table() -> String {
    let mut text = "| Program | Gate | What becomes of it |\n|---|---|---|\n".to_owned();
    for (program, gates) in [
        (Program::Provisioner, &provisioner::GATES[..]),
        (Program::Attacher, &attacher::GATES),
        (Program::Resizer, &resizer::GATES),
        (Program::Snapshotter, &snapshotter::GATES),
        (Program::HealthMonitor, &health_monitor::GATES),
        (Program::SnapshotController, &snapshot_controller::GATES),
    ] {
        for gate in gates {
            let becomes = match gate.is {
                Is::Free => "the same: on unless `=false` is given",
                Is::On => "always on; `=false` is accepted with a warning",
                Is::NotBuilt => "not built; `=true` is accepted with a warning",
            };
            text.push_str(&format!("| {} | `{}` | {becomes} |\n", program.name(), gate.name));
        }
    }
    text
}

#[test]
fn the_documentation_has_every_flag() {
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
        &common::FLAGS,
        &registrar::FLAGS,
        &liveness::FLAGS,
        &logging::FLAGS,
    ];
    let tables = flags.map(table).into_iter().chain([gate_table()]);
    let missing: Vec<String> = tables.filter(|table| !documentation.contains(table)).collect();
    assert!(missing.is_empty(), "docs/sidecar-flags.md lacks these tables:\n\n{}", missing.join("\n"));
}

/// A flag that stands twice would be read by one of its rows only.
#[test]
fn no_flag_stands_twice() {
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
