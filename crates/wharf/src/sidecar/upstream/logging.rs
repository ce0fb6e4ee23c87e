//! The flags of upstream's logs. All its programs have them, under names that changed with the years.

use super::{Becomes, Environment, Flag, FlagError, Given, NO_GO, Takes, flag};
use crate::cli::{LogArgs, LogFormat};
use Becomes::{Ignored, Same};
use Takes::{Bool, Duration as Time, Number, Text};

const ALWAYS_STDERR: Becomes = Ignored("logs go to stderr");
const AT_ONCE: Becomes = Ignored("lines are written at once");
const OTHERWISE: Becomes = Ignored("lines look otherwise here");

pub(super) static FLAGS: [Flag; 22] = [
    flag(
        "v",
        Number,
        "0",
        Same("from 4 on debug lines of our own code, from 8 on everything; `RUST_LOG` wins"),
    ),
    flag("logging-format", Text, "text", Same("`text` or `json`")),
    flag("vmodule", Text, "", Ignored("files are named otherwise here; use RUST_LOG")),
    flag("log-flush-frequency", Time, "5s", AT_ONCE),
    flag("log-text-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-json-split-stream", Bool, "false", ALWAYS_STDERR),
    flag("log-text-info-buffer-size", Text, "0", AT_ONCE),
    flag("log-json-info-buffer-size", Text, "0", AT_ONCE),
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
    flag("skip_headers", Bool, "false", OTHERWISE),
    flag("skip_log_headers", Bool, "false", OTHERWISE),
    flag("add_dir_header", Bool, "false", OTHERWISE),
    flag("log_backtrace_at", Text, "", NO_GO),
];

/// What is logged, and how.
pub(super) fn asked(given: &Given, environment: &Environment) -> Result<LogArgs, FlagError> {
    let level = match given.number("v").unwrap_or_default() {
        // Of the libraries' own debug lines there would be a dozen for each probe.
        4..8 => Some("info,wharf=debug,wharf_csi=debug,wharf_sidecar=debug,wharf_cluster=debug"),
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
    Ok(LogArgs { log_level: environment.rust_log.clone().or(level.map(str::to_owned)), log_format })
}
