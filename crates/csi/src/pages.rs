//! The few pages that a driver and a sidecar have for probes and Prometheus: GET over plain HTTP/1. A caller
//! that connects and says nothing is hung up on, and none of them can keep the others waiting.

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

/// A caller that connects and says nothing is not waited for longer than this.
const SILENCE: Duration = Duration::from_secs(10);

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Without it Prometheus 3 does not read the page.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What a caller gets to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    status: StatusCode,
    content_type: HeaderValue,
    text: String,
}

impl Page {
    /// Plain text.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, content_type: PLAIN, text: text.into() }
    }

    /// Metrics, in the format of OpenMetrics.
    pub fn metrics(text: String) -> Self {
        Self { status: StatusCode::OK, content_type: OPEN_METRICS, text }
    }
}

/// Where callers come in.
#[derive(Debug)]
pub enum PageListener {
    /// From the network.
    Tcp(TcpListener),
    /// From this machine, as the socket's file lets them.
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

/// Serves the page that `page` makes of each path, until it is aborted.
pub async fn serve_pages<P, F>(listener: impl Into<PageListener>, page: P)
where
    P: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Page> + Send,
{
    let listener = listener.into();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, most likely: wait, or this would spin.
                tracing::warn!(%error, "an HTTP connection was not accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let page = page.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let page = page.clone();
            async move {
                let Page { status, content_type, text } = match request.method() {
                    &Method::GET => page(request.uri().path().to_owned()).await,
                    _ => Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
                };
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                Ok::<_, Infallible>(response)
            }
        });
        tokio::spawn(async move {
            let mut connection = hyper::server::conn::http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(SILENCE);
            if let Err(error) = connection.serve_connection(TokioIo::new(stream), answer).await {
                tracing::debug!(%error, "an HTTP connection broke off");
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
    async fn pages_by_path_and_only_to_get() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve_pages(listener, |path| async move {
            match path.as_str() {
                "/metrics" => Page::metrics("a 1\n".into()),
                _ => Page::text(StatusCode::NOT_FOUND, format!("no {path}")),
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
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
            assert!(answer.contains(content_type), "{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{text}")), "{answer}");
        }
        server.abort();
    }
}
