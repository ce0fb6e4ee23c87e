//! Clients that hold a place and do nothing with it.

use std::time::Instant;

use tokio::io::AsyncWriteExt as _;

use super::*;

const SHORT: Duration = Duration::from_millis(400);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A client with its connection, which ends when the server ends it.
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
        timeout(LONG, ended).await.expect("it goes on");
    }
}

#[tokio::test]
async fn one_request_is_no_right_to_stay() {
    let server = running_with(Bounds { connections: 1, idle: SHORT, stalled: LONG }).await;
    let began = Instant::now();
    let mut client = server.client(None).await;
    for _ in 0..2 {
        sleep(SHORT / 2).await;
        assert!(text(client.sender.send_request(get("/readyz")).await.unwrap()).await.contains("/readyz"));
    }
    timeout(LONG, &mut client.connection).await.expect("it is told to go").unwrap().unwrap();
    assert!(began.elapsed() >= SHORT * 2, "{:?}", began.elapsed());
    // Its place is free, of which there is one.
    let other = timeout(LONG, server.ask(Some(Identity::Admin), "http/1.1", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
}

#[tokio::test]
async fn who_sends_nothing_does_not_stay() {
    let server = running_with(Bounds { connections: 1, idle: SHORT, stalled: LONG }).await;
    let silent = server.connect(&server.pki, None, "http/1.1").await.unwrap();
    let other = timeout(LONG, server.ask(Some(Identity::Admin), "h2", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
    drop(silent);
}

#[tokio::test]
async fn a_watch_that_has_nothing_to_say_stays() {
    let server = running_with(Bounds { connections: 1, idle: SHORT, stalled: SHORT }).await;
    let mut client = server.client(Some(Identity::Admin)).await;
    let mut watch = client.sender.send_request(get("/api?watch=1")).await.unwrap();
    watch.frame().await.unwrap().unwrap();
    sleep(SHORT * 4).await;
    assert!(!client.connection.is_finished());
    let beside = client.sender.send_request(get("/api")).await.unwrap();
    assert_eq!(text(beside).await, "wharf:admin GET /api 0");
    drop(watch);
    timeout(LONG, client.connection).await.expect("it was the last").unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_connection() {
    let server = running_with(Bounds { connections: 1, idle: LONG, stalled: SHORT }).await;
    let mut deaf = server.connect(&server.pki, Some(Identity::Admin), "http/1.1").await.unwrap();
    deaf.write_all(b"GET /flood?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    deaf.flush().await.unwrap();
    server.echo.reached.notified().await;
    server.floods_end().await;
    let other = timeout(LONG, server.ask(Some(Identity::Admin), "h2", get("/api"))).await.unwrap();
    assert_eq!(text(other).await, "wharf:admin GET /api 0");
    drop(deaf);
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_and_the_others_go_on() {
    let server = running_with(Bounds { connections: 1, idle: LONG, stalled: SHORT }).await;
    let mut client = server.client(Some(Identity::Admin)).await;
    let watch = client.sender.send_request(get("/api?watch=1")).await.unwrap();
    let unread = client.sender.send_request(get("/flood?watch=1")).await.unwrap();
    server.floods_end().await;
    assert!(unread.into_body().collect().await.is_err(), "it did not end, it was cut off");
    let beside = client.sender.send_request(get("/api")).await.unwrap();
    assert_eq!(text(beside).await, "wharf:admin GET /api 0");
    server.stop.cancel();
    assert_eq!(text(watch).await, "wharf:admin GET /api 0");
}
