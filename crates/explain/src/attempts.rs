//! Reads a sidecar's `/debug/attempts` page: what it last tried for each object.

use std::error::Error;

use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Duration, timeout};
use tokio_util::task::AbortOnDropHandle;
use wharf_model::{Attempt, attempt};

const TIMEOUT: Duration = Duration::from_secs(3);
/// The page is bounded, so a longer response is not the page.
const LIMIT: usize = 8 << 20;

type BoxError = Box<dyn Error + Send + Sync>;

/// Reads the page at `address`, such as `127.0.0.1:9808` or `unix:///run/metrics.sock`.
pub(crate) async fn read(address: &str) -> Result<Vec<Attempt>, String> {
    let request = async {
        match address.strip_prefix("unix://") {
            Some(path) => fetch(UnixStream::connect(path).await?, "localhost").await,
            None => {
                let address = address.trim_start_matches("http://").trim_end_matches('/');
                fetch(TcpStream::connect(address).await?, address).await
            }
        }
    };
    match timeout(TIMEOUT, request).await {
        Ok(attempts) => attempts.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no response within {} s", TIMEOUT.as_secs())),
    }
}

async fn fetch(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    host: &str,
) -> Result<Vec<Attempt>, BoxError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(attempt::PATH).header(HOST, host).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("HTTP status {}", response.status()).into());
    }
    let page = Limited::new(response.into_body(), LIMIT).collect().await?.to_bytes();
    Ok(attempt::parse_page(&page)?)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The result of reading from a server that sends this response.
    async fn read_response(response: impl Into<Vec<u8>>) -> Result<Vec<Attempt>, String> {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let response = response.into();
        let server = async move {
            let mut request = [0; 1024];
            let length = server.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /debug/attempts HTTP/1.1\r\n"));
            // The client may close the connection before it has read everything.
            let _ = server.write_all(&response).await;
        };
        let (read, ()) = tokio::join!(fetch(client, "localhost"), server);
        read.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn page_is_read_with_a_length_in_chunks_and_until_the_connection_closes() {
        let attempts = [Attempt { role: "attacher".into(), failures: 2, ..Attempt::default() }];
        let page = attempt::page(&attempts);
        let (first, rest) = page.split_at(9);
        for response in [
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len()),
            format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
                rest.len()
            ),
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{page}"),
        ] {
            assert_eq!(read_response(response.clone()).await.as_deref(), Ok(&attempts[..]), "{response}");
        }
    }

    #[tokio::test]
    async fn response_that_is_not_the_page_is_an_error() {
        let not_found = read_response("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(not_found, Err("HTTP status 404 Not Found".into()));
        for response in ["", "no HTTP\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n] ["] {
            assert!(read_response(response).await.is_err(), "{response:?}");
        }
        let truncated = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[]";
        assert!(read_response(truncated).await.is_err());
    }

    #[tokio::test]
    async fn response_over_the_limit_is_an_error() {
        let mut response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n[", LIMIT + 2).into_bytes();
        response.resize(response.len() + LIMIT, b' ');
        response.push(b']');
        assert_eq!(read_response(response).await, Err("length limit exceeded".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_respond_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("silent.sock");
        let _silent = tokio::net::UnixListener::bind(&path).unwrap();
        let read = read(&format!("unix://{}", path.display())).await;
        assert_eq!(read, Err("no response within 3 s".into()));
    }
}
