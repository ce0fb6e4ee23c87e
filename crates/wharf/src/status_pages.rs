//! `--metrics ADDRESS`: serves the status pages (metrics, health, attempts) of a process at a TCP address.

use std::future::{Future, pending};
use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::TcpListener;
use wharf_sidecar::health_registry::HealthRegistry;

/// Binds the address, if there is one, so that a process with an unusable address fails at startup. The pages are
/// served while the returned future is polled. If it ever completes, its error is the reason to stop the process.
pub(crate) async fn serve(
    health_registry: HealthRegistry,
    address: Option<SocketAddr>,
) -> anyhow::Result<impl Future<Output = anyhow::Error>> {
    let listener = match address {
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("failed to serve metrics on {address}"))?)
        }
        None => None,
    };
    Ok(async {
        match listener {
            Some(listener) => {
                health_registry.serve(listener).await;
                anyhow::anyhow!("metrics server exited unexpectedly")
            }
            None => pending().await,
        }
    })
}
