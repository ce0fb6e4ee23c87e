//! Revoked, restored and rotated tokens, and that tokens are never leaked.

use tokio::net::{TcpListener, TcpStream};
use wharf_driver_digitalocean::{ApiErrorKind, Client, Token};

use crate::support::{TOKEN, bench, client_options};

#[tokio::test]
async fn revoked_token_is_unauthorized_until_restored() {
    let bench = bench().await;
    bench.client.account().await.unwrap();
    bench.fake.revoke_token(TOKEN);
    bench.fake.forget_requests();
    let error = bench.client.account().await.unwrap_err();
    assert_eq!((error.kind(), error.id()), (ApiErrorKind::Unauthorized, "unauthorized"), "{error}");
    assert_eq!(bench.fake.requests().len(), 1, "the same token must not be retried");
    bench.fake.allow_token(TOKEN);
    bench.client.account().await.unwrap();
}

#[tokio::test]
async fn rotated_token_file_works_without_restart() {
    let bench = bench().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("access-token");
    std::fs::write(&file, TOKEN).unwrap();
    let mut options = client_options(bench.fake.url());
    options.token = Token::file(&file).unwrap();
    let client = Client::new(options).unwrap();
    client.account().await.unwrap();
    bench.fake.revoke_token(TOKEN);
    bench.fake.allow_token("dop_v1_next");
    assert_eq!(client.account().await.unwrap_err().kind(), ApiErrorKind::Unauthorized);
    std::fs::write(&file, "dop_v1_next\n").unwrap();
    client.account().await.unwrap();
}

/// The file is replaced while a request with the old token is in flight.
#[tokio::test]
async fn token_replaced_during_a_request_is_tried_at_once() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("access-token");
    std::fs::write(&file, "dop_v1_old").unwrap();
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = client_options(format!("http://{}", api.local_addr().unwrap()));
    options.token = Token::file(&file).unwrap();
    let client = Client::new(options).unwrap();
    let (response, ()) = tokio::join!(client.account(), async {
        let (mut old, _) = api.accept().await.unwrap();
        assert!(request(&mut old).await.contains("Bearer dop_v1_old\r\n"));
        std::fs::write(&file, "dop_v1_new").unwrap();
        let refusal = r#"{"id":"unauthorized","message":"Unable to authenticate you."}"#;
        response(&mut old, "401 Unauthorized", refusal).await;
        drop(old);
        let (mut new, _) = api.accept().await.unwrap();
        assert!(request(&mut new).await.contains("Bearer dop_v1_new\r\n"));
        response(&mut new, "200 OK", r#"{"account":{"volume_limit":3}}"#).await;
    });
    assert_eq!(response.unwrap().volume_limit, 3);
}

async fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.readable().await.unwrap();
        let mut buffer = [0; 1024];
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    String::from_utf8(head).unwrap()
}

async fn response(stream: &mut TcpStream, status: &str, body: &str) {
    stream.writable().await.unwrap();
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    assert_eq!(stream.try_write(text.as_bytes()).unwrap(), text.len());
}

#[tokio::test]
async fn token_is_not_in_errors_or_debug_output() {
    let bench = bench().await;
    let shown = format!("{:?} {:?}", bench.client, bench.attachments);
    assert!(!shown.contains(TOKEN), "{shown}");
    bench.fake.revoke_token(TOKEN);
    let error = bench.client.account().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(TOKEN));
    drop(bench.fake);
}
