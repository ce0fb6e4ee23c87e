//! Logs of worker processes. They go to the driver's standard error. Workers have no environment, so their arguments say which lines
//! they write, in which format.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

const LEVEL: &str = "--log-level";
const FORMAT: &str = "--log-format";

/// What a worker logs, and how: as its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLog {
    /// A level, or a filter such as `wharf_driver_nfs=debug,warn`.
    pub filter: String,
    /// Whether lines are JSON objects.
    pub json: bool,
}

impl Default for WorkerLog {
    /// Warnings and errors, as text.
    fn default() -> Self {
        Self { filter: "warn".to_owned(), json: false }
    }
}

impl WorkerLog {
    /// The arguments of a worker that logs like this.
    pub(super) fn arguments(&self) -> [&str; 4] {
        [LEVEL, &self.filter, FORMAT, if self.json { "json" } else { "text" }]
    }

    /// The inverse. What is missing or unknown is as by default: logs must not keep a worker from its work.
    pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut log = Self::default();
        let mut arguments = arguments.into_iter();
        while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
            match (flag.to_str(), value.to_str()) {
                (Some(LEVEL), Some(filter)) => log.filter = filter.to_owned(),
                (Some(FORMAT), Some(format)) => log.json = format == "json",
                _ => {}
            }
        }
        log
    }

    /// Logs to standard error from now on. Call it once.
    pub(super) fn init(&self) {
        let filter = EnvFilter::try_new(&self.filter).unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        // Fails only if there is a subscriber already, which then gets the lines.
        let _ = match self.json {
            false => lines.with_ansi(io::stderr().is_terminal()).try_init(),
            true => lines.json().flatten_event(true).try_init(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_back_and_others_are_ignored() {
        for (filter, json) in [("info", false), ("wharf_driver_nfs=debug,warn", true)] {
            let log = WorkerLog { filter: filter.to_owned(), json };
            assert_eq!(WorkerLog::parse(log.arguments().map(OsString::from)), log);
        }
        for arguments in [&[][..], &["--log-level"], &["--other", "x"], &["--log-format", "xml"]] {
            let parsed = WorkerLog::parse(arguments.iter().map(OsString::from));
            assert_eq!(parsed, WorkerLog::default(), "{arguments:?}");
        }
    }
}
