//! `wharf snapshot-metadata`: serves the allocated and changed blocks of snapshots to backup programs.

use std::path::PathBuf;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_csi::Endpoint;
use wharf_sidecar::process::Address;
use wharf_sidecar::snapshot_metadata::{self, Config, Tls};

use crate::sidecar::parse_duration;
use crate::signal::stop_signal;

const AFTER_HELP: &str = "\
Replaces external-snapshot-metadata. It runs next to a driver with the capability SNAPSHOT_METADATA_SERVICE. If the binary \
is called csi-snapshot-metadata (a link of that name is enough), it takes that program's flags.

A caller authenticates with a token for the audience of the driver's SnapshotMetadataService object, and needs permission \
to get volumesnapshots in the requested namespace.

HTTP endpoints:
  /health    200 if the driver is ready
  /metrics   Prometheus metrics

Example:
  wharf snapshot-metadata --csi-address /csi/csi.sock \\
    --tls-cert /certs/tls.crt --tls-key /certs/tls.key";

/// Serve the allocated and changed blocks of snapshots to backup programs
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SnapshotMetadataArgs {
    /// The driver's socket, such as /csi/csi.sock
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: Endpoint,
    /// Certificate chain of the service, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", env = "TLS_CERT_PATH")]
    tls_cert: PathBuf,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TLS_KEY_PATH")]
    tls_key: PathBuf,
    /// Port of the service, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = 50051)]
    port: u16,
    /// Address of the service, instead of --port, such as 127.0.0.1:50051
    #[arg(long, value_name = "ADDRESS", conflicts_with = "port")]
    address: Option<Address>,
    /// Required token audience [default: the audience of the driver's SnapshotMetadataService]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    audience: Option<String>,
    /// Maximum duration of a response stream
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m")]
    max_streaming_duration: Duration,
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Listen address of the HTTP endpoints
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    http_endpoint: Address,
}

/// Runs `wharf snapshot-metadata`.
pub(crate) async fn run(args: SnapshotMetadataArgs) -> anyhow::Result<()> {
    let SnapshotMetadataArgs {
        csi_address,
        tls_cert,
        tls_key,
        port,
        address,
        audience,
        max_streaming_duration,
        kubeconfig,
        http_endpoint,
    } = args;
    serve(Config {
        driver: csi_address,
        connect: ConnectOptions { kubeconfig, ..ConnectOptions::default() },
        address: address.unwrap_or_else(|| Address::port(port)),
        tls: Tls { cert: tls_cert, key: tls_key, tls13_only: false },
        audience,
        max_stream_duration: max_streaming_duration,
        http_endpoint: Some(http_endpoint),
        metrics_path: Some("/metrics".to_owned()),
    })
    .await
}

/// Serves snapshot metadata until the process receives a stop signal.
pub(crate) async fn serve(config: Config) -> anyhow::Result<()> {
    Ok(snapshot_metadata::run(config, stop_signal()?).await?)
}
