//! Clients that hold a connection slot without using it.

use std::time::Instant;

use tokio::io::AsyncWriteExt as _;

use super::*;

const SHORT: Duration = Duration::from_millis(400);
/// Longer than any operation of these tests.
const LONG: Duration = Duration::from_secs(60);

/// A client with its connection, which ends when the server closes it.
struct Client {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

async fn http2(stream: TlsStream<TcpStream>) -> Client {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    Client { sender, connection: tokio::spawn(connection) }
}

impl Running {
    async fn client(&self, identity: Option<Identity>) -> Client {
        http2(self.connect(&self.pki, identity, "h2").await.unwrap()).await
    }

    async fn floods_end(&self) {
        let ended = async {
            while self.echo.floods.load(Ordering::SeqCst) > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, ended).await.expect("the flood did not end");
    }
}

#[tokio::test]
async fn idle_connection_is_closed_after_a_request() {
    let server = running_with(Limits { connections: 1, idle: SHORT, stalled: LONG }).await;
    let started = Instant::now();
    let mut client = server.client(None).await;
    for _ in 0..2 {
        sleep(SHORT / 2).await;
        assert!(text(client.sender.send_request(get("/readyz")).await.unwrap()).await.contains("/readyz"));
    }
    timeout(LONG, &mut client.connection).await.expect("the idle connection stays open").unwrap().unwrap();
    assert!(started.elapsed() >= SHORT * 2, "{:?}", started.elapsed());
    // The only slot is free again.
    let other = timeout(LONG, server.request(Some(Identity::Admin), "http/1.1", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let server = running_with(Limits { connections: 1, idle: SHORT, stalled: LONG }).await;
    let silent = server.connect(&server.pki, None, "http/1.1").await.unwrap();
    let other = timeout(LONG, server.request(Some(Identity::Admin), "h2", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
    drop(silent);
}

#[tokio::test]
async fn idle_watch_keeps_its_connection() {
    let server = running_with(Limits { connections: 1, idle: SHORT, stalled: SHORT }).await;
    let mut client = server.client(Some(Identity::Admin)).await;
    let mut watch = client.sender.send_request(get("/api?watch=1")).await.unwrap();
    watch.frame().await.unwrap().unwrap();
    sleep(SHORT * 4).await;
    assert!(!client.connection.is_finished());
    let other_request = client.sender.send_request(get("/api")).await.unwrap();
    assert_eq!(text(other_request).await, "wharf:admin GET /api 0");
    drop(watch);
    timeout(LONG, client.connection)
        .await
        .expect("the connection stays open after its last request")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn http1_client_that_does_not_read_is_disconnected() {
    let server = running_with(Limits { connections: 1, idle: LONG, stalled: SHORT }).await;
    let mut stalled = server.connect(&server.pki, Some(Identity::Admin), "http/1.1").await.unwrap();
    stalled.write_all(b"GET /flood?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    stalled.flush().await.unwrap();
    server.echo.reached.notified().await;
    server.floods_end().await;
    let other = timeout(LONG, server.request(Some(Identity::Admin), "h2", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
    drop(stalled);
}

#[tokio::test]
async fn unread_http2_stream_is_reset_and_others_continue() {
    let server = running_with(Limits { connections: 1, idle: LONG, stalled: SHORT }).await;
    let mut client = server.client(Some(Identity::Admin)).await;
    let watch = client.sender.send_request(get("/api?watch=1")).await.unwrap();
    let stalled = client.sender.send_request(get("/flood?watch=1")).await.unwrap();
    server.floods_end().await;
    assert!(stalled.into_body().collect().await.is_err(), "the stream must be reset, not ended");
    let other_request = client.sender.send_request(get("/api")).await.unwrap();
    assert_eq!(text(other_request).await, "wharf:admin GET /api 0");
    server.stop.cancel();
    assert_eq!(text(watch).await, "wharf:admin GET /api 0");
}
