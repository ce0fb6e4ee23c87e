//! Logging flags. All upstream programs have them, under names that changed between releases.

use super::{Environment, Flag, FlagError, NO_GO_RUNTIME, ParsedFlags, Support, ValueKind, flag};
use Support::{Ignored, Same};
use ValueKind::{Bool, Duration as Time, Number, Text};

const ALWAYS_STDERR: Support = Ignored("logs always go to stderr");
const UNBUFFERED: Support = Ignored("log lines are not buffered");
const OTHER_FORMAT: Support = Ignored("the log format is different");

pub(super) static FLAGS: [Flag; 22] = [
    flag(
        "v",
        Number,
        "0",
        Same("4 and higher: debug logs of wharf; 8 and higher: everything. `RUST_LOG` takes precedence"),
    ),
    flag("logging-format", Text, "text", Same("`text` or `json`")),
    flag("vmodule", Text, "", Ignored("source files have different names; use RUST_LOG")),
    flag("log-flush-frequency", Time, "5s", UNBUFFERED),
    flag("log-text-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-json-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-text-info-buffer-size", Text, "0", UNBUFFERED),
    flag("log-json-info-buffer-size", Text, "0", UNBUFFERED),
    flag("automaxprocs", Bool, "false", NO_GO_RUNTIME),
    flag("logtostderr", Bool, "true", ALWAYS_STDERR),
    flag("alsologtostderr", Bool, "false", ALWAYS_STDERR),
    flag("stderrthreshold", Text, "ERROR", ALWAYS_STDERR),
    flag("alsologtostderrthreshold", Text, "INFO", ALWAYS_STDERR),
    flag("legacy_stderr_threshold_behavior", Bool, "true", ALWAYS_STDERR),
    flag("log_dir", Text, "", ALWAYS_STDERR),
    flag("log_file", Text, "", ALWAYS_STDERR),
    flag("log_file_max_size", Number, "1800", ALWAYS_STDERR),
    flag("one_output", Bool, "false", ALWAYS_STDERR),
    flag("skip_headers", Bool, "false", OTHER_FORMAT),
    flag("skip_log_headers", Bool, "false", OTHER_FORMAT),
    flag("add_dir_header", Bool, "false", OTHER_FORMAT),
    flag("log_backtrace_at", Text, "", NO_GO_RUNTIME),
];

/// Log filter and format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// The filter, such as `info,wharf=debug`. `None`: the default.
    pub filter: Option<String>,
    /// The format.
    pub format: LogFormat,
}

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log filter and format.
pub(super) fn configure(parsed: &ParsedFlags, environment: &Environment) -> Result<LogOptions, FlagError> {
    let filter = match parsed.number("v").unwrap_or_default() {
        // Only Wharf's crates: the libraries would log a dozen debug lines per probe.
        4..8 => Some(
            "info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug,wharf_controllers=debug,wharf_cluster=debug",
        ),
        8.. => Some("trace"),
        _ => None,
    };
    let format = match parsed.text("logging-format") {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            return Err(FlagError(format!("flag -logging-format: {other:?} is neither text nor json")));
        }
    };
    Ok(LogOptions { filter: environment.rust_log.clone().or(filter.map(str::to_owned)), format })
}
