//! Logging to stderr, as text or JSON. The output of commands goes to stdout, so the two never mix.

use std::io::{self, IsTerminal};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use wharf_driver_nfs::worker::WorkerLog;

use crate::cli::{LogArgs, LogFormat};

/// What worker processes of the NFS driver log: the same lines in the same format.
pub(crate) fn of_workers(args: &LogArgs, default_level: &str) -> WorkerLog {
    WorkerLog { filter: filter(args, default_level).to_owned(), json: args.log_format == LogFormat::Json }
}

fn filter<'a>(args: &'a LogArgs, default_level: &'a str) -> &'a str {
    args.log_level.as_deref().filter(|filter| !filter.is_empty()).unwrap_or(default_level)
}

/// Initialises logging. An invalid filter is an error: ignoring it would silently drop logs.
pub(crate) fn init(args: &LogArgs, default_level: &str) -> anyhow::Result<()> {
    let filter = filter(args, default_level);
    let filter = EnvFilter::try_new(filter).with_context(|| format!("invalid log filter {filter:?}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
