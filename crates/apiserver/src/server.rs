//! HTTPS in front of the API: TLS with our own CA, HTTP/1.1 and HTTP/2, and limits on every resource that a client can
//! hold.
//!
//! ```text
//! accept (bounded) → handshake (timeout) → gate: authenticate, read the body (bounded, timeout) → Service::serve
//! ```
//!
//! The server never listens without TLS. A client keeps its connection slot only while a request is in flight
//! ([`in_flight`]) and while it reads what it is sent. On shutdown the server accepts no new connections, ends watches
//! as if they had timed out, and answers running requests within a grace period.

mod gate;
mod in_flight;
mod tls;
mod upgraded;
mod write_timeout;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{Access, Objects, Pki, PkiError, User};
use crate::rest::{Api, Body};
use gate::Gate;
use in_flight::{InFlight, StreamExecutor};
pub(crate) use upgraded::UpgradedConnection;
use write_timeout::WriteTimeout;

/// How long a client may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_STREAMS: u32 = 250;
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// HTTP/2 pings, which detect clients that are gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long requests may still run when the server or their connection shuts down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: usize,
    /// How long a connection may stay open without a request in flight.
    idle: Duration,
    /// How long a client may read nothing while data is pending for it.
    stalled: Duration,
}

const LIMITS: Limits =
    Limits { connections: 1024, idle: Duration::from_secs(90), stalled: Duration::from_secs(60) };

/// Serves requests of authenticated users.
pub trait Service: Clone + Send + Sync + 'static {
    /// Authenticates requests.
    fn access(&self) -> &Access;
    /// Objects that authentication needs.
    fn objects(&self) -> impl Objects;
    /// Serves one request.
    fn serve(&self, request: Request<Body>, user: User) -> impl Future<Output = Response<Body>> + Send;
}

impl Service for Api {
    fn access(&self) -> &Access {
        Api::access(self)
    }

    fn objects(&self) -> impl Objects {
        Api::objects(self)
    }

    async fn serve(&self, request: Request<Body>, user: User) -> Response<Body> {
        Api::serve(self, request, user).await
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("failed to listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The server certificate cannot be issued.
    #[error("failed to issue the server certificate: {0}")]
    Certificate(#[from] PkiError),
    /// TLS cannot be configured.
    #[error("failed to configure TLS: {0}")]
    Tls(String),
}

/// A listening server.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

impl Server {
    /// Binds the address. Clients that connect now wait until [`Server::run`] is called.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, limits: LIMITS })
    }

    /// The address the server listens on, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for clients on this machine.
    pub fn url(&self) -> String {
        format!("https://{}", self.local_address())
    }

    /// The address for clients on this machine: loopback if the server listens on all addresses.
    pub fn local_address(&self) -> SocketAddr {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let local: std::net::IpAddr = match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            address.set_ip(local);
        }
        address
    }

    /// Serves until `stop` is cancelled. `names` are additional host names and addresses for the server certificate.
    pub async fn run<S: Service>(
        self,
        service: S,
        pki: Arc<Pki>,
        names: &[String],
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let config = tls::config(pki, tls::names(self.address.ip(), names))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let gate = Gate::new(service, stop.clone());
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let connections = TaskTracker::new();
        loop {
            let accepted = async {
                // Acquire a slot before accepting: clients without one wait in the kernel's backlog. The semaphore is
                // never closed.
                let slot = slots.clone().acquire_owned().await.ok();
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let upgraded = UpgradedConnection {
                        stop: stop.clone(),
                        connections: connections.clone(),
                        slot: Arc::new(slot),
                    };
                    let (acceptor, gate) = (acceptor.clone(), gate.clone());
                    connections.spawn(connection(stream, acceptor, gate, upgraded, self.limits));
                }
                Err(error) => {
                    // Most likely out of file descriptors: wait, or this loop would spin.
                    tracing::warn!(%error, "failed to accept connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        if timeout(SHUTDOWN_GRACE, connections.wait()).await.is_err() {
            tracing::warn!(
                open = connections.len(),
                "closing connections that did not finish within the grace period"
            );
        }
        Ok(())
    }
}

async fn connection<S: Service>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    gate: Gate<S>,
    upgraded: UpgradedConnection,
    limits: Limits,
) {
    let stop = upgraded.stop.clone();
    // Responses are written whole, so Nagle's algorithm only adds latency.
    _ = stream.set_nodelay(true);
    let stream = WriteTimeout::new(stream, limits.stalled);
    let stream = tokio::select! {
        () = stop.cancelled() => return,
        handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        },
    };
    let (_, session) = stream.get_ref();
    let peer =
        session.peer_certificates().and_then(|chain| chain.first()).map(|peer| Arc::from(peer.as_ref()));
    let http2 = session.alpn_protocol() == Some(b"h2");
    let in_flight = InFlight::default();
    let service = service_fn({
        let in_flight = in_flight.clone();
        move |mut request: Request<hyper::body::Incoming>| {
            let in_flight_request = in_flight.begin();
            request.extensions_mut().insert(upgraded.clone());
            let (gate, peer): (Gate<S>, Option<Arc<[u8]>>) = (gate.clone(), peer.clone());
            async move {
                let response = gate.handle(request, peer.as_deref()).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| in_flight_request.response_body(body)))
            }
        }
    });
    let mut builder = auto::Builder::new(StreamExecutor(limits.stalled));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
    let streams = &mut builder.http2();
    streams.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).max_concurrent_streams(MAX_STREAMS);
    streams.max_header_list_size(MAX_HEADER_BYTES);
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let idle = in_flight.clone().idle(limits.idle);
    tokio::pin!(serving, idle);
    let (mut closing, mut stopping) = (false, false);
    loop {
        tokio::select! {
            served = &mut serving => {
                if let Err(error) = served {
                    tracing::debug!(%error, "connection failed");
                }
                return;
            }
            () = &mut idle => {
                if closing {
                    return tracing::debug!("client ignored the graceful shutdown; closing connection");
                }
                // Announce the shutdown first, so that a request already on its way is still answered.
                closing = true;
                serving.as_mut().graceful_shutdown();
                idle.set(in_flight.clone().idle(SHUTDOWN_GRACE));
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

#[cfg(test)]
mod tests;
