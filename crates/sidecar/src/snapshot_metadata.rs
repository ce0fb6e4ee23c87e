//! Serves changed-block metadata of snapshots to backup programs. Replaces external-snapshot-metadata.
//!
//! - gRPC over TLS only. A renewed certificate is loaded without a restart.
//! - Each request carries a token. The API server authenticates it, checks its audience, and authorizes its user to
//!   get snapshots in the namespace. Nothing is served before, and no result is cached.
//! - The snapshot handle is taken only from the snapshot's own content.
//! - The driver's stream is forwarded unchanged, no faster than the caller reads, and within a time limit.
//! - The number of connections and streams is limited. A caller that disconnects or stays silent cannot hold one
//!   forever.
//! - Tokens and secrets never appear in logs, errors or metrics.
//!
//! Start reading at [`run`]; the rules are in [`decide`], the API server calls in [`act`].

use std::future::Future;
use std::io;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use wharf_cluster::{Cluster, ConnectError, ConnectOptions};
use wharf_csi::snapshotmetadata::snapshot_metadata_server::SnapshotMetadataServer;
use wharf_csi::{Client, Endpoint, HttpPage, serve_pages};

use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::process::{Address, SidecarError};
use relay::StreamLimiter;
use service::Service;
use tls::CertificateStore;
pub use tls::{Tls, TlsError};

mod act;
mod decide;
mod relay;
mod service;
mod tls;

/// Maximum number of concurrent streams per connection.
const MAX_STREAMS_PER_CONNECTION: u32 = 16;
/// Maximum number of concurrent streams of all connections.
const MAX_STREAMS: usize = 64;
/// Interval of HTTP/2 keepalive pings on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time to respond to a keepalive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Older connections accept no more streams: callers reconnect, which frees slots for others.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(1800);
/// How long streams may continue after a stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Configuration of the service.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's socket.
    pub driver: Endpoint,
    /// How to connect to the cluster.
    pub connect: ConnectOptions,
    /// Listen address of the gRPC service.
    pub address: Address,
    /// Certificate and key.
    pub tls: Tls,
    /// The expected audience of tokens; `None`: the one in the driver's SnapshotMetadataService object.
    pub audience: Option<String>,
    /// Maximum duration of a stream.
    pub max_stream_duration: Duration,
    /// Listen address of `/health` and the metrics.
    pub http_endpoint: Option<Address>,
    /// Path of the metrics, if they are served.
    pub metrics_path: Option<String>,
}

/// Why the service ended.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotMetadataError {
    /// Certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Failed to connect to the cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Failed to bind an address.
    #[error(transparent)]
    Address(#[from] SidecarError),
    /// The local address of the listener is unknown.
    #[error("failed to get the listener's local address: {0}")]
    LocalAddress(io::Error),
    /// The driver does not support the service.
    #[error("driver {0} does not support the SNAPSHOT_METADATA_SERVICE")]
    Unsupported(String),
    /// The gRPC server failed.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

/// Serves until `stop` completes, or until the driver turns out not to support the service.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), SnapshotMetadataError> {
    let Config {
        driver,
        connect,
        address,
        tls,
        audience,
        max_stream_duration: longest,
        http_endpoint: pages,
        metrics_path,
    } = config;
    let certificate = CertificateStore::new(tls)?;
    let cluster = Cluster::connect(&connect).await?;
    let metrics = Metrics::new();
    let client = Client::new(&driver);
    let (name_sender, name) = watch::channel(None);
    let _pages = match pages {
        Some(address) => {
            let listener = address.bind().await?;
            let (name, metrics) = (name.clone(), metrics.clone());
            let page = move |path: String| {
                let page = page(&path, name.borrow().is_some(), metrics_path.as_deref(), &metrics);
                async move { page }
            };
            Some(AbortOnDropHandle::new(tokio::spawn(serve_pages(listener, page))))
        }
        None => None,
    };
    let listener = address.bind().await?;
    let own = listener.local_addr().map_err(SnapshotMetadataError::LocalAddress)?;
    tracing::info!(address = %own, "serving snapshot metadata");
    let limiter = StreamLimiter::new(MAX_STREAMS, longest, metrics.clone());
    let service = Service {
        cluster,
        driver: client.clone(),
        driver_name: name,
        audience,
        max_duration: longest,
        limiter,
        metrics: metrics.clone(),
    };
    // Streams that started before a connection was too old may complete.
    let incoming = ReceiverStream::new(tls::accept(
        listener,
        certificate.clone(),
        MAX_CONNECTION_AGE.saturating_add(longest),
    ));
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder()
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_connection_age(MAX_CONNECTION_AGE)
        .serve_with_incoming_shutdown(SnapshotMetadataServer::new(service), incoming, async {
            // An error means that the sender was dropped, which is also a stop.
            _ = stopped.await;
        });
    let ready = async {
        let driver = Driver::discover(&client, &metrics, false).await;
        match driver.capabilities().snapshot_metadata {
            true => _ = name_sender.send(Some(driver.name().to_owned())),
            false => return SnapshotMetadataError::Unsupported(driver.name().to_owned()),
        }
        std::future::pending().await
    };
    let ended = async {
        tokio::select! {
            () = stop => None,
            error = ready => Some(error),
            () = certificate.renew() => None,
        }
    };
    let mut server = std::pin::pin!(server);
    let outcome = tokio::select! {
        served = &mut server => return Ok(served?),
        outcome = ended => outcome,
    };
    drop(stopping);
    if tokio::time::timeout(SHUTDOWN_GRACE, server).await.is_err() {
        tracing::warn!("stopping while streams are in progress");
    }
    outcome.map_or(Ok(()), Err)
}

/// HTTP pages: upstream's `/health`, and the metrics.
fn page(path: &str, ready: bool, metrics_path: Option<&str>, metrics: &Metrics) -> HttpPage {
    match path {
        "/health" if ready => HttpPage::text(StatusCode::OK, "ok"),
        "/health" => HttpPage::text(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        path if Some(path) == metrics_path => HttpPage::metrics(metrics.encode()),
        _ => HttpPage::text(StatusCode::NOT_FOUND, "page not found\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_page_matches_upstream() {
        let metrics = Metrics::new();
        for (path, ready, expected) in [
            ("/health", true, HttpPage::text(StatusCode::OK, "ok")),
            ("/health", false, HttpPage::text(StatusCode::SERVICE_UNAVAILABLE, "not ready")),
            ("/metrics", true, HttpPage::text(StatusCode::NOT_FOUND, "page not found\n")),
            ("/m", true, HttpPage::metrics(metrics.encode())),
        ] {
            assert_eq!(page(path, ready, Some("/m"), &metrics), expected, "{path}");
        }
    }
}
