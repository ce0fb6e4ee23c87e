//! Serves a driver: its gRPC services on a unix socket, and optionally metrics and health over HTTP. On shutdown it accepts
//! no more calls, waits for running operations, and removes its socket.

mod http;
mod routes;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use wharf_csi::{AnyAuthority, BindError, Endpoint};

use crate::Driver;
use crate::metrics::Metrics;
use routes::Routes;

/// How long to wait for running operations after the shutdown signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait until the last responses are sent.
const RESPONSE_FLUSH: Duration = Duration::from_millis(500);

/// The services without a server.
#[cfg(feature = "fuzzing")]
pub(crate) fn services(driver: Driver) -> Routes {
    Routes::without_reflection(driver, &Metrics::new(&[]))
}

/// Options of [`Driver::serve`].
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The address of `/metrics` and `/healthz`; not served by default.
    pub metrics_listen: Option<SocketAddr>,
}

/// Why [`Driver::serve`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The gRPC socket could not be created.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The metrics address could not be bound.
    #[error("failed to listen for metrics on {address}: {source}")]
    Metrics {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// The gRPC server failed.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

impl Driver {
    /// Serves until `shutdown` completes, then stops gracefully.
    pub async fn serve(
        self,
        endpoint: &Endpoint,
        options: ServeOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let ServeOptions { metrics_listen } = options;
        let metrics = Metrics::new(&self.gauges);
        let (listener, socket) = wharf_csi::bind(endpoint)?;
        let _pages = match metrics_listen {
            Some(address) => {
                let failed = |source| ServeError::Metrics { address, source };
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let pages = http::serve(listener, metrics.clone(), self.identity.ready.clone());
                Some(AbortOnDropHandle::new(tokio::spawn(pages)))
            }
            None => None,
        };
        tracing::info!(driver = self.identity.name, version = self.identity.version, socket = %endpoint, "driver started");

        let locks = self.locks.clone();
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let server = Server::builder().serve_with_incoming_shutdown(
            Routes::new(self, &metrics),
            // Some gRPC libraries send the socket's path as the authority.
            UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new)),
            async {
                shutdown.await;
                // Fails only if the server has ended by itself.
                let _ = stopping.send(());
            },
        );
        // Wait for operations, but not for callers that keep their connections open.
        let drained = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            if !locks.drain(SHUTDOWN_TIMEOUT).await {
                tracing::warn!(
                    "stopped with operations still running; they are completed or rolled back after the next start"
                );
            }
            tokio::time::sleep(RESPONSE_FLUSH).await;
        };
        tokio::select! {
            served = server => {
                served?;
                // Operations whose caller has disconnected still run.
                locks.drain(SHUTDOWN_TIMEOUT).await;
            }
            () = drained => {}
        }
        drop(socket);
        tracing::info!("driver stopped");
        Ok(())
    }
}
