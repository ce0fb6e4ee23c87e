//! The upstream programs that the binary stands in for, with every flag they have or had. `docs/sidecar-flags.md`
//! is made of the same tables.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use wharf_csi::Endpoint;
use wharf_sidecar::process::{Address, Listen, Sidecar};
use wharf_sidecar::registrar;

use super::goflags::{Becomes, Flag, FlagError, Given, Takes, parse};
use crate::cli::{LogArgs, LogFormat};
use Becomes::{Ignored, Same};
use Takes::{Bool, Duration as Time, Number, Text};

/// Where livenessprobe listens if nobody says.
pub(super) const HEALTH_PORT: u16 = 9808;

const CSI_ADDRESS: &str = "/run/csi/socket";

/// An upstream program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    NodeDriverRegistrar,
    LivenessProbe,
}

/// What its command line asks for.
pub(crate) enum Asked {
    /// This text, and nothing else.
    Text(String),
    /// Nothing: it is an old probe that always succeeds.
    Nothing,
    /// To run.
    Run { node: Sidecar, log: LogArgs, warnings: Vec<String> },
}

const fn flag(name: &'static str, takes: Takes, default: &'static str, becomes: Becomes) -> Flag {
    Flag { name, takes, default, becomes }
}

const ALWAYS_STDERR: Becomes = Ignored("logs go to stderr");
const NO_GO: Becomes = Ignored("there is no Go runtime here");
const REMOVED: Becomes = Ignored("of older releases; nothing needs it any more");

static REGISTRAR: [Flag; 13] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("kubelet-registration-path", Text, "", Same("required")),
    flag("plugin-registration-path", Text, "/registration", Same("")),
    flag(
        "timeout",
        Time,
        "1s",
        Same(
            "for each question to the driver; a driver that does not answer is asked again, where upstream exits",
        ),
    ),
    flag("http-endpoint", Text, "", Same("also serves `/readyz` and `/metrics`")),
    flag("health-port", Number, "0", Same("0 or less: no pages")),
    flag(
        "mode",
        Text,
        "",
        Same(
            "`kubelet-registration-probe` exits with 0 at once; `kubernetes-register` is refused, it is not built; \
             any other value registers",
        ),
    ),
    flag("version", Bool, "false", Same("prints our version")),
    flag("enable-pprof", Bool, "false", NO_GO),
    flag("connection-timeout", Time, "0s", REMOVED),
    flag("kubeconfig", Text, "", REMOVED),
    flag("driver-requires-attachment", Bool, "true", REMOVED),
    flag("pod-info-mount-version", Text, "", REMOVED),
];

static LIVENESS: [Flag; 7] = [
    flag("csi-address", Text, CSI_ADDRESS, Same("")),
    flag("probe-timeout", Time, "3s", Same("")),
    flag("health-port", Text, "9808", Same("cannot be used with `--http-endpoint`")),
    flag("http-endpoint", Text, "", Same("also serves `/readyz`")),
    flag("metrics-address", Text, "", Same("cannot be used with `--http-endpoint`")),
    flag("metrics-path", Text, "/metrics", Same("")),
    flag("connection-timeout", Time, "0s", REMOVED),
];

static LOGGING: [Flag; 22] = [
    flag(
        "v",
        Number,
        "0",
        Same("from 4 on debug lines of our own code, from 8 on everything; `RUST_LOG` wins"),
    ),
    flag("logging-format", Text, "text", Same("`text` or `json`")),
    flag("vmodule", Text, "", Ignored("files are named otherwise here; use RUST_LOG")),
    flag("log-flush-frequency", Time, "5s", Ignored("lines are written at once")),
    flag("log-text-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-json-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-text-info-buffer-size", Text, "0", Ignored("lines are written at once")),
    flag("log-json-info-buffer-size", Text, "0", Ignored("lines are written at once")),
    flag("automaxprocs", Bool, "false", NO_GO),
    flag("logtostderr", Bool, "true", ALWAYS_STDERR),
    flag("alsologtostderr", Bool, "false", ALWAYS_STDERR),
    flag("stderrthreshold", Text, "ERROR", ALWAYS_STDERR),
    flag("alsologtostderrthreshold", Text, "INFO", ALWAYS_STDERR),
    flag("legacy_stderr_threshold_behavior", Bool, "true", ALWAYS_STDERR),
    flag("log_dir", Text, "", ALWAYS_STDERR),
    flag("log_file", Text, "", ALWAYS_STDERR),
    flag("log_file_max_size", Number, "1800", ALWAYS_STDERR),
    flag("one_output", Bool, "false", ALWAYS_STDERR),
    flag("skip_headers", Bool, "false", Ignored("lines look otherwise here")),
    flag("skip_log_headers", Bool, "false", Ignored("lines look otherwise here")),
    flag("add_dir_header", Bool, "false", Ignored("lines look otherwise here")),
    flag("log_backtrace_at", Text, "", NO_GO),
];

impl Program {
    /// The program whose name the binary was called by.
    pub(crate) fn called(argv0: &OsStr) -> Option<Self> {
        match Path::new(argv0).file_name()?.to_str()? {
            "csi-node-driver-registrar" | "node-driver-registrar" => Some(Self::NodeDriverRegistrar),
            "livenessprobe" => Some(Self::LivenessProbe),
            _ => None,
        }
    }

