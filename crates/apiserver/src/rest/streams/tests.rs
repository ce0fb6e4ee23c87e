//! Logs and exec through the whole server, over TLS, as kubectl requests them.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use wharf_model::Time;

use super::websocket::tests::masked;
use super::*;
use crate::access::{Identity, Pki, User};
use crate::rest::Options;
use crate::server::{ServeError, Server};
use crate::store::{self, Store};

/// A container that echoes its input until it ends; its log is endless when followed.
struct Echo {
    /// Notified when the command is dropped.
    dropped: Arc<Notify>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl PodStreams for Echo {
    fn node(&self) -> &str {
        "n"
    }

    fn log(&self, container: &str, options: LogOptions) -> StreamFuture<mpsc::Receiver<Bytes>> {
        let container = container.to_owned();
        Box::pin(async move {
            let (pieces, lines) = mpsc::channel(1);
            tokio::spawn(async move {
                _ = pieces.send(format!("log of {container}\n").into()).await;
                if options.follow {
                    pieces.closed().await;
                }
            });
            Ok(lines)
        })
    }

    fn exec(&self, _: &str, command: Command) -> StreamFuture<Session> {
        let notify = NotifyOnDrop(Arc::clone(&self.dropped));
        Box::pin(async move {
            let (stdin, mut input) = tokio::io::duplex(1024);
            let (mut output, stdout) = tokio::io::duplex(1024);
            let ended = async move {
                let _notify = notify;
                _ = output.write_all(command.command.join(" ").as_bytes()).await;
                _ = tokio::io::copy(&mut input, &mut output).await;
                Ok(7)
            };
            Ok(Session {
                stdin: Some(Box::new(stdin)),
                stdout: Some(Box::new(stdout)),
                stderr: None,
                resize: None,
                exit_code: Box::pin(ended),
            })
        })
    }
}

struct Running {
    server: std::net::SocketAddr,
    pki: Arc<Pki>,
    api: Api,
    dropped: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
    _dir: TempDir,
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
    let dir = tempfile::tempdir().unwrap();
    let pki = Arc::new(Pki::open_or_create(dir.path(), now()).unwrap());
    let store = Store::open(dir.path(), store::Options { sync: false, ..store::Options::default() }).unwrap();
    let dropped = Arc::new(Notify::new());
    let streams = Echo { dropped: Arc::clone(&dropped) };
    let options = Options { streams: Some(Arc::new(streams)), ..Options::default() };
    let api = Api::new(store, pki.access().unwrap(), options);
    api.prepare().await.unwrap();
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let task = tokio::spawn({
        let (api, pki, stop) = (api.clone(), pki.clone(), stop.clone());
        async move { server.run(api, pki, &[], stop).await }
    });
    let running = Running { server: address, pki, api, dropped, stop, task, _dir: dir };
    let pod = json!({
        "metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    });
    running.request("POST", "/api/v1/namespaces/default/pods", pod).await;
    let status = json!({"status": {"containerStatuses": [{
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "containerID": "wharf://abc",
        "state": {"running": {}},
    }]}});
    running.request("PATCH", "/api/v1/namespaces/default/pods/p/status", status).await;
    running
}

impl Running {
    /// Sends a request without a socket.
    async fn request(&self, method: &str, path: &str, body: Value) {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.body(http_body_util::Full::new(Bytes::from(body.to_string()))).unwrap();
        let response = self.api.serve(request, User::admin()).await;
        let code = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(code.is_success(), "{code}: {}", String::from_utf8_lossy(&body));
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let config: Value =
            serde_saphyr::from_str(&self.pki.kubeconfig(&Identity::Admin, "https://x", now()).unwrap())
                .unwrap();
        let user = &config["users"][0]["user"];
        let pem = |field: &str| BASE64_STANDARD.decode(user[field].as_str().unwrap()).unwrap();
        let certificate = CertificateDer::from_pem_slice(&pem("client-certificate-data")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&pem("client-key-data")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.pki.certificate().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        let stream = TcpStream::connect(self.server).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    /// Sends a request with these headers and reads the head of its response.
    async fn begin(&self, path: &str, headers: &str) -> (TlsStream<TcpStream>, String) {
        let mut stream = self.connect().await;
        let request = format!(
            "GET /api/v1/namespaces/default/pods/{path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (stream, String::from_utf8(head).unwrap())
    }
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
const EXEC: &str = "p/exec?command=echo&command=hi&stdin=true&stdout=true";

/// Reads messages up to the close frame: the opcode and payload of each.
async fn messages(stream: &mut TlsStream<TcpStream>) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let opcode = stream.read_u8().await.unwrap() & 0x0f;
        let mut length = usize::from(stream.read_u8().await.unwrap());
        if length == 126 {
            length = usize::from(stream.read_u16().await.unwrap());
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        all.push((opcode, payload));
        if opcode == 8 {
            return all;
        }
    }
}

#[tokio::test]
async fn exec_runs_over_a_websocket() {
    let server = running().await;
    let (mut stream, head) = server.begin(EXEC, UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    assert!(head.contains("sec-websocket-protocol: v5.channel.k8s.io"), "{head}");
    stream.write_all(&masked(0x82, b"\x00 there")).await.unwrap();
    stream.write_all(&masked(0x82, &[255, 0])).await.unwrap();
    let mut output = Vec::new();
    let mut status = Value::Null;
    // The close frame starts with a code, not with a channel.
    for (_, payload) in messages(&mut stream).await.into_iter().filter(|(opcode, _)| *opcode != 8) {
        match payload.split_first() {
            Some((1, text)) => output.extend_from_slice(text),
            Some((3, text)) => status = serde_json::from_slice(text).unwrap_or(Value::Null),
            _ => {}
        }
    }
    assert_eq!(String::from_utf8(output).unwrap(), "echo hi there");
    assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "7"}));
}

/// On shutdown, upgraded connections are notified and waited for, and their commands are dropped.
#[tokio::test]
async fn server_shutdown_ends_exec() {
    let mut server = running().await;
    let (mut stream, head) = server.begin(EXEC, UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    server.stop.cancel();
    let last = messages(&mut stream).await.pop().unwrap();
    assert_eq!(last, (8, vec![3, 233]));
    timeout(Duration::from_secs(5), server.dropped.notified()).await.unwrap();
    drop(stream);
    timeout(Duration::from_secs(5), &mut server.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn disconnected_client_ends_exec() {
    let server = running().await;
    let (stream, _) = server.begin(EXEC, UPGRADE).await;
    drop(stream);
    timeout(Duration::from_secs(5), server.dropped.notified()).await.unwrap();
}

#[tokio::test]
async fn invalid_exec_requests_are_rejected() {
    let server = running().await;
    for (path, headers, code) in [
        (EXEC, "", "400"),
        (EXEC, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", "400"),
        ("p/exec?command=x", UPGRADE, "400"),
        ("p/exec?command=x&stdout=true&container=none", UPGRADE, "400"),
        ("none/exec?command=x&stdout=true", UPGRADE, "404"),
    ] {
        let (_, head) = server.begin(path, headers).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{path} {headers}: {head}");
    }
}

/// U-3: kubectl tries SPDY after any failure, so this is the message that it shows.
#[tokio::test]
async fn exec_in_a_pod_of_another_node_names_the_node() {
    let server = running().await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"metadata": {"name": "far"}, "spec": {"nodeName": "other", "containers": containers}});
    server.request("POST", "/api/v1/namespaces/default/pods", pod).await;
    for headers in [UPGRADE, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"] {
        let (mut stream, head) = server.begin("far/exec?command=x&stdout=true", headers).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        let (mut shown, mut buffer) = (head, [0; 1024]);
        while !shown.contains("is on node") {
            let count = timeout(Duration::from_secs(5), stream.read(&mut buffer)).await.unwrap().unwrap();
            assert!(count > 0, "{shown}");
            shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        assert!(shown.contains("other"), "{shown}");
    }
}

#[tokio::test]
async fn log_ends_with_its_content_or_with_the_server() {
    let server = running().await;
    let (mut stream, head) = server.begin("p/log", "Connection: close\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: text/plain"), "{head}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("log of abc\n"), "{rest}");

    let (mut stream, _) = server.begin("p/log?follow=true", "").await;
    let mut first = [0; 32];
    let count = stream.read(&mut first).await.unwrap();
    assert!(String::from_utf8_lossy(&first[..count]).contains("log of"), "{first:?}");
    server.stop.cancel();
    let mut rest = Vec::new();
    timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "the log ends with a final chunk");
}
