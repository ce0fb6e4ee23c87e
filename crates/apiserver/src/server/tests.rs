//! The server over real sockets on the loopback interface, with a service that echoes the user and the request.

mod timeouts;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::StatusCode;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wharf_model::Time;

use super::*;
use crate::access::Identity;
use crate::access::testing::FakeObjects;
use crate::rest::BoxError;

/// Echoes the user and the request. `/slow` responds when notified. A watch sends one event and then nothing; `/flood`
/// sends data endlessly.
#[derive(Clone)]
struct Echo {
    access: Arc<Access>,
    reached: Arc<Notify>,
    go_on: Arc<Notify>,
    floods: Arc<AtomicUsize>,
}

impl Service for Echo {
    fn access(&self) -> &Access {
        &self.access
    }

    fn objects(&self) -> impl Objects {
        FakeObjects::default()
    }

    async fn serve(&self, request: Request<Body>, user: User) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let length = body.collect().await.unwrap().to_bytes().len();
        let path = parts.uri.path().to_owned();
        let watch = parts.uri.query().is_some_and(|query| query != "watch=FALSE");
        if path == "/slow" {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        let text = Bytes::from(format!("{} {} {path} {length}", user.name, parts.method));
        let body = if path == "/flood" {
            self.floods.fetch_add(1, Ordering::SeqCst);
            self.reached.notify_one();
            Flood(self.floods.clone()).boxed_unsync()
        } else if watch {
            Endless(Some(text)).boxed_unsync()
        } else {
            Full::new(text).map_err(|never| match never {}).boxed_unsync()
        };
        Response::new(body)
    }
}

struct Endless(Option<Bytes>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

struct Flood(Arc<AtomicUsize>);

impl http_body::Body for Flood {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'~'; 100_000])))))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A running server, and how to reach it.
struct Running {
    address: SocketAddr,
    echo: Echo,
    pki: Arc<Pki>,
    dir: TempDir,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn now() -> Time {
    Time(jiff::Timestamp::now().as_millisecond())
}

async fn running() -> Running {
    running_with(LIMITS).await
}

async fn running_with(limits: Limits) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let pki = Arc::new(Pki::open_or_create(dir.path(), now()).unwrap());
    let access = Arc::new(pki.access().unwrap());
    let echo = Echo { access, reached: Arc::default(), go_on: Arc::default(), floods: Arc::default() };
    let mut server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    server.limits = limits;
    let (address, stop) = (server.address(), CancellationToken::new());
    assert_eq!(server.url(), format!("https://{address}"));
    let task = tokio::spawn({
        let (echo, pki, stop) = (echo.clone(), pki.clone(), stop.clone());
        async move { server.run(echo, pki, &[], stop).await }
    });
    Running { address, echo, pki, dir, stop, task }
}

/// The certificate and key in a kubeconfig.
fn credentials(pki: &Pki, identity: &Identity) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let config: Value =
        serde_saphyr::from_str(&pki.kubeconfig(identity, "https://x", now()).unwrap()).unwrap();
    let user = &config["users"][0]["user"];
    let pem = |field: &str| BASE64_STANDARD.decode(user[field].as_str().unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_slice(&pem("client-certificate-data")).unwrap();
    (certificate, PrivateKeyDer::from_pem_slice(&pem("client-key-data")).unwrap())
}