    /// What its command line asks for; `Err` says what is not understood.
    pub(crate) fn asked(self, words: &[String], rust_log: Option<String>) -> Result<Asked, String> {
        let flags: Vec<&'static Flag> = self.flags().iter().chain(&LOGGING).collect();
        let read = || {
            let given = parse(&flags, words)?;
            if given.help {
                return Ok(Asked::Text(self.help(&flags)));
            }
            match self {
                Self::NodeDriverRegistrar => registrar(given, rust_log),
                Self::LivenessProbe => liveness(given, rust_log),
            }
        };
        read().map_err(|FlagError(error)| format!("{}: {error}", self.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Self::NodeDriverRegistrar => "csi-node-driver-registrar",
            Self::LivenessProbe => "livenessprobe",
        }
    }

    fn flags(self) -> &'static [Flag] {
        match self {
            Self::NodeDriverRegistrar => &REGISTRAR,
            Self::LivenessProbe => &LIVENESS,
        }
    }

    fn help(self, flags: &[&Flag]) -> String {
        let mut text = format!("Flags of {}, as wharf takes them:\n", self.name());
        for flag in flags {
            let (takes, default) = (flag.takes.name(), flag.default);
            text.push_str(&format!("  -{} {takes} (default {default:?})\n", flag.name));
            match flag.becomes {
                Same("") => {}
                Same(note) => text.push_str(&format!("        {note}\n")),
                Ignored(reason) => text.push_str(&format!("        ignored: {reason}\n")),
            }
        }
        text
    }
}

fn registrar(given: Given, rust_log: Option<String>) -> Result<Asked, FlagError> {
    if given.is_set("version") {
        return Ok(Asked::Text(concat!("wharf ", env!("CARGO_PKG_VERSION"), "\n").to_owned()));
    }
    let Some(kubelet_path) = given.text("kubelet-registration-path") else {
        return Err(FlagError("kubelet-registration-path is a required parameter".to_owned()));
    };
    match given.text("mode") {
        Some("kubelet-registration-probe") => return Ok(Asked::Nothing),
        Some("kubernetes-register") => {
            let error = "-mode=kubernetes-register is not built; apply the CSIDriver object with the driver's manifest";
            return Err(FlagError(error.to_owned()));
        }
        Some(_) | None => {}
    }
    let port = given.number("health-port").filter(|port| *port > 0);
    let address = match (port, given.text("http-endpoint")) {
        (Some(_), Some(_)) => return Err(only_one("health-port")),
        (Some(port), None) => Some(Address::port(to_port(port)?)),
        (None, Some(address)) => Some(to_address("http-endpoint", address)?),
        (None, None) => None,
    };
    let metrics = Some("/metrics".to_owned());
    let config = registrar::Config {
        plugin_registration_path: given.text("plugin-registration-path").unwrap_or("/registration").into(),
        kubelet_registration_path: kubelet_path.to_owned(),
        timeout: given.timeout("timeout", Duration::from_secs(1))?,
    };
    let node = Sidecar {
        driver: driver(&given)?,
        registrar: Some(config),
        probe_timeout: None,
        controller: None,
        listen: address.map(|address| Listen { address, health: true, metrics }).into_iter().collect(),
    };
    run(node, given, rust_log)
}

fn liveness(given: Given, rust_log: Option<String>) -> Result<Asked, FlagError> {
    let port = given.text("health-port").map_or(Ok(HEALTH_PORT), |port| {
        port.parse().map_err(|_| FlagError(format!("flag -health-port: {port:?} is not a port")))
    })?;
    let metrics = Some(given.text("metrics-path").unwrap_or("/metrics").to_owned());
    let listen = match (given.text("http-endpoint"), given.text("metrics-address")) {
        (Some(_), Some(_)) => return Err(only_one("metrics-address")),
        // As upstream: the default port given in so many words is no contradiction.
        (Some(_), None) if port != HEALTH_PORT => return Err(only_one("health-port")),
        (Some(address), None) => {
            vec![Listen { address: to_address("http-endpoint", address)?, health: true, metrics }]
        }
        (None, metrics_address) => {
            let health = Listen { address: Address::port(port), health: true, metrics: None };
            let beside = metrics_address.map(|address| to_address("metrics-address", address)).transpose()?;
            let beside = beside.map(|address| Listen { address, health: false, metrics });
            std::iter::once(health).chain(beside).collect()
        }
    };
    let node = Sidecar {
        driver: driver(&given)?,
        registrar: None,
        probe_timeout: Some(given.timeout("probe-timeout", Duration::from_secs(3))?),
        controller: None,
        listen,
    };
    run(node, given, rust_log)
}

fn run(node: Sidecar, given: Given, rust_log: Option<String>) -> Result<Asked, FlagError> {
    let level = match given.number("v").unwrap_or_default() {
        // Of the libraries' own debug lines there would be a dozen for each probe.
        4..8 => Some("info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug"),
        8.. => Some("trace"),
        _ => None,
    };
    let log_format = match given.text("logging-format") {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            return Err(FlagError(format!("flag -logging-format: {other:?} is neither text nor json")));
        }
    };
    let log_level = rust_log.filter(|filter| !filter.is_empty()).or(level.map(str::to_owned));
    Ok(Asked::Run { node, log: LogArgs { log_level, log_format }, warnings: given.warnings })
}

fn driver(given: &Given) -> Result<Endpoint, FlagError> {
    let address = given.text("csi-address").unwrap_or(CSI_ADDRESS);
    address.parse().map_err(|error| FlagError(format!("flag -csi-address: {error}")))
}

fn to_address(name: &str, text: &str) -> Result<Address, FlagError> {
    text.parse().map_err(|error| FlagError(format!("flag -{name}: {error}")))
}

fn to_port(port: i64) -> Result<u16, FlagError> {
    u16::try_from(port).map_err(|_| FlagError(format!("flag -health-port: {port} is not a port")))
}

fn only_one(name: &str) -> FlagError {
    FlagError(format!("only one of -{name} and -http-endpoint can be set"))
}

#[cfg(test)]
mod tests;
