//! `/metrics` for Prometheus and `/healthz` for whoever watches the process, over plain HTTP/1.

use std::convert::Infallible;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::identity::Ready;
use crate::metrics::Metrics;

/// A caller that connects and says nothing is not waited for longer than this.
const SILENCE: Duration = Duration::from_secs(10);

/// Serves both until it is aborted.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, ready: Ready) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: wait, or this would spin.
                tracing::warn!(%error, "a connection for metrics was not accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (metrics, ready) = (metrics.clone(), ready.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            let (status, text) = page(request.method(), request.uri().path(), &metrics, &ready);
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(async move {
            let mut connection = hyper::server::conn::http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(SILENCE);
            if let Err(error) = connection.serve_connection(TokioIo::new(stream), answer).await {
                tracing::debug!(%error, "a connection for metrics broke off");
            }
        });
    }
}

fn page(method: &Method, path: &str, metrics: &Metrics, ready: &Ready) -> (StatusCode, String) {
    match (method, path) {
        (&Method::GET, "/metrics") => (StatusCode::OK, metrics.text()),
        (&Method::GET, "/healthz") => match ready() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
    }
}
