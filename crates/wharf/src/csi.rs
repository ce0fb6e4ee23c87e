//! `wharf csi`: a client for any CSI socket, for driver authors and operators. Each command is one RPC (or all pages of a
//! listing): its flags are the fields of the request, its output is the response.

mod group;
mod identity;
mod message;
mod node;
mod request;
mod snapshot;
mod volume;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Subcommand};
use tonic::{Code, Status};
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::v1::group_controller_client::GroupControllerClient;
use wharf_csi::v1::identity_client::IdentityClient;
use wharf_csi::v1::node_client::NodeClient;
use wharf_csi::v1::snapshot_metadata_client::SnapshotMetadataClient;
use wharf_csi::{Client, DeadlineChannel, Endpoint};

use crate::cli::Cli;
use crate::output::Format;
use crate::size::parse_duration;

const EXAMPLES: &str = "\
Examples:
  export WHARF_CSI_ENDPOINT=unix:///run/wharf/local.sock
  wharf csi identity capabilities
  wharf csi volume create data --size 10GiB --fs-type xfs
  wharf csi node stage vol-… --staging-path /mnt/staging --fs-type xfs
  wharf csi snapshot create before-upgrade --volume vol-…
  wharf csi volume list --output json

A failed call prints `CODE: message` and exits with status 1.";

/// Call any CSI driver over its socket
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CsiArgs {
    /// The driver's socket, such as unix:///run/csi.sock
    #[arg(long, env = "WHARF_CSI_ENDPOINT", global = true, value_name = "ENDPOINT")]
    endpoint: Option<Endpoint>,
    /// Timeout of each call
    #[arg(
        long,
        env = "WHARF_CSI_TIMEOUT",
        global = true,
        value_name = "DURATION",
        value_parser = parse_duration,
        default_value = "60s"
    )]
    timeout: Duration,
    /// Output format
    #[arg(
        long,
        short,
        env = "WHARF_CSI_OUTPUT",
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORMAT"
    )]
    output: Format,
    /// File with the secrets of the request: a JSON object of strings. Secrets cannot be passed as flags
    #[arg(long, env = "WHARF_CSI_SECRETS_FILE", global = true, value_name = "FILE")]
    secrets_file: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(subcommand)]
    Identity(identity::Command),
    #[command(subcommand)]
    Volume(volume::Command),
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    #[command(subcommand)]
    Group(group::Command),
    Capacity(volume::Capacity),
    #[command(subcommand)]
    Node(node::Command),
}

/// State of every command: the connection and the secrets of the request.
struct Session {
    client: Client,
    secrets: BTreeMap<String, String>,
}

impl Session {
    fn identity(&self) -> IdentityClient<DeadlineChannel> {
        self.client.identity()
    }

    fn controller(&self) -> ControllerClient<DeadlineChannel> {
        self.client.controller()
    }

    fn group_controller(&self) -> GroupControllerClient<DeadlineChannel> {
        self.client.group_controller()
    }

    fn snapshot_metadata(&self) -> SnapshotMetadataClient<DeadlineChannel> {
        self.client.snapshot_metadata()
    }

    fn node(&self) -> NodeClient<DeadlineChannel> {
        self.client.node()
    }

    fn secrets(&self) -> BTreeMap<String, String> {
        self.secrets.clone()
    }
}

/// Runs the call and prints its response.
pub(crate) async fn run(args: CsiArgs) -> anyhow::Result<()> {
    let CsiArgs { endpoint, timeout, output, secrets_file, command } = args;
    // clap cannot define a global flag (accepted after the subcommand) that is also required.
    let Some(endpoint) = endpoint else {
        Cli::command()
            .error(
                ErrorKind::MissingRequiredArgument,
                "no driver endpoint: set --endpoint unix:///path/to/csi.sock or WHARF_CSI_ENDPOINT",
            )
            .exit()
    };
    let secrets = secrets_file.as_deref().map(request::read_secrets).transpose()?.unwrap_or_default();
    let session = Session { client: Client::new(&endpoint).with_deadline(timeout), secrets };
    let report = match command {
        Command::Identity(command) => identity::run(command, &session).await,
        Command::Volume(command) => volume::run(command, &session).await,
        Command::Snapshot(command) => snapshot::run(command, &session).await,
        Command::Group(command) => group::run(command, &session).await,
        Command::Capacity(args) => volume::capacity(args, &session).await,
        Command::Node(command) => node::run(command, &session).await,
    };
    let report = report.map_err(|error| match error.downcast::<Status>() {
        Ok(status) => anyhow::anyhow!("{}: {}", code_name(status.code()), status.message()),
        Err(other) => other,
    })?;
    report.print(output)?;
    Ok(())
}

/// The name of a code in the gRPC and CSI specifications.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
