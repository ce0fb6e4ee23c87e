//! The command line: global flags, and the mapping of commands to modules.

use clap::{Args, Parser, Subcommand, ValueEnum};
use wharf_upstream_flags::LogOptions;

use crate::agent::{self, NodeArgs};
use crate::apiserver::{self, ApiserverArgs};
use crate::backup::{self, BackupArgs};
use crate::controllers::{self, ControllersArgs};
use crate::csi::{self, CsiArgs};
use crate::down::{self, DownArgs};
use crate::driver::{self, DriverArgs};
use crate::explain::{self, ExplainArgs};
use crate::install::{self, InstallArgs};
use crate::local::{self, LocalArgs};
use crate::log;
use crate::nfs::{self, NfsArgs};
use crate::nfs_server::{self, NfsServerArgs};
use crate::sidecar::{self, SidecarArgs, SnapshotControllerArgs};
use crate::snapshot_metadata::{self, SnapshotMetadataArgs};
use crate::up::{self, UpArgs};

const EXAMPLES: &str = "\
Start here:
  wharf up                  Kubernetes storage on this machine, without a cluster
  wharf explain pvc/NAME    why a claim, pod or volume is not ready
  wharf sidecar --help      replace the CSI sidecars of a driver in a cluster

`wharf COMMAND --help` describes a command in full.";

/// Kubernetes CSI storage in one binary.
#[derive(Debug, Parser)]
#[command(name = "wharf", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

/// Log level and format. Logs always go to stderr.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// Log level (error, warn, info, debug or trace), or a filter such as wharf_driver=debug,warn
    #[arg(long, env = "RUST_LOG", global = true, value_name = "FILTER", help_heading = "Logging")]
    pub(crate) log_level: Option<String>,
    /// Log format
    #[arg(
        long,
        env = "WHARF_LOG_FORMAT",
        global = true,
        value_enum,
        default_value = "text",
        value_name = "FORMAT",
        help_heading = "Logging"
    )]
    pub(crate) log_format: LogFormat,
}

impl From<LogOptions> for LogArgs {
    fn from(LogOptions { filter, format }: LogOptions) -> Self {
        let log_format = match format {
            wharf_upstream_flags::LogFormat::Text => LogFormat::Text,
            wharf_upstream_flags::LogFormat::Json => LogFormat::Json,
        };
        Self { log_level: filter, log_format }
    }
}

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable lines
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<UpArgs>),
    Down(DownArgs),
    Explain(ExplainArgs),
    Controllers(ControllersArgs),
    Node(NodeArgs),
    Driver(DriverArgs),
    Sidecar(Box<SidecarArgs>),
    SnapshotController(Box<SnapshotControllerArgs>),
    Install(InstallArgs),
    Apiserver(Box<ApiserverArgs>),
    SnapshotMetadata(Box<SnapshotMetadataArgs>),
    Local(LocalArgs),
    Nfs(NfsArgs),
    NfsServer(NfsServerArgs),
    Csi(Box<CsiArgs>),
    Backup(Box<BackupArgs>),
}

impl Cli {
    /// The default log level: `info` for long-running services, `warn` for tools.
    pub(crate) fn default_log_level(&self) -> &'static str {
        match self.command {
            Command::Up(_)
            | Command::Controllers(_)
            | Command::Node(_)
            | Command::Driver(_)
            | Command::NfsServer(_)
            | Command::Sidecar(_)
            | Command::SnapshotController(_)
            | Command::SnapshotMetadata(_)
            | Command::Apiserver(_) => "info",
            Command::Down(_)
            | Command::Explain(_)
            | Command::Local(_)
            | Command::Nfs(_)
            | Command::Csi(_)
            | Command::Install(_)
            | Command::Backup(_) => "warn",
        }
    }

    /// Runs the selected command.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let worker_log = log::of_workers(&self.log, self.default_log_level());
        match self.command {
            Command::Up(args) => up::run(*args).await,
            Command::Down(args) => down::run(args).await,
            Command::Explain(args) => explain::run(args).await,
            Command::Controllers(args) => controllers::run(args).await,
            Command::Node(args) => agent::run(args).await,
            Command::Driver(args) => driver::run(args, worker_log).await,
            Command::Sidecar(args) => sidecar::run(*args).await,
            Command::SnapshotController(args) => sidecar::run_snapshot_controller(*args).await,
            Command::Install(args) => install::run(args).await,
            Command::SnapshotMetadata(args) => snapshot_metadata::run(*args).await,
            Command::Apiserver(args) => apiserver::run(*args).await,
            Command::Local(args) => local::run(args),
            Command::Nfs(args) => nfs::run(args, worker_log).await,
            Command::NfsServer(args) => nfs_server::run(args).await,
            Command::Csi(args) => csi::run(*args).await,
            Command::Backup(args) => backup::run(*args).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    /// `--help` is what users read first, so every command and flag must have a description.
    #[test]
    fn every_command_and_flag_has_help() {
        fn check(command: &clap::Command, path: &str) {
            assert!(command.get_about().is_some(), "{path} has no description");
            for flag in command.get_arguments() {
                assert!(flag.get_help().is_some(), "{path} {} has no help", flag.get_id());
            }
            for child in command.get_subcommands() {
                check(child, &format!("{path} {}", child.get_name()));
            }
        }
        check(&Cli::command(), "wharf");
    }
}
