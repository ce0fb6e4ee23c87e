//! Serves a driver: its services on a unix socket, metrics and health over HTTP where wanted. On stop it
//! takes no more calls, lets the operations that run come to their end, and takes its socket away.

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

/// How long operations may run on after the driver was told to stop.
const LONGEST_STOP: Duration = Duration::from_secs(30);

/// How long the last answers may be on their way to their callers.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// How a driver is served.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Where `/metrics` and `/healthz` are served; nowhere by default.
    pub metrics_listen: Option<SocketAddr>,
}

/// Why a driver cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No metrics.
    #[error("metrics cannot be served on {address}: {source}")]
    Metrics {
        /// Where they should have been.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The gRPC server ended.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

impl Driver {
    /// Serves until `shutdown` is ready, then stops gracefully.
    pub async fn serve(
        self,
        endpoint: &Endpoint,
        options: ServeOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let ServeOptions { metrics_listen } = options;
        let metrics = Metrics::new();
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
        tracing::info!(driver = self.identity.name, version = self.identity.version, %endpoint, "serving");

        let locks = self.locks.clone();
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let server = Server::builder().serve_with_incoming_shutdown(
            Routes::new(self, &metrics),
            // Some libraries name the socket's path as the authority.
            UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new)),
            async {
                shutdown.await;
                // Nobody listens only if the server has ended by itself.
                let _ = stopping.send(());
            },
        );
        // Operations are waited for; callers who keep their connections open are not.
        let drained = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            if !locks.drain(LONGEST_STOP).await {
                tracing::warn!(
                    "stopped while operations were still running; they are finished or undone at the next start"
                );
            }
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            served = server => {
                served?;
                // What its caller has hung up on runs on without a connection.
                locks.drain(LONGEST_STOP).await;
            }
            () = drained => {}
        }
        drop(socket);
        tracing::info!("stopped");
        Ok(())
    }
}