impl Running {
    /// Connects with a certificate of `issuer` for `identity`, using this protocol.
    async fn connect(
        &self,
        issuer: &Pki,
        identity: Option<Identity>,
        protocol: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.pki.certificate().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match identity {
            Some(identity) => {
                let (certificate, key) = credentials(issuer, &identity);
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    async fn request(
        &self,
        identity: Option<Identity>,
        protocol: &str,
        request: Request<Full<Bytes>>,
    ) -> Response<Incoming> {
        let stream = self.connect(&self.pki, identity, protocol).await.unwrap();
        send(stream, protocol, request).await.unwrap()
    }
}

async fn send(
    stream: TlsStream<TcpStream>,
    protocol: &str,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let io = TokioIo::new(stream);
    if protocol == "h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    }
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(format!("https://localhost{path}")).body(Full::default()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

const BOTH: [&str; 2] = ["http/1.1", "h2"];

#[tokio::test]
async fn certificate_identifies_the_user() {
    let server = running().await;
    for protocol in BOTH {
        for (identity, name) in [
            (Identity::Admin, "wharf:admin"),
            (Identity::Sidecar, "wharf:sidecar"),
            (Identity::Node("n1".into()), "system:node:n1"),
        ] {
            let response = server.request(Some(identity), protocol, get("/api")).await;
            assert!(text(response).await.starts_with(&format!("{name} GET ")), "{protocol} {name}");
        }
    }
}

#[tokio::test]
async fn anonymous_user_may_only_read_health() {
    let server = running().await;
    for protocol in BOTH {
        let response = server.request(None, protocol, get("/api")).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{protocol}");
        let status: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"Unauthorized".into()));
        let health = text(server.request(None, protocol, get("/readyz")).await).await;
        assert!(health.starts_with("system:anonymous "), "{protocol}: {health}");
    }
}

#[tokio::test]
async fn admin_token_authenticates_the_admin() {
    let server = running().await;
    let token = std::fs::read_to_string(server.dir.path().join("pki/admin.token")).unwrap();
    let mut request = get("/api");
    request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    assert!(text(server.request(None, "h2", request).await).await.starts_with("wharf:admin "));
}

#[tokio::test]
async fn certificate_of_another_ca_is_rejected() {
    let server = running().await;
    let other = tempfile::tempdir().unwrap();
    let other = Pki::open_or_create(other.path(), now()).unwrap();
    // The client may finish its half of the handshake before the server rejects it.
    let refused = match server.connect(&other, Some(Identity::Admin), "h2").await {
        Ok(stream) => send(stream, "h2", get("/readyz")).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test]
async fn body_above_the_limit_is_rejected() {
    let server = running().await;
    let post = |length: usize| {
        let mut request = get("/api").map(|_| Full::new(Bytes::from(vec![b' '; length])));
        *request.method_mut() = http::Method::POST;
        request
    };
    for protocol in BOTH {
        let most = server.request(Some(Identity::Admin), protocol, post(3 << 20)).await;
        assert_eq!(text(most).await, format!("wharf:admin POST /api {}", 3 << 20), "{protocol}");
    }
    // The declared length alone is enough to reject it.
    let mut request = get("/api");
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert(CONTENT_LENGTH, ((3 << 20) + 1).into());
    let request = request.map(|_| Full::new(Bytes::from(vec![b' '; (3 << 20) + 1])));
    let large = server.request(Some(Identity::Admin), "h2", request).await;
    assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn shutdown_ends_watches_and_answers_running_requests() {
    for protocol in BOTH {
        let mut server = running().await;
        // In any encoding of the query.
        let mut watch = server.request(Some(Identity::Admin), protocol, get("/api?%77atch=true")).await;
        let first = watch.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "wharf:admin GET /api 0");
        let stream = server.connect(&server.pki, Some(Identity::Admin), protocol).await.unwrap();
        let slow = tokio::spawn(send(stream, protocol, get("/slow?watch=FALSE")));
        server.echo.reached.notified().await;

        server.stop.cancel();
        // HTTP/2 signals the end with an empty frame; it must not be an error.
        assert_eq!(text(watch).await, "", "{protocol}: the watch ends as after a timeout");
        server.echo.go_on.notify_one();
        let response = text(slow.await.unwrap().unwrap()).await;
        assert_eq!(response, "wharf:admin GET /slow 0", "{protocol}");
        (&mut server.task).await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err(), "{protocol}: the server still listens");
    }
}

#[tokio::test]
async fn second_server_cannot_bind_the_same_address() {
    let server = running().await;
    let error = Server::bind(server.address).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
}
