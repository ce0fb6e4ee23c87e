//! Command lines as manifests have them, and the documentation of every flag.

use super::*;

fn asked(program: Program, line: &str) -> Result<Asked, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    program.asked(&words, None)
}

fn node(program: Program, line: &str) -> Sidecar {
    match asked(program, line) {
        Ok(Asked::Run { node, .. }) => node,
        Ok(_) => panic!("{line}: does not run"),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn pages(node: &Sidecar) -> Vec<(String, bool, Option<&str>)> {
    node.listen.iter().map(|at| (at.address.to_string(), at.health, at.metrics.as_deref())).collect()
}

#[test]
fn programs_by_their_names() {
    for (argv0, program) in [
        ("/csi-node-driver-registrar", Some(Program::NodeDriverRegistrar)),
        ("node-driver-registrar", Some(Program::NodeDriverRegistrar)),
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
    let full = node(program, line);
    assert_eq!(full.driver.path(), Path::new("/csi/csi.sock"));
    assert_eq!(pages(&full), [(":9809".to_owned(), true, Some("/metrics"))]);
    assert_eq!(full.probe_timeout, None);
    let config = full.registrar.expect("a registrar");
    assert_eq!(config.kubelet_registration_path, "/k/csi.sock");
    assert_eq!(config.plugin_registration_path, Path::new("/registration"));
    assert_eq!(config.timeout, Duration::from_secs(1));

    let least = node(program, "-kubelet-registration-path /k");
    assert_eq!(least.driver.path(), Path::new("/run/csi/socket"));
    assert_eq!(pages(&least), []);
    assert!(node(program, "--kubelet-registration-path=/k --mode=node-register").registrar.is_some());
    let probe = "--kubelet-registration-path=/k --mode=kubelet-registration-probe";
    assert!(matches!(asked(program, probe), Ok(Asked::Nothing)));
    assert!(matches!(asked(program, "--version"), Ok(Asked::Text(text)) if text.starts_with("wharf ")));
    for (line, said) in [
        ("", "kubelet-registration-path is a required parameter"),
        ("--kubelet-registration-path=/k --health-port=1 --http-endpoint=:2", "only one of"),
        ("--kubelet-registration-path=/k --mode=kubernetes-register", "not built"),
        ("--kubelet-registration-path=/k --csi-address=tcp://x:1", "csi-address"),
        ("--kubelet-registration-path=/k --http-endpoint=nowhere", "http-endpoint"),
        ("--kubelet-registration-path=/k --health-port=65536", "not a port"),
        ("--kubelet-registration-path=/k --worker-threads=4", "--worker-threads=4"),
        ("--kubelet-registration-path=/k --logging-format=xml", "neither text nor json"),
    ] {
        let error = asked(program, line).err().expect(line);
        assert!(error.starts_with("csi-node-driver-registrar: ") && error.contains(said), "{line}: {error}");
    }
}

/// sidecars.md 1.8 "Start"
#[test]
fn a_livenessprobes_manifest() {
    let program = Program::LivenessProbe;
    let all = |port: &str| vec![(format!(":{port}"), true, None)];
    assert_eq!(pages(&node(program, "")), all("9808"));
    assert_eq!(pages(&node(program, "--health-port=9810")), all("9810"));
    for line in ["--http-endpoint=:80", "--http-endpoint=:80 --health-port=9808"] {
        assert_eq!(pages(&node(program, line)), [(":80".to_owned(), true, Some("/metrics"))], "{line}");
    }
    let beside = node(program, "--metrics-address=:81 --metrics-path=/m");
    assert_eq!(pages(&beside), [(":9808".to_owned(), true, None), (":81".to_owned(), false, Some("/m"))]);
    assert_eq!(beside.probe_timeout, Some(Duration::from_secs(3)));
    assert!(beside.registrar.is_none());
    let timeout = node(program, "--probe-timeout=1m30s").probe_timeout;
    assert_eq!(timeout, Some(Duration::from_secs(90)));
    for (line, said) in [
        ("--http-endpoint=:1 --health-port=2", "only one of -health-port"),
        ("--http-endpoint=:1 --metrics-address=:2", "only one of -metrics-address"),
        ("--health-port=x", "not a port"),
        ("--probe-timeout=0s", "probe-timeout"),
        ("--kubelet-registration-path=/k", "there is no flag"),
    ] {
        let error = asked(program, line).err().expect(line);
        assert!(error.starts_with("livenessprobe: ") && error.contains(said), "{line}: {error}");
    }
}

#[test]
fn verbosity_and_format_of_logs() {
    for (line, rust_log, level, format) in [
        ("", None, None, LogFormat::Text),
        ("-v=3", None, None, LogFormat::Text),
        ("-v=5", None, Some("info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug"), LogFormat::Text),
        ("-v=10 --logging-format=json", None, Some("trace"), LogFormat::Json),
        ("-v=10", Some("warn"), Some("warn"), LogFormat::Text),
        ("", Some(""), None, LogFormat::Text),
    ] {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match Program::LivenessProbe.asked(&words, rust_log.map(str::to_owned)) {
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
            Same("") => "the same".to_owned(),
            Same(note) => format!("the same: {note}"),
            Ignored(reason) => format!("accepted with a warning: {reason}"),
        };
        text.push_str(&format!("| `--{}` | {default} | {becomes} |\n", flag.name));
    }
    text
}

#[test]
fn the_documentation_has_every_flag() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sidecar-flags.md");
    let documentation = std::fs::read_to_string(path).expect("docs/sidecar-flags.md");
    for flags in [&REGISTRAR[..], &LIVENESS, &LOGGING] {
        let table = table(flags);
        assert!(documentation.contains(&table), "docs/sidecar-flags.md lacks this table:\n{table}");
    }
}
