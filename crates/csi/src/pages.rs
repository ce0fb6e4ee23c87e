//! The HTTP pages that drivers and sidecars serve to probes and Prometheus: GET over plain HTTP/1. The server
//! disconnects clients that send no request, and serves all clients concurrently. Start at [`serve_pages`].

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// How long a client may take to send its request headers.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Prometheus 3 rejects a metrics page without a content type that it knows.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The response to one GET request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpPage {
    status: StatusCode,
    content_type: HeaderValue,
    text: String,
}

impl HttpPage {
    /// A page of plain text.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, content_type: PLAIN, text: text.into() }
    }

    /// A page of metrics in the OpenMetrics format.
    pub fn metrics(text: String) -> Self {
        Self { status: StatusCode::OK, content_type: OPEN_METRICS, text }
    }
}

/// The socket on which pages are served.
#[derive(Debug)]
pub enum PageListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket: the permissions of its file decide which local processes can connect.
    Unix(UnixListener),
}

impl From<TcpListener> for PageListener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for PageListener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl PageListener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves the page that `page` returns for each path, until the future is dropped.
pub async fn serve_pages<P, F>(listener: impl Into<PageListener>, page: P)
where
    P: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = HttpPage> + Send,
{
    let listener = listener.into();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                // Most likely the process is out of descriptors: without a pause this would spin.
                tracing::warn!(%error, "failed to accept HTTP connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let page = page.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let page = page.clone();
            async move {
                let HttpPage { status, content_type, text } = match request.method() {
                    &Method::GET => page(request.uri().path().to_owned()).await,
                    _ => HttpPage::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
                };
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                Ok::<_, Infallible>(response)
            }
        });
        tokio::spawn(async move {
            let mut connection = hyper::server::conn::http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT);
            if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "HTTP connection failed");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn get_returns_the_page_of_the_path_and_other_methods_fail() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve_pages(listener, |path| async move {
            match path.as_str() {
                "/metrics" => HttpPage::metrics("a 1\n".into()),
                _ => HttpPage::text(StatusCode::NOT_FOUND, format!("no {path}")),
            }
        }));
        for (request, status, content_type, text) in [
            ("GET /metrics", "200", "application/openmetrics-text", "a 1\n"),
            ("GET /x?y=z", "404", "text/plain", "no /x"),
            ("POST /metrics", "405", "text/plain", "only GET\n"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
            assert!(response.contains(content_type), "{response}");
            assert!(response.ends_with(&format!("\r\n\r\n{text}")), "{response}");
        }
        server.abort();
    }
}
