//! Serves the driver's changed blocks to backup programs, in place of external-snapshot-metadata.
//!
//! - gRPC over TLS; nothing else is answered. A renewed certificate is taken without a restart.
//! - Who asks shows a token. The server says whose it is and whether it was made for this service, and whether its
//!   owner may read snapshots of that namespace. Nothing is answered before, and nothing of it is remembered.
//! - Only a snapshot's own content says what the driver calls it.
//! - The driver's answer passes through as it is, no faster than the caller reads, and within a limit of time.
//! - Connections and answers are so many at most, and none is kept for ever by a caller who is gone or silent.
//! - Tokens and secrets are in no log, error or metric.

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
use wharf_csi::{Client, Endpoint, Page, serve_pages};

use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::process::{Address, SidecarError};
use relay::Answers;
use service::Service;
use tls::Certificate;
pub use tls::{Tls, TlsError};

mod act;
mod decide;
mod relay;
mod service;
mod tls;

/// Questions of one connection at once, with their answers.
const AT_ONCE: u32 = 16;
/// Answers at once, of all connections.
const ANSWERS: usize = 64;
/// A connection without traffic is asked for a sign of life so often,
const KEEPALIVE: Duration = Duration::from_secs(30);
/// which has to come within this time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
/// Older connections take no more questions: callers make a new one, and there is room for others.
const OLD: Duration = Duration::from_secs(1800);
/// How long answers may go on after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// What the service is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's socket.
    pub driver: Endpoint,
    /// How to reach the cluster.
    pub connect: ConnectOptions,
    /// Where questions are taken.
    pub address: Address,
    /// Certificate and key.
    pub tls: Tls,
    /// The audience of tokens; `None`: that of the driver's SnapshotMetadataService.
    pub audience: Option<String>,
    /// How long an answer may take in all.
    pub longest: Duration,
    /// Where `/health` is, and the metrics.
    pub pages: Option<Address>,
    /// The path of the metrics, if they are there.
    pub metrics: Option<String>,
}

/// Why the service ended.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotMetadataError {
    /// Nothing to show to callers.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No way to the cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No address.
    #[error(transparent)]
    Address(#[from] SidecarError),
    /// The port's address is unknown.
    #[error("the service's own address cannot be read: {0}")]
    Own(io::Error),
    /// The driver has nothing to serve.
    #[error("driver {0} does not support the SNAPSHOT_METADATA_SERVICE")]
    Unsupported(String),
    /// The gRPC server ended.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

/// Serves until `stop` is ready, or the driver turns out to have no such service.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), SnapshotMetadataError> {
    let Config { driver, connect, address, tls, audience, longest, pages, metrics: metrics_path } = config;
    let certificate = Certificate::new(tls)?;
    let cluster = Cluster::connect(&connect).await?;
    let metrics = Metrics::new();
    let client = Client::new(&driver);
    let (named, name) = watch::channel(None);
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
    let own = listener.local_addr().map_err(SnapshotMetadataError::Own)?;
    tracing::info!(address = %own, "serving snapshot metadata");
    let answers = Answers::new(ANSWERS, longest, metrics.clone());
    let service = Service {
        cluster,
        driver: client.clone(),
        name,
        audience,
        longest,
        answers,
        metrics: metrics.clone(),
    };
    // What was asked before a connection was old may be answered.
    let incoming =
        ReceiverStream::new(tls::accept(listener, certificate.clone(), OLD.saturating_add(longest)));
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder()
        .max_concurrent_streams(AT_ONCE)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(SIGN_OF_LIFE))
        .max_connection_age(OLD)
        .serve_with_incoming_shutdown(SnapshotMetadataServer::new(service), incoming, async {
            // Also when the other end is gone: then it is the end, too.
            _ = stopped.await;
        });
    let ready = async {
        let driver = Driver::discover(&client, &metrics, false).await;
        match driver.can().snapshot_metadata {
            true => _ = named.send(Some(driver.name().to_owned())),
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
    if tokio::time::timeout(GRACE, server).await.is_err() {
        tracing::warn!("stopping with answers under way");
    }
    outcome.map_or(Ok(()), Err)
}

/// The pages: upstream's `/health`, and the metrics.
fn page(path: &str, ready: bool, metrics_path: Option<&str>, metrics: &Metrics) -> Page {
    match path {
        "/health" if ready => Page::text(StatusCode::OK, "ok"),
        "/health" => Page::text(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        path if Some(path) == metrics_path => Page::metrics(metrics.text()),
        _ => Page::text(StatusCode::NOT_FOUND, "there is no such page\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_upstreams() {
        let metrics = Metrics::new();
        for (path, ready, expected) in [
            ("/health", true, Page::text(StatusCode::OK, "ok")),
            ("/health", false, Page::text(StatusCode::SERVICE_UNAVAILABLE, "not ready")),
            ("/metrics", true, Page::text(StatusCode::NOT_FOUND, "there is no such page\n")),
            ("/m", true, Page::metrics(metrics.text())),
        ] {
            assert_eq!(page(path, ready, Some("/m"), &metrics), expected, "{path}");
        }
    }
}
