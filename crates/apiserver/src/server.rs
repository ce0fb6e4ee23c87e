//! HTTPS in front of the API: TLS with our own authority, HTTP/1.1 and HTTP/2, bounds on everything that a client can
//! make us hold.
//!
//! ```text
//! accept (so many) → handshake (in time) → gate: who asks, body (so much, in time) → Service::serve
//! ```
//!
//! There is no way to listen without TLS. A client holds its place only while something is under way ([`under_way`])
//! and it takes what it is sent. At the end no new connection is taken, watches end as if their time were over, and
//! requests that run are answered, for so long.

mod gate;
mod lasting;
mod prompt;
mod tls;
mod under_way;

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
pub(crate) use lasting::Lasting;
use prompt::Prompt;
use under_way::{Streams, UnderWay};

/// A client that does not come to the point is not waited for longer.
const HANDSHAKE: Duration = Duration::from_secs(10);
const STREAMS: u32 = 250;
const HEADERS: u32 = 64 << 10;
/// Signs of life on HTTP/2, so that a client that is gone is noticed.
const PING: Duration = Duration::from_secs(30);
/// For requests that run when the server, or their connection, ends.
const GRACE: Duration = Duration::from_secs(10);

/// How much of clients is borne.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    connections: usize,
    /// How long nothing may be under way on one.
    idle: Duration,
    /// How long a client may take nothing of what waits for it.
    stalled: Duration,
}

const BOUNDS: Bounds =
    Bounds { connections: 1024, idle: Duration::from_secs(90), stalled: Duration::from_secs(60) };

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
    bounds: Bounds,
}

impl Server {
    /// Listens. Nothing is answered yet: clients that come now wait for [`Server::run`].
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, bounds: BOUNDS })
    }

    /// Where it listens; the port that was chosen if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients on this machine find it.
    pub fn url(&self) -> String {
        format!("https://{}", self.reached_at())
    }

    /// Where programs of this machine reach it: one that listens on all addresses is at none of that name.
    pub fn reached_at(&self) -> SocketAddr {
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
        let places = Arc::new(Semaphore::new(self.bounds.connections));
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
                    let (acceptor, gate) = (acceptor.clone(), gate.clone());
                    connections.spawn(connection(stream, acceptor, gate, lasting, self.bounds));
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

async fn connection<S: Service>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    gate: Gate<S>,
    lasting: Lasting,
    bounds: Bounds,
) {
    let stop = lasting.stop.clone();
    // Answers are written whole; nothing is won by waiting for more.
    _ = stream.set_nodelay(true);
    let stream = Prompt::new(stream, bounds.stalled);
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
    let under_way = UnderWay::default();
    let service = service_fn({
        let under_way = under_way.clone();
        move |mut request: Request<hyper::body::Incoming>| {
            let one = under_way.begin();
            request.extensions_mut().insert(lasting.clone());
            let (gate, peer): (Gate<S>, Option<Arc<[u8]>>) = (gate.clone(), peer.clone());
            async move {
                let response = gate.pass(request, peer.as_deref()).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| one.answer(body)))
            }
        }
    });
    let mut builder = auto::Builder::new(Streams(bounds.stalled));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.idle);
    let streams = &mut builder.http2();
    streams.timer(TokioTimer::new()).keep_alive_interval(PING).max_concurrent_streams(STREAMS);
    streams.max_header_list_size(HEADERS);
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let idle = under_way.clone().idle(bounds.idle);
    tokio::pin!(serving, idle);
    let (mut ending, mut stopping) = (false, false);
    loop {
        tokio::select! {
            served = &mut serving => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection broke off");
                }
                return;
            }
            () = &mut idle => {
                if ending {
                    return tracing::debug!("a client was told to go and did not");
                }
                // Told first, so that a request that is on its way is still answered.
                ending = true;
                serving.as_mut().graceful_shutdown();
                idle.set(under_way.clone().idle(GRACE));
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
