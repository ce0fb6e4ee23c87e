//! Serves an [`Agent`] over HTTPS. Connections are limited in number and in time; a client without a certificate of the
//! authority gets no further than the handshake, and cannot keep others from theirs.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::handshakes::Handshakes;
use super::message::{AgentError, AgentErrorKind, Call};
use super::{Agent, TlsFiles};

/// Time limit of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time limit of a connection with its requests.
const CONNECTION: Duration = Duration::from_secs(60);
/// How many connections of clients with a certificate there are at the same time. Others wait.
const MAX_CONNECTIONS: usize = 64;
/// The largest request that is accepted.
const MAX_REQUEST: usize = 64 << 10;
/// How often limits of removed directories are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// How to serve an agent.
pub struct ServeAgentOptions {
    /// Where clients connect.
    pub listener: TcpListener,
    /// Certificates. They are read again for each connection, so they can be replaced at any time.
    pub tls: TlsFiles,
}

/// Serves the agent until `shutdown` completes.
pub async fn serve(
    agent: Arc<Agent>,
    options: ServeAgentOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), super::TlsFilesError> {
    let ServeAgentOptions { listener, tls } = options;
    let certificates = Arc::new(Certificates { current: Mutex::new(tls.server()?), files: tls });
    let (handshakes, slots) = (Handshakes::default(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    let (mut sweep, mut sweeping) = (interval(SWEEP), None::<tokio::task::JoinHandle<()>>);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            _ = sweep.tick() => {
                // A file system that hangs must not collect threads.
                if sweeping.as_ref().is_none_or(|sweeping| sweeping.is_finished()) {
                    let agent = agent.clone();
                    sweeping = Some(tokio::task::spawn_blocking(move || remove_left_over_limits(&agent)));
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors: wait, or this would spin.
                tracing::warn!(%error, "failed to accept connection");
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Some(handshake) = handshakes.start(peer.ip()) else {
            tracing::debug!(%peer, "refused a connection: too many without a finished TLS handshake");
            continue;
        };
        let (agent, slots, acceptor) =
            (agent.clone(), slots.clone(), TlsAcceptor::from(certificates.renewed()));
        tokio::spawn(async move {
            let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
            drop(handshake);
            match shaken {
                Ok(Ok(stream)) => {
                    let Ok(_slot) = slots.acquire().await else { return };
                    let service = service_fn(|request| respond(agent.clone(), request));
                    let connection = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .serve_connection(TokioIo::new(stream), service);
                    if let Ok(Err(error)) = timeout(CONNECTION, connection).await {
                        tracing::debug!(%peer, %error, "connection failed");
                    }
                }
                Ok(Err(error)) => tracing::warn!(%peer, %error, "refused a client: TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
            }
        });
    }
}

fn remove_left_over_limits(agent: &Agent) {
    let removed = agent.remove_left_over_limits();
    if removed > 0 {
        tracing::info!(removed, "removed limits of deleted volumes");
    }
}

/// The certificates in use.
struct Certificates {
    files: TlsFiles,
    current: Mutex<Arc<ServerConfig>>,
}

impl Certificates {
    /// Reads the files again. While they cannot be used, because they are replaced one after the other, the last ones are.
    fn renewed(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match self.files.server() {
            Ok(config) => *current = config,
            Err(error) => tracing::warn!(%error, "failed to reload certificates; using the previous ones"),
        }
        current.clone()
    }
}

async fn respond(agent: Arc<Agent>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let response = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/call") => match read(request).await {
            Ok(call) => {
                let operation = call.operation.clone();
                let handled = tokio::task::spawn_blocking(move || agent.handle(&call)).await;
                let handled = handled.unwrap_or_else(|_| {
                    Err(AgentError::new(AgentErrorKind::Failed, "the agent failed: see its log"))
                });
                match &handled {
                    Ok(answer) => tracing::debug!(?operation, ?answer, "served call"),
                    Err(error) => tracing::warn!(?operation, %error, "failed to serve call"),
                }
                handled.map_or_else(|error| failure(&error), |answer| json(StatusCode::OK, &answer))
            }
            Err(error) => failure(&error),
        },
        (&Method::GET, "/v1/exports") => match tokio::task::spawn_blocking(move || agent.describe()).await {
            Ok(exports) => json(StatusCode::OK, &exports),
            Err(_) => failure(&AgentError::new(AgentErrorKind::Failed, "the agent failed: see its log")),
        },
        (_, path) => {
            let message = format!("{path} does not exist: this agent speaks version 1");
            json(StatusCode::NOT_FOUND, &AgentError::new(AgentErrorKind::Refused, message))
        }
    };
    Ok(response)
}

async fn read(request: Request<Incoming>) -> Result<Call, AgentError> {
    let refused = |reason: String| {
        AgentError::new(AgentErrorKind::Refused, format!("the request is refused: {reason}"))
    };
    let body = Limited::new(request.into_body(), MAX_REQUEST).collect().await;
    let body = body.map_err(|error| refused(error.to_string()))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| refused(error.to_string()))
}

fn failure(error: &AgentError) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, error)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Full<Bytes>> {
    // Serializing plain structs cannot fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
