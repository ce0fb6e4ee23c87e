//! Tokens that are revoked, restored and rotated; and that they are told to nobody.

use tokio::net::{TcpListener, TcpStream};
use wharf_driver_digitalocean::{Client, Kind, Token};

use crate::support::{TOKEN, bench, client_options};

#[tokio::test]
async fn revoked_and_restored() {
    let bench = bench().await;
    bench.client.account().await.unwrap();
    bench.fake.revoke_token(TOKEN);
    bench.fake.forget_requests();
    let error = bench.client.account().await.unwrap_err();
    assert_eq!((error.kind(), error.id()), (Kind::Unauthorized, "unauthorized"), "{error}");
    assert_eq!(bench.fake.requests().len(), 1, "the same token is not tried again");
    bench.fake.allow_token(TOKEN);
    bench.client.account().await.unwrap();
}

#[tokio::test]
async fn a_rotated_file_works_without_a_restart() {
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
    assert_eq!(client.account().await.unwrap_err().kind(), Kind::Unauthorized);
    std::fs::write(&file, "dop_v1_next\n").unwrap();
    client.account().await.unwrap();
}

/// The file is replaced while a request with the old token is on its way.
#[tokio::test]
async fn a_token_replaced_meanwhile_is_tried_at_once() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("access-token");
    std::fs::write(&file, "dop_v1_old").unwrap();
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = client_options(format!("http://{}", api.local_addr().unwrap()));
    options.token = Token::file(&file).unwrap();
    let client = Client::new(options).unwrap();
    let (answer, ()) = tokio::join!(client.account(), async {
        let (mut old, _) = api.accept().await.unwrap();
        assert!(request(&mut old).await.contains("Bearer dop_v1_old\r\n"));
        std::fs::write(&file, "dop_v1_new").unwrap();
        let refusal = r#"{"id":"unauthorized","message":"Unable to authenticate you."}"#;
        answer(&mut old, "401 Unauthorized", refusal).await;
        drop(old);
        let (mut new, _) = api.accept().await.unwrap();
        assert!(request(&mut new).await.contains("Bearer dop_v1_new\r\n"));
        answer(&mut new, "200 OK", r#"{"account":{"volume_limit":3}}"#).await;
    });
    assert_eq!(answer.unwrap().volume_limit, 3);
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

async fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    stream.writable().await.unwrap();
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    assert_eq!(stream.try_write(text.as_bytes()).unwrap(), text.len());
}

#[tokio::test]
async fn no_error_and_no_debug_output_has_it() {
    let bench = bench().await;
    let shown = format!("{:?} {:?}", bench.client, bench.attachments);
    assert!(!shown.contains(TOKEN), "{shown}");
    bench.fake.revoke_token(TOKEN);
    let error = bench.client.account().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(TOKEN));
    drop(bench.fake);
}
