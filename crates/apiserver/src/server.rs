//! HTTPS in front of the API: TLS with our own authority, HTTP/1.1 and HTTP/2, bounds on everything that a client can
//! make us hold.
//!
//! ```text
//! accept (so many) → handshake (in time) → gate: who asks, body (so much, in time) → Service::serve
//! ```
//!
//! There is no way to listen without TLS. At the end no new connection is taken, watches end as if their time were
//! over, and requests that run are answered, for so long.

mod gate;
mod lasting;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
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
pub(crate) use lasting::Lasting;

/// A client that does not come to the point is not waited for longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Nor one that sends no request; between two it may take as long.
const IDLE: Duration = Duration::from_secs(90);
const CONNECTIONS: usize = 1024;
const STREAMS: u32 = 250;
const HEADERS: u32 = 64 << 10;
/// Signs of life on HTTP/2, so that a client that is gone is noticed.
const PING: Duration = Duration::from_secs(30);
/// For requests that run when the server ends.
const GRACE: Duration = Duration::from_secs(10);

/// What answers requests of users who are known.
pub trait Service: Clone + Send + Sync + 'static {
    /// Who knows whose a token is.
    fn access(&self) -> &Access;
    /// What access must know of objects.
    fn objects(&self) -> impl Objects;
    /// Answers.
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

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody can listen there.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No certificate.
    #[error("no TLS without a certificate: {0}")]
    Certificate(#[from] PkiError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens. Nothing is answered yet: clients that come now wait for [`Server::run`].
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens; the port that was chosen if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients on this machine find it.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let local: std::net::IpAddr = match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            address.set_ip(local);
        }
        format!("https://{address}")
    }

    /// Serves until `stop`. `names` are those under which clients know this server, besides the ones of this machine.
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
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let accepted = async {
                // First the place, then the client: those without one wait in the kernel. Never closed.
                let place = places.clone().acquire_owned().await.ok();
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let lasting = Lasting {
                        stop: stop.clone(),
                        connections: connections.clone(),
                        place: Arc::new(place),
                    };
                    connections.spawn(connection(stream, acceptor.clone(), gate.clone(), lasting));
                }
                Err(error) => {
                    // Out of descriptors, most likely: wait, or this would spin.
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        if timeout(GRACE, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "connections are cut off");
        }
        Ok(())
    }
}

async fn connection<S: Service>(stream: TcpStream, acceptor: TlsAcceptor, gate: Gate<S>, lasting: Lasting) {
    let stop = lasting.stop.clone();
    // Answers are written whole; nothing is won by waiting for more.
    _ = stream.set_nodelay(true);
    let stream = tokio::select! {
        () = stop.cancelled() => return,
        shaken = timeout(HANDSHAKE, acceptor.accept(stream)) => match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
            Err(_) => return tracing::debug!("a handshake took too long"),
        },
    };
    let (_, session) = stream.get_ref();
    let peer =
        session.peer_certificates().and_then(|chain| chain.first()).map(|peer| Arc::from(peer.as_ref()));
    let http2 = session.alpn_protocol() == Some(b"h2");
    let began = Arc::new(AtomicBool::new(false));
    let service = service_fn({
        let began = began.clone();
        move |mut request: Request<hyper::body::Incoming>| {
            began.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(lasting.clone());
            let (gate, peer): (Gate<S>, Option<Arc<[u8]>>) = (gate.clone(), peer.clone());
            async move { Ok::<_, std::convert::Infallible>(gate.pass(request, peer.as_deref()).await) }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    let streams = &mut builder.http2();
    streams.timer(TokioTimer::new()).keep_alive_interval(PING).max_concurrent_streams(STREAMS);
    streams.max_header_list_size(HEADERS);
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let silent = sleep(IDLE);
    tokio::pin!(silent);
    let mut waiting = true;
    let mut stopping = false;
    loop {
        tokio::select! {
            served = &mut serving => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection broke off");
                }
                return;
            }
            () = &mut silent, if waiting => {
                waiting = false;
                if !began.load(Ordering::Relaxed) {
                    return;
                }
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
