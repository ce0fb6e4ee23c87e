//! `wharf snapshot-metadata`: the driver's changed blocks for backup programs.

use std::path::PathBuf;
use std::time::Duration;

use wharf_cluster::ConnectOptions;
use wharf_csi::Endpoint;
use wharf_sidecar::process::Address;
use wharf_sidecar::snapshot_metadata::{self, Config, Tls};

use crate::sidecar::parse_duration;
use crate::signal::stop_signal;

const EXPLANATION: &str = "\
Stands beside a driver with SNAPSHOT_METADATA_SERVICE, in place of external-snapshot-metadata, whose name
(csi-snapshot-metadata, by a link) and flags it takes too. Who asks shows a token, made for the audience of the
driver's SnapshotMetadataService object, and has to be allowed to get volumesnapshots in the namespace they ask for.

  /health    the driver is ready
  /metrics   for Prometheus

Example:
  wharf snapshot-metadata --csi-address /csi/csi.sock --tls-cert /certs/tls.crt --tls-key /certs/tls.key";

/// Tell backup programs which blocks of a snapshot hold data, or differ from an older one's
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct SnapshotMetadataArgs {
    /// The driver's socket, such as /csi/csi.sock
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: Endpoint,
    /// The service's certificate with its chain, in PEM; a renewed one is taken without a restart
    #[arg(long, value_name = "FILE", env = "TLS_CERT_PATH")]
    tls_cert: PathBuf,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", env = "TLS_KEY_PATH")]
    tls_key: PathBuf,
    /// The service's port, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = 50051)]
    port: u16,
    /// The service's address instead, such as 127.0.0.1:50051
    #[arg(long, value_name = "ADDRESS", conflicts_with = "port")]
    address: Option<Address>,
    /// Audience of tokens [default: that of the driver's SnapshotMetadataService]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    audience: Option<String>,
    /// How long an answer may take in all
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m")]
    max_streaming_duration: Duration,
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address for the pages
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    http_endpoint: Address,
}

/// `wharf snapshot-metadata`.
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
        tls: Tls { cert: tls_cert, key: tls_key, only_1_3: false },
        audience,
        longest: max_streaming_duration,
        pages: Some(http_endpoint),
        metrics: Some("/metrics".to_owned()),
    })
    .await
}

/// Serves until a signal says to stop.
pub(crate) async fn serve(config: Config) -> anyhow::Result<()> {
    Ok(snapshot_metadata::run(config, stop_signal()?).await?)
}
